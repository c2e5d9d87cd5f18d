package loadgen

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// null is a client whose system answers at the next poll.
type null struct {
	w    Wiring
	done []uint32
}

func (c *null) Ready() bool           { return true }
func (c *null) Submit(id uint32) bool { c.done = append(c.done, id); return true }
func (c *null) Flush() error          { return nil }
func (c *null) Close() error          { c.Poll(); return nil }
func (c *null) Wait(until int64) int {
	if len(c.done) == 0 {
		time.Sleep(time.Duration(until - c.w.Clock.Now()))
	}
	return c.Poll()
}

func (c *null) Poll() int {
	n := len(c.done)
	if n == 0 {
		return 0
	}
	now := c.w.Clock.Now()
	for _, id := range c.done {
		c.w.Complete(id, OK, now)
	}
	c.done = c.done[:0]
	return n
}

// BenchmarkLane is what the rig itself costs a request: schedule, clock,
// histograms and counters, with a system that costs nothing.
func BenchmarkLane(b *testing.B) {
	for _, x := range []struct {
		name  string
		mode  Mode
		burst int
	}{
		{"open/burst=1", Open, 1},
		{"open/burst=10", Open, 10},
		{"closed/threads=1", Closed, 1},
		{"closed/threads=100", Closed, 100},
	} {
		b.Run(x.name, func(b *testing.B) {
			cfg := Config{
				Mode: x.mode, Rate: MaxRate, Burst: x.burst, MaxInflight: 1000, Threads: 100,
				Measure: time.Hour, DrainTimeout: time.Second, Lanes: 1, Pace: Spin,
			}
			if x.name == "closed/threads=1" {
				cfg.Threads = 1
			}
			clock := NewSystemClock()
			l := newLane(cfg, 0, clock, newHalt())
			l.client = &null{w: Wiring{Clock: clock, Complete: l.completed}, done: make([]uint32, 0, 1000)}
			b.ReportAllocs()
			cpu := threadCPU(b)
			b.ResetTimer()
			// The rate lies above what a lane can do: it is never idle, and
			// ends with the b.N-th request.
			if x.mode == Open {
				cfg.Measure = time.Duration(int64(b.N) * 1e9 / cfg.Rate)
			}
			l.cfg.Measure = cfg.Measure
			now := clock.Now()
			l.origin, l.from, l.rollAt = now, now, now+second
			l.to = l.origin + cfg.Measure.Nanoseconds()
			if x.mode == Open {
				l.open(newSchedule(cfg, 0))
			} else {
				l.client = &counted{null: null{w: Wiring{Clock: clock, Complete: l.completed}, done: make([]uint32, 0, 1000)}, left: b.N, halt: l.halt}
				l.closed()
			}
			b.StopTimer()
			cpu(b)
			// To the burst, or to the chain.
			if n := l.rec.windows[measure].Offered; n < int64(b.N) || n > int64(b.N)+100 {
				b.Fatalf("%d requests in %d iterations", n, b.N)
			}
		})
	}
}

// counted stops the run at a number of requests.
type counted struct {
	null
	left int
	halt *halt
}

func (c *counted) Submit(id uint32) bool {
	if c.left--; c.left == 0 {
		c.halt.stop.Store(0)
	}
	return c.null.Submit(id)
}

// BenchmarkFloor is what no lane can do without: the schedule, a clock reading
// at the send and one at the reply, and two records. It stands beside
// BenchmarkLane so that both are measured in one run.
func BenchmarkFloor(b *testing.B) {
	cfg := Config{Mode: Open, Rate: MaxRate, Burst: 1, MaxInflight: 1000, Lanes: 1, Measure: time.Second, DrainTimeout: time.Second}
	rec := newRecorder(cfg)
	clock := NewSystemClock()
	s := newSchedule(cfg, 0)
	cpu := threadCPU(b)
	b.ResetTimer()
	for range b.N {
		due := s.next()
		sent := clock.Now()
		_ = rec.cur.Lag.RecordValue(sent & 0xffff)
		_ = rec.cur.Latency.RecordValue((clock.Now() - sent) + due&1)
	}
	b.StopTimer()
	cpu(b)
}

// threadCPU locks the thread; the function it returns reports the CPU time of
// an iteration since, which other work on the machine disturbs less than the
// time on the clock.
func threadCPU(b *testing.B) func(*testing.B) {
	runtime.LockOSThread()
	before := usageOf(unix.RUSAGE_THREAD)
	return func(b *testing.B) {
		b.ReportMetric(float64(usageOf(unix.RUSAGE_THREAD).cpu-before.cpu)/float64(b.N), "cpu-ns/op")
		runtime.UnlockOSThread()
	}
}
