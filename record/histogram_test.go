package record

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const minuteNS = 60_000_000_000

// newHistogram has the geometry of the rig's.
func newHistogram(t testing.TB, values ...int64) *hdrhistogram.Histogram {
	t.Helper()
	h := hdrhistogram.New(1, minuteNS, 3)
	for _, v := range values {
		if err := h.RecordValue(v); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// Values below 2048 ns have a bucket each, so a percentile must equal the
// sorted list's element, to the nanosecond.
func TestPercentilesAreElementsOfTheSortedList(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	counts := []int{1, 2, 3, 9, 10, 11, 99, 100, 101, 999, 1000, 1001, 9999, 10000, 10001, 99999, 100000, 100001}
	for range 50 {
		counts = append(counts, 1+rng.IntN(3000))
	}
	for _, n := range counts {
		for _, beyond := range []int64{0, 1, 2, int64(n / 100), int64(n)} {
			values := make([]int64, n)
			for i := range values {
				values[i] = rng.Int64N(2048)
			}
			d := NewDistribution(newHistogram(t, values...), slices.Max(values), beyond, 5_000_000_000)
			slices.Sort(values)
			total := int64(n) + beyond
			if len(d.Percentiles) != len(ranks) {
				t.Fatalf("n %d: %d percentiles", n, len(d.Percentiles))
			}
			for _, p := range d.Percentiles {
				// Exact: the smallest k with 1000*100*k >= 1000*rank*total.
				thousandths := int64(math.Round(p.Rank * 1000))
				k := (thousandths*total + 99_999) / 100_000
				want := Percentile{Rank: p.Rank, US: 5e6, AtLeast: true}
				if k <= int64(n) {
					want = Percentile{Rank: p.Rank, US: float64(values[k-1]) / 1e3}
				}
				if p != want {
					t.Fatalf("n %d, beyond %d: %+v, want %+v", n, beyond, p, want)
				}
			}
		}
	}
}

func TestCeilRank(t *testing.T) {
	for _, total := range []uint64{1, 3, 1000, 123_456_789, 1 << 53, 1<<53 + 1, 1<<62 + 12345, math.MaxInt64} {
		for _, r := range ranks {
			want := new(big.Int).Mul(big.NewInt(r), new(big.Int).SetUint64(total))
			want.Add(want, big.NewInt(99_999)).Div(want, big.NewInt(100_000))
			if got := ceilRank(r, total); got != want.Int64() {
				t.Errorf("rank %d of %d: %d, want %v", r, total, got, want)
			}
		}
	}
}

func TestDistributionOfNothing(t *testing.T) {
	d := NewDistribution(newHistogram(t), 0, 0, 0)
	if d.Count != 0 || d.MeanUS != 0 || d.MaxUS != 0 || d.Percentiles == nil || len(d.Percentiles) != 0 {
		t.Errorf("%+v", d)
	}
	if _, ok := d.At(50); ok {
		t.Error("an empty distribution has a median")
	}
	if _, err := d.Decode(); err != nil {
		t.Error(err)
	}
	// Nothing answered at all: every percentile is a lower bound.
	d = NewDistribution(newHistogram(t), 0, 3, 5_000_000_000)
	for _, p := range d.Percentiles {
		if !p.AtLeast || p.US != 5e6 {
			t.Errorf("%+v", p)
		}
	}
	if len(d.Percentiles) != len(ranks) {
		t.Errorf("%d percentiles", len(d.Percentiles))
	}
}

func TestDistributionExactMaximum(t *testing.T) {
	// 4,997,121 is the second of a bucket of 4096; neither p50 nor the mean may
	// exceed it.
	h := newHistogram(t, 4_997_121, 4_997_121)
	d := NewDistribution(h, 4_997_121, 0, 0)
	if p, _ := d.At(50); p.US != 4997.121 {
		t.Errorf("p50 %v", p.US)
	}
	if d.MaxUS != 4997.121 || d.MeanUS > d.MaxUS {
		t.Errorf("max %v mean %v", d.MaxUS, d.MeanUS)
	}
	// Not known: the histogram's own.
	if d := NewDistribution(h, 0, 0, 0); d.MaxUS != float64(h.Max())/1e3 {
		t.Errorf("max %v, want %v", d.MaxUS, float64(h.Max())/1e3)
	}
	// Out of the histogram's range: still the maximum.
	if d := NewDistribution(h, 2*minuteNS, 0, 0); d.MaxUS != 120e6 {
		t.Errorf("max %v", d.MaxUS)
	}
}

// A request that took longer than the drain was answered; those that never
// were rank above it and must not print less.
func TestBeyondIsNeverLessThanTheMaximum(t *testing.T) {
	d := NewDistribution(newHistogram(t, 1000, 7_000_000_000), 7_000_000_000, 1, 5_000_000_000)
	if p, _ := d.At(100); !p.AtLeast || p.US != 7e6 || d.BeyondUS != 7e6 {
		t.Errorf("p100 %+v, beyond %v us", p, d.BeyondUS)
	}
}

func TestNegativeBeyondPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	NewDistribution(newHistogram(t), 0, -1, 0)
}

func TestDecodeRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	h := newHistogram(t)
	for range 10_000 {
		h.RecordValue(int64(rng.ExpFloat64() * 300_000))
	}
	got, err := NewDistribution(h, 0, 0, 0).Decode()
	if err != nil {
		t.Fatal(err)
	}
	if !got.Equals(h) {
		t.Error("the histogram changed on its way")
	}
}

// encodeHeader makes an encoded histogram that asks for a geometry and holds
// nothing.
func encodeHeader(digits int32, lowest, highest int64) string {
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	binary.Write(w, binary.BigEndian, []int32{hdrhistogram.V2EncodingCookieBase | 0x10, 0, 0, digits})
	binary.Write(w, binary.BigEndian, []int64{lowest, highest})
	binary.Write(w, binary.BigEndian, 1.0)
	w.Close()
	var b bytes.Buffer
	binary.Write(&b, binary.BigEndian, []int32{hdrhistogram.V2CompressedEncodingCookieBase | 0x10, int32(z.Len())})
	b.Write(z.Bytes())
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func TestDecodeRefuses(t *testing.T) {
	good := NewDistribution(newHistogram(t, 1, 2, 3), 3, 0, 0)
	if _, err := (Distribution{Histogram: encodeHeader(3, 1, minuteNS)}).Decode(); err != nil {
		t.Fatalf("a histogram of the rig's geometry: %v", err)
	}
	for _, c := range []struct {
		name string
		d    Distribution
		want string
	}{
		{"nothing", Distribution{}, "cut off"},
		{"not base64", Distribution{Histogram: "!"}, "not base64"},
		{"cut off", Distribution{Count: 3, Histogram: good.Histogram[:40]}, "cut off"},
		{"not compressed", Distribution{Histogram: base64.StdEncoding.EncodeToString(make([]byte, 40))}, "not compressed"},
		{"other count", Distribution{Count: 4, Histogram: good.Histogram}, "holds 3 values, count says 4"},
		{"too large", Distribution{Histogram: strings.Repeat("A", maxEncodedBytes+1)}, "at most"},
		{"too fine", Distribution{Histogram: encodeHeader(5, 1, minuteNS)}, "digits"},
		{"too wide", Distribution{Histogram: encodeHeader(3, 1, math.MaxInt64)}, "range"},
		{"too coarse", Distribution{Histogram: encodeHeader(3, 1<<40, 1<<50)}, "range"},
		{"backwards", Distribution{Histogram: encodeHeader(3, 1, -5)}, "range"},
	} {
		if _, err := c.d.Decode(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(NewDistribution(newHistogram(f, 1, 300_000, 7_000_000_000), 0, 0, 0).Histogram, int64(3))
	f.Add(NewDistribution(newHistogram(f), 0, 0, 0).Histogram, int64(0))
	f.Add(encodeHeader(0, 0, 1), int64(0))
	f.Add(encodeHeader(4, maxLowestNS, maxHighestNS), int64(0))
	f.Add("", int64(0))
	f.Fuzz(func(t *testing.T, text string, count int64) {
		h, err := Distribution{Count: count, Histogram: text}.Decode()
		if err != nil {
			return
		}
		if h.ByteSize() > 16<<20 {
			t.Fatalf("%d bytes of memory", h.ByteSize())
		}
		// What was decoded can be used.
		d := NewDistribution(h, 0, 1, minuteNS)
		if math.IsNaN(d.MeanUS) || d.MeanUS < 0 || d.MaxUS < 0 {
			t.Fatalf("%+v", d)
		}
		for i := 1; i < len(d.Percentiles); i++ {
			if d.Percentiles[i].US < d.Percentiles[i-1].US {
				t.Fatalf("percentiles fall: %+v", d.Percentiles)
			}
		}
		if _, err := d.Decode(); err != nil {
			t.Fatal(err)
		}
		if err := WriteHGRM(new(bytes.Buffer), h, 1, minuteNS); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMerge(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	all := newHistogram(t)
	parts := []*hdrhistogram.Histogram{newHistogram(t), newHistogram(t), hdrhistogram.New(1, minuteNS/2, 3)}
	maxima := make([]int64, len(parts))
	for i := range 30_000 {
		v := int64(rng.ExpFloat64() * 400_000)
		all.RecordValue(v)
		parts[i%3].RecordValue(v)
		maxima[i%3] = max(maxima[i%3], v)
	}
	got, err := Merge(
		NewDistribution(parts[0], maxima[0], 10, 4_000_000_000),
		NewDistribution(parts[1], maxima[1], 0, 0),
		NewDistribution(parts[2], maxima[2], 20, 5_000_000_000))
	if err != nil {
		t.Fatal(err)
	}
	want := NewDistribution(all, slices.Max(maxima), 30, 4_000_000_000)
	if got.Histogram != want.Histogram || got.Count != want.Count || got.Beyond != 30 || got.BeyondUS != 4e6 ||
		got.MaxUS != want.MaxUS || got.MeanUS != want.MeanUS || !slices.Equal(got.Percentiles, want.Percentiles) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}

	good := NewDistribution(newHistogram(t, 1), 1, 1, 1)
	change := func(f func(*Distribution)) Distribution {
		d := good
		f(&d)
		return d
	}
	for _, c := range []struct {
		parts []Distribution
		want  string
	}{
		{nil, "no distributions"},
		{[]Distribution{good, {}}, "distribution 2: histogram"},
		{[]Distribution{change(func(d *Distribution) { d.MaxUS = 1e300 })}, "max_us"},
		{[]Distribution{change(func(d *Distribution) { d.MaxUS = math.NaN() })}, "max_us"},
		{[]Distribution{change(func(d *Distribution) { d.BeyondUS = -1 })}, "beyond_us"},
		{[]Distribution{change(func(d *Distribution) { d.Beyond = -1 })}, "beyond -1"},
		{[]Distribution{good, change(func(d *Distribution) { d.Beyond = math.MaxInt64 })}, "beyond"},
		{[]Distribution{change(func(d *Distribution) { d.Beyond = math.MaxInt64 })}, "counts"},
	} {
		if _, err := Merge(c.parts...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

func BenchmarkNewDistribution(b *testing.B) {
	rng := rand.New(rand.NewPCG(7, 8))
	h := newHistogram(b)
	for range 1_000_000 {
		h.RecordValue(int64(rng.ExpFloat64() * 400_000))
	}
	b.ReportAllocs()
	for b.Loop() {
		NewDistribution(h, 0, 0, 0)
	}
}
