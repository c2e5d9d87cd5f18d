// Package check holds the rig's two modes against each other: Agreement far
// below the knee, where both should see the same median, and Stall, where they
// must not see the same.
package check

import (
	"fmt"
	"math"
	"slices"

	"raftrig/record"
)

// Agreement of a closed run and an open one at the rate that it reached.
type Agreement struct {
	// ClosedP50US and OpenP50US are the medians of the latency.
	ClosedP50US, OpenP50US float64
	// ClosedRate and OpenRate are what was achieved, in requests a second.
	ClosedRate, OpenRate float64
	// Delta is how far the open median lies from the closed one, as a share.
	Delta float64
	// Limit of Delta, either way.
	Limit float64
	// LagP50US and LagMaxUS of the open run.
	LagP50US, LagMaxUS float64
}

// Agree compares two runs. An error means that one of them has no median.
func Agree(closed, open *record.Run, limit float64) (Agreement, error) {
	a := Agreement{Limit: limit}
	for _, x := range []struct {
		run  *record.Run
		p50  *float64
		rate *float64
	}{{closed, &a.ClosedP50US, &a.ClosedRate}, {open, &a.OpenP50US, &a.OpenRate}} {
		p, ok := x.run.Latency.At(50)
		if !ok || p.AtLeast || p.US <= 0 || x.run.MeasuredS <= 0 {
			return a, fmt.Errorf("the %s run has no median: %d of %d requests were answered", x.run.Knobs.Mode, x.run.Measured.OK, x.run.Measured.Offered)
		}
		*x.p50, *x.rate = p.US, float64(x.run.Measured.OK)/x.run.MeasuredS
	}
	if lag, ok := open.Lag.At(50); ok {
		a.LagP50US = lag.US
	}
	a.LagMaxUS = open.Lag.MaxUS
	a.Delta = a.OpenP50US/a.ClosedP50US - 1
	return a, nil
}

// Within the limit.
func (a Agreement) Within() bool { return math.Abs(a.Delta) <= a.Limit }

// lateFrom is the share of the open median from which lag explains the
// difference better than the system does; the rig's own limit.
const lateFrom = 0.10

// Meaning of the outcome in a sentence.
func (a Agreement) Meaning() string {
	late := a.LagP50US > lateFrom*a.OpenP50US
	switch {
	case a.Within() && late:
		return "The modes agree, but the open run's lag is a large part of its latency: give the client a spare core before you rely on it."
	case a.Within():
		return "The modes agree: at this rate the latency does not depend on what triggers the next request, and the rig adds little to it."
	case late:
		return "The difference says nothing about the system: the rig sent late, and open mode charges that to the latency; give the client a spare core and run it again."
	case a.Delta > 0:
		return "The rig sent in time, so the difference is the system's or a bug of the client: evenly spaced requests cost more here than those that follow a reply (less to batch, threads that park between them), or this rate is too near the knee; try BURST=10 or fewer THREADS."
	}
	return "The rig sent in time, so the difference is the system's or a bug of the client: requests that follow a reply come in clumps and wait for each other, evenly spaced ones do not; try fewer THREADS."
}

// Stall is what a run made of a leader that stood still.
type Stall struct {
	Mode string
	// Second in which the leader was stopped, counted as in the record.
	Second int
	// StallS is how long it stood still, at least, in seconds.
	StallS float64
	// Usual is the median of requests sent a second in the measured window,
	// Lowest the smallest from the stall to two seconds behind it.
	Usual, Lowest float64
	// MaxUS is the largest latency.
	MaxUS float64
	// Answered requests.
	Answered int64
	// Seconds of the measured window around the stall.
	Seconds []record.Second
}

// flat is the share of the usual count that open mode keeps in every second.
const flat = 0.95

// Stalled looks at a run in which the leader was stopped in the given second of
// the run, for stallS seconds. An error means that the record does not cover
// the stall.
func Stalled(run *record.Run, second int, stallS float64) (Stall, error) {
	s := Stall{Mode: run.Knobs.Mode, Second: second, StallS: stallS, MaxUS: run.Latency.MaxUS, Answered: run.Measured.OK}
	if run.Latency.Beyond > 0 {
		s.MaxUS = run.Latency.BeyondUS
	}
	behind := second + int(math.Ceil(stallS)) + 2
	s.Lowest = math.Inf(1)
	var sent []float64
	covered := 0
	for _, x := range run.Series {
		if x.Phase != "measure" {
			continue
		}
		sent = append(sent, float64(x.Sent))
		if x.Second >= second-2 && x.Second <= behind {
			s.Seconds = append(s.Seconds, x)
		}
		if x.Second >= second && x.Second <= behind {
			s.Lowest = min(s.Lowest, float64(x.Sent))
			covered++
		}
	}
	if want := behind - second + 1; covered < want {
		return s, fmt.Errorf("the measured window ends too early: second %d to %d are the stall's; raise MEASURE", second, behind)
	}
	slices.Sort(sent)
	s.Usual = sent[len(sent)/2]
	return s, nil
}

// Faults are what the run did not do as it has to; none when it passes. Open
// mode sends on through the stall, and its largest latency covers it. Closed
// mode is asked nothing by its own replies, so the count of the stall's second
// falls by half of the stall's share of it at least.
func (s Stall) Faults() []string {
	var faults []string
	if s.Usual == 0 {
		return []string{"nothing was sent"}
	}
	if s.Mode == "open" {
		if s.Lowest < flat*s.Usual {
			faults = append(faults, fmt.Sprintf("open mode sent %.0f in a second of the stall, %.0f is usual: the schedule moved with the system, or the in-flight cap was reached", s.Lowest, s.Usual))
		}
	} else if highest := (1 - min(1, s.StallS)/2) * s.Usual; s.Lowest > highest {
		faults = append(faults, fmt.Sprintf("closed mode sent %.0f in the lowest second of the stall, %.0f is usual and %.0f the most it should be: the leader did not stand still, or the chains do not wait for replies", s.Lowest, s.Usual, highest))
	}
	if s.MaxUS < s.StallS*1e6 {
		faults = append(faults, fmt.Sprintf("the largest latency of %s mode is %.0f ms, less than the stall of %.0f ms: part of it was not charged", s.Mode, s.MaxUS/1e3, s.StallS*1e3))
	}
	return faults
}
