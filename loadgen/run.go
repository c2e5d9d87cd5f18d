package loadgen

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/record"
)

// SystemClock is the host's monotonic clock. All lanes of a run share one, and
// with it its origin.
type SystemClock struct{ origin time.Time }

// NewSystemClock starts at 0.
func NewSystemClock() SystemClock { return SystemClock{time.Now()} }

// Now in nanoseconds since the clock was made.
func (c SystemClock) Now() int64 { return int64(time.Since(c.origin)) }

// Options of a Rig. The zero value is a run in real time that tells nobody.
type Options struct {
	// Second is called once for each completed second, in order.
	Second func(record.Second)
	// Interval is called about once a second with what was recorded since
	// the last call; the histograms are valid during the call only.
	Interval func(from, to time.Time, h Histograms)
	// Checkpoint is called every CheckpointEvery seconds with the result so
	// far, so that a crash loses little.
	Checkpoint      func(*Result)
	CheckpointEvery int
	// Setup prepares the locked thread of a lane.
	Setup func(lane int) error
	// ReadyTimeout bounds the wait for a leader before the first instant;
	// 5 s when 0.
	ReadyTimeout time.Duration
	// BeforeMeasure is called shortly before the measured window opens, in
	// the warm-up, and AfterMeasure when it has closed; both off the lanes'
	// threads.
	BeforeMeasure, AfterMeasure func()

	// Virtual gives each lane a clock of its own; lanes then run one after
	// the other on the caller's goroutine from time 0, which stands for
	// Started. A test's run repeats to the byte.
	Virtual func(lane int) Clock
	Started time.Time
}

// Result is what a run measured.
type Result struct {
	// Run has every field that the rig itself knows; cluster, environment and
	// verdict are the caller's.
	Run record.Run
	Histograms
}

// ErrNoLeader is returned when no lane's client became ready.
var ErrNoLeader = errors.New("no leader known")

// Rig runs one load against one system.
type Rig struct {
	cfg   Config
	opt   Options
	dial  func(Wiring) (Client, error)
	halt  *halt
	lanes []*lane
	coll  *collector
	clock Clock // of the halt: lane 0's

	started     time.Time
	origin      int64
	usage       [2]usage // of the process, as the window opens and closes
	threadShare []float64
	reported    int // seconds handed to Interval
}

// New checks the configuration.
func New(cfg Config, dial func(Wiring) (Client, error), opt Options) (*Rig, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if opt.ReadyTimeout == 0 {
		opt.ReadyTimeout = 5 * time.Second
	}
	r := &Rig{cfg: cfg, opt: opt, dial: dial, halt: newHalt(), threadShare: make([]float64, cfg.Lanes)}
	r.clock = NewSystemClock()
	recs := make([]*recorder, cfg.Lanes)
	for i := range cfg.Lanes {
		clock := r.clock
		if opt.Virtual != nil {
			clock = opt.Virtual(i)
		}
		l := newLane(cfg, i, clock, r.halt)
		r.lanes = append(r.lanes, l)
		recs[i] = l.rec
	}
	r.coll = newCollector(cfg, recs)
	return r, nil
}

// Stop ends the sending now; the run drains and returns what it has. It may be
// called from any goroutine.
func (r *Rig) Stop() { r.halt.stop.CompareAndSwap(never, r.clock.Now()) }

// Abort ends the drain as well.
func (r *Rig) Abort() {
	r.Stop()
	r.halt.abort.Store(r.clock.Now())
}

// Run to the end. An error means that the load did not start.
func (r *Rig) Run() (*Result, error) {
	for i, l := range r.lanes {
		c, err := r.dial(Wiring{
			Lane: i, Lanes: r.cfg.Lanes, Slots: len(l.slots), Size: r.cfg.Size,
			Clock: l.clock, Complete: l.completed, Event: l.event, Fail: l.fail,
		})
		if err != nil {
			for _, l := range r.lanes[:i] {
				_ = l.client.Close()
			}
			return nil, fmt.Errorf("lane %d: %w", i, err)
		}
		l.client = c
	}
	if r.opt.Virtual != nil {
		return r.virtual(), nil
	}
	return r.real()
}

// virtual runs the lanes one after the other, each on its own clock.
func (r *Rig) virtual() *Result {
	r.started = r.opt.Started
	var drained int64
	for i, l := range r.lanes {
		if len(r.lanes) == 1 {
			l.onSecond = r.report
		}
		l.margin = 0 // a thread in virtual time wakes on the dot
		drained = max(drained, l.run(0, i))
		r.threadShare[i] = 1
	}
	return r.result(drained, r.coll.last())
}

// real runs every lane on a locked thread, and the reporter beside them.
func (r *Rig) real() (*Result, error) {
	// A collection stops the lanes. The path of a request allocates nothing,
	// so there is nothing to collect in a run; the memory limit is the net
	// below that.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC()

	n := len(r.lanes)
	ready := make(chan error, n)
	start := make(chan struct{})
	abandon := make(chan struct{})
	drained := make([]int64, n)
	var opened, closed sync.WaitGroup
	opened.Add(n)
	closed.Add(n)
	var done sync.WaitGroup
	for i, l := range r.lanes {
		done.Add(1)
		go func() {
			defer done.Done()
			runtime.LockOSThread()
			// Not unlocked: a thread that was tuned or pinned ends here.
			ready <- r.prepare(i, l)
			select {
			case <-start:
			case <-abandon:
				_ = l.client.Close()
				return
			}
			var before usage
			l.onOpen = func() {
				before = usageOf(unix.RUSAGE_THREAD)
				opened.Done()
			}
			l.onClose = func() {
				if !l.opened {
					// Stopped within the warm-up.
					opened.Done()
				} else if after := usageOf(unix.RUSAGE_THREAD); after.wall > before.wall {
					r.threadShare[i] = float64(after.cpu-before.cpu) / float64(after.wall-before.wall)
				}
				closed.Done()
			}
			drained[i] = l.run(r.origin, i)
		}()
	}
	var err error
	for range r.lanes {
		if e := <-ready; e != nil && err == nil {
			err = e
		}
	}
	if err != nil {
		close(abandon)
		done.Wait()
		return nil, err
	}
	// A millisecond ahead, so that every lane is there for its first instant.
	r.origin = r.clock.Now() + 1e6
	r.started = time.Now().Add(time.Millisecond)
	close(start)

	ended := make(chan struct{})
	var watchers sync.WaitGroup
	watchers.Add(2)
	go func() {
		defer watchers.Done()
		if r.opt.BeforeMeasure != nil {
			// What it costs should not fall into the window.
			const early = 300 * time.Millisecond
			select {
			case <-time.After(time.Until(r.started.Add(r.cfg.Warmup - early))):
			case <-ended:
			}
			r.opt.BeforeMeasure()
		}
		opened.Wait()
		r.usage[0] = usageOf(unix.RUSAGE_SELF)
		closed.Wait()
		r.usage[1] = usageOf(unix.RUSAGE_SELF)
		if r.opt.AfterMeasure != nil {
			r.opt.AfterMeasure()
		}
	}()
	go func() {
		defer watchers.Done()
		// Shortly after each second's end, when the lanes have rolled.
		const late = 20 * time.Millisecond
		next := r.started.Add(time.Second + late)
		for seconds := 1; ; seconds++ {
			select {
			case <-ended:
				return
			case <-time.After(time.Until(next)):
			}
			next = next.Add(time.Second)
			r.report()
			if r.opt.Checkpoint != nil && r.opt.CheckpointEvery > 0 && seconds%r.opt.CheckpointEvery == 0 {
				res := r.sofar()
				// What is outstanding has no reply yet.
				for _, w := range []*record.Counters{&res.Run.Warmup, &res.Run.Measured} {
					open := w.Offered - w.OK - w.Failed - w.Unanswered - w.Dropped()
					w.Unanswered += open
					w.NoReply += open
				}
				r.opt.Checkpoint(res)
			}
		}
	}()
	done.Wait()
	close(ended)
	watchers.Wait()
	var longest int64
	for _, d := range drained {
		longest = max(longest, d)
	}
	return r.result(longest, r.coll.last()), nil
}

// prepare the lane's thread and wait until its client knows a leader.
func (r *Rig) prepare(i int, l *lane) error {
	if r.opt.Setup != nil {
		if err := r.opt.Setup(i); err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	limit := l.clock.Now() + r.opt.ReadyTimeout.Nanoseconds()
	for !l.client.Ready() {
		if fault := r.halt.fault.Load(); fault != nil {
			return *fault
		}
		now := l.clock.Now()
		if now >= limit || now >= r.halt.stop.Load() {
			err := fmt.Errorf("%w within %v", ErrNoLeader, r.opt.ReadyTimeout)
			if n := len(l.rec.events); n > 0 {
				err = fmt.Errorf("%w: %s", err, l.rec.events[n-1].Text)
			}
			return err
		}
		l.client.Wait(min(limit, now+longestWait))
	}
	return nil
}

// report what the lanes handed over since the last time.
func (r *Rig) report() {
	h := r.coll.take()
	for _, s := range r.coll.seconds() {
		if r.opt.Second != nil {
			r.opt.Second(s)
		}
	}
	r.interval(h)
}

func (r *Rig) interval(h Histograms) {
	if r.opt.Interval == nil || h.Lag.TotalCount()+h.Latency.TotalCount() == 0 {
		return
	}
	if r.cfg.Mode == Closed {
		h.Service = h.Latency
	}
	from, to := r.reported, len(r.coll.rows)
	r.reported = to
	r.opt.Interval(r.started.Add(time.Duration(from)*time.Second), r.started.Add(time.Duration(to)*time.Second), h)
}

// result when all lanes have ended.
func (r *Rig) result(drained int64, rest Histograms) *Result {
	for _, s := range r.coll.seconds() {
		if r.opt.Second != nil {
			r.opt.Second(s)
		}
	}
	r.interval(rest)
	res := r.sofar()
	run := &res.Run
	run.DrainedS = float64(drained) / 1e9
	// What the rig cost, which is known when its lanes have ended.
	for _, share := range r.threadShare {
		run.Rig.LaneCPUShare = min(run.Rig.LaneCPUShare, share)
	}
	if u := r.usage[1]; u.wall > r.usage[0].wall && r.usage[0].wall > 0 {
		run.Rig.CPUShare = float64(u.cpu-r.usage[0].cpu) / float64(u.wall-r.usage[0].wall)
		if done := run.Measured.OK + run.Measured.Failed; done > 0 {
			run.Rig.CPUUSPerRequest = us(u.cpu-r.usage[0].cpu) / float64(done)
		}
		run.Rig.GCPauses, run.Rig.GCPauseMaxUS = pauses(r.usage[0].at, u.at)
	}
	return res
}

// sofar is the result of what the lanes handed over.
func (r *Rig) sofar() *Result {
	t := r.coll.sum()
	c := r.cfg
	measured := c.Measure.Nanoseconds()
	stop := r.halt.stop.Load()
	opens := r.origin + c.Warmup.Nanoseconds()
	interrupted := stop < opens+measured
	if interrupted {
		measured = max(0, stop-opens)
	}
	res := &Result{Histograms: r.coll.total}
	run := &res.Run
	*run = record.Run{
		Schema:  record.Schema,
		Started: r.started,
		Knobs: record.Knobs{
			Mode: c.Mode.String(), WarmupS: c.Warmup.Seconds(), MeasureS: c.Measure.Seconds(),
			DrainTimeoutS: c.DrainTimeout.Seconds(), Pace: c.Pace.String(), Size: c.Size,
			Lanes: c.Lanes, Seed: c.Seed,
		},
		MeasuredS: float64(measured) / 1e9,
		Warmup:    t.windows[warmup], Measured: t.windows[measure],
		BacklogAtStart: t.backlog,
		AckedTotal:     t.windows[warmup].OK + t.windows[measure].OK,
		Series:         r.coll.rows,
		Silence:        record.Silence{AtS: float64(t.silentFrom) / 1e9, S: float64(t.silence) / 1e9},
		Events:         t.events,
		EventsLeftOff:  t.eventsLeftOff,
		Rig: record.Rig{
			LaneCPUShare: 1, Backpressure: t.backpressure, OutOfRange: t.outOfRange, Violations: t.violations,
		},
	}
	if c.Mode == Open {
		run.Knobs.Rate, run.Knobs.Burst, run.Knobs.Arrival = c.Rate, c.Burst, c.Arrival.String()
		run.Knobs.MaxInflight = c.MaxInflight
	} else {
		run.Knobs.Threads = c.Threads
	}
	if fault := r.halt.fault.Load(); fault != nil {
		run.Rig.Fault = (*fault).Error()
	}
	if interrupted {
		run.Rig.Interrupted = true
		run.Rig.InterruptedAtS = float64(max(0, stop-r.origin)) / 1e9
	}
	if c.Mode == Closed && measured > 0 && r.coll.total.Latency.TotalCount() > 0 {
		rate := float64(run.Measured.OK+run.Measured.Failed) / run.MeasuredS
		run.Little = rate * r.coll.total.Latency.Mean() / 1e9 / float64(c.Threads)
	}
	// Law 7: the unanswered count as longer than any answered request, and
	// unless the drain was cut short they have waited its time-out at least.
	beyond, at := run.Measured.Unanswered, t.latencyMax
	if r.halt.abort.Load() == never {
		at = max(at, c.DrainTimeout.Nanoseconds())
	}
	run.Latency = record.NewDistribution(r.coll.total.Latency, t.latencyMax, beyond, at)
	run.Service = run.Latency
	if c.Mode == Open {
		run.Service = record.NewDistribution(r.coll.total.Service, t.serviceMax, beyond, at)
	}
	run.Lag = record.NewDistribution(r.coll.total.Lag, t.lagMax, 0, 0)
	return res
}

// usage is CPU time and the moment it was read at, in nanoseconds.
type usage struct {
	cpu, wall int64
	at        time.Time
}

func usageOf(who int) usage {
	var ru unix.Rusage
	now := time.Now()
	if unix.Getrusage(who, &ru) != nil {
		return usage{}
	}
	return usage{ru.Utime.Nano() + ru.Stime.Nano(), now.UnixNano(), now}
}

// pauses of the garbage collector between two moments.
func pauses(from, to time.Time) (n int, maxUS float64) {
	var s debug.GCStats
	debug.ReadGCStats(&s)
	for i, end := range s.PauseEnd {
		if end.After(from) && end.Before(to) {
			n++
			maxUS = max(maxUS, float64(s.Pause[i])/1e3)
		}
	}
	return n, maxUS
}
