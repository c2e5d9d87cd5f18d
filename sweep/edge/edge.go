// Package edge finds the highest rate that a system carries comfortably, in few
// runs. It is the search alone: what a run is, and when one passes, is the
// caller's.
//
// From a first rate the search doubles until a rate fails, or halves until one
// passes. Between the two it bisects, by the geometric mean, until they lie
// within the resolution; then both ends are run again until each has as many
// runs as asked for, since one run can be a fault of the moment. A rate is
// judged by the majority of its runs; at a tie it is run once more. When a
// repeat overturns an end, the search goes on from what it then knows.
//
// A failing run tells more than that it failed: in overload, the rate achieved
// is about what the system can do. So the search looks there before it bisects,
// and it runs a rate again that failed to achieve what another rate did.
//
// Overload has to show within a run. At 5 % above the capacity the backlog
// grows by 5 % of the rate a second, and requests are dropped only once it has
// reached the in-flight cap: after cap / (0.05 * rate) seconds. A shorter
// window finds an edge that is too high; FillTime says how long it takes.
package edge

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config of a search.
type Config struct {
	// Start is the first rate, in requests a second.
	Start int64
	// Max is the highest rate to try.
	Max int64
	// Resolution is how far the two ends may lie apart, as a share of the
	// lower: 0.05 for 5 %.
	Resolution float64
	// Repeats is how many runs each of the two ends gets; at least 1.
	Repeats int
	// MaxRuns bounds the runs of the search.
	MaxRuns int
}

// Validate says what cannot be searched, naming the flag.
func (c Config) Validate() error {
	switch {
	case c.Start < 1 || c.Start > c.Max:
		return fmt.Errorf("-start %d: want a rate from 1 to %d", c.Start, c.Max)
	case !(c.Resolution >= 0.005 && c.Resolution <= 1):
		return fmt.Errorf("-resolution %v: want 0.005 to 1, a share of the rate", c.Resolution)
	case c.Repeats < 1 || c.Repeats > 100:
		return fmt.Errorf("-repeats %d: want 1 to 100", c.Repeats)
	case c.MaxRuns < 1 || c.MaxRuns > 1000:
		return fmt.Errorf("-runs %d: want 1 to 1000", c.MaxRuns)
	}
	return nil
}

// Run is one run that the search made.
type Run struct {
	Rate int64
	// Pass says that the rate was carried.
	Pass bool
	// Achieved is the rate of answered requests.
	Achieved float64
}

// Result of a search.
type Result struct {
	// Passing is the edge: the highest rate that passed, with none failing
	// below it; 0 when none passed. Failing is the lowest rate that failed; 0
	// when none did.
	Passing, Failing int64
	// Confirmed: the ends lie within the resolution, and each has its repeats.
	Confirmed bool
	// Why the search ended without that.
	Why string
	// Runs in order.
	Runs []Run
}

// Search runs rates until the edge is known. A failing run of the system is a
// Run; an error ends the search, and comes back with what was found until then.
func Search(c Config, run func(rate int64) (Run, error)) (Result, error) {
	s := search{Config: c, at: map[int64]*tally{}}
	for {
		s.Passing, s.Failing = s.ends()
		rate, why := s.next()
		if rate == 0 {
			s.Confirmed, s.Why = why == "", why
			return s.Result, nil
		}
		if len(s.Runs) == c.MaxRuns {
			s.Why = fmt.Sprintf("%d runs were not enough", c.MaxRuns)
			return s.Result, nil
		}
		r, err := run(rate)
		if err != nil {
			return s.Result, err
		}
		if r.Rate != rate {
			return s.Result, errors.New("edge: the run was of another rate")
		}
		s.Runs = append(s.Runs, r)
		t := s.at[rate]
		if t == nil {
			t = &tally{}
			s.at[rate] = t
		}
		t.add(r)
	}
}

type search struct {
	Config
	Result
	at map[int64]*tally
}

// tally of one rate's runs.
type tally struct {
	pass, fail int
	achieved   float64 // most of any run: a fault of the moment lowers it
}

func (t *tally) add(r Run) {
	t.achieved = max(t.achieved, r.Achieved)
	if r.Pass {
		t.pass++
	} else {
		t.fail++
	}
}

func (t *tally) runs() int { return t.pass + t.fail }

// ends are the lowest rate that fails and the highest below it that passes.
func (s *search) ends() (passing, failing int64) {
	for rate, t := range s.at {
		if t.fail > t.pass && (failing == 0 || rate < failing) {
			failing = rate
		}
	}
	for rate, t := range s.at {
		if t.pass > t.fail && (failing == 0 || rate < failing) {
			passing = max(passing, rate)
		}
	}
	return passing, failing
}

// next rate to run; 0 ends the search, for a reason or because all is known.
func (s *search) next() (rate int64, why string) {
	for rate, t := range s.at {
		if t.pass == t.fail {
			return rate, ""
		}
	}
	lo, hi := s.Passing, s.Failing
	switch {
	case lo == 0 && hi == 0:
		return s.Start, ""
	case hi == 0 && lo == s.Max:
		return 0, fmt.Sprintf("%d, the highest rate to try, passes", s.Max)
	case hi == 0:
		return min(2*lo, s.Max), ""
	case lo == 0 && hi == 1:
		return 0, "no rate passes"
	case lo == 0:
		return s.below(hi), ""
	}
	if s.doubtful(hi) && s.at[hi].runs() < s.Repeats {
		return hi, ""
	}
	if mid := s.between(lo, hi); mid > lo && mid < hi {
		return mid, ""
	}
	// The failing end first: when it passes after all, the other one moves.
	for _, end := range []int64{hi, lo} {
		if s.at[end].runs() < s.Repeats {
			return end, ""
		}
	}
	return 0, ""
}

// below a rate that fails, when none has passed: where it achieved something,
// just below that, else at half.
func (s *search) below(hi int64) int64 {
	achieved := s.at[hi].achieved
	guess := achieved * (1 - s.Resolution/2)
	if achieved < float64(hi)/8 || achieved >= float64(hi)/(1+s.Resolution) {
		guess = float64(hi) / 2
	}
	return max(1, min(tidy(guess), hi-1))
}

// doubtful is a failing rate that was clearly not achieved, while a run of
// another rate has achieved that much: a system that breaks down, or a fault of
// the moment.
func (s *search) doubtful(hi int64) bool {
	if s.at[hi].achieved >= float64(hi)*(1-s.Resolution/4) {
		return false
	}
	for _, t := range s.at {
		if t.achieved >= float64(hi) {
			return true
		}
	}
	return false
}

// between the ends; lo when they lie within the resolution.
func (s *search) between(lo, hi int64) int64 {
	from, to := float64(lo), float64(hi)
	if to <= from*(1+s.Resolution) || hi-lo < 2 {
		return lo
	}
	step := from * (1 + 0.9*s.Resolution) // tidy may round up
	achieved := s.at[hi].achieved
	guess := achieved * (1 - s.Resolution/2)
	switch {
	case achieved >= to/(1+s.Resolution):
		// It failed by its latency, and says nothing of the capacity.
		guess = math.Sqrt(from * to)
	case achieved < from:
		guess = math.Sqrt(from * to)
	default:
		guess = max(guess, step) // the edge is expected there, or right above lo
	}
	return max(lo+1, min(tidy(guess), hi-1))
}

// tidy rounds to four digits.
func tidy(rate float64) int64 {
	unit := 1.0
	for rate/unit >= 10000 {
		unit *= 10
	}
	return int64(math.Round(rate/unit) * unit)
}

// FillTime is how long a rate that exceeds the capacity by the resolution takes
// to fill the in-flight cap, and so to show.
func FillTime(rate int64, maxInflight int, resolution float64) time.Duration {
	return time.Duration(float64(maxInflight) / (resolution * float64(rate)) * float64(time.Second))
}
