package braft

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"raftrig/loadgen"
	"raftrig/loadgen/clienttest"
)

// rig drives a client as a lane does, and checks what every client must do:
// each id ends once, after it was submitted and before it is again.
type rig struct {
	tb          testing.TB
	c           *Client
	clock       *clienttest.Clock
	outstanding []bool
	inFlight    int
	ends        [3]int // by Outcome
	events      []string
	reports     []string // of Flush
	failures    []string // of Fail
	failureOK   bool
	closed      bool
}

func newRig(tb testing.TB, slots int, g *group) *rig {
	tb.Helper()
	return newRigAt(tb, slots, g.addrs(), "Atomic")
}

func newRigAt(tb testing.TB, slots int, addrs []netip.AddrPort, group string) *rig {
	tb.Helper()
	r := &rig{tb: tb, clock: clienttest.NewClock(), outstanding: make([]bool, slots)}
	var err error
	r.c, err = NewClient(loadgen.Wiring{
		Lanes: 1, Slots: slots, Clock: r.clock, Complete: r.complete,
		Event: func(text string) { r.events = append(r.events, text) },
		Fail: func(err error) {
			r.failures = append(r.failures, err.Error())
			if !r.failureOK {
				tb.Errorf("Fail: %v", err)
			}
		},
	}, addrs, group)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.close)
	return r
}

func (r *rig) complete(id uint32, outcome loadgen.Outcome, at int64) {
	if r.closed {
		r.tb.Errorf("id %d ended after Close", id)
	}
	if !r.outstanding[id] {
		r.tb.Errorf("id %d ended, and is not outstanding", id)
	}
	if now := r.clock.Now(); at > now {
		r.tb.Errorf("id %d ended in the future: %d, now %d", id, at, now)
	}
	r.outstanding[id] = false
	r.inFlight--
	r.ends[outcome]++
}

func (r *rig) submit(ids ...uint32) {
	r.tb.Helper()
	for _, id := range ids {
		if !r.c.Submit(id) {
			r.tb.Fatalf("id %d refused", id)
		}
		r.outstanding[id] = true
		r.inFlight++
	}
	r.flush()
}

func (r *rig) flush() {
	if err := r.c.Flush(); err != nil {
		r.reports = append(r.reports, err.Error())
	}
}

// until drives the client until done.
func (r *rig) until(what string, done func() bool) {
	r.tb.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			r.tb.Fatalf("%s: not within 10 s; in flight %d, ends %v, reports %q, events %q", what, r.inFlight, r.ends, r.reports, r.events)
		}
		before := r.inFlight
		if n := r.c.Wait(r.clock.Now() + 5e6); n != before-r.inFlight {
			r.tb.Fatalf("Wait says %d completions of %d", n, before-r.inFlight)
		}
		r.flush()
	}
}

func (r *rig) ready() { r.tb.Helper(); r.until("ready", r.c.Ready) }

// live waits for all nodes, so that a leap of the clock times out none.
func (r *rig) live() {
	r.tb.Helper()
	for i := range r.c.peers {
		r.until("live", func() bool { return r.c.peers[i].state == peerLive && !r.c.peers[i].asking })
	}
	r.ready()
}

func (r *rig) idle() {
	r.tb.Helper()
	r.until("all ended", func() bool { return r.inFlight == 0 })
}

func (r *rig) leap(d time.Duration) { r.clock.Leap(d.Nanoseconds()) }

// led waits until node leads.
func (r *rig) led(node int) {
	r.tb.Helper()
	r.until(fmt.Sprintf("node %d leads", node), func() bool { return r.c.Leader() == node })
}

func (r *rig) close() {
	if r.closed {
		return
	}
	if err := r.c.Close(); err != nil {
		r.tb.Error(err)
	}
	r.closed = true
	if r.inFlight != 0 {
		r.tb.Errorf("%d outstanding after Close", r.inFlight)
	}
	if r.c.Poll() != 0 || r.c.Ready() || r.c.Submit(0) || r.c.Wait(r.clock.Now()) != 0 {
		r.tb.Error("alive after Close")
	}
	if err := r.c.Close(); err != nil {
		r.tb.Errorf("second Close: %v", err)
	}
}

func (r *rig) wantEnds(ok, failed, unknown int) {
	r.tb.Helper()
	if r.ends != [3]int{ok, failed, unknown} {
		r.tb.Errorf("ended %d ok, %d failed, %d unknown; want %d, %d, %d; events %q",
			r.ends[0], r.ends[1], r.ends[2], ok, failed, unknown, r.events)
	}
}

// wantLine wants one of the lines to have all of the words.
func wantLine(tb testing.TB, what string, lines []string, words ...string) {
	tb.Helper()
	for _, s := range lines {
		all := true
		for _, w := range words {
			all = all && strings.Contains(s, w)
		}
		if all && !strings.ContainsAny(s, "\n\r") {
			return
		}
	}
	tb.Errorf("%s %q, none of which has %q in one line", what, lines, words)
}

func (r *rig) wantEvent(words ...string) {
	r.tb.Helper()
	wantLine(r.tb, "events", r.events, words...)
}

// wantReport waits for an error of Flush that has all of the words.
func (r *rig) wantReport(words ...string) {
	r.tb.Helper()
	seen := 0
	r.until("a report", func() bool { seen++; return len(r.reports) > 0 || seen > 500 })
	wantLine(r.tb, "reports", r.reports, words...)
}

// once makes a node's hook act on the next compare_exchange only.
func (n *node) once(f func(*exchange)) {
	n.times(1, f)
}

// times is once, for so many.
func (n *node) times(count int, f func(*exchange)) {
	n.g.do(func() {
		usual := n.exchange
		n.exchange = func(e *exchange) {
			if count--; count == 0 {
				n.exchange = usual
			}
			f(e)
		}
	})
}

func ids(n int) (l []uint32) {
	for id := range n {
		l = append(l, uint32(id))
	}
	return l
}

func TestClientChains(t *testing.T) {
	g := newGroup(t, 2)
	r := newRig(t, 100, g)
	r.ready()
	if r.c.Leader() != 2 {
		t.Errorf("leader %d", r.c.Leader())
	}
	for range 3 {
		for _, id := range ids(100) {
			if !r.c.Submit(id) {
				t.Fatalf("id %d refused", id)
			}
			r.outstanding[id] = true
			r.inFlight++
		}
		if n := len(r.c.frame) * 99; r.c.target.conn.Pending() < n {
			t.Errorf("%d bytes wait for Flush, want %d and more: requests of an instant leave in one write", r.c.target.conn.Pending(), n)
		}
		r.flush()
		if n := r.c.target.conn.Pending(); n != 0 {
			t.Errorf("%d bytes pending after Flush", n)
		}
		r.idle()
	}
	r.wantEnds(300, 0, 0)
	r.wantEvent("node 2 leads")
	keys := map[int64]int64{}
	for _, e := range g.received() {
		if e.node.self != 2 || e.expected != keys[e.key] || e.value != e.expected+1 {
			t.Fatalf("node %d: %d: %d -> %d", e.node.self, e.key, e.expected, e.value)
		}
		keys[e.key] = e.value
	}
	if len(keys) != 100 {
		t.Errorf("%d counters", len(keys))
	}
	// Another client starts on counters of its own.
	other := newRig(t, 100, g)
	other.ready()
	other.submit(ids(100)...)
	other.idle()
	other.wantEnds(100, 0, 0)
}

// Replies come in any order, and in pieces.
func TestClientRepliesInAnyOrder(t *testing.T) {
	g := newGroup(t, 1)
	var held []*exchange
	g.do(func() {
		g.nodes[0].exchange = func(e *exchange) {
			if held = append(held, e); len(held) < 10 {
				return
			}
			client, server := net.Pipe()
			defer client.Close()
			conn := e.conn
			go func() {
				for i := len(held) - 1; i >= 0; i-- {
					held[i].conn = server
					held[i].reply(g.carryOut(held[i]))
				}
				server.Close()
			}()
			b := make([]byte, 7)
			for {
				n, err := client.Read(b)
				if err != nil {
					break
				}
				conn.Write(b[:n])
			}
			held = nil
		}
	})
	r := newRig(t, 10, g)
	r.ready()
	for range 5 {
		r.submit(ids(10)...)
		r.idle()
	}
	r.wantEnds(50, 0, 0)
}

// A redirected request goes to the leader, at its own expense.
func TestClientRedirect(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 10, g)
	r.ready()
	g.do(func() { g.leader = 3 })
	r.submit(ids(10)...)
	r.idle()
	r.wantEnds(10, 0, 0)
	if r.c.Leader() != 3 || r.c.Retries() != 10 {
		t.Errorf("leader %d, %d retries", r.c.Leader(), r.c.Retries())
	}
	r.wantEvent("node 1, which led, redirects to node 3")
	r.wantEvent("node 3 leads; for ", " s none was known, 0 requests ended unknown")
}

// A node that redirects to nobody, and one that hands its office over: it says
// that it leads and takes nothing.
func TestClientLeaderTakesNothing(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 10, g)
	r.live()
	g.do(func() {
		g.nodes[0].exchange = func(e *exchange) { e.redirect(0) }
	})
	r.submit(ids(10)...)
	r.until("not ready", func() bool { return !r.c.Ready() })
	r.wantEvent("node 1, which led, redirects to nobody")
	// It goes on to say that it leads, and is not believed for a while.
	barred := r.c.peers[0].barred
	r.led(1)
	if r.c.at < barred {
		t.Errorf("believed %d ns too early", barred-r.c.at)
	}
	g.do(func() { g.leader = 2 })
	r.led(2)
	r.idle()
	r.wantEnds(10, 0, 0)
}

func TestClientThreeTries(t *testing.T) {
	g := newGroup(t, 1)
	g.do(func() {
		for _, n := range g.nodes {
			n.exchange = func(e *exchange) {
				g.leader = n.self%3 + 1
				e.redirect(g.leader)
			}
		}
	})
	r := newRig(t, 1, g)
	r.ready()
	r.submit(0)
	r.idle()
	r.wantEnds(0, 1, 0)
	if n := len(g.received()); n != maxTries {
		t.Errorf("sent %d times, want %d", n, maxTries)
	}
	// A failed request leaves the chain as it was.
	g.do(func() { g.nodes[0].exchange, g.leader = func(e *exchange) { e.reply(g.carryOut(e)) }, 1 })
	r.led(1)
	r.submit(0)
	r.idle()
	r.wantEnds(1, 1, 0)
}

// Nobody leads any more: rejected requests wait for 1 s, then fail.
func TestClientNobodyLeads(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 10, g)
	r.live()
	g.do(func() { g.leader = 0 })
	r.submit(ids(9)...)
	r.until("all rejected", func() bool { return len(r.c.queue) == 9 })
	if r.c.Ready() || r.c.Submit(9) {
		t.Error("ready without a leader")
	}
	r.leap(2 * time.Second)
	r.idle()
	r.wantEnds(0, 9, 0)
	g.do(func() { g.leader = 3 })
	r.led(3)
	r.submit(ids(10)...)
	r.idle()
	r.wantEnds(10, 9, 0)
}

// Nobody leads yet.
func TestClientWaitsForLeader(t *testing.T) {
	g := newGroup(t, 0)
	r := newRig(t, 1, g)
	for i := range r.c.peers {
		r.until("live", func() bool { return r.c.peers[i].state == peerLive })
	}
	if r.c.Ready() {
		t.Error("ready without a leader")
	}
	g.do(func() { g.leader = 2 })
	r.led(2)
}

// The leader says that it leads no longer, when an error made the client ask.
func TestClientStepDown(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 2, g)
	r.live()
	r.leap(askEvery)
	g.nodes[0].once(func(e *exchange) {
		g.leader = 2
		e.fail(1, "node 127.0.0.1:8300:0 is in state\nFOLLOWER")
	})
	r.submit(0)
	r.idle()
	r.wantEnds(0, 0, 1)
	r.led(2)
	r.wantEvent("node 1: error 1: ", "is in state")
	r.wantEvent("node 1, which led, says that it leads no longer")
	r.wantEvent("node 2 leads; for ", " s none was known, 1 requests ended unknown")
	r.submit(0)
	r.idle()
	r.wantEnds(1, 0, 1)
}

func TestClientErrors(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 1, g)
	r.live()
	for _, test := range []struct {
		code int
		ends [3]int
	}{
		{codeNoService, [3]int{0, 1, 0}},
		{codeNoMethod, [3]int{0, 1, 0}},
		{codeBadRequest, [3]int{0, 1, 0}},
		{codeOvercrowded, [3]int{0, 1, 0}},
		{codeLimit, [3]int{0, 1, 0}},
		{codeLogOff, [3]int{1, 0, 0}}, // sent again
		{2001, [3]int{0, 0, 1}},
		{-1, [3]int{0, 0, 1}},
	} {
		r.ends = [3]int{}
		r.ready()
		g.nodes[0].once(func(e *exchange) { e.fail(test.code, "scripted") })
		r.submit(0)
		r.idle()
		if r.ends != test.ends {
			t.Errorf("code %d: ends %v, want %v", test.code, r.ends, test.ends)
		}
		r.wantEvent(fmt.Sprintf("node 1: error %d: \"scripted\"", test.code))
	}
	r.wantEvent("node 1, which led, is stopping")
}

// The connection is lost with requests on it, some of which had been carried
// out. Each chain goes on from what its counter holds.
func TestClientLostConnection(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 10, g)
	r.live()
	r.submit(ids(10)...)
	r.idle()
	// Twice, so that there are two values on their way.
	for range 2 {
		lost := 0
		g.nodes[0].times(10, func(e *exchange) {
			if e.key%2 == 0 {
				g.carryOut(e)
			}
			if lost++; lost == 10 {
				e.node.cut()
			}
		})
		r.submit(ids(10)...)
		r.until("lost", func() bool { return !r.c.Ready() })
		r.idle()
		r.ready()
	}
	r.wantEnds(10, 0, 20)
	r.wantEvent("node 1 at 127.0.0.1:", "10 requests lost with it")
	r.wantEvent("node 1 leads; for ", " s none was known, 10 requests ended unknown")
	before := len(g.received())
	for range 3 {
		r.submit(ids(10)...)
		r.idle()
	}
	// Where a value had come through, one answer tells which, and counts.
	r.wantEnds(40, 0, 20)
	mismatches := 0
	for _, e := range g.received()[before:] {
		if e.expected == 1 {
			mismatches++
		}
	}
	if n := len(g.received()) - before; n != 30 || mismatches != 10 {
		t.Errorf("%d requests, %d of which expected what had been acknowledged last", n, mismatches)
	}
	g.do(func() {
		for key, v := range g.counters {
			if s := r.c.slots[key&slotMask]; s.value != v || s.low != s.next {
				t.Errorf("counter %d holds %d: %+v", key, v, s)
			}
		}
	})
}

// A request whose end is unknown is carried out after the next one of its
// chain: it finds another value and does nothing.
func TestClientLateRequestDoesNothing(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 1, g)
	r.live()
	var late *exchange
	g.nodes[0].once(func(e *exchange) {
		late = e
		e.fail(1, "scripted")
	})
	r.submit(0)
	r.idle()
	r.ready()
	r.submit(0)
	r.idle()
	g.do(func() { g.carryOut(late) })
	r.ready()
	r.submit(0)
	r.idle()
	r.wantEnds(2, 0, 1)
}

// What breaks a chain ends the run.
func TestClientBrokenChain(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(g *group, e *exchange) []byte
		want   []string
		ends   [3]int
	}{
		"acknowledged value lost": {
			func(g *group, e *exchange) []byte { g.counters[e.key] = 1; return g.carryOut(e) },
			[]string{"is broken: expected 2, node 1 found 1", "an acknowledged value was lost"}, [3]int{2, 1, 0},
		},
		"counter gone": {
			func(g *group, e *exchange) []byte { delete(g.counters, e.key); return g.carryOut(e) },
			[]string{"is broken: expected 2, node 1 found 0"}, [3]int{2, 1, 0},
		},
		"counter ahead": {
			func(g *group, e *exchange) []byte { g.counters[e.key] = 3; return g.carryOut(e) },
			[]string{"is broken: expected 2, node 1 found 3"}, [3]int{2, 1, 0},
		},
		"mismatch of equal values": {
			func(g *group, e *exchange) []byte { return values(false, e.key, 2, 2) },
			[]string{"wrong reply of node 1", "expected to hold 2, found to hold 2, success false"}, [3]int{2, 1, 0},
		},
		"success on another value": {
			func(g *group, e *exchange) []byte { return values(true, e.key, 3, 1) },
			[]string{"wrong reply of node 1", "expected to hold 2, found to hold 1, success true"}, [3]int{2, 0, 1},
		},
		"another value set": {
			func(g *group, e *exchange) []byte { return values(true, e.key, 4, 2) },
			[]string{"wrong reply of node 1", "set to 4, where 3 was asked for"}, [3]int{2, 0, 1},
		},
		"another counter": {
			func(g *group, e *exchange) []byte { return values(true, e.key+1, 3, 2) },
			[]string{"wrong reply of node 1", "answered for counter"}, [3]int{2, 0, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, 1)
			r := newRig(t, 1, g)
			r.failureOK = true
			r.ready()
			for range 2 {
				r.submit(0)
				r.idle()
			}
			g.nodes[0].once(func(e *exchange) { e.reply(test.answer(g, e)) })
			r.submit(0)
			r.idle()
			if r.ends != test.ends {
				t.Errorf("ends %v, want %v", r.ends, test.ends)
			}
			if len(r.failures) != 1 {
				t.Fatalf("failures %q", r.failures)
			}
			wantLine(t, "failures", r.failures, append(test.want, fmt.Sprint(r.c.key(0)))...)
			// The lane goes on to use the client.
			r.submit(0)
			r.idle()
		})
	}
}

// A value that was on its way may be found; once the chain has gone on from
// another, it may not be any more.
func TestClientResolvedChainBreaks(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 1, g)
	r.failureOK = true
	r.live()
	g.nodes[0].once(func(e *exchange) { e.fail(1, "scripted") }) // 1 is on its way
	r.submit(0)
	r.idle()
	r.ready()
	r.submit(0) // 0 -> 2
	r.idle()
	g.nodes[0].once(func(e *exchange) {
		g.counters[e.key] = 1
		e.reply(g.carryOut(e))
	})
	r.ready()
	r.submit(0)
	r.idle()
	wantLine(t, "failures", r.failures, "expected 2, node 1 found 1")
}

// An acknowledged value is lost with its leader, while others were on their
// way.
func TestClientLostInFailover(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 1, g)
	r.failureOK = true
	r.live()
	for range 2 {
		r.submit(0)
		r.idle()
	}
	g.nodes[0].once(func(e *exchange) {
		g.counters[e.key] = 1 // the new leader has the first only
		g.leader = 2
		e.node.cut()
	})
	r.submit(0)
	r.idle()
	r.led(2)
	r.submit(0)
	r.idle()
	wantLine(t, "failures", r.failures, "expected 2, node 2 found 1")
}

// silence leaves requests with a leader that does not answer and lets the
// client notice.
func (r *rig) silence(n *node) {
	r.tb.Helper()
	for range silentLooks + 1 {
		look := r.c.lookAt
		r.leap(lookEvery)
		r.until("looked", func() bool { return r.c.lookAt != look })
	}
}

// The leader hangs and another is elected: what the old one held ends as
// unknown, after a grace.
func TestClientSilentLeaderReplaced(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 10, g)
	r.live()
	g.do(func() {
		g.nodes[0].exchange = func(*exchange) {}
		g.nodes[0].says = func(*call) {}
		g.leader = 2
	})
	r.submit(ids(10)...)
	r.until("received", func() bool { return len(g.received()) == 10 })
	r.silence(g.nodes[0])
	r.led(2)
	r.wantEvent("node 2 leads, and node 1 no longer")
	r.wantEnds(0, 0, 0)
	r.leap(switchGrace)
	r.idle()
	r.wantEnds(0, 0, 10)
	r.wantReport("node 1 at ", "left 10 requests unanswered for 1 s after another node had come to lead")
	r.submit(ids(10)...)
	r.idle()
	r.wantEnds(10, 0, 10)
}

// The old leader is alive and answers within the grace; that it still claims to
// lead, in an answer to a question from before, counts for nothing.
func TestClientDeposedLeaderAnswers(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 10, g)
	r.live()
	var held []*exchange
	var question *call
	g.do(func() {
		g.nodes[0].exchange = func(e *exchange) { held = append(held, e) }
		g.nodes[0].says = func(c *call) { question = c }
		g.leader = 2
	})
	r.submit(ids(10)...)
	r.until("received", func() bool { return len(g.received()) == 10 })
	r.silence(g.nodes[0])
	r.led(2)
	r.until("node 1 asked", func() (asked bool) {
		g.do(func() { asked = question != nil })
		return asked
	})
	g.do(func() {
		question.leader(1)
		for i, e := range held {
			switch i {
			case 0, 1:
				e.fail(1, "it was in the log when I ceased to lead")
			case 2, 3, 4:
				e.redirect(2)
			default:
				e.reply(g.carryOut(e))
			}
		}
	})
	r.idle()
	r.wantEnds(8, 0, 2)
	if r.c.Leader() != 2 || r.c.Retries() != 3 {
		t.Errorf("leader %d, %d retries", r.c.Leader(), r.c.Retries())
	}
	r.leap(2 * switchGrace)
	r.submit(ids(10)...)
	r.idle()
	r.wantEnds(18, 0, 2)
}

// The leader is silent and still leads: the client waits.
func TestClientSilentLeaderStays(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 10, g)
	r.live()
	var held []*exchange
	asks := 0
	g.do(func() {
		g.nodes[0].exchange = func(e *exchange) { held = append(held, e) }
		g.nodes[0].says = func(*call) {}
		asks = g.nodes[1].asks
	})
	r.submit(ids(10)...)
	r.until("received", func() bool { return len(g.received()) == 10 })
	for range 3 {
		r.silence(g.nodes[0])
	}
	r.until("the others asked", func() (asked bool) {
		g.do(func() { asked = g.nodes[1].asks > asks })
		return asked
	})
	if !r.c.Ready() || r.inFlight != 10 {
		t.Fatalf("ready %t, in flight %d", r.c.Ready(), r.inFlight)
	}
	g.do(func() {
		for _, e := range held {
			e.reply(g.carryOut(e))
		}
	})
	r.idle()
	r.wantEnds(10, 0, 0)
}

// A node that is down comes back.
func TestClientReconnects(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 10, g)
	r.live()
	g.nodes[0].stop()
	r.wantReport("node 1 at " + g.nodes[0].addr.String())
	r.until("not ready", func() bool { return !r.c.Ready() })
	g.do(func() { g.leader = 2 })
	r.led(2)
	g.nodes[0].start()
	g.do(func() { g.leader = 1 })
	r.submit(ids(10)...)
	r.idle()
	r.led(1)
	r.wantEnds(10, 0, 0)
	n := 0
	for _, e := range r.events {
		if strings.HasPrefix(e, "node 1 at ") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d events of one loss: %q", n, r.events)
	}
}

// Peers that are no braft, and answers that cannot be.
func TestClientBadPeers(t *testing.T) {
	for name, test := range map[string]struct {
		serve func(net.Conn)
		want  string
	}{
		"http":     {func(c net.Conn) { c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) }, "does not speak baidu_std, but says \"HTTP/1.1 400 Bad Req\""},
		"garbage":  {func(c net.Conn) { c.Write(bytes.Repeat([]byte{0xff, 0, '\n'}, 30_000)) }, "does not speak baidu_std"},
		"closes":   {func(c net.Conn) { c.Close() }, ""},
		"length":   {func(c net.Conn) { c.Write(header(1<<31, 8)) }, "a reply of 2147483648 bytes"},
		"meta":     {func(c net.Conn) { c.Write(header(100, 1<<30)) }, "with a meta of 1073741824"},
		"unasked":  {func(c net.Conn) { c.Write(frame([]byte{0x12, 0, 0x20, 5}, nil)) }, "a reply with correlation id 0x5, which is not outstanding"},
		"question": {func(c net.Conn) { c.Write(readRecordedRequest(t)) }, "a frame that is no reply"},
		"no braft": {func(c net.Conn) {
			if q, err := readCall(c); err == nil {
				q.conn = c
				q.fail(codeNoService, "Fail to find service")
			}
		}, "it is no braft node: error 1001"},
		"empty leader": {func(c net.Conn) {
			if q, err := readCall(c); err == nil {
				q.conn = c
				q.reply(nil)
			}
		}, "malformed reply to get_leader"},
		"strange leader": {func(c net.Conn) {
			if q, err := readCall(c); err == nil {
				q.conn = c
				q.names("10.9.8.7:1:0:0")
			}
		}, "says that \"10.9.8.7:1:0:0\" leads, which is none of the hosts"},
		"denied": {func(c net.Conn) {
			if q, err := readCall(c); err == nil {
				q.conn = c
				q.fail(13, "not\nallowed")
			}
		}, `error 13: "not\nallowed"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigAt(t, 1, []netip.AddrPort{serveConns(t, test.serve)}, "Atomic")
			r.wantReport("node 1 at 127.0.0.1:", test.want)
			if r.c.Ready() {
				t.Error("ready")
			}
		})
	}
	t.Run("silent", func(t *testing.T) {
		r := newRigAt(t, 1, []netip.AddrPort{serveConns(t, func(net.Conn) {})}, "Atomic")
		r.until("connected", func() bool { return r.c.peers[0].state == peerOpening })
		r.leap(2 * time.Second)
		r.wantReport("connected, and did not say who leads within 2 s")
	})
	t.Run("refused", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		r := newRigAt(t, 1, []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()}, "Atomic")
		r.wantReport("connection refused")
	})
	t.Run("wrong group", func(t *testing.T) {
		r := newRigAt(t, 1, newGroup(t, 1).addrs(), "Nope")
		r.wantReport("node ", `it has no group "Nope": name the servers' group (-group)`)
	})
}

func readRecordedRequest(tb testing.TB) []byte {
	return readRecorded(tb)["CliService get_leader"].Request
}

// serveConns serves each connection of a listener, and closes it when the test
// ends.
func serveConns(t *testing.T, serve func(net.Conn)) netip.AddrPort {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// Replies that cannot be end the connection, and what is on it as unknown.
func TestClientBadReplies(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(*exchange)
		want   string
	}{
		"unknown correlation id": {func(e *exchange) {
			e.correlation += 1 << slotBits
			e.reply(values(true, e.key, 1, 0))
		}, "which is not outstanding on the connection"},
		"correlation id beyond the slots": {func(e *exchange) {
			e.correlation |= slotMask
			e.reply(values(true, e.key, 1, 0))
		}, "which is not outstanding on the connection"},
		"two replies": {func(e *exchange) {
			e.reply(values(true, e.key, 1, 0))
			e.reply(values(true, e.key, 1, 0))
		}, "which is not outstanding on the connection"},
		"answer to no question": {func(e *exchange) {
			e.correlation = askBit | 1
			e.leader(1)
		}, "which is not outstanding on the connection"},
		"no body":       {func(e *exchange) { e.reply(nil) }, "malformed reply to compare_exchange"},
		"success alone": {func(e *exchange) { e.reply([]byte{8, 1}) }, "malformed reply to compare_exchange"},
		"huge":          {func(e *exchange) { e.reply(make([]byte, 2*maxFrame)) }, "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, 1)
			r := newRig(t, 2, g)
			r.live()
			g.nodes[0].times(2, func(e *exchange) {
				if e.key&slotMask == 1 {
					test.answer(e)
				}
			})
			r.submit(0, 1)
			r.until("a report", func() bool { return len(r.reports) > 0 })
			r.wantReport("node 1 at ", test.want)
			r.idle()
			if r.ends[loadgen.Unknown] == 0 {
				t.Errorf("ends %v", r.ends)
			}
			r.wantEvent(test.want, " requests lost with it")
		})
	}
}

// Back-pressure: the server reads nothing, and the buffers have an end.
func TestClientBackPressure(t *testing.T) {
	const slots = 200_000
	g := newGroup(t, 1)
	r := newRig(t, slots, g)
	r.live()
	release := make(chan struct{})
	g.nodes[0].once(func(e *exchange) {
		g.mu.Unlock()
		<-release
		g.mu.Lock()
		e.reply(g.carryOut(e))
	})
	n := 0
	for ; n < slots && r.c.Submit(uint32(n)); n++ {
		r.outstanding[n] = true
		r.inFlight++
		if n%100 == 0 {
			r.flush()
		}
	}
	if n == slots {
		t.Error("no back-pressure")
	}
	close(release)
	// What was buffered goes on its way.
	r.until("some ended", func() bool { return r.ends[loadgen.OK] > 1000 })
}

func TestClientClose(t *testing.T) {
	g := newGroup(t, 1)
	r := newRig(t, 10, g)
	r.live()
	g.do(func() {
		g.nodes[0].exchange = func(e *exchange) {
			if e.key&slotMask < 5 {
				g.leader = 0
				e.redirect(0)
			}
		}
	})
	r.submit(ids(10)...)
	r.until("five rejected", func() bool { return len(r.c.queue) == 5 })
	r.close()
	r.wantEnds(0, 0, 10)
}

func TestNewClientRejects(t *testing.T) {
	addr := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}
	w := loadgen.Wiring{Slots: 1, Clock: clienttest.NewClock()}
	many := w
	many.Slots = slotMask + 2
	for _, test := range []struct {
		w     loadgen.Wiring
		addrs []netip.AddrPort
		group string
		want  string
	}{
		{w, nil, "Atomic", "0 nodes"},
		{w, make([]netip.AddrPort, maxNodes+1), "Atomic", "201 nodes"},
		{w, addr, "", "group name of 0 bytes"},
		{w, addr, strings.Repeat("x", 256), "group name of 256 bytes"},
		{many, addr, "Atomic", "1048577 slots"},
	} {
		if _, err := NewClient(test.w, test.addrs, test.group); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}
