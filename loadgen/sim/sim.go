// Package sim is a system under test in virtual time: its latencies, stalls
// and failures are scripted, its clock moves only when somebody looks at it or
// waits, and a run against it repeats to the byte. It shows what the rig makes
// of a system of which everything is known.
package sim

import (
	"container/heap"
	"errors"

	"raftrig/loadgen"
)

// Span is a stretch of virtual time, From inclusive to To exclusive, in
// nanoseconds from the run's origin.
type Span struct{ From, To int64 }

func within(spans []Span, t int64) (Span, bool) {
	for _, s := range spans {
		if t >= s.From && t < s.To {
			return s, true
		}
	}
	return Span{}, false
}

// Script is how the system behaves. The zero value answers at once.
type Script struct {
	// Latency of request n (from 0), sent at the given time, in nanoseconds;
	// nil is 0.
	Latency func(n int, sent int64) int64
	// Capacity in requests a second of the one server behind which requests
	// queue; 0 is without bound. Latency is added to the wait.
	Capacity int64
	// Stalls: the system stands still, as after SIGSTOP. What was on its way
	// is late by the stall's rest; what arrives waits for its end.
	Stalls []Span
	// NoLeader: the client knows no leader.
	NoLeader []Span
	// Full: the client refuses, back-pressure.
	Full []Span
	// Outcome of request n; nil is OK.
	Outcome func(n int) loadgen.Outcome
	// Lost says that request n is never answered.
	Lost func(n int) bool
	// Fault: the client ends the run then, when it is not 0.
	Fault int64
	// Events: what the client notes, and when.
	Events []Event
	// RigStalls: the rig itself stands still; its clock jumps over them.
	RigStalls []Span
	// Tick is how far the clock moves each time it is read: what a reading
	// costs. 0 is allowed with PACE=park only, for a spinning lane reads the
	// clock until it is time.
	Tick int64
}

// Event is something that the client notes, at a virtual time.
type Event struct {
	At   int64
	Text string
}

// System runs a script. Each lane has a clock and a client of its own.
type System struct {
	script Script
	clocks map[int]*clock
}

// New system.
func New(s Script) *System { return &System{s, map[int]*clock{}} }

// Clock of a lane, for Options.Virtual.
func (s *System) Clock(lane int) loadgen.Clock {
	c := &clock{tick: s.script.Tick, stalls: s.script.RigStalls}
	s.clocks[lane] = c
	return c
}

// Dial the client of one lane.
func (s *System) Dial(w loadgen.Wiring) (loadgen.Client, error) {
	return &client{script: s.script, w: w, clock: s.clocks[w.Lane], events: s.script.Events}, nil
}

type clock struct {
	now, tick int64
	stalls    []Span
}

func (c *clock) Now() int64 {
	c.set(c.now + c.tick)
	return c.now
}

// set moves the clock to t, and over a stall of the rig that begins by then.
func (c *clock) set(t int64) {
	if t < c.now {
		return
	}
	c.now = t
	if s, ok := within(c.stalls, t); ok {
		c.now = s.To
	}
}

type client struct {
	script  Script
	w       loadgen.Wiring
	clock   *clock
	n       int
	busy    int64 // the server is, until then
	replies replies
	lost    []uint32
	events  []Event // still to come
}

func (c *client) Ready() bool {
	_, none := within(c.script.NoLeader, c.clock.now)
	return !none
}

func (c *client) Submit(id uint32) bool {
	now := c.clock.now
	if _, full := within(c.script.Full, now); full {
		return false
	}
	n := c.n
	c.n++
	if c.script.Lost != nil && c.script.Lost(n) {
		c.lost = append(c.lost, id)
		return true
	}
	r := reply{due: now, n: n, id: id}
	if c.script.Capacity > 0 {
		r.due = max(r.due, c.busy) + 1e9/c.script.Capacity
		c.busy = r.due
	}
	if c.script.Latency != nil {
		r.due += c.script.Latency(n, now)
	}
	for _, s := range c.script.Stalls {
		switch {
		case now >= s.From && now < s.To:
			r.due += s.To - now
		case now < s.From && r.due > s.From:
			r.due += s.To - s.From
		}
	}
	if c.script.Outcome != nil {
		r.outcome = c.script.Outcome(n)
	}
	heap.Push(&c.replies, r)
	return true
}

func (c *client) Flush() error { return nil }

// Poll delivers what is due.
func (c *client) Poll() int {
	for len(c.events) > 0 && c.clock.now >= c.events[0].At {
		c.w.Event(c.events[0].Text)
		c.events = c.events[1:]
	}
	if c.script.Fault > 0 && c.clock.now >= c.script.Fault {
		c.w.Fail(errors.New("the reply to request 7 is of another request"))
	}
	n := 0
	for len(c.replies) > 0 && c.replies[0].due <= c.clock.now {
		r := heap.Pop(&c.replies).(reply)
		c.w.Complete(r.id, r.outcome, c.clock.now)
		n++
	}
	return n
}

// Wait moves the clock to the next reply, or to until.
func (c *client) Wait(until int64) int {
	if len(c.replies) > 0 {
		until = min(until, c.replies[0].due)
	}
	c.clock.set(until)
	return c.Poll()
}

func (c *client) Close() error {
	for len(c.replies) > 0 {
		c.lost = append(c.lost, heap.Pop(&c.replies).(reply).id)
	}
	for _, id := range c.lost {
		c.w.Complete(id, loadgen.Unknown, c.clock.now)
	}
	c.lost = nil
	return nil
}

type reply struct {
	due     int64
	n       int
	id      uint32
	outcome loadgen.Outcome
}

// replies by when they are due, then in the order they were sent.
type replies []reply

func (h replies) Len() int { return len(h) }
func (h replies) Less(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].n < h[j].n
}
func (h replies) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *replies) Push(x any)   { *h = append(*h, x.(reply)) }
func (h *replies) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
