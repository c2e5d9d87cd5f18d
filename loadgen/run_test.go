package loadgen

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"raftrig/record"
)

// short is a run in real time, small enough for a test.
func short(mode Mode, lanes int) Config {
	return Config{
		Mode: mode, Threads: 8, Rate: 20_000, Burst: 4, MaxInflight: 1000, Lanes: lanes, Size: 64,
		Warmup: 100 * time.Millisecond, Measure: 1200 * time.Millisecond, DrainTimeout: 200 * time.Millisecond,
	}
}

func dialNull(w Wiring) (Client, error) { return &null{w: w}, nil }

// All that is counted appears once: in the windows, in the seconds, and in the
// intervals handed over while the run goes on.
func TestRealRunAddsUp(t *testing.T) {
	for _, mode := range []Mode{Open, Closed} {
		var seconds, intervals, checkpoints int64
		var measured atomic.Int32
		rig, err := New(short(mode, 2), dialNull, Options{
			Second:     func(record.Second) { seconds++ },
			Interval:   func(_, _ time.Time, h Histograms) { intervals += h.Latency.TotalCount() },
			Checkpoint: func(*Result) { checkpoints++ }, CheckpointEvery: 1,
			BeforeMeasure: func() { measured.Add(1) },
			AfterMeasure:  func() { measured.Add(1) },
		})
		if err != nil {
			t.Fatal(err)
		}
		res, err := rig.Run()
		if err != nil {
			t.Fatal(err)
		}
		run := res.Run
		all := run.Warmup.Plus(run.Measured)
		if !run.Warmup.Balanced() || !run.Measured.Balanced() {
			t.Errorf("%v: unbalanced: %+v %+v", mode, run.Warmup, run.Measured)
		}
		if mode == Open && run.Measured.Offered != 24_000 {
			t.Errorf("offered %d, want 24000", run.Measured.Offered)
		}
		var s record.Second
		for _, x := range run.Series {
			s.Offered += x.Offered
			s.OK += x.OK
			s.Dropped += x.Dropped
			s.Sent += x.Sent
		}
		if s.Offered != all.Offered || s.OK != all.OK || s.Dropped != all.Dropped() || s.Sent != all.Offered-all.Dropped() {
			t.Errorf("%v: the seconds add up to %+v, the windows to %+v", mode, s, all)
		}
		if run.Latency.Count != run.Measured.OK || intervals != run.Measured.OK || run.Lag.Count != run.Measured.Offered-run.Measured.Dropped() {
			t.Errorf("%v: latency %d, intervals %d, lag %d of %d answered", mode, run.Latency.Count, intervals, run.Lag.Count, run.Measured.OK)
		}
		if run.AckedTotal != all.OK {
			t.Errorf("%v: acknowledged %d, want %d", mode, run.AckedTotal, all.OK)
		}
		if int(seconds) != len(run.Series) || checkpoints == 0 || measured.Load() != 2 {
			t.Errorf("%v: %d seconds told of %d, %d checkpoints, %d hooks", mode, seconds, len(run.Series), checkpoints, measured.Load())
		}
		if run.Rig.Violations != 0 {
			t.Errorf("%v: %d violations", mode, run.Rig.Violations)
		}
	}
}

// Stop keeps what was measured, and the rate is of the time that it took.
func TestStop(t *testing.T) {
	cfg := short(Open, 1)
	cfg.Measure = time.Hour
	seen := make(chan struct{}, 100)
	rig, err := New(cfg, dialNull, Options{Second: func(record.Second) { seen <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-seen
		rig.Stop()
	}()
	res, err := rig.Run()
	if err != nil {
		t.Fatal(err)
	}
	run := res.Run
	if !run.Rig.Interrupted || run.MeasuredS <= 0 || run.MeasuredS > 60 {
		t.Errorf("interrupted %v after %v s", run.Rig.Interrupted, run.MeasuredS)
	}
	if !run.Measured.Balanced() || run.Measured.OK == 0 {
		t.Errorf("%+v", run.Measured)
	}
	v := Judge(&run, DefaultLimits())
	if v.Valid || v.Reasons[0].Code != "interrupted" {
		t.Errorf("verdict %+v, want INVALID for the interruption", v)
	}
}

// silent answers nothing.
type silent struct {
	null
	told chan<- struct{}
}

func (c *silent) Poll() int { return 0 }
func (c *silent) Wait(until int64) int {
	time.Sleep(time.Duration(until - c.w.Clock.Now()))
	return 0
}
func (c *silent) Submit(id uint32) bool {
	select {
	case c.told <- struct{}{}:
	default:
	}
	return c.null.Submit(id)
}
func (c *silent) Close() error {
	for _, id := range c.done {
		c.w.Complete(id, Unknown, c.w.Clock.Now())
	}
	return nil
}

// runSilent runs against a system that answers nothing, and ends the run as
// soon as a request was sent.
func runSilent(t *testing.T, cfg Config, end func(*Rig)) *Result {
	t.Helper()
	told := make(chan struct{}, 1)
	rig, err := New(cfg, func(w Wiring) (Client, error) {
		return &silent{null: null{w: w}, told: told}, nil
	}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-told
		end(rig)
	}()
	res, err := rig.Run()
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Abort ends a drain that would last; what has no reply is unanswered, and no
// bound is claimed that was not waited for.
func TestAbort(t *testing.T) {
	cfg := short(Closed, 1)
	cfg.Warmup, cfg.Measure, cfg.DrainTimeout = 0, time.Hour, time.Hour
	res := runSilent(t, cfg, (*Rig).Abort)
	m := res.Run.Measured
	if m.Offered == 0 || m.NoReply != m.Offered || !m.Balanced() || res.Run.Rig.Violations != 0 {
		t.Errorf("%+v, violations %d", m, res.Run.Rig.Violations)
	}
	if res.Run.Latency.BeyondUS >= time.Hour.Seconds()*1e6 {
		t.Errorf("claims that the unanswered waited %v us", res.Run.Latency.BeyondUS)
	}
}

// Stop in the warm-up: the window never opens, also when the drain lasts until
// it would have.
func TestStopInWarmup(t *testing.T) {
	cfg := short(Closed, 2)
	cfg.Warmup, cfg.Measure, cfg.DrainTimeout = 500*time.Millisecond, time.Hour, 600*time.Millisecond
	res := runSilent(t, cfg, (*Rig).Stop)
	run := res.Run
	if run.MeasuredS != 0 || run.Measured.Offered != 0 || run.Warmup.NoReply != run.Warmup.Offered || !run.Rig.Interrupted {
		t.Errorf("%+v", run)
	}
}

type leaderless struct{ null }

func (c *leaderless) Ready() bool { return false }

func TestNoLeaderAtStart(t *testing.T) {
	var closed atomic.Int32
	rig, err := New(short(Open, 2), func(w Wiring) (Client, error) {
		return &closing{leaderless{null{w: w}}, &closed}, nil
	}, Options{ReadyTimeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rig.Run(); !errors.Is(err, ErrNoLeader) {
		t.Errorf("error %v, want %v", err, ErrNoLeader)
	}
	if n := closed.Load(); n != 2 {
		t.Errorf("%d of 2 clients closed", n)
	}
}

type closing struct {
	leaderless
	n *atomic.Int32
}

func (c *closing) Close() error { c.n.Add(1); return nil }

// doubling completes each request twice, and one that there is not.
type doubling struct{ null }

func (c *doubling) Poll() int {
	for _, id := range c.done {
		c.w.Complete(id, OK, c.w.Clock.Now())
		c.w.Complete(id, OK, c.w.Clock.Now())
		c.w.Complete(1<<30, OK, c.w.Clock.Now())
	}
	n := len(c.done)
	c.done = c.done[:0]
	return n
}
func (c *doubling) Wait(until int64) int {
	if len(c.done) == 0 {
		time.Sleep(time.Duration(until - c.w.Clock.Now()))
	}
	return c.Poll()
}
func (c *doubling) Close() error { c.Poll(); return nil }

// A client that breaks its contract spoils the verdict, not the run.
func TestViolations(t *testing.T) {
	cfg := short(Open, 1)
	cfg.Warmup, cfg.Measure = 0, 50*time.Millisecond
	rig, err := New(cfg, func(w Wiring) (Client, error) { return &doubling{null{w: w}}, nil }, Options{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := rig.Run()
	if err != nil {
		t.Fatal(err)
	}
	if !res.Run.Measured.Balanced() || res.Run.Measured.OK == 0 {
		t.Errorf("%+v", res.Run.Measured)
	}
	v := Judge(&res.Run, DefaultLimits())
	if v.Valid || v.Reasons[0].Code != "accounting" {
		t.Errorf("verdict %+v, want INVALID for accounting", v)
	}
}

func TestDialFails(t *testing.T) {
	var closed atomic.Int32
	rig, err := New(short(Open, 3), func(w Wiring) (Client, error) {
		if w.Lane == 2 {
			return nil, errors.New("no such host")
		}
		return &closing{leaderless{null{w: w}}, &closed}, nil
	}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rig.Run(); err == nil || !strings.Contains(err.Error(), "no such host") || closed.Load() != 2 {
		t.Errorf("error %v, %d clients closed", err, closed.Load())
	}
}

func TestValidate(t *testing.T) {
	good := short(Open, 1)
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Rate = 0 }, "-rate 0: want 1 to 100000000"},
		{func(c *Config) { c.Burst = 0 }, "-burst 0"},
		{func(c *Config) { c.Burst = 1001 }, "-burst 1001: want at most -max-inflight / -lanes = 1000"},
		{func(c *Config) { c.Lanes, c.Burst = 4, 251 }, "-burst 251: want at most -max-inflight / -lanes = 250"},
		{func(c *Config) { c.MaxInflight = 0 }, "-max-inflight 0"},
		{func(c *Config) { c.Lanes = 0 }, "-lanes 0"},
		{func(c *Config) { c.Lanes = 65 }, "-lanes 65"},
		{func(c *Config) { c.Size = -1 }, "-size -1"},
		{func(c *Config) { c.Warmup = -time.Second }, "-warmup -1s"},
		{func(c *Config) { c.Measure = 0 }, "-measure 0s"},
		{func(c *Config) { c.DrainTimeout = 0 }, "-drain-timeout 0s"},
		{func(c *Config) { c.Mode, c.Threads = Closed, 0 }, "-threads 0"},
		{func(c *Config) { c.Mode, c.Lanes = Closed, 9 }, "-lanes 9: want at most -threads 8"},
	} {
		c := good
		x.change(&c)
		err := c.Validate()
		var usage *UsageError
		if !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), x.want) {
			t.Errorf("error %q, want a usage error %q", err, x.want)
		}
	}
}

func TestDefaultMaxInflight(t *testing.T) {
	for _, x := range []struct {
		rate         int64
		burst, limit int
		want         int
	}{
		{5000, 1, 0, 1000}, {150_000, 1, 0, 15_000}, {150_000, 10, 400, 400}, {10, 2000, 0, 2000}, {MaxRate, 1, 0, MaxSlots},
	} {
		if got := DefaultMaxInflight(x.rate, x.burst, x.limit); got != x.want {
			t.Errorf("DefaultMaxInflight(%d, %d, %d) = %d, want %d", x.rate, x.burst, x.limit, got, x.want)
		}
	}
}

// mourner knows no leader and says why, or ends the run before it begins.
type mourner struct {
	null
	fault bool
}

func (c *mourner) Ready() bool { return false }
func (c *mourner) Wait(int64) int {
	if c.fault {
		c.w.Fail(errors.New("the session limit is reached"))
	}
	c.w.Event("node 1: connection refused")
	return 0
}

func TestNoLeaderSaysWhy(t *testing.T) {
	for fault, want := range map[bool]string{
		false: "no leader known within 10ms: node 1: connection refused",
		true:  "the session limit is reached",
	} {
		rig, err := New(short(Open, 1), func(w Wiring) (Client, error) { return &mourner{null{w: w}, fault}, nil }, Options{ReadyTimeout: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := rig.Run(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
