package loadgen

import (
	"math"
	"math/big"
	"slices"
	"testing"
)

// Every uniform instant is the floor of law 1, computed in exact integers.
func TestUniformIsExact(t *testing.T) {
	for _, c := range []Config{
		{Rate: 1, Burst: 1, Lanes: 1},
		{Rate: 3, Burst: 1, Lanes: 1},
		{Rate: 999_983, Burst: 7, Lanes: 3},
		{Rate: MaxRate, Burst: 1, Lanes: MaxLanes},
		{Rate: 1, Burst: MaxSlots, Lanes: MaxLanes},
		{Rate: 150_000, Burst: 10, Lanes: 2},
	} {
		for lane := range c.Lanes {
			s := newSchedule(c, lane)
			for i := range int64(2000) {
				k := i*int64(c.Lanes) + int64(lane)
				want := new(big.Int).Mul(big.NewInt(k), big.NewInt(int64(c.Burst)))
				want.Mul(want, big.NewInt(1e9)).Div(want, big.NewInt(c.Rate))
				if !want.IsInt64() || want.Int64() > 4*MaxDuration.Nanoseconds() {
					break // no run is that long
				}
				if got := s.next(); got != want.Int64() {
					t.Fatalf("%+v lane %d: t(%d) = %d, want %v", c, lane, k, got, want)
				}
			}
		}
	}
}

// A day at an odd rate ends on the nanosecond: nothing drifts.
func TestUniformDoesNotDrift(t *testing.T) {
	c := Config{Rate: 1009, Burst: 1, Lanes: 1}
	s := newSchedule(c, 0)
	var at int64
	const n = 1009 * 3600
	for range n + 1 {
		at = s.next()
	}
	if at != 3600*1e9 {
		t.Errorf("instant %d is at %d ns, want 3600 s", n, at)
	}
}

// The lanes' instants together are those of one lane.
func TestLanesShareTheSchedule(t *testing.T) {
	for _, arrival := range []Arrival{Uniform, Poisson} {
		c := Config{Rate: 12_345, Burst: 3, Lanes: 1, Arrival: arrival, Seed: 42}
		one := newSchedule(c, 0)
		var want, got []int64
		for range 900 {
			want = append(want, one.next())
		}
		c.Lanes = 3
		for lane := range c.Lanes {
			s := newSchedule(c, lane)
			for range 300 {
				got = append(got, s.next())
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%v: three lanes offer other instants than one", arrival)
		}
	}
}

// Exponential gaps: mean and standard deviation are both BURST/RATE, and the
// share beyond the mean is 1/e.
func TestPoissonGaps(t *testing.T) {
	c := Config{Rate: 1000, Burst: 2, Lanes: 1, Arrival: Poisson, Seed: 1}
	const n = 200_000
	s := newSchedule(c, 0)
	var last int64
	var sum, squares, beyond float64
	for range n {
		at := s.next()
		if at < last {
			t.Fatal("time goes back")
		}
		gap := float64(at - last)
		last = at
		sum += gap
		squares += gap * gap
		if gap > 2e6 {
			beyond++
		}
	}
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	// Three standard errors of n samples.
	if math.Abs(mean-2e6) > 3*2e6/math.Sqrt(n) {
		t.Errorf("mean gap %.0f ns, want 2000000", mean)
	}
	if math.Abs(deviation-2e6) > 6*2e6/math.Sqrt(n) {
		t.Errorf("standard deviation %.0f ns, want that of the mean", deviation)
	}
	if share := beyond / n; math.Abs(share-1/math.E) > 0.005 {
		t.Errorf("%.4f of the gaps exceed the mean, want 1/e", share)
	}
}

func TestSeeds(t *testing.T) {
	first := func(seed uint64) int64 {
		return newSchedule(Config{Rate: 10, Burst: 1, Lanes: 1, Arrival: Poisson, Seed: seed}, 0).next()
	}
	if a, b := first(1), first(1); a != b || a == first(2) {
		t.Error("a seed does not decide the arrivals")
	}
}
