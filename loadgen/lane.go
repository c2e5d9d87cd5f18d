package loadgen

import (
	"math"
	"sync/atomic"

	"raftrig/record"
)

const (
	// spinMargin is how long before an instant a parked lane wakes to spin the
	// rest. A thread that slept is late by tens of microseconds, by more than
	// that when its core was given away.
	spinMargin = int64(40e3)
	// longestWait bounds a wait, so that a lane notices Stop.
	longestWait = int64(100e6)
	// maxEvents bounds what a lane's client notes.
	maxEvents = 100
	// never is a time that does not come.
	never = int64(math.MaxInt64)
)

// slot is the state of one outstanding request.
type slot struct {
	due    int64 // the scheduled instant; in closed mode, the reply before
	sent   int64 // when it was handed to the client
	window uint8
	state  state
}

type state uint8

const (
	idle    state = iota
	waiting       // for the client to accept it
	sent          // accepted, not yet completed
)

// halt is how a run ends before its time. Both are times of the lanes' clock,
// never until asked for.
type halt struct {
	stop  atomic.Int64          // nothing is sent from here on
	abort atomic.Int64          // the drain ends here
	fault atomic.Pointer[error] // why a client ended the run
}

func newHalt() *halt {
	h := new(halt)
	h.stop.Store(never)
	h.abort.Store(never)
	return h
}

// lane sends its share of the schedule and reads the replies, on one
// goroutine, with one client.
type lane struct {
	cfg    Config
	number int
	clock  Clock
	client Client
	halt   *halt
	rec    *recorder

	origin  int64 // the run's first instant
	from    int64 // the measured window opens
	to      int64 // and closes
	rollAt  int64 // the current second ends
	margin  int64 // a parked lane spins that long before an instant
	opened  bool  // the measured window has opened
	closing bool  // the drain has ended
	out     int   // requests sent and not completed
	heard   int64 // the last reply, or the send that broke an idle time

	slots []slot
	// free ids, last in first out: the slots used last are in the cache.
	free []uint32
	// pending ids wait for Submit, first in first out: in open mode those that
	// met back-pressure, in closed mode every chain whose reply has come.
	pending fifo

	// hooks of the run; they may be nil.
	onSecond func()
	onOpen   func()
	onClose  func()
}

func newLane(cfg Config, number int, clock Clock, h *halt) *lane {
	n := cfg.slots(number)
	l := &lane{
		cfg: cfg, number: number, clock: clock, halt: h, margin: spinMargin,
		rec:     newRecorder(cfg),
		slots:   make([]slot, n),
		free:    make([]uint32, 0, n),
		pending: newFIFO(n),
	}
	for id := n - 1; id >= 0; id-- {
		l.free = append(l.free, uint32(id))
	}
	return l
}

// run from origin to the end of the drain. It returns when the client is
// closed, with how long the drain took.
func (l *lane) run(origin int64, number int) (drained int64) {
	l.origin = origin
	l.from = origin + l.cfg.Warmup.Nanoseconds()
	l.to = l.from + l.cfg.Measure.Nanoseconds()
	l.rollAt = origin + second
	l.rec.events = nil // of the way to here
	if l.cfg.Mode == Open {
		l.open(newSchedule(l.cfg, number))
	} else {
		l.closed()
	}
	if l.onClose != nil {
		l.onClose()
	}
	l.opened = true // a window that Stop came before does not open in the drain
	return l.drain()
}

// end of sending: the end of the window, or Stop.
func (l *lane) end() int64 { return min(l.to, l.halt.stop.Load()) }

// tick notices the boundaries that now has crossed.
func (l *lane) tick(now int64) {
	if now >= l.from && !l.opened {
		l.opened = true
		l.rec.backlog = int64(len(l.slots) - len(l.free))
		if l.onOpen != nil {
			l.onOpen()
		}
	}
	if now >= l.rollAt {
		s := (now - l.origin) / second
		l.rec.roll(int(s), int64(len(l.slots)-len(l.free)))
		l.rollAt = l.origin + (s+1)*second
		if l.onSecond != nil {
			l.onSecond()
		}
	}
}

// open sends each burst at its instant.
func (l *lane) open(s *schedule) {
	next := l.origin + s.next()
	polled := true
	for {
		end := l.end()
		if next >= end {
			// The window may stay open for longer than the last instant.
			l.restUntil(end)
			return
		}
		now := l.clock.Now()
		l.tick(now)
		if now < next {
			l.submitPending(now, never)
			l.rest(now, next)
			polled = true
			continue
		}
		if !polled {
			// The rig is behind. Replies are read between the bursts all the
			// same, or catching up would look like a slow system.
			l.client.Poll()
		}
		polled = false
		l.issue(next, now)
		next = l.origin + s.next()
	}
}

// issue the burst of instant t.
func (l *lane) issue(t, now int64) {
	w := l.window(t)
	count := &l.rec.windows[w]
	row := l.rec.row
	burst := int64(l.cfg.Burst)
	count.Offered += burst
	row.offered += burst
	if !l.client.Ready() {
		count.DroppedNoLeader += burst
		row.dropped += burst
		return
	}
	for j := int64(0); j < burst; j++ {
		n := len(l.free)
		if n == 0 {
			count.DroppedCap += burst - j
			row.dropped += burst - j
			break
		}
		id := l.free[n-1]
		l.free = l.free[:n-1]
		l.slots[id] = slot{due: t, window: w, state: waiting}
		if j > 0 {
			now = l.clock.Now()
		}
		// Behind those that wait already: a request does not overtake.
		if l.pending.len() > 0 || !l.submit(id, now) {
			l.pending.push(id)
		}
	}
	l.flush()
}

// submit request id; false is back-pressure.
func (l *lane) submit(id uint32, now int64) bool {
	s := &l.slots[id]
	due, w := s.due, s.window
	// Before the call, for a client may complete the request within it.
	s.sent, s.state = now, sent
	if l.out == 0 {
		l.heard = now
	}
	l.out++
	if !l.client.Submit(id) {
		l.out--
		s.state = waiting
		l.rec.backpressure++
		return false
	}
	row := l.rec.row
	if l.cfg.Mode == Closed {
		l.rec.windows[w].Offered++
		row.offered++
	}
	row.sent++
	lag := now - due
	row.lagMax = max(row.lagMax, lag)
	if w == measure {
		l.rec.record(l.rec.cur.Lag, lag, &l.rec.lagMax)
	}
	return true
}

// submitPending tries those that wait, in order, until one meets
// back-pressure; in closed mode none is sent from end on. now has just been
// read.
func (l *lane) submitPending(now, end int64) {
	if l.pending.len() == 0 || !l.client.Ready() {
		return
	}
	any := false
	for l.pending.len() > 0 {
		id := l.pending.front()
		if any {
			now = l.clock.Now()
		}
		if l.cfg.Mode == Closed {
			if now >= end {
				break
			}
			// The send decides the window.
			l.slots[id].window = l.window(now)
		}
		l.pending.pop()
		if !l.submit(id, now) {
			l.pending.unpop()
			break
		}
		any = true
	}
	if any {
		l.flush()
	}
}

func (l *lane) flush() {
	// What a failed flush concerns is completed by the client as Unknown.
	_ = l.client.Flush()
}

// closed keeps every chain going until the window closes.
func (l *lane) closed() {
	l.restUntil(l.origin)
	for _, id := range l.free {
		l.slots[id] = slot{due: l.origin, state: waiting}
	}
	for n := len(l.free); n > 0; n-- {
		l.pending.push(l.free[n-1])
		l.free = l.free[:n-1]
	}
	for {
		end := l.end()
		now := l.clock.Now()
		l.tick(now)
		if now >= end {
			return
		}
		l.submitPending(now, end)
		l.rest(now, end)
	}
}

// window that time t falls into.
func (l *lane) window(t int64) uint8 {
	if t < l.from {
		return warmup
	}
	return measure
}

// rest polls once, or waits until I/O or shortly before t.
func (l *lane) rest(now, t int64) {
	if l.cfg.Pace == Park {
		if until := min(t-l.margin, l.rollAt, now+longestWait); until > now {
			l.client.Wait(until)
			return
		}
	}
	l.client.Poll()
}

// restUntil keeps replies and boundaries going until t.
func (l *lane) restUntil(t int64) {
	for {
		now := l.clock.Now()
		l.tick(now)
		if now >= t || now >= l.halt.stop.Load() {
			return
		}
		l.submitPending(now, never)
		l.rest(now, t)
	}
}

// drain waits for what is outstanding, closes the client and counts the rest
// as unanswered.
func (l *lane) drain() (took int64) {
	begin := l.clock.Now()
	limit := begin + l.cfg.DrainTimeout.Nanoseconds()
	if l.cfg.Mode == Closed {
		// Chains that were due had not been offered.
		for l.pending.len() > 0 {
			id := l.pending.front()
			l.pending.pop()
			l.release(id)
		}
	}
	now := begin
	for len(l.free) < len(l.slots) {
		now = l.clock.Now()
		l.tick(now)
		end := min(limit, l.halt.abort.Load())
		if now >= end {
			break
		}
		l.submitPending(now, never)
		l.rest(now, end)
	}
	took = now - begin
	if l.out > 0 {
		l.silent(now)
	}
	l.closing = true
	_ = l.client.Close()
	for id := range l.slots {
		s := &l.slots[id]
		if s.state == idle {
			continue
		}
		if s.state == sent {
			// Close has to end every id that Submit accepted.
			l.rec.violations++
		}
		l.unanswered(s.window, 1)
		s.state = idle
	}
	l.rec.roll(int((l.clock.Now()-l.origin)/second), 0)
	return took
}

func (l *lane) unanswered(w uint8, noReply int64) {
	l.rec.windows[w].Unanswered++
	l.rec.windows[w].NoReply += noReply
	l.rec.windows[w].Lost += 1 - noReply
}

func (l *lane) release(id uint32) {
	l.slots[id].state = idle
	l.free = append(l.free, id)
}

// completed is the Wiring's Complete.
func (l *lane) completed(id uint32, outcome Outcome, at int64) {
	if int(id) >= len(l.slots) || l.slots[id].state != sent {
		l.rec.violations++
		return
	}
	l.out--
	s := &l.slots[id]
	w := s.window
	count := &l.rec.windows[w]
	row := l.rec.row
	from := s.due
	if l.cfg.Mode == Closed {
		from = s.sent
	}
	latency := at - from
	switch outcome {
	case OK:
		count.OK++
		row.ok++
	case Failed:
		count.Failed++
		row.failed++
	default:
		if l.closing {
			l.unanswered(w, 1)
		} else {
			l.unanswered(w, 0)
			row.lost++
		}
	}
	if outcome == OK || outcome == Failed {
		l.silent(at)
		row.sum += latency
		row.max = max(row.max, latency)
		if w == measure {
			cur := l.rec.cur
			l.rec.record(cur.Latency, latency, &l.rec.latencyMax)
			if l.cfg.Mode == Open { // in closed mode it is the latency
				l.rec.record(cur.Service, at-s.sent, &l.rec.serviceMax)
			}
		}
	}
	if l.cfg.Mode == Closed && !l.closing && at < l.end() {
		s.state, s.due = waiting, at
		l.pending.push(id)
		return
	}
	l.release(id)
}

// silent ends a stretch in which requests were outstanding and no reply came.
func (l *lane) silent(at int64) {
	if gap := at - l.heard; gap > l.rec.silence && at >= l.from {
		l.rec.silence, l.rec.silentFrom = gap, l.heard-l.origin
	}
	l.heard = at
}

// event is the Wiring's Event.
func (l *lane) event(text string) {
	if len(l.rec.events) == maxEvents {
		l.rec.eventsLeftOff++
		return
	}
	l.rec.events = append(l.rec.events, record.Event{
		AtS: float64(l.clock.Now()-l.origin) / 1e9, Lane: l.number, Text: text,
	})
}

// fail is the Wiring's Fail.
func (l *lane) fail(err error) {
	if l.halt.fault.CompareAndSwap(nil, &err) {
		now := l.clock.Now()
		l.halt.stop.CompareAndSwap(never, now)
		l.halt.abort.CompareAndSwap(never, now)
	}
}

// fifo of ids with room for every slot.
type fifo struct {
	ids        []uint32
	head, size int
}

func newFIFO(n int) fifo { return fifo{ids: make([]uint32, n)} }

func (f *fifo) len() int { return f.size }

func (f *fifo) push(id uint32) {
	i := f.head + f.size
	if i >= len(f.ids) {
		i -= len(f.ids)
	}
	f.ids[i] = id
	f.size++
}

func (f *fifo) front() uint32 { return f.ids[f.head] }

func (f *fifo) pop() {
	if f.head++; f.head == len(f.ids) {
		f.head = 0
	}
	f.size--
}

// unpop takes back the last pop.
func (f *fifo) unpop() {
	if f.head--; f.head < 0 {
		f.head = len(f.ids) - 1
	}
	f.size++
}
