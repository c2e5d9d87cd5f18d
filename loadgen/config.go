package loadgen

import (
	"fmt"
	"time"
)

// Mode is what decides when the next request goes out.
type Mode uint8

const (
	// Closed: a reply does. The number outstanding is fixed.
	Closed Mode = iota
	// Open: the clock does. The offered rate is fixed.
	Open
)

func (m Mode) String() string {
	if m == Open {
		return "open"
	}
	return "closed"
}

// Arrival is how the instants of open mode lie in time.
type Arrival uint8

const (
	// Uniform: equal gaps.
	Uniform Arrival = iota
	// Poisson: exponential gaps of the same mean.
	Poisson
)

func (a Arrival) String() string {
	if a == Poisson {
		return "poisson"
	}
	return "uniform"
}

// Pace is how a lane waits.
type Pace uint8

const (
	// Park: it blocks until I/O is ready or shortly before the next instant.
	Park Pace = iota
	// Spin: it polls without a pause; it wants a core of its own.
	Spin
)

func (p Pace) String() string {
	if p == Spin {
		return "spin"
	}
	return "park"
}

// Bounds of the knobs; they keep arithmetic and memory within sane limits.
const (
	MaxRate     = 100_000_000
	MaxSlots    = 1 << 20
	MaxLanes    = 64
	MaxSize     = 64 << 10
	MaxDuration = 24 * time.Hour
)

// Config is what a run is asked to do.
type Config struct {
	Mode Mode
	// Threads is the number of chains of closed mode.
	Threads int
	// Rate is the offered rate of open mode in requests a second.
	Rate int64
	// Burst is how many requests share an instant in open mode.
	Burst   int
	Arrival Arrival
	// MaxInflight caps the unanswered requests of open mode.
	MaxInflight  int
	Warmup       time.Duration
	Measure      time.Duration
	DrainTimeout time.Duration
	Pace         Pace
	// Size of a request's payload in bytes.
	Size int
	// Lanes share the schedule, the slots and the connections.
	Lanes int
	// Seed of the Poisson arrivals.
	Seed uint64
}

// A UsageError is a setting that cannot be run; programs exit with 2.
type UsageError struct{ msg string }

func (e *UsageError) Error() string { return e.msg }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error {
	return &UsageError{fmt.Sprintf(format, args...)}
}

// DefaultMaxInflight is the in-flight cap where none is asked for:
// max(1000, RATE/10), at most limit when that is not 0, and never less than a
// burst.
func DefaultMaxInflight(rate int64, burst, limit int) int {
	n := int(min(max(1000, rate/10), MaxSlots))
	if limit > 0 {
		n = min(n, limit)
	}
	return max(n, burst)
}

// Validate says what cannot be run, naming the flag, the value and what is
// allowed.
func (c Config) Validate() error {
	bound := func(flag string, v, lo, hi int64) error {
		if v < lo || v > hi {
			return Usagef("-%s %d: want %d to %d", flag, v, lo, hi)
		}
		return nil
	}
	window := func(flag string, d, lo time.Duration) error {
		if d < lo || d > MaxDuration {
			return Usagef("-%s %v: want %v to %v", flag, d, lo, MaxDuration)
		}
		return nil
	}
	errs := []error{
		bound("lanes", int64(c.Lanes), 1, MaxLanes),
		bound("size", int64(c.Size), 0, MaxSize),
		window("warmup", c.Warmup, 0),
		window("measure", c.Measure, time.Millisecond),
		window("drain-timeout", c.DrainTimeout, time.Millisecond),
	}
	switch c.Mode {
	case Closed:
		errs = append(errs, bound("threads", int64(c.Threads), 1, MaxSlots))
		if c.Threads >= 1 && c.Lanes > c.Threads {
			errs = append(errs, Usagef("-lanes %d: want at most -threads %d, a lane without a chain has nothing to do", c.Lanes, c.Threads))
		}
	case Open:
		errs = append(errs,
			bound("rate", c.Rate, 1, MaxRate),
			bound("burst", int64(c.Burst), 1, MaxSlots),
			bound("max-inflight", int64(c.MaxInflight), 1, MaxSlots))
		if c.Lanes >= 1 && c.Burst > c.MaxInflight/c.Lanes {
			errs = append(errs, Usagef("-burst %d: want at most -max-inflight / -lanes = %d, a burst above the cap is always dropped", c.Burst, c.MaxInflight/c.Lanes))
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// slots of one lane: its share of the cap or of the chains.
func (c Config) slots(lane int) int {
	n := c.MaxInflight
	if c.Mode == Closed {
		n = c.Threads
	}
	share := n / c.Lanes
	if lane < n%c.Lanes {
		share++
	}
	return share
}
