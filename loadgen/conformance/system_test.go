package conformance

import (
	"sync"
	"testing"
	"time"

	"raftrig/loadgen"
)

// system is a cluster without goroutines: it lives in memory and moves when
// its client polls. Of 64 requests it rejects one.
type system struct {
	mu        sync.Mutex
	applied   uint64
	stalled   bool
	resumed   chan struct{} // closed when the stall ends
	dying     bool          // the leader dies as soon as enough is outstanding
	epoch     int           // grows when the leader dies
	deadUntil time.Time     // no leader until then
	// forgets makes a killed leader take acknowledged requests with it.
	forgets bool
}

func (sys *system) target(dial func(loadgen.Wiring) (loadgen.Client, error)) Target {
	return Target{
		Dial:     dial,
		Slots:    32,
		Requests: 4000,
		StallFor: 400 * time.Millisecond,
		Limit:    20 * time.Second,
		Stall: func(testing.TB) func() {
			sys.mu.Lock()
			defer sys.mu.Unlock()
			sys.stalled = true
			sys.resumed = make(chan struct{})
			return func() {
				sys.mu.Lock()
				defer sys.mu.Unlock()
				sys.stalled = false
				close(sys.resumed)
			}
		},
		KillLeader: func(testing.TB) func() {
			sys.mu.Lock()
			defer sys.mu.Unlock()
			sys.dying = true
			return func() {}
		},
		Applied: func(testing.TB) uint64 {
			sys.mu.Lock()
			defer sys.mu.Unlock()
			return sys.applied
		},
	}
}

// stall returns the channel that the stall's end closes, nil without a stall.
func (sys *system) stall() <-chan struct{} {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	if !sys.stalled {
		return nil
	}
	return sys.resumed
}

// silent says whether replies are held back: by a stall, or by a leader that
// is to die with requests on their way.
func (sys *system) silent(outstanding int) bool {
	sys.mu.Lock()
	defer sys.mu.Unlock()
	if sys.dying && outstanding >= 8 {
		sys.dying = false
		sys.epoch++
		sys.deadUntil = time.Now().Add(30 * time.Millisecond)
		if sys.forgets {
			sys.applied -= 200
		}
	}
	return sys.stalled || sys.dying
}

func (sys *system) leads() bool {
	return !time.Now().Before(sys.deadUntil)
}

type request struct {
	id    uint32
	seq   int
	epoch int
	due   int64 // when its reply can be read
}

// client is an honest client of system. Each func of bugs that is set takes
// the place of an honest step.
type client struct {
	sys    *system
	w      loadgen.Wiring
	bugs   bugs
	queue  []request // sent, in order of sending
	seq    int
	n      int // completions delivered in the current call
	closed bool
}

type bugs struct {
	ready   func(*client) bool
	submit  func(*client, uint32) bool
	flush   func(*client)
	poll    func(*client) int
	wait    func(*client, int64) int
	close   func(*client) error
	deliver func(*client, request, loadgen.Outcome, int64)
	// answer decides on a request of the living leader.
	answer func(*client, request) (outcome loadgen.Outcome, applied uint64)
}

func (sys *system) dial(b bugs) func(loadgen.Wiring) (loadgen.Client, error) {
	return func(w loadgen.Wiring) (loadgen.Client, error) {
		return &client{sys: sys, w: w, bugs: b, queue: make([]request, 0, w.Slots)}, nil
	}
}

func (c *client) Ready() bool {
	if c.bugs.ready != nil {
		return c.bugs.ready(c)
	}
	return c.honestReady()
}

func (c *client) honestReady() bool {
	c.sys.mu.Lock()
	defer c.sys.mu.Unlock()
	return c.sys.leads()
}

func (c *client) Submit(id uint32) bool {
	if c.bugs.submit != nil {
		return c.bugs.submit(c, id)
	}
	return c.honestSubmit(id)
}

func (c *client) honestSubmit(id uint32) bool {
	c.sys.mu.Lock()
	defer c.sys.mu.Unlock()
	if !c.sys.leads() || len(c.queue) > 3*c.w.Slots/4 {
		return false
	}
	c.seq++
	c.queue = append(c.queue, request{
		id: id, seq: c.seq, epoch: c.sys.epoch,
		due: c.w.Clock.Now() + int64(c.seq%7)*5_000,
	})
	return true
}

func (c *client) Flush() error {
	if c.bugs.flush != nil {
		c.bugs.flush(c)
	}
	return nil
}

func (c *client) Poll() int {
	if c.bugs.poll != nil {
		return c.bugs.poll(c)
	}
	return c.honestPoll()
}

func (c *client) honestPoll() int {
	c.n = 0
	if c.sys.silent(len(c.queue)) {
		return 0
	}
	now := c.w.Clock.Now()
	kept := c.queue[:0]
	for _, r := range c.queue {
		if r.due > now {
			kept = append(kept, r)
			continue
		}
		c.deliver(r, c.end(r), c.w.Clock.Now())
	}
	c.queue = kept
	return c.n
}

// end makes up a request's fate.
func (c *client) end(r request) loadgen.Outcome {
	c.sys.mu.Lock()
	defer c.sys.mu.Unlock()
	if r.epoch != c.sys.epoch || c.closed {
		c.sys.applied += uint64(r.id % 2) // perhaps
		return loadgen.Unknown
	}
	outcome, applied := loadgen.OK, uint64(1)
	if r.seq%64 == 0 {
		outcome, applied = loadgen.Failed, 0
	}
	if c.bugs.answer != nil {
		outcome, applied = c.bugs.answer(c, r)
	}
	c.sys.applied += applied
	return outcome
}

func (c *client) deliver(r request, outcome loadgen.Outcome, at int64) {
	if c.bugs.deliver != nil {
		c.bugs.deliver(c, r, outcome, at)
		return
	}
	c.tell(r.id, outcome, at)
}

func (c *client) tell(id uint32, outcome loadgen.Outcome, at int64) {
	c.n++
	c.w.Complete(id, outcome, at)
}

func (c *client) Wait(until int64) int {
	if c.bugs.wait != nil {
		return c.bugs.wait(c, until)
	}
	return c.honestWait(until)
}

func (c *client) honestWait(until int64) int {
	for {
		n := c.honestPoll()
		if n > 0 || c.w.Clock.Now() >= until {
			return n
		}
		time.Sleep(20 * time.Microsecond)
	}
}

func (c *client) Close() error {
	if c.bugs.close != nil {
		return c.bugs.close(c)
	}
	return c.honestClose()
}

func (c *client) honestClose() error {
	c.closed = true
	for _, r := range c.queue {
		outcome := c.end(r)
		c.deliver(r, outcome, c.w.Clock.Now())
	}
	c.queue = c.queue[:0]
	return nil
}
