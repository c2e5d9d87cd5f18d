package aeron

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"raftrig/loadgen"
)

// A script plays the cluster and the driver: the test says what each node
// receives and what comes back, in virtual time.

type ticker struct{ now int64 }

func (c *ticker) Now() int64 { return c.now }

type fakeLink struct {
	fragment func([]byte, bool)
	channel  string
	gone     error
	inbox    [][]byte
	parts    bool // what comes is a part of a message
	dials    []*fakeIngress
	down     bool // nobody receives what is dialed from now on
	next     int64
	closed   bool
}

func (l *fakeLink) onFragment(f func([]byte, bool)) { l.fragment = f }
func (l *fakeLink) responseChannel() (string, error) {
	return l.channel, nil
}
func (l *fakeLink) correlation() int64 { l.next++; return 1000 + l.next }
func (l *fakeLink) check() error       { return l.gone }
func (l *fakeLink) close() error       { l.closed = true; return nil }

func (l *fakeLink) poll(limit int) int {
	n := min(limit, len(l.inbox))
	for _, b := range l.inbox[:n] {
		l.fragment(b, !l.parts)
	}
	l.inbox = l.inbox[n:]
	return n
}

func (l *fakeLink) dial(endpoint string) (ingress, error) {
	p := &fakeIngress{endpoint: endpoint, up: !l.down}
	l.dials = append(l.dials, p)
	return p, nil
}

// to is the publication to an endpoint that is open.
func (l *fakeLink) to(endpoint string) *fakeIngress {
	for _, p := range slices.Backward(l.dials) {
		if p.endpoint == endpoint && !p.closed {
			return p
		}
	}
	return nil
}

type fakeIngress struct {
	endpoint string
	up       bool
	err      error
	code     int64 // that claim returns; 0 for none
	codes    []int64
	claimed  []byte
	sent     [][]byte
	closed   bool
}

func (p *fakeIngress) connected() (bool, error) { return p.up && !p.closed, p.err }

func (p *fakeIngress) claim(n int) ([]byte, int64) {
	code := p.code
	if len(p.codes) > 0 {
		code, p.codes = p.codes[0], p.codes[1:]
	}
	switch {
	case p.closed:
		code = pubClosed
	case !p.up && code == 0:
		code = notConnected
	}
	if code != 0 {
		return nil, code
	}
	p.claimed = make([]byte, n)
	return p.claimed, 0
}

func (p *fakeIngress) commit() {
	p.sent = append(p.sent, p.claimed)
	p.claimed = nil
}

func (p *fakeIngress) close() { p.closed = true }

// take the last message sent, of the template.
func (p *fakeIngress) take(t *testing.T, template uint16) header {
	t.Helper()
	if len(p.sent) == 0 {
		t.Fatalf("%s has received nothing, want template %d", p.endpoint, template)
	}
	h, err := decodeHeader(p.sent[len(p.sent)-1])
	if err != nil || h.template != template {
		t.Fatalf("%s has received template %d (%v), want %d", p.endpoint, h.template, err, template)
	}
	p.sent = nil
	return h
}

// rig is a client between a scripted cluster and the books of a lane.
type rig struct {
	t      *testing.T
	clock  *ticker
	link   *fakeLink
	client *Client
	ended  map[uint32]loadgen.Outcome
	events []string
	failed []error
}

const (
	testSlots   = 8
	testSize    = 24
	testChannel = "aeron:udp?endpoint=10.0.0.9:5555"
)

func newRig(t *testing.T) *rig {
	r := &rig{t: t, clock: &ticker{now: 1}, link: &fakeLink{channel: testChannel}, ended: map[uint32]loadgen.Outcome{}}
	r.client = newClient(loadgen.Wiring{
		Slots: testSlots, Size: testSize, Clock: r.clock,
		Complete: func(id uint32, o loadgen.Outcome, at int64) {
			if _, ok := r.ended[id]; ok {
				t.Errorf("id %d completed twice", id)
			}
			r.ended[id] = o
		},
		Event: func(text string) { r.events = append(r.events, text) },
		Fail:  func(err error) { r.failed = append(r.failed, err) },
	}, r.link, []string{"n1", "n2", "n3"}, defaultConnect)
	t.Cleanup(func() {
		r.client.Close()
		if !r.link.closed {
			t.Error("the link was left open")
		}
		for _, p := range r.link.dials {
			if !p.closed {
				t.Errorf("the publication to %s was left open", p.endpoint)
			}
		}
	})
	return r
}

// pass time, a millisecond at a time.
func (r *rig) pass(d time.Duration) {
	for range d / time.Millisecond {
		r.clock.now += int64(time.Millisecond)
		// Nothing to wait for, so that it returns without sleeping.
		r.client.Wait(r.clock.now)
	}
}

func (r *rig) comes(frames ...[]byte) {
	r.link.inbox = append(r.link.inbox, frames...)
	r.pass(2 * time.Millisecond)
}

// asked returns the node that has a request for a session, and its number.
func (r *rig) asked() (node *fakeIngress, correlation int64) {
	r.t.Helper()
	for _, p := range r.link.dials {
		if len(p.sent) > 0 && !p.closed {
			if h, _ := decodeHeader(p.sent[len(p.sent)-1]); h.template == templateConnect {
				h = p.take(r.t, templateConnect)
				if got, _ := text(h.variable); got != testChannel {
					r.t.Errorf("replies shall go to %q", got)
				}
				return p, int64(binary.LittleEndian.Uint64(h.block))
			}
		}
	}
	r.t.Fatal("no node was asked for a session")
	return nil, 0
}

// open a session at node 1: id 70, term 4.
func (r *rig) open() *fakeIngress {
	r.t.Helper()
	r.pass(2 * time.Millisecond)
	_, id := r.asked()
	r.comes(eventFrame(event{session: 70, correlation: id, term: 4, leader: 0, heartbeatTimeout: 1e9}, eventTimeoutBlock))
	if !r.client.Ready() {
		r.t.Fatalf("no session: %v %v", r.events, r.failed)
	}
	return r.link.to("n1")
}

func (r *rig) submit(ids ...uint32) {
	r.t.Helper()
	for _, id := range ids {
		delete(r.ended, id)
		if !r.client.Submit(id) {
			r.t.Fatalf("id %d refused", id)
		}
	}
}

func (r *rig) want(outcome loadgen.Outcome, ids ...uint32) {
	r.t.Helper()
	for _, id := range ids {
		if got, ok := r.ended[id]; !ok || got != outcome {
			r.t.Errorf("id %d: ended %t, %v; want %v", id, ok, got, outcome)
		}
	}
	if len(r.ended) != len(ids) {
		r.t.Errorf("ended: %v, want only %v", r.ended, ids)
	}
	clear(r.ended)
}

func (r *rig) wantEvent(text string) {
	r.t.Helper()
	if len(r.events) != 1 || r.events[0] != text {
		r.t.Errorf("events %q, want %q", r.events, text)
	}
	r.events = nil
}

func (r *rig) wantFailure(text string) {
	r.t.Helper()
	if len(r.failed) != 1 || !strings.Contains(r.failed[0].Error(), text) || strings.Contains(r.failed[0].Error(), "\n") {
		r.t.Errorf("failures %v, want one line with %q", r.failed, text)
	}
	if r.client.Ready() || r.client.Submit(0) {
		r.t.Error("ready after the failure")
	}
}

// echo what a node received.
func echo(frames [][]byte) (back [][]byte) {
	for _, b := range frames {
		back = append(back, slices.Clone(b))
	}
	return back
}

func TestRequests(t *testing.T) {
	r := newRig(t)
	if r.client.Ready() || r.client.Submit(0) {
		t.Error("ready without a session")
	}
	leader := r.open()
	r.wantEvent("session 70 to node 1, term 5")
	if n, term := r.client.Leader(); n != 1 || term != 5 {
		t.Errorf("leader %d, term %d", n, term)
	}
	for _, other := range []string{"n2", "n3"} {
		if r.link.to(other) != nil {
			t.Errorf("the publication to %s is still open", other)
		}
	}
	r.submit(0, 3, 7)
	for _, b := range leader.sent {
		h, _ := decodeHeader(b)
		m, err := h.message()
		if err != nil || m.term != 4 || m.session != 70 || len(m.payload) != testSize {
			t.Errorf("sent %+v, %v", m, err)
		}
	}
	if string(leader.sent[0][messageHeaderLen+correlationLen:]) != string(leader.sent[1][messageHeaderLen+correlationLen:]) {
		t.Error("payloads differ behind the request's number")
	}
	replies := echo(leader.sent)
	r.comes(replies[2], replies[0])
	r.want(loadgen.OK, 7, 0)
	// Twice the same, and of another session: nothing.
	r.comes(replies[0], messageFrame(4, 71, string(replies[1][messageHeaderLen:])))
	r.want(loadgen.OK)
	// The slot is used again; the old reply does not count for it.
	r.submit(0)
	r.comes(replies[0])
	r.want(loadgen.OK)
	r.comes(echo(leader.sent[3:])...)
	r.want(loadgen.OK, 0)
	r.client.Close()
	r.want(loadgen.Unknown, 3)
	leader.take(t, templateClose)
}

func TestRedirect(t *testing.T) {
	r := newRig(t)
	r.link.channel = ""
	r.pass(5 * time.Millisecond)
	if len(r.link.dials) > 0 {
		t.Fatal("asked for a session before the replies have a place to go to")
	}
	r.link.channel = testChannel
	r.pass(2 * time.Millisecond)
	node, id := r.asked()
	if node.endpoint != "n1" {
		t.Errorf("asked %s first", node.endpoint)
	}
	r.comes(eventFrame(event{correlation: id, leader: 2, code: eventRedirect, detail: "0=x:1"}, eventTimeoutBlock))
	node, id = r.asked()
	if node.endpoint != "n3" {
		t.Errorf("redirected to node 3, asked %s", node.endpoint)
	}
	r.comes(eventFrame(event{session: 5, correlation: id, term: 0, leader: 2}, eventBlock))
	r.wantEvent("session 5 to node 3, term 1")
	r.submit(1)
	if len(r.link.to("n3").sent) != 1 {
		t.Error("the request did not go to node 3")
	}
	r.want(loadgen.OK)
}

// Nodes that know no leader, or send us to each other, are asked now and then
// and not as fast as they answer.
func TestRedirectNowhere(t *testing.T) {
	for _, to := range []int32{-1, 0, 1, 99} {
		r := newRig(t)
		asked := 0
		for range 1000 {
			r.pass(time.Millisecond)
			for _, p := range r.link.dials {
				for _, b := range p.sent {
					h, _ := decodeHeader(b)
					asked++
					r.link.inbox = append(r.link.inbox, eventFrame(event{
						correlation: int64(binary.LittleEndian.Uint64(h.block)), leader: to, code: eventRedirect,
					}, eventTimeoutBlock))
				}
				p.sent = nil
			}
		}
		if asked < 10 || asked > 40 {
			t.Errorf("to %d: asked %d times within a second", to, asked)
		}
	}
}

// A node that says nothing, as one that died a second ago: the next is asked.
func TestSilentNode(t *testing.T) {
	r := newRig(t)
	r.pass(2 * time.Millisecond)
	first, late := r.asked()
	r.pass(attemptTimeout)
	second, id := r.asked()
	if first == second {
		t.Fatalf("asked %s again", first.endpoint)
	}
	r.comes(eventFrame(event{session: 8, correlation: id, leader: 1}, eventTimeoutBlock))
	r.wantEvent("session 8 to node 2, term 1")
	// The first request is answered after all: its session is given back.
	second.sent = nil
	r.comes(eventFrame(event{session: 9, correlation: late, term: 2, leader: 1}, eventTimeoutBlock))
	h := second.take(t, templateClose)
	if s := int64(binary.LittleEndian.Uint64(h.block[8:])); s != 9 {
		t.Errorf("session %d was closed, want 9", s)
	}
	if !r.client.Ready() {
		t.Error("not ready")
	}
}

func TestNewLeader(t *testing.T) {
	r := newRig(t)
	old := r.open()
	r.events = nil
	r.submit(0, 1, 2)
	r.comes(echo(old.sent[:1])...)
	r.want(loadgen.OK, 0)
	r.pass(2310 * time.Millisecond)
	lost := echo(old.sent[1:])

	// As the new leader does: that the session is there, then who it is.
	r.comes(eventFrame(event{session: 70, correlation: 1, term: 5, leader: 1}, eventTimeoutBlock))
	r.want(loadgen.OK)
	r.link.inbox = append(r.link.inbox, newLeaderFrame(newLeader{term: 5, session: 70, leader: 1}, newLeaderBlock))
	r.pass(time.Millisecond)
	r.want(loadgen.Unknown, 1, 2)
	if want := "new leader node 2, term 6, 2.31 s after the last reply; 2 outstanding ended as unknown"; len(r.events) != 1 || r.events[0] != want {
		t.Errorf("events %q, want %q", r.events, want)
	}
	if !old.closed {
		t.Error("the publication to the old leader is still open")
	}
	if n, term := r.client.Leader(); n != 2 || term != 6 {
		t.Errorf("leader %d, term %d", n, term)
	}
	// Late replies of the old term, and the news once more.
	r.submit(1)
	r.comes(append(lost, newLeaderFrame(newLeader{term: 5, session: 70, leader: 1}, newLeaderBlock),
		newLeaderFrame(newLeader{term: 9, session: 3, leader: 2}, newLeaderBlock))...)
	r.want(loadgen.OK)
	now := r.link.to("n2")
	h, _ := decodeHeader(now.sent[0])
	if m, _ := h.message(); m.term != 5 {
		t.Errorf("sent with term %d", m.term)
	}
	r.comes(echo(now.sent)...)
	r.want(loadgen.OK, 1)
}

// The publication to a new leader takes a moment to be received.
func TestNewLeaderNotConnected(t *testing.T) {
	r := newRig(t)
	r.open()
	r.link.down = true
	r.comes(newLeaderFrame(newLeader{term: 5, session: 70, leader: 2}, newLeaderBlock))
	if r.client.Ready() || r.client.Submit(0) {
		t.Error("ready, and nobody receives")
	}
	r.link.to("n3").up = true
	r.pass(2 * time.Millisecond)
	if !r.client.Ready() {
		t.Error("not ready within 2 ms")
	}
}

// A publication that has ended does not matter when another node leads.
func TestNewLeaderAfterPublicationEnded(t *testing.T) {
	r := newRig(t)
	r.open().code = pubClosed
	if r.client.Submit(0) {
		t.Error("accepted by a publication that has ended")
	}
	r.comes(newLeaderFrame(newLeader{term: 5, session: 70, leader: 1}, newLeaderBlock))
	r.submit(0)
	if len(r.link.to("n2").sent) != 1 {
		t.Errorf("not sent to the new leader: %q", r.events)
	}
}

// The same node leads again, in a new term.
func TestSameLeaderNewTerm(t *testing.T) {
	r := newRig(t)
	leader := r.open()
	r.submit(4)
	r.comes(newLeaderFrame(newLeader{term: 6, session: 70, leader: 0}, newLeaderBlock))
	r.want(loadgen.Unknown, 4)
	if leader.closed || !r.client.Ready() {
		t.Error("its publication was closed")
	}
}

func TestSessionClosed(t *testing.T) {
	r := newRig(t)
	r.open()
	r.events = nil
	r.submit(0, 1)
	r.comes(eventFrame(event{session: 71, code: eventClosed}, eventTimeoutBlock)) // another's
	r.want(loadgen.OK)
	r.comes(eventFrame(event{session: 70, code: eventClosed, detail: "TIMEOUT"}, eventTimeoutBlock))
	r.want(loadgen.Unknown, 0, 1)
	r.wantEvent(`session 70 lost: the cluster closed it: "TIMEOUT"; 2 outstanding ended as unknown`)
	if r.client.Ready() {
		t.Error("ready without a session")
	}
	// Asked for another at once, and not told of the old one.
	_, id := r.asked()
	r.comes(eventFrame(event{session: 72, correlation: id, term: 4, leader: 0}, eventTimeoutBlock))
	r.wantEvent("session 72 to node 1, term 5")
	r.submit(0)
	r.want(loadgen.OK)
}

func TestLeaderOutOfReach(t *testing.T) {
	r := newRig(t)
	leader := r.open()
	r.events = nil
	r.submit(0)
	leader.up = false
	if r.client.Submit(1) || r.client.Ready() {
		t.Error("accepted, and nobody receives")
	}
	r.pass(lostAfter - 10*time.Millisecond)
	r.want(loadgen.OK)
	r.pass(20 * time.Millisecond)
	r.want(loadgen.Unknown, 0)
	if len(r.events) != 1 || !strings.HasPrefix(r.events[0], "session 70 lost: node 1 has been out of reach for 5.0 s; 1 ") {
		t.Errorf("events %q", r.events)
	}
	if node, _ := r.asked(); node == leader {
		t.Error("asked the node that is out of reach")
	}
}

// An election of a cluster with long timeouts is waited for.
func TestPatience(t *testing.T) {
	r := newRig(t)
	r.pass(2 * time.Millisecond)
	_, id := r.asked()
	r.comes(eventFrame(event{session: 70, correlation: id, heartbeatTimeout: 10e9}, eventTimeoutBlock))
	r.link.to("n1").up = false
	r.pass(19 * time.Second)
	if len(r.events) != 1 {
		t.Errorf("events %q", r.events)
	}
	r.pass(2 * time.Second)
	if len(r.events) != 2 {
		t.Errorf("events %q", r.events)
	}
}

// A cluster that was started anew receives, and knows nothing of the session.
func TestSilence(t *testing.T) {
	r := newRig(t)
	leader := r.open()
	r.events = nil
	r.pass(30 * time.Second) // nothing is outstanding
	if len(r.events) > 0 {
		t.Fatalf("events %q", r.events)
	}
	r.submit(0)
	r.comes(echo(leader.sent[len(leader.sent)-1:])...)
	r.want(loadgen.OK, 0)
	r.pass(30 * time.Second) // nor is it again
	if len(r.events) > 0 {
		t.Fatalf("events %q", r.events)
	}
	r.submit(0)
	r.pass(silentAfter - 20*time.Millisecond)
	r.comes(echo(leader.sent[len(leader.sent)-1:])...)
	if len(r.ended) == 1 {
		t.Error("a keep-alive was taken for a reply")
	}
	r.pass(40 * time.Millisecond)
	r.want(loadgen.Unknown, 0)
	if len(r.events) != 1 || !strings.HasPrefix(r.events[0], "session 70 lost: no reply for 10.0 s; 1 ") {
		t.Errorf("events %q", r.events)
	}
}

func TestKeepAlive(t *testing.T) {
	r := newRig(t)
	leader := r.open()
	r.pass(3 * time.Second)
	if n := len(leader.sent); n < 2 || n > 3 {
		t.Errorf("%d messages in 3 idle seconds", n)
	}
	h := leader.take(t, templateKeepAlive)
	if binary.LittleEndian.Uint64(h.block) != 4 || binary.LittleEndian.Uint64(h.block[8:]) != 70 {
		t.Errorf("keep-alive % x", h.block)
	}
	for range 6 {
		r.pass(500 * time.Millisecond)
		r.submit(0)
		r.comes(echo(leader.sent)...)
	}
	for _, b := range leader.sent {
		if h, _ := decodeHeader(b); h.template != templateMessage {
			t.Errorf("template %d between requests", h.template)
		}
	}
}

func TestClaimCodes(t *testing.T) {
	r := newRig(t)
	leader := r.open()
	r.events = nil
	leader.code = backPressured
	if r.client.Submit(0) {
		t.Error("accepted in spite of back-pressure")
	}
	if !r.client.Ready() {
		t.Error("back-pressure is not the lack of a leader")
	}
	leader.code = 0
	leader.codes = []int64{adminAction}
	r.submit(0) // the term rolls, the request is sent all the same
	for _, code := range []int64{pubClosed, maxPosition} {
		leader = r.link.to("n1")
		leader.code = code
		if r.client.Submit(1) {
			t.Errorf("accepted with code %d", code)
		}
		r.pass(2 * time.Millisecond)
		r.want(loadgen.Unknown, 0)
		if len(r.events) != 1 || !strings.Contains(r.events[0], fmt.Sprintf("ended (%d)", code)) {
			t.Errorf("events %q", r.events)
		}
		if !leader.closed {
			t.Error("the publication that ended was kept")
		}
		_, id := r.asked()
		r.comes(eventFrame(event{session: 70, correlation: id, term: 4, leader: 0}, eventTimeoutBlock))
		r.events = nil
		r.submit(0)
	}
	r.ended = map[uint32]loadgen.Outcome{}
}

func TestRefused(t *testing.T) {
	r := newRig(t)
	r.pass(2 * time.Millisecond)
	_, id := r.asked()
	r.comes(eventFrame(event{correlation: 7, code: eventError, detail: "another's"}, eventTimeoutBlock))
	r.comes(eventFrame(event{correlation: id, code: eventError, detail: "concurrent session limit\n" + strings.Repeat("x", 1000)}, eventTimeoutBlock))
	r.wantFailure(`node 1 refused a session (error): "concurrent session limit\n`)
	if len(r.failed[0].Error()) > 400 {
		t.Errorf("a line of %d bytes", len(r.failed[0].Error()))
	}
}

// In mid-run the reason is noted, and the cluster asked again.
func TestRefusedLater(t *testing.T) {
	r := newRig(t)
	r.open()
	r.comes(eventFrame(event{session: 70, code: eventClosed}, eventTimeoutBlock))
	r.events = nil
	_, id := r.asked()
	r.comes(eventFrame(event{correlation: id, code: eventError, detail: "concurrent session limit"}, eventTimeoutBlock))
	r.wantEvent(`node 1 refused a session (error): "concurrent session limit"`)
	r.pass(attemptTimeout)
	_, id = r.asked()
	r.comes(eventFrame(event{session: 73, correlation: id}, eventTimeoutBlock))
	if !r.client.Ready() {
		t.Error("not ready")
	}
}

func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		script func(*rig)
		text   string
	}{
		"challenge": {func(r *rig) {
			r.pass(2 * time.Millisecond)
			_, id := r.asked()
			b := block(templateChallenge, challengeBlock)
			binary.LittleEndian.PutUint64(b[8:], uint64(id))
			r.comes(b)
		}, "asks for credentials"},
		"unreachable": {func(r *rig) {
			r.pass(2 * time.Millisecond)
			for _, p := range r.link.dials {
				p.up, p.sent = p.endpoint == "n2", nil
			}
			r.pass(defaultConnect)
		}, "no session within 5s: node 1 at n1 gave no session, node 2 at n2 gave no session, node 3 at n3 does not receive"},
		"no egress": {func(r *rig) {
			r.link.channel = ""
			r.pass(defaultConnect)
		}, "has not opened the replies' channel"},
		"driver gone": {func(r *rig) {
			r.open()
			r.link.gone = errors.New("the media driver is gone")
			r.pass(2 * checkEvery)
		}, "the media driver is gone"},
		"driver refuses": {func(r *rig) {
			r.pass(2 * time.Millisecond)
			r.link.to("n2").err = errors.New("mtu greater than SO_SNDBUF")
			r.pass(2 * time.Millisecond)
		}, "ingress at n2: mtu greater than SO_SNDBUF"},
		"leader not named": {func(r *rig) {
			r.pass(2 * time.Millisecond)
			_, id := r.asked()
			r.comes(eventFrame(event{session: 1, correlation: id, leader: 3}, eventTimeoutBlock))
		}, "node 4 leads, of 3 that -hosts names"},
		"new leader not named": {func(r *rig) {
			r.open()
			r.comes(newLeaderFrame(newLeader{term: 5, session: 70, leader: 4}, newLeaderBlock))
		}, "node 5 leads, of 3 that -hosts names"},
		"reply in parts": {func(r *rig) {
			r.open()
			r.link.parts = true
			r.comes(messageFrame(4, 70, "part"))
		}, "came in parts"},
		"reply of another length": {func(r *rig) {
			r.open()
			r.comes(messageFrame(4, 70, "12345678"))
		}, "a reply of 8 bytes to requests of 24"},
		"reply to no slot": {func(r *rig) {
			r.open()
			r.comes(messageFrame(4, 70, strings.Repeat("\x7f", testSize)))
		}, "a reply to request 2139062143 of 8"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			test.script(r)
			r.wantFailure(test.text)
			r.pass(time.Second)
			r.comes(messageFrame(4, 70, "after the end"))
			r.wantFailure(test.text) // once
		})
	}
}

// Garbage, other schemas and templates not known: nothing happens.
func TestStrangeFrames(t *testing.T) {
	r := newRig(t)
	leader := r.open()
	r.events = nil
	r.submit(0)
	foreign := echo(leader.sent)[0]
	foreign[4] = 112
	r.comes(nil, []byte("short"), foreign, block(27, 40), block(templateEvent, 3), block(templateMessage, 8),
		block(templateNewLeader, 4), block(templateChallenge, 2), block(templateEvent, eventTimeoutBlock))
	r.want(loadgen.OK)
	if len(r.events)+len(r.failed) > 0 {
		t.Errorf("events %q, failures %v", r.events, r.failed)
	}
	r.comes(echo(leader.sent)...)
	r.want(loadgen.OK, 0)
}

// Whatever comes, in whatever state, each id ends once and nothing panics.
func FuzzSession(f *testing.F) {
	f.Add(eventFrame(event{session: 70, correlation: 1001, term: 4}, eventTimeoutBlock), uint8(1))
	f.Add(eventFrame(event{session: 70, code: eventClosed}, eventTimeoutBlock), uint8(2))
	f.Add(newLeaderFrame(newLeader{term: 5, session: 70, leader: 1}, newLeaderBlock), uint8(2))
	f.Add(messageFrame(4, 70, strings.Repeat("\x00", testSize)), uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, when uint8) {
		r := newRig(t)
		switch when % 3 {
		case 1:
			r.pass(2 * time.Millisecond)
		case 2:
			r.open()
			r.submit(0, 1, 2)
		}
		r.link.inbox = append(r.link.inbox, b, b)
		r.pass(3 * time.Millisecond)
		if r.client.Ready() && len(r.failed) > 0 {
			t.Errorf("ready after %v", r.failed)
		}
		r.client.Close()
		if when%3 == 2 && len(r.ended) != 3 {
			t.Errorf("ended %v of 3", r.ended)
		}
	})
}

func TestAllocScripted(t *testing.T) {
	r := newRig(t)
	leader := r.open()
	leader.sent = make([][]byte, 0, 4)
	r.client.w.Complete = func(uint32, loadgen.Outcome, int64) {}
	buf := make([]byte, messageHeaderLen+testSize)
	pub := &loopIngress{b: buf}
	r.client.session.pub = pub
	inbox := make([][]byte, 1)
	if n := testing.AllocsPerRun(1000, func() {
		r.clock.now++
		if !r.client.Submit(3) {
			t.Fatal("refused")
		}
		inbox[0] = buf
		r.link.inbox = inbox
		if r.client.Wait(r.clock.now) != 1 {
			t.Fatal("no reply")
		}
	}); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
	r.client.session.pub = leader
}

// loopIngress has one message in its log.
type loopIngress struct{ b []byte }

func (p *loopIngress) connected() (bool, error)    { return true, nil }
func (p *loopIngress) claim(n int) ([]byte, int64) { return p.b[:n], 0 }
func (p *loopIngress) commit()                     {}
func (p *loopIngress) close()                      {}
