package loadgen

import (
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"raftrig/record"
)

func distribution(us int64) record.Distribution {
	h := hdrhistogram.New(1, 60e9, 3)
	_ = h.RecordValues(us*1000, 1000)
	return record.NewDistribution(h, us*1000, 0, 0)
}

// good is a run that is VALID.
func good(mode Mode) *record.Run {
	r := &record.Run{MeasuredS: 10}
	r.Knobs.Mode, r.Knobs.MeasureS, r.Knobs.Pace = mode.String(), 10, "park"
	r.Measured = record.Counters{Offered: 100_000, OK: 100_000}
	r.Latency, r.Service, r.Lag = distribution(1000), distribution(990), distribution(10)
	r.Little = 1
	r.Rig.LaneCPUShare = 1
	r.Cluster = record.Cluster{LeaderBefore: 1, LeaderAfter: 1, TermBefore: 2, TermAfter: 2}
	return r
}

// Each reason appears at its limit, not before, and says its figure.
func TestJudge(t *testing.T) {
	drop := func(r *record.Run, cap, leader int64) {
		r.Measured.DroppedCap, r.Measured.DroppedNoLeader = cap, leader
		r.Measured.OK -= cap + leader
	}
	for _, x := range []struct {
		name   string
		mode   Mode
		change func(*record.Run)
		want   []string // code and a part of the text, in order
	}{
		{"open", Open, func(*record.Run) {}, nil},
		{"closed", Closed, func(*record.Run) {}, nil},
		{"below the limits", Open, func(r *record.Run) { drop(r, 49, 50); r.Lag = distribution(99) }, nil},
		{"dropped", Open, func(r *record.Run) { drop(r, 100, 0) }, []string{"dropped", "dropped 100 requests, 0.1 % of the offered"}},
		{"no leader", Open, func(r *record.Run) { drop(r, 20, 80) }, []string{"dropped", "see why no leader was known"}},
		{"achieved", Open, func(r *record.Run) { drop(r, 1100, 0) }, []string{"achieved", "achieved 9890.0/s is 1.1 % off the offered 10000.0/s", "dropped", ""}},
		{"failed", Open, func(r *record.Run) { r.Measured.OK -= 100; r.Measured.Failed = 100 }, []string{"errors", "100 failed and 0 unanswered"}},
		{"lost", Closed, func(r *record.Run) { r.Measured.OK -= 200; r.Measured.Unanswered = 200; r.Measured.Lost = 200 }, []string{"errors", "200 unanswered"}},
		{"lag", Open, func(r *record.Run) { r.Lag = distribution(400) }, []string{"lag", "lag p50 400.0 us is 40 % of latency p50", "lag", "lag p99"}},
		{"lag in closed mode", Closed, func(r *record.Run) { r.Lag = distribution(400) }, nil},
		{"little", Closed, func(r *record.Run) { r.Little = 0.89 }, []string{"little", "0.890"}},
		{"little above", Closed, func(r *record.Run) { r.Little = 1.11 }, []string{"little", "1.110"}},
		{"term", Open, func(r *record.Run) { r.Cluster.TermAfter = 3 }, []string{"leader", "node 1 term 2 before, node 1 term 3 after"}},
		{"leader", Closed, func(r *record.Run) { r.Cluster.LeaderAfter = 2 }, []string{"leader", "node 2 term 2 after"}},
		{"spare core", Open, func(r *record.Run) { r.Knobs.Pace = "spin"; r.Rig.LaneCPUShare = 0.94 }, []string{"spare-core", "94 %"}},
		{"parked lanes sleep", Open, func(r *record.Run) { r.Rig.LaneCPUShare = 0.05 }, nil},
		{"gc", Open, func(r *record.Run) { r.Rig.GCPauseMaxUS = 1200 }, []string{"gc", "1.2 ms"}},
		{"unbalanced", Open, func(r *record.Run) { r.Measured.OK-- }, []string{"accounting", "do not add up"}},
		{"interrupted", Open, func(r *record.Run) {
			r.Rig.Interrupted, r.Rig.InterruptedAtS, r.MeasuredS = true, 12.34, 2.34
			r.Measured = record.Counters{}
		}, []string{"interrupted", "after 12.3 s, with 2.3 s of 10 s measured"}},
		{"nothing", Open, func(r *record.Run) { r.Measured = record.Counters{} }, []string{"achieved", "nothing was offered"}},
	} {
		r := good(x.mode)
		x.change(r)
		v := Judge(r, DefaultLimits())
		if v.Valid != (len(x.want) == 0) || len(v.Reasons) != len(x.want)/2 {
			t.Errorf("%s: %+v", x.name, v)
			continue
		}
		for i, reason := range v.Reasons {
			if reason.Code != x.want[2*i] || !strings.Contains(reason.Text, x.want[2*i+1]) {
				t.Errorf("%s: reason %q: %q, want %q: %q", x.name, reason.Code, reason.Text, x.want[2*i], x.want[2*i+1])
			}
		}
	}
}

// Limits are what the verdict goes by.
func TestLimits(t *testing.T) {
	r := good(Open)
	r.Rig.GCPauseMaxUS = 1200
	l := DefaultLimits()
	l.GCPause = 2 * time.Millisecond
	if v := Judge(r, l); !v.Valid || v.Limits["max-gc-pause"] != "2ms" {
		t.Errorf("%+v", v)
	}
}
