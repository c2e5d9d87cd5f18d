package sim_test

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"raftrig/loadgen"
	"raftrig/loadgen/report"
	"raftrig/loadgen/sim"
	"raftrig/record"
)

var update = flag.Bool("update", false, "rewrite the transcripts in testdata")

const (
	us = int64(1e3)
	ms = int64(1e6)
	s  = int64(1e9)
)

// always the same latency.
func always(d int64) func(int, int64) int64 { return func(int, int64) int64 { return d } }

// base is a short run: 2 s of warm-up, 10 s measured.
func base(mode loadgen.Mode) loadgen.Config {
	return loadgen.Config{
		Mode: mode, Threads: 10, Rate: 1000, Burst: 1, MaxInflight: 1000, Lanes: 1, Size: 64,
		Warmup: 2 * time.Second, Measure: 10 * time.Second, DrainTimeout: time.Second, Seed: 1,
	}
}

type outcome struct {
	*record.Run
	live []record.Second
	text string
}

// play runs a script and holds what it prints against testdata/NAME.txt.
func play(t *testing.T, name string, cfg loadgen.Config, script sim.Script) outcome {
	t.Helper()
	var out bytes.Buffer
	var o outcome
	system := sim.New(script)
	var rig *loadgen.Rig
	knobs := record.Knobs{Mode: cfg.Mode.String(), Threads: cfg.Threads, Rate: cfg.Rate}
	rig, err := loadgen.New(cfg, system.Dial, loadgen.Options{
		Virtual: system.Clock,
		Started: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		Second: func(s record.Second) {
			o.live = append(o.live, s)
			fmt.Fprintln(&out, report.LiveLine("sim", knobs, s))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	res, err := rig.Run()
	if err != nil {
		t.Fatal(err)
	}
	o.Run = &res.Run
	o.Product = "sim"
	o.Verdict = loadgen.Judge(o.Run, loadgen.DefaultLimits())
	if err := report.Summary(&out, o.Run); err != nil {
		t.Fatal(err)
	}
	for _, c := range []record.Counters{o.Warmup, o.Measured} {
		if !c.Balanced() {
			t.Errorf("%s: counters do not add up: %+v", name, c)
		}
	}
	o.text = out.String()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, out.Bytes()) {
		t.Errorf("%s: the transcript differs from %s:\n%s", name, path, out.String())
	}
	return o
}

func at(t *testing.T, d record.Distribution, rank float64) record.Percentile {
	t.Helper()
	p, ok := d.At(rank)
	if !ok {
		t.Fatalf("no p%g in %+v", rank, d)
	}
	return p
}

// near says whether got is want within HdrHistogram's three digits.
func near(got, want float64) bool { return math.Abs(got-want) <= 0.001*want+0.002 }

var stall = []sim.Span{{From: 6 * s, To: 6*s + 500*ms}}

// A system that stands still for half a second, at 1000/s. Open mode goes on
// sending, and the 500 requests of the stall carry what was left of it: 1 to
// 500 ms. Of the 10,000 measured, the 99th percentile is the 9,900th, the 101st
// from above: 400 ms and the 1 ms of the system.
func TestOpenStall(t *testing.T) {
	o := play(t, "open-stall", base(loadgen.Open), sim.Script{Latency: always(ms), Stalls: stall})
	for _, sec := range o.live[:12] {
		if sec.Sent != 1000 || sec.Offered != 1000 {
			t.Errorf("second %d: sent %d of %d: the schedule moved with the system", sec.Second, sec.Sent, sec.Offered)
		}
	}
	if o.Measured.OK != 10000 {
		t.Errorf("answered %d, want 10000", o.Measured.OK)
	}
	if o.Latency.MaxUS < 500e3 {
		t.Errorf("maximum %.0f us does not cover the stall", o.Latency.MaxUS)
	}
	// The last reply before the stall is of the request at 5.999 s, at 6 s, the
	// first after it at 6.5.
	if q := o.Silence; math.Abs(q.S-0.5) > 0.002 || math.Abs(q.AtS-6) > 0.002 {
		t.Errorf("silence %+v, want 0.5 s from second 6 on", q)
	}
	if p := at(t, o.Latency, 99); !near(p.US, 401e3) {
		t.Errorf("p99 %.0f us, want 401000", p.US)
	}
	if p := at(t, o.Latency, 50); !near(p.US, 1000) {
		t.Errorf("p50 %.0f us, want 1000", p.US)
	}
	if !o.Verdict.Valid {
		t.Errorf("a slow system is no fault of the run: %+v", o.Verdict.Reasons)
	}
}

// The same stall in closed mode: one sample a chain, and a count that
// collapses.
func TestClosedStall(t *testing.T) {
	o := play(t, "closed-stall", base(loadgen.Closed), sim.Script{Latency: always(10 * ms), Stalls: stall})
	for _, sec := range o.live[3:12] {
		if want := int64(1000); sec.Second == 6 {
			if sec.OK > 600 {
				t.Errorf("the stall's second has %d completions, want about half of %d", sec.OK, want)
			}
		} else if sec.OK < 990 || sec.OK > 1010 {
			t.Errorf("second %d: %d completions, want %d", sec.Second, sec.OK, want)
		}
	}
	h, err := o.Latency.Decode()
	if err != nil {
		t.Fatal(err)
	}
	slow := int64(0)
	for _, b := range h.Distribution() {
		if b.From > 100*ms {
			slow += b.Count
		}
	}
	if slow != 10 {
		t.Errorf("%d samples of the stall, want one for each of the 10 chains", slow)
	}
	if p := at(t, o.Latency, 99); !near(p.US, 10e3) {
		t.Errorf("p99 %.0f us: closed mode should not see the stall there", p.US)
	}
	if math.Abs(o.Little-1) > 0.01 {
		t.Errorf("Little's ratio %.3f", o.Little)
	}
}

// Ten requests share each instant, and its timestamp: they queue at a server
// that takes 100 us for each.
func TestBurst(t *testing.T) {
	cfg := base(loadgen.Open)
	cfg.Burst = 10
	o := play(t, "burst", cfg, sim.Script{Capacity: 10000})
	h, err := o.Latency.Decode()
	if err != nil {
		t.Fatal(err)
	}
	var values []int64
	for _, b := range h.Distribution() {
		if b.Count > 0 {
			values = append(values, b.To/us)
			if b.Count != 1000 {
				t.Errorf("%d requests at %d us, want 1000", b.Count, b.To/us)
			}
		}
	}
	if fmt.Sprint(values) != "[100 200 300 400 500 600 700 800 900 1000]" {
		t.Errorf("latencies %v, want one a place in the burst", values)
	}
	if o.Lag.MaxUS != 0 {
		t.Errorf("lag %v us: a burst shares its instant", o.Lag.MaxUS)
	}
}

// With 5 requests in flight at most and 10 ms to an answer, 500/s of 1000/s
// fit: the rest is dropped and counted, and nothing waits in the rig.
func TestCap(t *testing.T) {
	cfg := base(loadgen.Open)
	cfg.MaxInflight = 5
	o := play(t, "cap", cfg, sim.Script{Latency: always(10 * ms)})
	if m := o.Measured; m.DroppedCap != 5000 || m.OK != 5000 || m.DroppedNoLeader != 0 {
		t.Errorf("%+v, want 5000 answered and 5000 dropped by the cap", m)
	}
	if o.Latency.MaxUS > 10001 {
		t.Errorf("maximum %.0f us: a request waited in the rig", o.Latency.MaxUS)
	}
	if o.Verdict.Valid {
		t.Error("a run that dropped half is VALID")
	}
}

// Half a second without a leader drops whole bursts, in the window of their
// instants.
func TestNoLeader(t *testing.T) {
	cfg := base(loadgen.Open)
	cfg.Burst = 10
	o := play(t, "no-leader", cfg, sim.Script{
		Latency:  always(ms),
		NoLeader: []sim.Span{{0, 100 * ms}, {6 * s, 6*s + 500*ms}},
	})
	if m := o.Measured; m.DroppedNoLeader != 500 || m.DroppedCap != 0 || m.OK != 9500 {
		t.Errorf("%+v, want 500 dropped for want of a leader", m)
	}
	if w := o.Warmup; w.DroppedNoLeader != 100 || w.OK != 1900 {
		t.Errorf("warm-up %+v, want its own 100 drops", w)
	}
}

// 2 % of the requests are never answered. They rank above all that were.
func TestUnanswered(t *testing.T) {
	o := play(t, "unanswered", base(loadgen.Open), sim.Script{
		Latency: always(ms), Lost: func(n int) bool { return n%50 == 49 },
	})
	if m := o.Measured; m.Unanswered != 200 || m.NoReply != 200 || m.OK != 9800 {
		t.Errorf("%+v, want 200 unanswered", m)
	}
	for rank, atLeast := range map[float64]bool{50: false, 90: false, 99: true, 99.9: true, 100: true} {
		p := at(t, o.Latency, rank)
		if p.AtLeast != atLeast {
			t.Errorf("p%g: at least %v, want %v", rank, p.AtLeast, atLeast)
		}
		if atLeast && p.US != 1e6 {
			t.Errorf("p%g >= %v us, want the drain time-out", rank, p.US)
		}
	}
}

// A warm-up a thousand times slower than what follows: no sample, count or
// drop of it in the window, although its last replies come within it.
func TestWarmup(t *testing.T) {
	cfg := base(loadgen.Open)
	cfg.MaxInflight = 100
	o := play(t, "warmup", cfg, sim.Script{Latency: func(_ int, sent int64) int64 {
		if sent < 2*s-80*ms {
			return 150 * ms
		}
		return 150 * us
	}})
	if o.Latency.MaxUS > 151 {
		t.Errorf("maximum %.0f us leaked from the warm-up", o.Latency.MaxUS)
	}
	if o.Measured.Offered != 10000 || o.Warmup.Offered != 2000 || o.Warmup.Dropped() == 0 || o.Measured.Dropped() != 0 {
		t.Errorf("warm-up %+v measured %+v", o.Warmup, o.Measured)
	}
	if o.BacklogAtStart == 0 {
		t.Error("the backlog of the warm-up is not told")
	}
}

// The rig itself stands still for 200 ms. It catches up, every request is
// charged from its instant, and the run is INVALID for the rig's lag.
func TestRigLate(t *testing.T) {
	o := play(t, "rig-late", base(loadgen.Open), sim.Script{
		Latency: always(ms), RigStalls: []sim.Span{{6 * s, 6*s + 200*ms}},
	})
	if o.Measured.OK != 10000 {
		t.Errorf("answered %d, want all 10000", o.Measured.OK)
	}
	service := at(t, o.Service, 99.9)
	if o.Lag.MaxUS < 199e3 || o.Latency.MaxUS < 200e3 || !near(service.US, 1000) {
		t.Errorf("lag %v latency %v us, service p99.9 %v us: want the stall in lag and latency only", o.Lag.MaxUS, o.Latency.MaxUS, service.US)
	}
	if o.Verdict.Valid || o.Verdict.Reasons[0].Code != "lag" {
		t.Errorf("verdict %+v, want INVALID for lag", o.Verdict)
	}
}

// Back-pressure: what waits for the client is charged from its instant, and
// the order stays.
func TestBackpressure(t *testing.T) {
	o := play(t, "backpressure", base(loadgen.Open), sim.Script{
		Latency: always(ms), Full: []sim.Span{{6 * s, 6*s + 100*ms}}, Tick: 1 * us,
	})
	if o.Measured.OK != 10000 || o.Rig.Backpressure == 0 {
		t.Errorf("answered %d, back-pressure %d", o.Measured.OK, o.Rig.Backpressure)
	}
	if o.Lag.MaxUS < 99e3 || o.Lag.MaxUS > 101e3 {
		t.Errorf("lag %v us, want the 100 ms of back-pressure", o.Lag.MaxUS)
	}
}

// Answers that are errors, and answers lost on their way.
func TestErrors(t *testing.T) {
	o := play(t, "errors", base(loadgen.Closed), sim.Script{
		Latency: always(10 * ms), Outcome: func(n int) loadgen.Outcome {
			switch n % 100 {
			case 7:
				return loadgen.Failed
			case 8:
				return loadgen.Unknown
			}
			return loadgen.OK
		},
	})
	if m := o.Measured; m.Failed != 100 || m.Lost != 100 || m.Unanswered != 100 || m.OK != 9800 {
		t.Errorf("%+v, want 100 failed and 100 lost", m)
	}
	if o.Verdict.Valid {
		t.Error("2 % of errors are VALID")
	}
}

// A lane that sends ten requests a second is idle in between, not silent.
func TestIdleIsNotSilent(t *testing.T) {
	cfg := base(loadgen.Open)
	cfg.Rate = 10
	o := play(t, "idle", cfg, sim.Script{Latency: always(ms)})
	if q := o.Silence; q.S > 0.0011 {
		t.Errorf("silence %+v, want a request's latency", q)
	}
}

// A client that finds a fault ends the run at once; what was measured until
// then is kept, and the run is a failure.
func TestFault(t *testing.T) {
	o := play(t, "fault", base(loadgen.Open), sim.Script{
		Latency: always(ms), Fault: 5 * s,
		Events: []sim.Event{{At: 3 * s, Text: "node 2 leads, term 5"}},
	})
	if o.Rig.Fault == "" || o.Verdict.Valid || o.Verdict.Reasons[0].Code != "fault" {
		t.Errorf("fault %q, %+v", o.Rig.Fault, o.Verdict)
	}
	if m := o.Measured; m.OK < 2998 || m.OK > 3000 {
		t.Errorf("%+v, want the 3000 requests of 3 s", m)
	}
	if len(o.Events) != 1 || o.Events[0].AtS != 3 {
		t.Errorf("events %+v", o.Events)
	}
}

// A spinning lane is late by at most a reading of the clock.
func TestSpin(t *testing.T) {
	cfg := base(loadgen.Open)
	cfg.Pace = loadgen.Spin
	cfg.Warmup, cfg.Measure = 0, 2*time.Second
	o := play(t, "spin", cfg, sim.Script{Latency: always(ms), Tick: 25})
	if o.Lag.MaxUS > 0.1 {
		t.Errorf("lag %v us", o.Lag.MaxUS)
	}
}

// The gaps of Poisson arrivals have the mean of the rate, and the variance of
// an exponential distribution: the mean squared. Counts per second have the
// variance of their mean.
func TestPoisson(t *testing.T) {
	cfg := base(loadgen.Open)
	cfg.Arrival, cfg.Seed = loadgen.Poisson, 7
	cfg.Warmup, cfg.Measure = 0, 200*time.Second
	o := play(t, "poisson", cfg, sim.Script{Latency: always(ms)})
	n, sum, squares := 0.0, 0.0, 0.0
	for _, sec := range o.live[:200] {
		n++
		sum += float64(sec.Sent)
		squares += float64(sec.Sent) * float64(sec.Sent)
	}
	mean := sum / n
	variance := squares/n - mean*mean
	// Three standard errors: sqrt(1000/200) of the mean, and
	// 1000*sqrt(2/200) of the variance.
	if math.Abs(mean-1000) > 3*2.24 || math.Abs(variance-1000) > 3*100 {
		t.Errorf("counts per second: mean %.1f variance %.1f, want 1000 and 1000", mean, variance)
	}
}

// Lanes divide the schedule: what the system is offered is the same.
func TestLanes(t *testing.T) {
	for _, arrival := range []loadgen.Arrival{loadgen.Uniform, loadgen.Poisson} {
		cfg := base(loadgen.Open)
		cfg.Arrival, cfg.Lanes, cfg.Burst = arrival, 3, 5
		o := play(t, "lanes-"+arrival.String(), cfg, sim.Script{Latency: always(ms)})
		if o.Measured.OK != o.Measured.Offered || arrival == loadgen.Uniform && o.Measured.OK != 10000 {
			t.Errorf("%v: %+v", arrival, o.Measured)
		}
	}
}

// An overloaded server: latency grows with the queue until the cap, then drops
// say what was not carried.
func TestOverload(t *testing.T) {
	cfg := base(loadgen.Open)
	cfg.MaxInflight = 500
	o := play(t, "overload", cfg, sim.Script{Capacity: 900})
	// 900/s for 10 s, less the backlog that the window opened with, and with
	// the one that it left behind: instants decide, not replies.
	if want := 9000 - o.BacklogAtStart + 500; o.Measured.OK < want-5 || o.Measured.OK > want+5 {
		t.Errorf("answered %d, want %d", o.Measured.OK, want)
	}
}
