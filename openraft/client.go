package openraft

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"

	"raftrig/loadgen"
	"raftrig/loadgen/sock"
)

// Times of the client, in nanoseconds.
const (
	millisecond = 1_000_000
	// dialTimeout is how long a connect may take.
	dialTimeout = 2000 * millisecond
	// switchGrace is how long a node may take to end what it has been sent,
	// once another leads, and how long requests that were not applied wait for
	// a leader.
	switchGrace = 1000 * millisecond
	// lookEvery is how often the client looks whether the leader still answers;
	// the third look without an answer, after a second or more, has it ask who
	// leads.
	lookEvery = 500 * millisecond
)

const (
	// maxTries bounds how often a request is sent.
	maxTries = 3
	// maxConnecting bounds the connections that are being opened ahead.
	maxConnecting = 64
	// silentLooks without an answer are silence.
	silentLooks = 3
	// maxNotes bounds the answers of the wrong kind that are noted.
	maxNotes = 5
)

// Client sends one lane's requests to the leader; see the package for how they
// end. All I/O is the lane's own (package sock); nothing is allocated on the
// path of a request.
//
// The key is the request's number within the lane modulo the number of keys,
// so lanes write the same keys. A value of 16 bytes or more begins with the
// number, unique over the lanes.
type Client struct {
	w       loadgen.Wiring
	poller  *sock.Poller
	addrs   []netip.AddrPort
	links   []link // one an id
	probes  []probe
	request *request

	target   int    // the node that requests go to, from 1; 0 while none is known
	term     uint64 // of its office; 0 when only a redirection says so
	lostAt   int64  // when the last leader was lost
	led      bool   // there has been a leader
	suspect  bool   // something speaks against the target: to ask who leads
	askedAt  int64  // when everybody was asked
	unknown  int    // requests that ended Unknown since the last leader was found
	sequence uint64 // of the next request

	queue    []uint32 // ids to be sent again
	queueEnd int64    // when to give up on them while there is nobody to send to

	next       int // links from here on may have to be opened ahead
	connecting int
	up         int // connections to the target that are open

	outstanding int    // requests that have been sent
	replies     uint64 // to requests, ever
	heard       uint64 // replies at the last look for silence
	quiet       int    // looks since the last reply
	completed   int

	// Deadlines; 0 for none.
	timer     int64 // the earliest of all
	lookAt    int64 // for silence
	graceEnd  int64 // other nodes' connections are closed
	connectBy int64 // the oldest connect that is under way has failed

	notes  int
	failed error
	closed bool
}

// link is an id: its connection, and its request.
type link struct {
	conn     *sock.Conn
	node     int32 // that the connection leads to; 0 when it is closed
	up       bool  // it is open
	state    linkState
	tries    uint8
	sequence uint64
	dialed   int64
	// Of an answer that is being thrown away because it is longer than In.
	skip int
	long answer
}

type linkState uint8

const (
	idle   linkState = iota
	sent             // the request has been written to the connection
	queued           // it waits to be sent again
)

// answer is what a node said to a request.
type answer struct {
	verdict verdict
	leader  int
	close   bool
}

// NewClient starts to look for the leader among the nodes at addrs, node i at
// addrs[i-1], and does not wait for it. keys is how many different keys are
// written, at least 1.
func NewClient(w loadgen.Wiring, addrs []netip.AddrPort, keys uint64) (*Client, error) {
	w.Lanes = max(w.Lanes, 1)
	poller, err := sock.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("openraft: %w", err)
	}
	hosts := make([]string, len(addrs))
	for i, a := range addrs {
		hosts[i] = a.String()
	}
	c := &Client{
		w: w, poller: poller, addrs: addrs,
		links:    make([]link, w.Slots),
		queue:    make([]uint32, 0, w.Slots),
		request:  newRequest(hosts, w.Lane, w.Lanes, w.Size, keys),
		sequence: uint64(w.Lane),
	}
	for i := range c.links {
		c.links[i].conn = sock.NewConn(sock.Config{In: maxHead + maxPrefix + w.Size, Out: c.request.length})
		c.links[i].conn.Tag = i
	}
	now := w.Clock.Now()
	c.probes = newProbes(hosts)
	c.lookAt = now + lookEvery
	c.ask(now)
	return c, nil
}

// Ready implements loadgen.Client.
func (c *Client) Ready() bool { return c.target != 0 }

// Submit implements loadgen.Client: it sends. It is false while no leader is
// known.
func (c *Client) Submit(id uint32) bool {
	if c.target == 0 || c.closed {
		return false
	}
	l := &c.links[id]
	if l.state != idle {
		panic(fmt.Sprintf("openraft: id %d submitted while outstanding", id))
	}
	l.sequence, l.tries = c.sequence, 0
	c.sequence += uint64(c.w.Lanes)
	c.send(l, id)
	return true
}

// send l's request to the target.
func (c *Client) send(l *link, id uint32) {
	l.tries++
	l.state = sent
	c.outstanding++
	if int(l.node) != c.target {
		c.hangUp(l)
		c.dial(l)
		if l.state != sent {
			return
		}
	}
	r := c.request
	r.set(l.sequence)
	// There is room: nothing is pending on a connection without a request.
	l.conn.Write(r.heads[c.target-1])
	l.conn.Write(r.body)
	if err := l.conn.Flush(); err != nil {
		c.lose(l, err)
	}
}

// Flush implements loadgen.Client. Submit has sent.
func (c *Client) Flush() error { return nil }

// Poll implements loadgen.Client.
func (c *Client) Poll() int { return c.drive(0) }

// Wait implements loadgen.Client. It also wakes for its own timers, and does
// not wait while connections are to be opened.
func (c *Client) Wait(until int64) int {
	if c.timer != 0 {
		until = min(until, c.timer)
	}
	return c.drive(until - c.w.Clock.Now())
}

func (c *Client) drive(timeoutNS int64) int {
	if c.closed {
		return 0
	}
	before := c.completed
	if c.openAhead() {
		timeoutNS = 0
	}
	for _, conn := range c.poller.Wait(timeoutNS) {
		if conn.Tag >= 0 {
			c.ready(&c.links[conn.Tag])
		} else {
			c.answered(&c.probes[-1-conn.Tag])
		}
	}
	now := c.w.Clock.Now()
	if c.timer != 0 && now >= c.timer {
		c.tick(now)
	}
	if c.suspect {
		if now >= c.askedAt+probeGap {
			c.ask(now)
		} else {
			c.setTimer()
		}
	}
	if len(c.queue) > 0 {
		c.resend(now)
	}
	return c.completed - before
}

// openAhead opens one connection that may be needed, and says whether there
// are more to open now. One a call, so that a request that falls due waits for
// one connect at most.
func (c *Client) openAhead() bool {
	for ; c.next < len(c.links); c.next++ {
		if c.target == 0 || c.connecting >= maxConnecting {
			return false
		}
		l := &c.links[c.next]
		if l.state != idle || int(l.node) == c.target {
			continue
		}
		c.next++
		c.hangUp(l)
		c.dial(l)
		return true
	}
	return false
}

// dial connects l to the target.
func (c *Client) dial(l *link) {
	l.node, l.dialed = int32(c.target), c.w.Clock.Now()
	c.connecting++
	if c.connectBy == 0 {
		c.connectBy = l.dialed + dialTimeout
		c.setTimer()
	}
	if err := c.poller.Dial(l.conn, c.addrs[c.target-1]); err != nil {
		c.lose(l, err)
	}
}

// ready acts on what the poller saw of l.
func (c *Client) ready(l *link) {
	if l.node == 0 {
		return // closed since
	}
	if !l.up && l.conn.Connected() {
		l.up = true
		c.connecting--
		if int(l.node) == c.target {
			c.up++
		}
	}
	if !l.conn.Readable() {
		if err := l.conn.Err(); err != nil {
			c.lose(l, err)
		}
		return
	}
	n, err := l.conn.Fill()
	if n == 0 {
		if err != nil {
			c.lose(l, err)
		}
		return
	}
	c.receive(l, c.w.Clock.Now())
}

// receive takes what has been read from l, at time at.
func (c *Client) receive(l *link, at int64) {
	in := l.conn.In()
	if l.state != sent {
		c.unasked(l, in)
		return
	}
	if l.skip == 0 {
		h, used, err := parseHead(in)
		if err != nil {
			c.violated(l, err)
			return
		}
		body := in[used:]
		if used == 0 || len(body) < min(h.length, maxPrefix) {
			return // the rest is on its way
		}
		l.skip = used + h.length
		body = body[:min(len(body), h.length)]
		l.long.verdict, l.long.leader = judge(h.status, body)
		l.long.close = h.close
		if v := l.long.verdict; v == refused || v == unclear {
			c.note(l, h.status, body)
		}
	}
	if l.skip -= len(in); l.skip < 0 {
		c.violated(l, errors.New("its answer is longer than its Content-Length says"))
		return
	}
	l.conn.Discard(len(in))
	if l.skip == 0 {
		c.finish(l, at)
	}
}

// finish l's request, which has been answered.
func (c *Client) finish(l *link, at int64) {
	a, node, id := l.long, int(l.node), uint32(l.conn.Tag)
	l.state = idle
	c.outstanding--
	c.replies++
	if a.close || node != c.target {
		c.hangUp(l)
		c.next = min(c.next, int(id)) // opened again ahead
	}
	if a.verdict != applied {
		c.suspect = true
	}
	switch a.verdict {
	case applied:
		c.complete(id, loadgen.OK, at)
	case redirected:
		c.redirect(node, a.leader)
		c.again(l, id, at)
	case refused:
		c.complete(id, loadgen.Failed, at)
	case unclear:
		c.complete(id, loadgen.Unknown, at)
	}
}

func (c *Client) complete(id uint32, outcome loadgen.Outcome, at int64) {
	c.completed++
	c.w.Complete(id, outcome, at)
}

// again queues request id, which was not applied, unless it has been sent
// often enough.
func (c *Client) again(l *link, id uint32, now int64) {
	if l.tries >= maxTries {
		l.state = idle
		c.complete(id, loadgen.Failed, now)
		return
	}
	if len(c.queue) == 0 {
		c.queueEnd = now + switchGrace
	}
	l.state = queued
	c.queue = append(c.queue, id)
	c.setTimer()
}

// resend sends what is queued to the leader. While none is known it waits, up
// to queueEnd; then it fails.
func (c *Client) resend(now int64) {
	n, end := 0, len(c.queue)
	for ; n < end && c.target != 0; n++ {
		id := c.queue[n]
		c.send(&c.links[id], id)
	}
	if c.target == 0 && now >= c.queueEnd {
		for ; n < end; n++ {
			id := c.queue[n]
			c.links[id].state = idle
			c.complete(id, loadgen.Failed, now)
		}
	}
	if n > 0 {
		c.queue = c.queue[:copy(c.queue, c.queue[n:])]
		c.setTimer()
	}
}

// redirect follows what a node said that does not lead. Only the target's word
// counts: others may be behind.
func (c *Client) redirect(node, leader int) {
	if node != c.target {
		return
	}
	switch {
	case leader > len(c.addrs):
		c.setTarget(0, 0, fmt.Sprintf("it says that node %d leads, of %d nodes: name all hosts of the cluster", leader, len(c.addrs)))
	case leader == 0 || leader == node:
		c.setTarget(0, 0, "it no longer leads")
	default:
		c.setTarget(leader, 0, "")
	}
}

// setTarget has requests go to node from now on. term is of its office, 0 when
// it has not said so itself; why is for the record when node is 0.
func (c *Client) setTarget(node int, term uint64, why string) {
	if node == c.target {
		c.term = max(c.term, term)
		return
	}
	now := c.w.Clock.Now()
	old := c.target
	c.target, c.term, c.up = node, term, 0
	if node == 0 {
		c.lostAt, c.suspect = now, true
		c.w.Event(fmt.Sprintf("no leader: node %d at %s: %s", old, c.addrs[old-1], why))
		return
	}
	text := fmt.Sprintf("node %d at %s leads, term %d", node, c.addrs[node-1], term)
	if term == 0 {
		text = fmt.Sprintf("node %d at %s leads, says node %d", node, c.addrs[node-1], old)
	} else if old != 0 {
		text += fmt.Sprintf(", after node %d", old)
	}
	if c.led {
		if old == 0 {
			text += fmt.Sprintf("; %d ms without a leader", (now-c.lostAt)/millisecond)
		}
		text += fmt.Sprintf("; %d requests ended unknown", c.unknown)
	}
	c.w.Event(text)
	c.led, c.unknown, c.quiet = true, 0, 0
	c.next = 0
	for i := range c.links {
		l := &c.links[i]
		switch {
		case int(l.node) == node && l.up:
			c.up++
		case l.node != 0 && int(l.node) != node && l.state == sent && c.graceEnd == 0:
			c.graceEnd = now + switchGrace
		}
	}
	c.setTimer()
}

// lose ends l's connection, and its request with it. The connection is opened
// again when it is needed: the node may be at its limit, or close what is idle.
func (c *Client) lose(l *link, err error) {
	node, up, state, id := int(l.node), l.up, l.state, uint32(l.conn.Tag)
	left := up && l.conn.Pending() == 0
	c.hangUp(l)
	now := c.w.Clock.Now()
	if own(err) {
		c.fail(fmt.Errorf("connection %d of %d: %w: use fewer (-threads, -max-inflight) or allow more (ulimit -n, net.ipv4.ip_local_port_range)", id+1, len(c.links), err))
	}
	if err == io.EOF {
		err = errors.New("the node closed the connection")
	}
	if node == c.target {
		if !up && err != errDialTimeout || state == sent && c.up == 0 {
			c.setTarget(0, 0, err.Error())
		}
		c.suspect = true
	}
	if state == sent {
		l.state = idle
		c.outstanding--
		if left {
			c.unknown++
			c.complete(id, loadgen.Unknown, now)
		} else {
			c.again(l, id, now)
		}
	}
	c.setTimer()
}

var errDialTimeout = fmt.Errorf("no connection within %d s", dialTimeout/(1000*millisecond))

// own says whether an error of a connect is this host's, not the node's.
func own(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// hangUp closes l's connection.
func (c *Client) hangUp(l *link) {
	if l.node == 0 {
		return
	}
	l.conn.Close()
	switch {
	case !l.up:
		c.connecting--
	case int(l.node) == c.target:
		c.up--
	}
	l.node, l.up, l.skip = 0, false, 0
}

// violated ends the run: the node does not speak the protocol.
func (c *Client) violated(l *link, err error) {
	c.fail(fmt.Errorf("node %d at %s: %w", l.node, c.addrs[l.node-1], err))
	c.lose(l, err)
}

// fail ends the run, once.
func (c *Client) fail(err error) {
	if c.failed == nil {
		c.failed = err
		c.w.Fail(err)
	}
}

// unasked acts on bytes that came on a connection without a request: a node
// that takes no more connections may say so.
func (c *Client) unasked(l *link, in []byte) {
	if h, used, err := parseHead(in); used > 0 && err == nil {
		c.note(l, h.status, in[used:])
	}
	c.lose(l, errors.New("an answer without a request"))
}

// note for the record what a node answered that is neither an acknowledgement
// nor a redirection; the first few, for the others will say the same.
func (c *Client) note(l *link, status int, body []byte) {
	if c.notes++; c.notes <= maxNotes {
		c.w.Event(fmt.Sprintf("node %d at %s answered: HTTP status %d %.100q", l.node, c.addrs[l.node-1], status, body))
	}
}

// tick acts on the deadlines that have passed.
func (c *Client) tick(now int64) {
	c.tickProbes(now)
	if now >= c.lookAt {
		c.look()
		c.lookAt = now + lookEvery
	}
	if c.connectBy != 0 && now >= c.connectBy {
		c.connectBy = 0
		for i := range c.links {
			l := &c.links[i]
			if l.node == 0 || l.up {
				continue
			}
			if end := l.dialed + dialTimeout; now >= end {
				c.lose(l, errDialTimeout)
			} else if c.connectBy == 0 || end < c.connectBy {
				c.connectBy = end
			}
		}
	}
	if c.graceEnd != 0 && now >= c.graceEnd {
		c.graceEnd = 0
		c.cutOff()
	}
	c.setTimer()
}

// look for silence: with requests outstanding since the last look, and no
// reply.
func (c *Client) look() {
	if c.target == 0 || c.outstanding == 0 || c.replies != c.heard {
		c.quiet, c.heard = 0, c.replies
		return
	}
	if c.quiet++; c.quiet == silentLooks {
		c.w.Event(fmt.Sprintf("node %d at %s leaves %d requests unanswered: asking who leads", c.target, c.addrs[c.target-1], c.outstanding))
	}
	if c.quiet >= silentLooks {
		c.suspect = true
	}
}

// cutOff closes the connections that nodes which do not lead have left without
// an answer.
func (c *Client) cutOff() {
	if c.target == 0 {
		return // the next leader sets the time anew
	}
	n, node := 0, int32(0)
	for i := range c.links {
		if l := &c.links[i]; l.state == sent && l.node != 0 && int(l.node) != c.target {
			n, node = n+1, l.node
			c.lose(l, errors.New("left unanswered"))
		}
	}
	if n > 0 {
		c.w.Event(fmt.Sprintf("node %d at %s left %d requests unanswered for 1 s after another had come to lead: they ended unknown", node, c.addrs[node-1], n))
	}
}

// setTimer finds the earliest deadline.
func (c *Client) setTimer() {
	c.timer = c.lookAt
	at := func(t int64) {
		if t != 0 && t < c.timer {
			c.timer = t
		}
	}
	if len(c.queue) > 0 {
		at(c.queueEnd)
	}
	if c.suspect {
		at(c.askedAt + probeGap)
	}
	at(c.graceEnd)
	at(c.connectBy)
	for i := range c.probes {
		at(c.probes[i].deadline)
	}
}

// Close implements loadgen.Client.
func (c *Client) Close() error {
	if c.closed {
		return nil
	}
	c.closed, c.target = true, 0
	err := c.poller.Close()
	now := c.w.Clock.Now()
	for id := range c.links {
		if c.links[id].state != idle {
			c.links[id].state = idle
			c.complete(uint32(id), loadgen.Unknown, now)
		}
	}
	return err
}
