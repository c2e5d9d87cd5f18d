package check_test

import (
	"strings"
	"testing"
	"time"

	"raftrig/loadgen"
	"raftrig/loadgen/sim"
	"raftrig/record"
	"raftrig/sweep/check"
)

const ms = int64(1e6)

// play a run on a simulated system in virtual time.
func play(t *testing.T, cfg loadgen.Config, script sim.Script) *record.Run {
	t.Helper()
	cfg.Burst, cfg.Lanes, cfg.Warmup, cfg.Measure, cfg.DrainTimeout = 1, 1, 2*time.Second, 10*time.Second, time.Second
	if cfg.MaxInflight == 0 {
		cfg.MaxInflight = 5000
	}
	system := sim.New(script)
	rig, err := loadgen.New(cfg, system.Dial, loadgen.Options{Virtual: system.Clock, Started: time.Unix(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	res, err := rig.Run()
	if err != nil {
		t.Fatal(err)
	}
	return &res.Run
}

var (
	open   = loadgen.Config{Mode: loadgen.Open, Rate: 1000}
	closed = loadgen.Config{Mode: loadgen.Closed, Threads: 1}
)

func millisecond(int, int64) int64 { return ms }

// Both modes of a system that stands still, and what spoils each of them.
func TestStall(t *testing.T) {
	stalled := sim.Script{Latency: millisecond, Stalls: []sim.Span{{From: 5100 * ms, To: 5600 * ms}}}
	across := sim.Script{Latency: millisecond, Stalls: []sim.Span{{From: 5750 * ms, To: 6250 * ms}}}
	long := sim.Script{Latency: millisecond, Stalls: []sim.Span{{From: 5100 * ms, To: 8100 * ms}}}
	steady := sim.Script{Latency: millisecond}
	blocked := sim.Script{Latency: millisecond, RigStalls: []sim.Span{{From: 5100 * ms, To: 6600 * ms}}}
	capped := open
	capped.MaxInflight = 100
	for _, c := range []struct {
		name   string
		cfg    loadgen.Config
		script sim.Script
		stallS float64
		want   []string
	}{
		{"open", open, stalled, 0.5, nil},
		{"closed", closed, stalled, 0.5, nil},
		{"open, over two seconds", open, across, 0.5, nil},
		{"closed, over two seconds", closed, across, 0.5, nil},
		{"open, three seconds", open, long, 3, nil},
		{"closed, three seconds", closed, long, 3, nil},
		{"open without a stall", open, steady, 0.5, []string{"the largest latency of open mode is 1 ms, less than the stall of 500 ms"}},
		{"closed without a stall", closed, steady, 0.5, []string{"closed mode sent 1000 in the lowest second", "the largest latency of closed mode"}},
		{"the schedule stops too", open, blocked, 0.5, []string{"open mode sent 100 in a second of the stall, 1000 is usual"}},
		{"the cap is reached", capped, stalled, 0.5, []string{"open mode sent 599 in a second"}},
	} {
		s, err := check.Stalled(play(t, c.cfg, c.script), 5, c.stallS)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		faults := s.Faults()
		if len(faults) != len(c.want) {
			t.Errorf("%s: %q", c.name, faults)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(faults[i], want) {
				t.Errorf("%s: %q, want %q", c.name, faults[i], want)
			}
		}
	}
	if _, err := check.Stalled(play(t, open, stalled), 10, 0.5); err == nil {
		t.Error("the window ended before the stall's seconds")
	}
}

func TestAgree(t *testing.T) {
	run := func(mode string, p50, lag float64) *record.Run {
		return &record.Run{
			Knobs: record.Knobs{Mode: mode}, MeasuredS: 10, Measured: record.Counters{OK: 1000, Offered: 1000},
			Latency: record.Distribution{Percentiles: []record.Percentile{{Rank: 50, US: p50}}},
			Lag:     record.Distribution{Percentiles: []record.Percentile{{Rank: 50, US: lag}}, MaxUS: 9 * lag},
		}
	}
	for _, c := range []struct {
		open, lag float64
		within    bool
		meaning   string
	}{
		{1150, 1, true, "The modes agree: at this rate"},
		{851, 1, true, "The modes agree: at this rate"},
		{1100, 120, true, "The modes agree, but the open run's lag"},
		{1151, 1, false, "evenly spaced requests cost more"},
		{849, 1, false, "requests that follow a reply come in clumps"},
		{5800, 600, false, "The difference says nothing about the system"},
	} {
		a, err := check.Agree(run("closed", 1000, 3), run("open", c.open, c.lag), 0.15)
		if err != nil || a.Within() != c.within || !strings.Contains(a.Meaning(), c.meaning) || a.ClosedRate != 100 || a.LagMaxUS != 9*c.lag {
			t.Errorf("%+v: %+v, %q, %v", c, a, a.Meaning(), err)
		}
	}
	none := run("open", 0, 0)
	none.Latency.Percentiles = []record.Percentile{{Rank: 50, US: 5e6, AtLeast: true}}
	if _, err := check.Agree(run("closed", 1000, 3), none, 0.15); err == nil || !strings.Contains(err.Error(), "the open run has no median") {
		t.Error(err)
	}
}
