package loadgen

import (
	"fmt"
	"strconv"
	"time"

	"raftrig/record"
)

// Limits are what a run is judged by. Shares are fractions, 0.01 for 1 %.
type Limits struct {
	// Achieved: how far the answered rate may stay below the offered one.
	Achieved float64
	// Dropped: the share of offered requests from which drops by the rig
	// invalidate the run.
	Dropped float64
	// Errors: the share of failed and unanswered requests from which they do.
	Errors float64
	// LagP50 and LagP99: how large the rig's lag may be beside the latency
	// at the same percentile.
	LagP50, LagP99 float64
	// Little: how far throughput x latency / outstanding may lie from 1.
	Little float64
	// SpinShare: the least share of its core that a spinning lane must get.
	SpinShare float64
	// GCPause: the longest pause of the garbage collector in the window.
	GCPause time.Duration
}

// DefaultLimits of law 9.
func DefaultLimits() Limits {
	return Limits{
		Achieved: 0.01, Dropped: 0.001, Errors: 0.001,
		LagP50: 0.10, LagP99: 0.33,
		Little: 0.10, SpinShare: 0.95, GCPause: 500 * time.Microsecond,
	}
}

// Map of the limits by flag name, for the record.
func (l Limits) Map() map[string]string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	return map[string]string{
		"max-off": f(l.Achieved), "max-dropped": f(l.Dropped), "max-errors": f(l.Errors),
		"max-lag-p50": f(l.LagP50), "max-lag-p99": f(l.LagP99), "max-little": f(l.Little),
		"min-spin-share": f(l.SpinShare), "max-gc-pause": l.GCPause.String(),
	}
}

// Judge a run by law 9: every reason not to trust it, each with its figure,
// its limit and what to do.
func Judge(run *record.Run, l Limits) record.Verdict {
	v := record.Verdict{Limits: l.Map()}
	fail := func(code string, value, limit float64, format string, args ...any) {
		v.Reasons = append(v.Reasons, record.Reason{Code: code, Value: value, Limit: limit, Text: fmt.Sprintf(format, args...)})
	}
	m := run.Measured
	open := run.Knobs.Mode == Open.String()
	offered := float64(m.Offered)

	for _, w := range []struct {
		name string
		record.Counters
	}{{"warm-up", run.Warmup}, {"measured window", m}} {
		if !w.Balanced() {
			fail("accounting", float64(w.Offered), 0, "BUG in the rig: the counters of the %s do not add up: offered %d, ok %d, failed %d, unanswered %d, dropped %d: report it with this record",
				w.name, w.Offered, w.OK, w.Failed, w.Unanswered, w.Dropped())
		}
	}
	if n := run.Rig.Violations; n > 0 {
		fail("accounting", float64(n), 0, "BUG in the client: %d completions were doubled, missing, stamped before their send or of no request: run the conformance suite", n)
	}
	if run.Rig.Fault != "" {
		fail("fault", run.Rig.InterruptedAtS, 0, "%s: the run ended there, after %.1f s, with %.1f s of %g s measured", run.Rig.Fault, run.Rig.InterruptedAtS, run.MeasuredS, run.Knobs.MeasureS)
	} else if run.Rig.Interrupted {
		fail("interrupted", run.Rig.InterruptedAtS, 0, "interrupted after %.1f s, with %.1f s of %g s measured: run it to the end",
			run.Rig.InterruptedAtS, run.MeasuredS, run.Knobs.MeasureS)
	}
	if m.Offered == 0 {
		if !run.Rig.Interrupted {
			fail("achieved", 0, 0, "nothing was offered in the measured window: give it more time (MEASURE) or a higher RATE, and see that a leader answers")
		}
		return v
	}
	if off := 1 - float64(m.OK)/offered; open && off > l.Achieved {
		fail("achieved", off, l.Achieved, "achieved %.1f/s is %s off the offered %.1f/s (limit %s): the system does not carry this rate, or lower RATE",
			float64(m.OK)/run.MeasuredS, percent(off), offered/run.MeasuredS, percent(l.Achieved))
	}
	if share := float64(m.Dropped()) / offered; share > 0 && share >= l.Dropped {
		todo := "raise MAX_INFLIGHT or lower RATE"
		if m.DroppedNoLeader > m.DroppedCap {
			todo = "see why no leader was known"
		}
		fail("dropped", share, l.Dropped, "dropped %d requests, %s of the offered (limit %s; cap %d, no leader %d): %s",
			m.Dropped(), percent(share), percent(l.Dropped), m.DroppedCap, m.DroppedNoLeader, todo)
	}
	if share := float64(m.Failed+m.Unanswered) / offered; share > 0 && share >= l.Errors {
		fail("errors", share, l.Errors, "%d failed and %d unanswered, %s of the offered (limit %s): see the servers' logs",
			m.Failed, m.Unanswered, percent(share), percent(l.Errors))
	}
	if open {
		for _, x := range []struct{ rank, limit float64 }{{50, l.LagP50}, {99, l.LagP99}} {
			lag, ok1 := run.Lag.At(x.rank)
			lat, ok2 := run.Latency.At(x.rank)
			if !ok1 || !ok2 || lat.US <= 0 {
				continue
			}
			if share := lag.US / lat.US; share > x.limit {
				todo := "give the client a spare core"
				if run.Knobs.Pace == Spin.String() && run.Rig.LaneCPUShare < 1 {
					todo += ", or PACE=park"
				}
				fail("lag", share, x.limit, "lag p%g %s is %.0f %% of latency p%g %s (limit %.0f %%): %s",
					x.rank, human(lag.US), 100*share, x.rank, human(lat.US), 100*x.limit, todo)
			}
		}
	} else if off := run.Little - 1; off > l.Little || -off > l.Little {
		fail("little", run.Little, l.Little, "Little's ratio %.3f is more than %s from 1: the chains were not all in flight all the time; look at lag, errors and the client's CPU",
			run.Little, percent(l.Little))
	}
	if c := run.Cluster; c.TermBefore != c.TermAfter || c.LeaderBefore != c.LeaderAfter {
		fail("leader", float64(c.TermAfter), float64(c.TermBefore), "the leader changed in the measured window: node %d term %d before, node %d term %d after: see why, or lengthen the election timeout",
			c.LeaderBefore, c.TermBefore, c.LeaderAfter, c.TermAfter)
	}
	if share := run.Rig.LaneCPUShare; run.Knobs.Pace == Spin.String() && share < l.SpinShare {
		fail("spare-core", share, l.SpinShare, "no spare core: a spinning lane got %s of its core (limit %s): free one, or PACE=park",
			percent(share), percent(l.SpinShare))
	}
	if limit := float64(l.GCPause.Nanoseconds()) / 1e3; run.Rig.GCPauseMaxUS > limit {
		fail("gc", run.Rig.GCPauseMaxUS, limit, "the client's garbage collector paused it for %s (limit %v): its memory limit was reached; use fewer slots or a larger GOMEMLIMIT",
			human(run.Rig.GCPauseMaxUS), l.GCPause)
	}
	v.Valid = len(v.Reasons) == 0
	return v
}

func percent(share float64) string {
	return strconv.FormatFloat(100*share, 'g', 3, 64) + " %"
}

// human writes microseconds with a unit that keeps the figure readable.
func human(us float64) string {
	switch {
	case us < 1000:
		return fmt.Sprintf("%.1f us", us)
	case us < 1e6:
		return fmt.Sprintf("%.1f ms", us/1e3)
	}
	return fmt.Sprintf("%.2f s", us/1e6)
}
