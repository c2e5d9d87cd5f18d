package conformance

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"raftrig/loadgen"
)

// errNoise marks a fault that a busy machine can cause as well as the client.
var errNoise = errors.New("a busy machine can cause this too, hence several tries")

type clock struct{ start time.Time }

// clockOrigin is far from 0 and from the wall clock, so that a client which
// stamps with a clock of its own is found out.
const clockOrigin = 1 << 50

func (c clock) Now() int64 { return clockOrigin + int64(time.Since(c.start)) }

// method is what the lane is in.
type method int32

const (
	outside method = iota
	inReady
	inSubmit
	inFlush
	inPoll
	inWait
	inClose
)

func (m method) String() string {
	return [...]string{"no call", "Ready", "Submit", "Flush", "Poll", "Wait", "Close"}[m]
}

type slot struct {
	outstanding bool
	uses        int
	sent        int64
}

// lane drives one client the way the rig's lanes do, from one goroutine on one
// locked thread, and writes down every breach of the contract.
type lane struct {
	target *Target
	client loadgen.Client
	clock  clock

	// Of the lane's goroutine alone, until done is closed.
	now       method
	slots     []slot
	free      []uint32 // a ring: freeLen ids from freeHead
	freeHead  int
	freeLen   int
	lifo      bool
	turn      int
	delivered int // by the call that the lane is in
	accepted  int
	completed int
	said      tally
	progress  int64 // of the last completion
	mark      int64
	okMarked  int // acknowledged requests that were sent after mark
	flushErr  error
	noisy     bool

	thread atomic.Int64 // 0 once the lane has ended
	closed atomic.Bool
	// While a call has gone on since `since`, in is what it is.
	in    atomic.Int32
	since atomic.Int64
	// Calls are held to Target.Bound from calmFrom to calmTo; 0 is "not yet".
	calmFrom, calmTo atomic.Int64
	// stage counts the steps of the test's side: stalled, resumed, killed.
	stage atomic.Int32
	warm  chan struct{} // closed by the script when its load is under way
	done  chan struct{}

	abandoned atomic.Bool
	broken    atomic.Bool
	mu        sync.Mutex
	faults    []error
	kinds     map[string]bool // of the faults, by format
}

// start dials a client and runs script on a lane of its own.
func start(target *Target, size int, script func(*lane)) (*lane, error) {
	l := &lane{
		target:  target,
		clock:   clock{time.Now()},
		slots:   make([]slot, target.Slots),
		free:    make([]uint32, target.Slots),
		freeLen: target.Slots,
		warm:    make(chan struct{}),
		done:    make(chan struct{}),
		kinds:   make(map[string]bool),
	}
	for id := range l.free {
		l.free[id] = uint32(id)
	}
	client, err := target.Dial(loadgen.Wiring{
		Lanes: 1, Slots: target.Slots, Size: size, Clock: l.clock, Complete: l.complete,
		Event: func(string) {},
		Fail:  func(err error) { l.fault("%s: the client ended the run: %v", l.now, err) },
	})
	if err != nil {
		return nil, fmt.Errorf("no client from Dial: %w", err)
	}
	l.client = client
	go func() {
		defer close(l.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		l.thread.Store(int64(syscall.Gettid()))
		defer l.thread.Store(0)
		defer func() {
			if p := recover(); p != nil {
				l.fault("%s panicked: %v\n%s", l.now, p, debug.Stack())
			}
		}()
		script(l)
		if !l.closed.Load() {
			l.close()
		}
	}()
	return l, nil
}

// run is start and join for a script that needs no help from outside.
func run(target *Target, size int, said *tally, script func(*lane)) error {
	l, err := start(target, size, script)
	if err != nil {
		return err
	}
	return l.join(said)
}

// join waits for the script's end, adds up what the client said and returns
// the faults. A call that takes twice the limit hangs (the script, which knows
// more, speaks first where it can). Its thread is left behind: to call Close
// from here would break the contract too.
func (l *lane) join(said *tally) error {
	began := l.clock.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			said.add(l.said)
			return l.verdict()
		case <-tick.C:
			since := l.since.Load()
			if since == 0 || l.clock.Now()-max(since, began) < 2*int64(l.target.Limit) {
				continue
			}
			l.fault("%s has not returned for %s: it hangs, and would hang a lane of the rig with every request due on it",
				method(l.in.Load()), l.age(since))
			l.abandoned.Store(true)
			return l.verdict()
		}
	}
}

// verdict joins the faults. What a busy machine may have caused counts only
// where nothing else was wrong.
func (l *lane) verdict() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var certain []error
	for _, fault := range l.faults {
		if !errors.Is(fault, errNoise) {
			certain = append(certain, fault)
		}
	}
	if len(certain) > 0 {
		return errors.Join(certain...)
	}
	return errors.Join(l.faults...)
}

// fault writes down the first breach of each kind and ends the script.
func (l *lane) fault(format string, args ...any) {
	l.report(format, fmt.Errorf(format, args...))
	l.broken.Store(true)
}

// noise is a fault that counts only if it comes again. The script goes on, to
// see whether there is one that counts at once.
func (l *lane) noise(format string, args ...any) {
	l.noisy = true
	l.report(format, fmt.Errorf(format+" (%w)", append(args, errNoise)...))
}

func (l *lane) report(kind string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kinds[kind] && !l.abandoned.Load() {
		l.kinds[kind] = true
		l.faults = append(l.faults, err)
	}
}

// stop says that going on is useless.
func (l *lane) stop() bool { return l.broken.Load() || l.abandoned.Load() }

func (l *lane) age(since int64) time.Duration {
	return time.Duration(l.clock.Now() - since).Round(time.Microsecond)
}

// complete is Wiring.Complete.
func (l *lane) complete(id uint32, outcome loadgen.Outcome, at int64) {
	if l.closed.Load() {
		l.fault("id %d completed (%s) after Close had returned: nothing may complete then, the rig has closed its books", id, outcome)
		return
	}
	// A locked thread runs no other goroutine, so the thread tells them apart.
	if thread := int64(syscall.Gettid()); thread != l.thread.Load() {
		l.fault("id %d completed (%s) from another goroutine than the lane's: the lane keeps its books without a lock; hand the reply over and complete it in Poll", id, outcome)
		return
	}
	now := l.clock.Now()
	l.delivered++
	if l.now == outside || l.now == inReady {
		l.fault("id %d completed (%s) within %s, expected within Poll, Wait, Submit, Flush or Close only", id, outcome, l.now)
		return
	}
	if int64(id) >= int64(len(l.slots)) {
		l.fault("id %d completed (%s), but ids run from 0 to %d: the client invents or corrupts ids", id, outcome, len(l.slots)-1)
		return
	}
	s := &l.slots[id]
	if !s.outstanding {
		l.fault("id %d completed (%s) in %s, but it is not outstanding (used %d times so far): it completed twice, or was never accepted", id, outcome, l.now, s.uses)
		return
	}
	switch {
	case outcome > loadgen.Unknown:
		l.fault("id %d (use %d) completed with outcome %d, expected ok, failed or unknown", id, s.uses, outcome)
		return
	case at < s.sent:
		l.fault("id %d (use %d) completed (%s) with a time %s before its submit: the completion is of an earlier use of the slot, or not stamped by Wiring.Clock",
			id, s.uses, outcome, time.Duration(s.sent-at))
	case at > now:
		l.fault("id %d (use %d) completed (%s) with a time %s ahead of now: it is not stamped by Wiring.Clock", id, s.uses, outcome, time.Duration(at-now))
	}
	if outcome == loadgen.OK && l.mark != 0 && s.sent >= l.mark {
		l.okMarked++
	}
	s.outstanding = false
	l.completed++
	l.said[outcome]++
	l.progress = now
	l.push(id)
}

func (l *lane) push(id uint32) {
	l.free[(l.freeHead+l.freeLen)%len(l.free)] = id
	l.freeLen++
}

func (l *lane) pop() uint32 {
	l.freeLen--
	if l.lifo {
		return l.free[(l.freeHead+l.freeLen)%len(l.free)]
	}
	id := l.free[l.freeHead]
	l.freeHead = (l.freeHead + 1) % len(l.free)
	return id
}

func (l *lane) outstanding() int { return len(l.slots) - l.freeLen }

func (l *lane) enter(m method) int64 {
	now := l.clock.Now()
	l.now, l.delivered = m, 0
	l.in.Store(int32(m))
	l.since.Store(now)
	return now
}

// leave ends a call that might have waited until `until`, and holds it to the
// bound as far as it fell into the calm interval.
func (l *lane) leave(until int64) {
	end := l.clock.Now()
	m := l.now
	l.now = outside
	l.since.Store(0)
	from := l.calmFrom.Load()
	if from == 0 || m == inClose {
		return
	}
	if to := l.calmTo.Load(); to != 0 {
		end = min(end, to)
	}
	if late := time.Duration(end - max(from, until)); late > l.target.Bound {
		what := "took"
		if m == inWait {
			what = "returned after its deadline by"
		}
		l.noise(m.String()+" "+what+" %s on a stalled or idle system, allowed is %s (Target.Bound): it waits for the system, and every request due meanwhile is sent late",
			late.Round(time.Microsecond), l.target.Bound)
	}
}

func (l *lane) ready() bool {
	began := l.enter(inReady)
	ready := l.client.Ready()
	l.leave(began)
	return ready
}

// submit submits the next free id.
func (l *lane) submit() bool {
	id := l.pop()
	s := &l.slots[id]
	s.outstanding = true
	s.uses++
	s.sent = l.enter(inSubmit)
	ok := l.client.Submit(id)
	l.leave(s.sent)
	switch {
	case ok:
		l.accepted++
	case !s.outstanding:
		l.fault("id %d (use %d): Submit completed it and returned false: false means that the id was not taken", id, s.uses)
	default:
		s.outstanding = false
		s.uses--
		l.push(id)
	}
	return ok
}

func (l *lane) flush() {
	began := l.enter(inFlush)
	// What the error concerns completes through Poll; it is kept to explain
	// what does not.
	if err := l.client.Flush(); err != nil {
		l.flushErr = err
	}
	l.leave(began)
}

func (l *lane) poll() int {
	began := l.enter(inPoll)
	n := l.client.Poll()
	l.leave(began)
	l.counted(inPoll, n)
	return n
}

func (l *lane) wait(until int64) int {
	began := l.enter(inWait)
	n := l.client.Wait(until)
	l.leave(max(began, until))
	l.counted(inWait, n)
	return n
}

func (l *lane) counted(m method, n int) {
	if n != l.delivered {
		l.fault("%s returned %d, but delivered %d completions: the rig decides by that number whether to wait", m, n, l.delivered)
	}
}

// close closes the client and looks for ids that it left behind.
func (l *lane) close() {
	l.closeClient()
	l.closed.Store(true)
	l.leftovers("was outstanding when Close had returned, expected it to end as unknown within Close: the client forgets it")
}

func (l *lane) closeClient() {
	began := l.enter(inClose)
	_ = l.client.Close() // may well say that the connection is broken
	l.leave(began)
}

// leftovers reports the outstanding ids, one by name.
func (l *lane) leftovers(what string) {
	for id := range l.slots {
		if s := &l.slots[id]; s.outstanding {
			l.fault("id %d (use %d, sent %s ago) %s; outstanding in all: %d%s", id, s.uses, l.age(s.sent), what, l.outstanding(), l.flushNote())
			return
		}
	}
}

func (l *lane) flushNote() string {
	if l.flushErr == nil {
		return ""
	}
	return fmt.Sprintf("; last error of Flush: %v", l.flushErr)
}

// fill submits up to n free ids and returns false once Submit does.
func (l *lane) fill(n int) bool {
	for ; n > 0 && l.freeLen > 0 && !l.stop(); n-- {
		if !l.submit() {
			return false
		}
	}
	return true
}

// reap takes completions, by Poll and by Wait in turn. Where there are none it
// waits a little, so that the servers get the cores too.
func (l *lane) reap() {
	l.turn++
	if l.turn%2 == 0 && l.poll() > 0 || l.stop() {
		return
	}
	l.wait(l.clock.Now() + int64(time.Millisecond))
}

// awaitReady waits until a leader is known.
func (l *lane) awaitReady(when string) {
	for began := l.clock.Now(); !l.stop() && !l.ready(); l.reap() {
		if l.age(began) > l.target.Limit {
			l.fault("Ready is still false %s %s: the client found no leader%s", l.age(began), when, l.flushNote())
		}
	}
}

// drive submits burst() requests, takes completions, and so on until done. As
// the rig does in closed mode, it submits nothing while no leader is known.
func (l *lane) drive(when string, burst func() int, done func() bool) {
	l.progress = l.clock.Now()
	for !l.stop() && !done() {
		ready, refused := l.ready(), false
		if ready {
			refused = !l.fill(burst())
			l.flush()
		}
		l.reap()
		if l.stop() || l.age(l.progress) <= l.target.Limit {
			continue
		}
		what := fmt.Sprintf("has had no completion, nor has any other for %s %s (Ready %t): the client lost it or holds it back", l.age(l.progress), when, ready)
		l.leftovers(what)
		if l.outstanding() == 0 {
			l.fault("nothing completed for %s %s and nothing is outstanding: Ready %t, Submit refuses %t: the client takes no requests%s",
				l.age(l.progress), when, ready, refused, l.flushNote())
		}
	}
}

// drain takes completions until nothing is outstanding.
func (l *lane) drain(when string) {
	for began := l.clock.Now(); !l.stop() && l.outstanding() > 0; l.reap() {
		if l.age(began) > l.target.Limit {
			l.leftovers("has had no completion " + when + ": the client lost it, or retains it until Close")
		}
	}
}

func (l *lane) all() int { return len(l.slots) }
