package edge_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"raftrig/loadgen"
	"raftrig/loadgen/sim"
	"raftrig/record"
	"raftrig/sweep/edge"
	"raftrig/sweep/ladder"
	"raftrig/sweep/zone"
)

var base = edge.Config{Start: 1000, Max: ladder.MaxRate, Resolution: 0.05, Repeats: 2, MaxRuns: 10}

// play one run of a simulated system in virtual time.
func play(t *testing.T, cfg loadgen.Config, script sim.Script) *record.Run {
	t.Helper()
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

// A system of known capacity: a service time, jitter from a seed, and one run
// of the search in which it stands still for 300 ms. The first rate is what a
// closed run with 100 outstanding reaches, which counts as a run too, or lies
// anywhere from a quarter of the capacity to four times as much. The edge has
// to be found within 5 % in 10 runs.
func TestKnownCapacity(t *testing.T) {
	for _, capacity := range []int64{1_000, 3_300, 12_345, 20_000} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%d-%d", capacity, seed), func(t *testing.T) {
				if testing.Short() && seed > 0 {
					t.Skip("one seed is enough for a short test")
				}
				t.Parallel()
				random := rand.New(rand.NewPCG(seed, 7))
				hiccup := 2 + random.IntN(8)
				script := func(n int) sim.Script {
					jitter := rand.New(rand.NewPCG(seed, uint64(n)))
					s := sim.Script{Capacity: capacity, Latency: func(int, int64) int64 {
						return int64(2e6 + 2e5*jitter.ExpFloat64())
					}}
					if n == hiccup && seed > 0 {
						s.Stalls = []sim.Span{{From: 1e9, To: 13e8}}
					}
					return s
				}
				// 5 % of overload has to fill the cap well within the window.
				cfg := loadgen.Config{
					Mode: loadgen.Closed, Threads: 100, Burst: 10, MaxInflight: int(max(100, capacity/100)), Lanes: 1,
					Warmup: 500 * time.Millisecond, Measure: 2 * time.Second, DrainTimeout: time.Second,
				}
				if capacity <= 5000 {
					cfg.Measure = 8 * time.Second
				}
				c, n := base, 0
				if seed%2 == 0 {
					c.Start, c.MaxRuns = int64(ladder.FromRun(play(t, cfg, script(0))).Achieved), c.MaxRuns-1
				} else {
					c.Start = int64(float64(capacity) * math.Exp2(4*random.Float64()-2))
				}
				cfg.Mode = loadgen.Open
				res, err := edge.Search(c, func(rate int64) (edge.Run, error) {
					n++
					cfg.Rate = rate
					row := ladder.FromRun(play(t, cfg, script(n)))
					p := zone.Judge(rate, []ladder.Row{row}, zone.DefaultLimits())
					return edge.Run{Rate: rate, Pass: p.Passes(), Achieved: p.Achieved}, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				off := float64(res.Passing)/float64(capacity) - 1
				t.Logf("start %d: edge %d, off by %.1f %%, %d runs", c.Start, res.Passing, 100*off, base.MaxRuns-c.MaxRuns+len(res.Runs))
				if !res.Confirmed || off < -0.05 || off > 0.05 {
					t.Errorf("start %d: %+v", c.Start, res)
				}
			})
		}
	}
}

// system passes up to an edge; overload achieves a rate of its own.
func system(limit int64, overload func(rate int64) float64, wrong ...int) func(int64) (edge.Run, error) {
	n := 0
	return func(rate int64) (edge.Run, error) {
		n++
		r := edge.Run{Rate: rate, Pass: rate <= limit, Achieved: float64(rate)}
		if rate > limit {
			r.Achieved = overload(rate)
		}
		for _, w := range wrong {
			if w == n {
				r.Pass = !r.Pass
			}
		}
		return r, nil
	}
}

// Whatever overload looks like, the ends have to enclose the edge.
func TestOverloads(t *testing.T) {
	for name, overload := range map[string]func(limit int64) func(int64) float64{
		"carries what it can": func(l int64) func(int64) float64 { return func(int64) float64 { return float64(l) } },
		"achieves more than is good": func(l int64) func(int64) float64 {
			return func(r int64) float64 { return min(float64(r), 1.5*float64(l)) }
		},
		"latency alone":   func(l int64) func(int64) float64 { return func(r int64) float64 { return float64(r) } },
		"breaks down":     func(l int64) func(int64) float64 { return func(r int64) float64 { return 0.1 * float64(l) } },
		"answers nothing": func(l int64) func(int64) float64 { return func(r int64) float64 { return 0 } },
	} {
		for _, limit := range []int64{1, 17, 999, 1000, 1001, 1499, 7777, 123_456} {
			c := base
			c.MaxRuns = 30
			res, err := edge.Search(c, system(limit, overload(limit)))
			within := float64(res.Failing) <= float64(res.Passing)*1.05 || res.Failing-res.Passing == 1
			if err != nil || !res.Confirmed || res.Passing > limit || res.Failing <= limit || !within {
				t.Errorf("%s, edge %d: %+v, %v", name, limit, res, err)
			}
		}
	}
}

// One wrong run anywhere is found out by the repeats.
func TestOneWrongRun(t *testing.T) {
	for _, limit := range []int64{900, 5000} {
		for wrong := range 12 {
			c := base
			c.MaxRuns, c.Repeats = 40, 3
			res, err := edge.Search(c, system(limit, func(int64) float64 { return float64(limit) }, wrong))
			if err != nil || !res.Confirmed {
				t.Fatalf("%+v, %v", res, err)
			}
			// A passing rate below the edge is never run again: one that failed
			// by mistake and then passed leaves the ends right.
			if off := float64(res.Passing)/float64(limit) - 1; off < -0.05 || off > 0.05 {
				t.Errorf("edge %d, run %d wrong: %+v", limit, wrong, res)
			}
		}
	}
}

func TestWhereItEnds(t *testing.T) {
	never := func(int64) float64 { return 0 }
	c := base
	c.Max, c.MaxRuns = 5000, 20
	if res, _ := edge.Search(c, system(1e9, never)); res.Passing != 5000 || res.Failing != 0 || res.Confirmed || res.Why == "" {
		t.Errorf("all pass: %+v", res)
	}
	if res, _ := edge.Search(c, system(0, never)); res.Passing != 0 || res.Failing != 1 || res.Confirmed || res.Why == "" {
		t.Errorf("none passes: %+v", res)
	}
	c.MaxRuns = 3
	if res, _ := edge.Search(c, system(3000, never)); len(res.Runs) != 3 || res.Passing != 2000 || res.Failing != 4000 || res.Confirmed || res.Why == "" {
		t.Errorf("three runs: %+v", res)
	}
	boom := errors.New("boom")
	res, err := edge.Search(c, func(rate int64) (edge.Run, error) {
		if rate > 1000 {
			return edge.Run{}, boom
		}
		return edge.Run{Rate: rate, Pass: true}, nil
	})
	if err != boom || res.Passing != 1000 || len(res.Runs) != 1 {
		t.Errorf("an error: %+v, %v", res, err)
	}
}

func TestValidate(t *testing.T) {
	for _, spoil := range []func(*edge.Config){
		func(c *edge.Config) { c.Start = 0 }, func(c *edge.Config) { c.Start = c.Max + 1 },
		func(c *edge.Config) { c.Resolution = 0 }, func(c *edge.Config) { c.Repeats = 0 }, func(c *edge.Config) { c.MaxRuns = 0 },
	} {
		c := base
		spoil(&c)
		if c.Validate() == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if err := base.Validate(); err != nil {
		t.Error(err)
	}
}

func TestFillTime(t *testing.T) {
	if got := edge.FillTime(1000, 1000, 0.05); got != 20*time.Second {
		t.Error(got)
	}
}
