package loadgen_test

import (
	"testing"
	"time"

	"raftrig/loadgen"
	"raftrig/loadgen/cpuidle"
	"raftrig/loadgen/sock"
	"raftrig/record"
)

// idleNet is a client without a system that waits as real ones do, in an epoll
// instance.
type idleNet struct {
	w      loadgen.Wiring
	poller *sock.Poller
	done   []uint32
}

func (c *idleNet) Ready() bool           { return true }
func (c *idleNet) Submit(id uint32) bool { c.done = append(c.done, id); return true }
func (c *idleNet) Flush() error          { return nil }
func (c *idleNet) Close() error          { c.Poll(); return c.poller.Close() }
func (c *idleNet) Poll() int {
	if len(c.done) == 0 {
		return 0
	}
	now := c.w.Clock.Now()
	for _, id := range c.done {
		c.w.Complete(id, loadgen.OK, now)
	}
	n := len(c.done)
	c.done = c.done[:0]
	return n
}
func (c *idleNet) Wait(until int64) int {
	if len(c.done) == 0 {
		c.poller.Wait(until - c.w.Clock.Now())
	}
	return c.Poll()
}

// BenchmarkPace is how late a lane sends and what waiting costs, by pace and
// rate, with a system that costs nothing. It runs a second an iteration, so
// run it with -benchtime=5x; spin wants a core of its own.
func BenchmarkPace(b *testing.B) {
	for _, x := range []struct {
		name string
		pace loadgen.Pace
		rate int64
		poll bool // IDLE=poll
	}{
		{"spin/100k", loadgen.Spin, 100_000, false},
		{"spin/500k", loadgen.Spin, 500_000, false},
		{"park/1k", loadgen.Park, 1000, false},
		{"park/1k/idle=poll", loadgen.Park, 1000, true},
		{"park/10k", loadgen.Park, 10_000, false},
		{"park/10k/idle=poll", loadgen.Park, 10_000, true},
	} {
		b.Run(x.name, func(b *testing.B) {
			if x.poll {
				release, err := cpuidle.Poll()
				if err != nil {
					b.Skip(err)
				}
				defer release()
			}
			var all []record.Distribution
			var share float64
			for range b.N {
				rig, err := loadgen.New(loadgen.Config{
					Mode: loadgen.Open, Rate: x.rate, Burst: 1, MaxInflight: 1000, Lanes: 1, Pace: x.pace,
					Warmup: 100 * time.Millisecond, Measure: time.Second, DrainTimeout: time.Second,
				}, func(w loadgen.Wiring) (loadgen.Client, error) {
					p, err := sock.NewPoller()
					return &idleNet{w: w, poller: p}, err
				}, loadgen.Options{Setup: func(int) error { return sock.TuneThread() }})
				if err != nil {
					b.Fatal(err)
				}
				res, err := rig.Run()
				if err != nil {
					b.Fatal(err)
				}
				all = append(all, res.Run.Lag)
				share += res.Run.Rig.LaneCPUShare
			}
			lag, err := record.Merge(all...)
			if err != nil {
				b.Fatal(err)
			}
			for _, p := range []struct {
				rank float64
				unit string
			}{{50, "lag-p50-us"}, {99, "lag-p99-us"}} {
				at, _ := lag.At(p.rank)
				b.ReportMetric(at.US, p.unit)
			}
			b.ReportMetric(100*share/float64(b.N), "%core")
			b.ReportMetric(0, "ns/op")
		})
	}
}
