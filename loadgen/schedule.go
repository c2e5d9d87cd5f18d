package loadgen

import (
	"math"
	"math/rand/v2"
)

// schedule yields the instants of one lane, as offsets from the run's origin
// in nanoseconds. Nothing that comes back from the system can move them.
//
// Uniform instants are t(k) = floor(k*BURST*1e9/RATE) for k = lane, lane+LANES,
// ..., in integers and from one origin: a rounded interval added up would
// drift. Poisson instants are the running sum of exponential gaps of mean
// BURST*1e9/RATE; every lane walks the whole sequence and keeps its own
// instants, so that LANES does not change what the system is offered.
type schedule struct {
	lane, lanes int
	first       bool

	// Uniform: t advances by whole each step, and by one more whenever the
	// remainders add up to rate. That is the exact floor of law 1.
	t, whole, part, carry, rate int64

	// Poisson
	rng  *rand.Rand
	mean float64
	sum  float64
}

func newSchedule(c Config, lane int) *schedule {
	s := &schedule{lane: lane, lanes: c.Lanes, first: true, rate: c.Rate}
	gap := int64(c.Burst) * 1e9 // times the rate
	if c.Arrival == Poisson {
		s.rng = rand.New(rand.NewPCG(c.Seed, 0))
		s.mean = float64(gap) / float64(c.Rate)
		return s
	}
	step := gap * int64(c.Lanes)
	s.whole, s.part = step/c.Rate, step%c.Rate
	at := gap * int64(lane)
	s.t, s.carry = at/c.Rate, at%c.Rate
	return s
}

// next instant of this lane.
func (s *schedule) next() int64 {
	if s.rng != nil {
		n := s.lanes
		if s.first {
			n, s.first = s.lane+1, false
		}
		for range n {
			// 1-u is in (0, 1]: the logarithm is finite.
			s.sum -= math.Log(1-s.rng.Float64()) * s.mean
		}
		return int64(s.sum)
	}
	if s.first {
		s.first = false
		return s.t
	}
	s.t += s.whole
	if s.carry += s.part; s.carry >= s.rate {
		s.carry -= s.rate
		s.t++
	}
	return s.t
}
