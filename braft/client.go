package braft

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"

	"raftrig/loadgen"
	"raftrig/loadgen/sock"
)

// Times of the client, in nanoseconds.
const (
	// dialTimeout is how long a node may take from the connect to its first
	// answer.
	dialTimeout = 2_000_000_000
	// A node that is down is tried again after minBackoff, doubling to
	// maxBackoff.
	minBackoff = 10_000_000
	maxBackoff = 500_000_000
	// askEvery is the pause between two questions to a node, who leads, while
	// nobody is known to.
	askEvery = 20_000_000
	// askTimeout is how long a node that holds no request may take to answer
	// it.
	askTimeout = 2_000_000_000
	// barTime is how long a node that has rejected a request is not taken for
	// the leader, whatever it says: while it hands its office over, it says
	// that it leads and takes nothing.
	barTime = 100_000_000
	// The leader is looked at every lookEvery. When silentLooks in a row find
	// requests outstanding and no reply since the one before, it has been
	// silent for 1 to 1.5 s, and all nodes are asked who leads.
	lookEvery   = 500_000_000
	silentLooks = 3
	// switchGrace is how long a node may take to answer what it has been sent,
	// once another leads. A deposed leader that is alive knows how its requests
	// ended; one that hangs is cut off. Rejected requests wait as long for a
	// leader.
	switchGrace = 1_000_000_000
)

const (
	// maxTries bounds how often a request is sent: once, and again when a node
	// rejects it.
	maxTries = 3
	// maxNodes bounds the group; owner numbers are a byte.
	maxNodes = 200

	// A correlation id is the slot in the low bits and the number of the send
	// above them; a question's has askBit, and a number of its own.
	slotBits = 20
	slotMask = 1<<slotBits - 1
	askBit   = 1 << 62
)

// Owners of a slot that are no node.
const (
	ownerNone  = 0
	ownerQueue = 255 // rejected, to be sent to the leader
)

// Error codes of replies, of brpc (errno.proto) and of Linux.
const (
	codeNoGroup     = 2  // ENOENT
	codeNoLeader    = 11 // EAGAIN
	codeNoService   = 1001
	codeNoMethod    = 1002
	codeBadRequest  = 1003
	codeOvercrowded = 1011
	codeLogOff      = 2003
	codeLimit       = 2004
)

// Client sends one lane's requests to a braft group. It has a connection to
// every node, over which it asks who leads, and sends all requests over the
// leader's. All I/O is the lane's own (package sock); nothing is allocated on
// the path of a request. The package comment says what a request is.
//
// Who leads: the client is Ready when a node says of itself that it does.
// Nodes are asked when they have been connected, and every 20 ms while nobody
// is known to lead: so after a lost connection to the leader, a redirect, or an
// answer of the leader that it leads no longer. They are asked too when the
// leader has been silent for a second with requests outstanding; if another
// says that it leads, that one does, else the client goes on to wait.
//
// How requests end:
//   - carried out: OK.
//   - redirected, or rejected by a server that is stopping: certainly not
//     carried out, so sent again to the leader, three times in all; if none is
//     known within 1 s, Failed. The time that takes is the request's.
//   - refused by brpc before it reached the service: Failed.
//   - any other error: Unknown.
//   - the connection is lost: Unknown, for all that were sent on it. A reply to
//     what is not outstanding on a connection ends it too.
//   - another node leads and the old leader does not answer for 1 s: its
//     connection is closed, so Unknown. It is not sooner, because an old leader
//     that is alive knows more than we do.
//   - a reply that does not fit the chain: Wiring.Fail.
type Client struct {
	w      loadgen.Wiring
	group  string
	poller *sock.Poller
	peers  []peer
	target *peer // who leads; nil while nobody is known to

	slots     []slot
	queue     []uint32 // slots to be sent again
	queueEnd  int64    // when to give up on them if there is nobody to send to
	base      int64    // of the keys
	sends     uint64
	asks      uint64
	round     uint64 // counts the times that a leader was found
	frame     []byte // being encoded
	reply     reply
	exchanged exchanged
	completed int

	timer     int64 // the earliest deadline
	lookAt    int64 // when to look at the leader
	at        int64 // when the last read returned
	leaderOff int64 // when the leader was lost
	unknown   int   // requests that ended Unknown since it was found
	lost      bool  // a peer has err set
	reports   bool  // a peer has report set
	retries   int64
	closed    bool
}

// slot is the state of one id and of its counter. The counter holds value, or,
// after requests of unknown end, one of those that they tried: low to next-1.
type slot struct {
	correlation uint64
	value       int64
	low         int64
	next        int64 // what the next request tries to set
	owner       uint8 // the node it was sent to, ownerNone or ownerQueue
	tries       uint8
}

// settle the counter's value; what the last request tried is used up.
func (s *slot) settle(value int64) {
	s.value = value
	s.next++
	s.low = s.next
}

type peerState uint8

const (
	peerDown       peerState = iota // deadline: when to connect
	peerConnecting                  // deadline: when to give up
	peerOpening                     // connected, has not answered yet; the same deadline
	peerLive                        // deadline: when to cut it off; 0 for never
)

// peer is one node and the connection to it.
type peer struct {
	node        uint8 // from 1
	addr        netip.AddrPort
	conn        *sock.Conn
	state       peerState
	deadline    int64
	backoff     int64
	outstanding int
	replies     uint64 // to requests
	seen        uint64 // replies at the last look
	silent      int    // looks in a row without a reply

	asking   bool
	askID    uint64
	askRnd   uint64 // the client's round when it was asked
	askAt    int64  // when it may be asked again
	askBy    int64  // when it has to have answered
	barred   int64  // until when it is not taken for the leader
	code     int32  // of the last error that Event was told of
	err      error  // ends the connection; reap acts on it
	report   error  // why it is down, for Flush to return
	reported bool   // so that each try again is not
}

// NewClient starts to connect to the nodes at addrs, node i at addrs[i-1], and
// does not wait for them.
func NewClient(w loadgen.Wiring, addrs []netip.AddrPort, group string) (*Client, error) {
	switch {
	case len(addrs) == 0 || len(addrs) > maxNodes:
		return nil, fmt.Errorf("braft: %d nodes: 1 to %d are possible", len(addrs), maxNodes)
	case len(group) == 0 || len(group) > maxGroup:
		return nil, fmt.Errorf("braft: a group name of %d bytes: 1 to %d are possible", len(group), maxGroup)
	case w.Slots > slotMask+1:
		return nil, fmt.Errorf("braft: %d slots: at most %d are possible", w.Slots, slotMask+1)
	}
	poller, err := sock.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("braft: %w", err)
	}
	now := w.Clock.Now()
	c := &Client{
		w: w, group: group, poller: poller,
		slots:     make([]slot, w.Slots),
		queue:     make([]uint32, 0, w.Slots),
		base:      1<<62 | rand.Int64N(1<<(62-slotBits))<<slotBits,
		frame:     make([]byte, 0, maxRequest+maxGroup),
		peers:     make([]peer, len(addrs)),
		lookAt:    now + lookEvery,
		leaderOff: now,
	}
	for i := range c.slots {
		c.slots[i].settle(0)
	}
	for i := range c.peers {
		p := &c.peers[i]
		p.node, p.addr, p.backoff = uint8(i+1), addrs[i], minBackoff
		p.conn = sock.NewConn(sock.Config{In: 2 * maxFrame, Out: 256 << 10})
		p.conn.Tag = i
		c.connect(p, now)
	}
	c.setTimer()
	return c, nil
}

// Ready implements loadgen.Client.
func (c *Client) Ready() bool { return c.target != nil }

// Leader returns the node that requests go to, from 1; 0 while none is known.
func (c *Client) Leader() int {
	if c.target == nil {
		return 0
	}
	return int(c.target.node)
}

// Retries is how many requests were sent again because a node had rejected
// them.
func (c *Client) Retries() int64 { return c.retries }

// Submit implements loadgen.Client. It is false while no leader is known, and
// while the connection's buffer is full.
func (c *Client) Submit(id uint32) bool {
	s := &c.slots[id]
	if s.owner != ownerNone {
		panic(fmt.Sprintf("braft: id %d submitted while outstanding", id))
	}
	if c.target == nil || !c.send(c.target, id) {
		return false
	}
	s.tries = 1
	return true
}

// send writes request id to p's buffer. False: no room now.
func (c *Client) send(p *peer, id uint32) bool {
	s := &c.slots[id]
	correlation := (c.sends+1)<<slotBits&(askBit-1) | uint64(id)
	c.frame = appendExchange(c.frame[:0], correlation, c.key(id), s.value, s.next)
	if !p.conn.Write(c.frame) {
		return false
	}
	c.sends++
	s.correlation, s.owner = correlation, p.node
	p.outstanding++
	return true
}

// key of a slot's counter.
func (c *Client) key(id uint32) int64 { return c.base | int64(id) }

// Flush implements loadgen.Client: one write. The error it returns is the loss
// of a connection, or the failure to make one; once each, until the node has
// been back.
func (c *Client) Flush() error {
	if c.target != nil {
		c.flush(c.target)
	}
	if !c.reports {
		return nil
	}
	for i := range c.peers {
		if p := &c.peers[i]; p.report != nil {
			err := p.report
			p.report = nil
			return err
		}
	}
	c.reports = false
	return nil
}

// flush writes what the socket takes.
func (c *Client) flush(p *peer) {
	if p.conn.Pending() == 0 {
		return
	}
	if err := p.conn.Flush(); err != nil {
		c.fail(p, err)
	}
}

// Poll implements loadgen.Client.
func (c *Client) Poll() int { return c.drive(0) }

// Wait implements loadgen.Client. It also wakes for its own timers.
func (c *Client) Wait(until int64) int {
	return c.drive(min(until, c.timer) - c.w.Clock.Now())
}

func (c *Client) drive(timeoutNS int64) int {
	if c.closed {
		return 0
	}
	before := c.completed
	if c.lost {
		timeoutNS = 0
	}
	for _, conn := range c.poller.Wait(timeoutNS) {
		c.ready(&c.peers[conn.Tag])
	}
	if now := c.w.Clock.Now(); now >= c.timer {
		c.tick(now)
	}
	if c.lost {
		c.reap()
	}
	if len(c.queue) > 0 {
		c.resend()
	}
	return c.completed - before
}

// ready acts on what the poller saw of p.
func (c *Client) ready(p *peer) {
	if p.err != nil {
		return
	}
	if p.state == peerConnecting && p.conn.Connected() {
		p.state = peerOpening
		c.ask(p, c.w.Clock.Now())
	}
	if !p.conn.Readable() {
		if err := p.conn.Err(); err != nil {
			c.fail(p, err)
		}
		return
	}
	n, err := p.conn.Fill()
	if n == 0 {
		if err != nil {
			c.fail(p, err)
		}
		return
	}
	c.at = c.w.Clock.Now()
	in, used := p.conn.In(), 0
	for used < len(in) && p.err == nil {
		n, err := c.reply.decode(in[used:])
		if err == nil && n > 0 {
			err = c.answer(p)
		}
		if err != nil {
			c.fail(p, err)
		}
		if n == 0 {
			break
		}
		used += n
	}
	p.conn.Discard(used)
}

// answer acts on the reply just decoded.
func (c *Client) answer(p *peer) error {
	r := &c.reply
	if p.asking && r.correlation == p.askID {
		return c.told(p)
	}
	id := uint32(r.correlation & slotMask)
	if int(id) >= len(c.slots) || c.slots[id].owner != p.node || c.slots[id].correlation != r.correlation {
		return fmt.Errorf("a reply with correlation id %#x, which is not outstanding on the connection", r.correlation)
	}
	e := &c.exchanged
	if r.code == 0 {
		if err := e.decode(r.body); err != nil {
			return err
		}
	}
	s := &c.slots[id]
	p.outstanding--
	p.replies++
	switch {
	case r.code != 0:
		c.refused(p, id)
	case e.has&hasValues == 0:
		if c.target == p {
			c.lose(p, "redirects "+c.whither(e.redirect))
		}
		c.rejected(p, id)
	case e.key == c.key(id) && e.success && e.old == s.value && e.new == s.next:
		s.settle(e.new)
		c.complete(id, loadgen.OK, c.at)
	case e.key == c.key(id) && !e.success && e.old >= s.low && e.old < s.next:
		// One of those whose end was unknown had been carried out.
		s.settle(e.old)
		c.complete(id, loadgen.OK, c.at)
	default:
		c.broken(p, id)
	}
	return nil
}

// broken ends the run: what the counter held is neither what was acknowledged
// last nor on its way.
func (c *Client) broken(p *peer, id uint32) {
	e, s := &c.exchanged, &c.slots[id]
	const why = "an acknowledged value was lost, or another program sets this counter"
	switch {
	case e.key != c.key(id):
		c.w.Fail(fmt.Errorf("wrong reply of node %d: a compare_exchange of counter %d, answered for counter %d", p.node, c.key(id), e.key))
	case e.success && e.old == s.value:
		c.w.Fail(fmt.Errorf("wrong reply of node %d: counter %d set to %d, where %d was asked for", p.node, e.key, e.new, s.next))
	case e.success || e.old == s.value:
		c.w.Fail(fmt.Errorf("wrong reply of node %d: counter %d expected to hold %d, found to hold %d, success %t", p.node, e.key, s.value, e.old, e.success))
	default:
		c.w.Fail(fmt.Errorf("the chain of counter %d is broken: expected %d, node %d found %d: %s", e.key, s.value, p.node, e.old, why))
	}
	if e.success {
		s.settle(e.new)
		c.complete(id, loadgen.Unknown, c.at)
		return
	}
	s.settle(e.old)
	c.complete(id, loadgen.Failed, c.at)
}

// whither names the node that a redirect points to.
func (c *Client) whither(redirect []byte) string {
	if len(redirect) == 0 {
		return "to nobody"
	}
	if node := c.nodeOf(string(redirect)); node != 0 {
		return fmt.Sprintf("to node %d", node)
	}
	return fmt.Sprintf("to %.60q", redirect)
}

// nodeOf a peer id, 0 when it is none of the hosts.
func (c *Client) nodeOf(peerID string) uint8 {
	addr, err := parsePeerID(peerID)
	if err != nil {
		return 0
	}
	for i := range c.peers {
		if c.peers[i].addr == addr {
			return c.peers[i].node
		}
	}
	return 0
}

// rejected sends a request that was certainly not carried out again, to
// whoever leads.
func (c *Client) rejected(p *peer, id uint32) {
	p.barred = c.at + barTime
	s := &c.slots[id]
	if s.tries >= maxTries {
		c.complete(id, loadgen.Failed, c.at)
		return
	}
	if len(c.queue) == 0 {
		c.queueEnd = c.at + switchGrace
	}
	s.owner = ownerQueue
	c.queue = append(c.queue, id)
	c.setTimer()
}

// refused ends a request that was answered with an error.
func (c *Client) refused(p *peer, id uint32) {
	code := c.reply.code
	if code != p.code {
		p.code = code
		c.w.Event(fmt.Sprintf("node %d: %s", p.node, c.errorText()))
	}
	switch code {
	case codeLogOff:
		if c.target == p {
			c.lose(p, "is stopping")
		}
		c.rejected(p, id)
	case codeNoService, codeNoMethod, codeBadRequest, codeOvercrowded, codeLimit:
		c.complete(id, loadgen.Failed, c.at)
	default:
		c.slots[id].next++ // it may be set yet
		c.complete(id, loadgen.Unknown, c.at)
		if !p.asking && c.at >= p.askAt {
			c.ask(p, c.at)
		}
	}
}

// errorText is the error of the reply just decoded, in one line.
func (c *Client) errorText() string {
	return fmt.Sprintf("error %d: %.200q", c.reply.code, c.reply.text)
}

// complete ends request id, whose owner no longer counts it.
func (c *Client) complete(id uint32, outcome loadgen.Outcome, at int64) {
	c.slots[id].owner = ownerNone
	c.completed++
	if outcome == loadgen.Unknown {
		c.unknown++
	}
	c.w.Complete(id, outcome, at)
}

// ask p who leads.
func (c *Client) ask(p *peer, now int64) {
	c.asks++
	c.frame = appendLeader(c.frame[:0], askBit|c.asks, c.group)
	p.askAt = now + askEvery
	if p.conn.Write(c.frame) { // else later
		p.asking, p.askID, p.askRnd, p.askBy = true, askBit|c.asks, c.round, now+askTimeout
		c.flush(p)
	}
	c.setTimer()
}

// askAll asks every node that is not being asked.
func (c *Client) askAll(now int64) {
	for i := range c.peers {
		if p := &c.peers[i]; p.state == peerLive && p.err == nil && !p.asking {
			c.ask(p, now)
		}
	}
}

// told acts on the answer to who leads.
func (c *Client) told(p *peer) error {
	var leader uint8
	switch c.reply.code {
	case 0:
		id, err := decodeLeader(c.reply.body)
		if err != nil {
			return err
		}
		if leader = c.nodeOf(id); leader == 0 {
			return fmt.Errorf("it says that %.60q leads, which is none of the hosts: name all hosts, by the addresses that the servers have", id)
		}
	case codeNoLeader:
	case codeNoGroup:
		return fmt.Errorf("it has no group %q: name the servers' group (-group)", c.group)
	case codeNoService, codeNoMethod:
		return fmt.Errorf("it is no braft node: %s", c.errorText())
	default:
		return errors.New(c.errorText())
	}
	p.asking = false
	if p.state == peerOpening {
		p.state, p.deadline, p.backoff, p.reported = peerLive, 0, minBackoff, false
	}
	switch {
	case leader != p.node:
		if c.target == p {
			c.lose(p, "says that it leads no longer")
		}
	case c.at < p.barred:
	case c.target == nil || c.target != p && p.askRnd == c.round:
		c.lead(p)
	}
	c.setTimer()
	return nil
}

// lead makes p the node that requests go to. What it says is newer than what
// any other has said, for a question from before the last change does not
// count.
func (c *Client) lead(p *peer) {
	text := fmt.Sprintf("node %d leads", p.node)
	switch {
	case c.target != nil:
		text += fmt.Sprintf(", and node %d no longer", c.target.node)
	case c.round > 0:
		text += fmt.Sprintf("; for %.3f s none was known, %d requests ended unknown", float64(c.at-c.leaderOff)/1e9, c.unknown)
	}
	c.w.Event(text)
	c.unknown = 0
	c.target = p
	c.round++
	for i := range c.peers {
		q := &c.peers[i]
		q.silent = 0
		if q.state != peerLive {
			continue
		}
		q.deadline = 0
		if q != p && q.outstanding > 0 {
			q.deadline = c.at + switchGrace
		}
	}
}

// lose p, which led, and ask for another.
func (c *Client) lose(p *peer, how string) {
	c.target, c.leaderOff = nil, c.at
	c.w.Event(fmt.Sprintf("node %d, which led, %s", p.node, how))
	c.askAll(c.at)
}

func (c *Client) setTimer() {
	c.timer = c.lookAt
	if len(c.queue) > 0 && c.target == nil {
		c.timer = min(c.timer, c.queueEnd)
	}
	for i := range c.peers {
		p := &c.peers[i]
		if p.deadline != 0 {
			c.timer = min(c.timer, p.deadline)
		}
		if p.state != peerLive {
			continue
		}
		if p.asking {
			c.timer = min(c.timer, p.askBy)
		} else if c.target == nil {
			c.timer = min(c.timer, p.askAt)
		}
	}
}

// tick acts on the deadlines that have passed.
func (c *Client) tick(now int64) {
	for i := range c.peers {
		p := &c.peers[i]
		if p.err != nil {
			continue
		}
		late := p.deadline != 0 && now >= p.deadline
		switch p.state {
		case peerDown:
			if late {
				c.connect(p, now)
			}
		case peerConnecting:
			if late {
				c.fail(p, errors.New("no connection within 2 s"))
			}
		case peerOpening:
			if late {
				c.fail(p, errors.New("connected, and did not say who leads within 2 s"))
			}
		case peerLive:
			switch {
			case late && p.outstanding > 0:
				c.fail(p, fmt.Errorf("left %d requests unanswered for 1 s after another node had come to lead", p.outstanding))
			case p.asking && now >= p.askBy && p.outstanding == 0:
				c.fail(p, errors.New("did not say who leads within 2 s"))
			case p.asking && now >= p.askBy:
				p.askBy = now + askTimeout // it holds requests: wait on
			case !p.asking && c.target == nil && now >= p.askAt:
				c.ask(p, now)
			}
			if late {
				p.deadline = 0
			}
		}
	}
	if now >= c.lookAt {
		c.lookAt = now + lookEvery
		c.look(now)
	}
	c.setTimer()
}

// look whether the leader is silent.
func (c *Client) look(now int64) {
	p := c.target
	if p == nil {
		return
	}
	if p.outstanding == 0 || p.replies != p.seen {
		p.silent, p.seen = 0, p.replies
		return
	}
	if p.silent++; p.silent >= silentLooks {
		c.askAll(now)
	}
}

func (c *Client) connect(p *peer, now int64) {
	p.state, p.deadline = peerConnecting, now+dialTimeout
	if err := c.poller.Dial(p.conn, p.addr); err != nil {
		c.fail(p, err)
	}
}

// fail marks p's connection as ended by err; the next drive reaps it, so that
// requests complete there and not in the middle of something else.
func (c *Client) fail(p *peer, err error) {
	if p.err != nil {
		return
	}
	p.err, c.lost = err, true
	if c.target == p {
		c.target, c.leaderOff = nil, c.w.Clock.Now()
	}
}

// reap closes failed connections, ends their requests and sets their timers.
func (c *Client) reap() {
	c.lost = false
	now := c.w.Clock.Now()
	for i := range c.peers {
		p := &c.peers[i]
		if p.err == nil {
			continue
		}
		if !p.reported {
			err := p.err
			if err == io.EOF {
				err = errors.New("the node closed the connection")
			}
			p.report = fmt.Errorf("node %d at %s: %w", p.node, p.addr, err)
			p.reported, c.reports = true, true
			text := p.report.Error()
			if p.outstanding > 0 {
				text += fmt.Sprintf("; %d requests lost with it", p.outstanding)
			}
			c.w.Event(text)
		}
		p.conn.Close()
		p.state, p.err, p.asking, p.code = peerDown, nil, false, 0
		p.deadline = now + p.backoff
		p.backoff = min(2*p.backoff, maxBackoff)
		outstanding := p.outstanding
		p.outstanding = 0
		for id := 0; outstanding > 0; id++ {
			if s := &c.slots[id]; s.owner == p.node {
				outstanding--
				s.next++ // it may be set yet
				c.complete(uint32(id), loadgen.Unknown, now)
			}
		}
	}
	if c.target == nil {
		c.askAll(now)
	}
	c.setTimer()
}

// resend sends rejected requests to the leader. While none is known they wait,
// up to queueEnd; then they fail.
func (c *Client) resend() {
	n := 0
	if c.target != nil {
		for n < len(c.queue) && c.send(c.target, c.queue[n]) {
			c.slots[c.queue[n]].tries++
			c.retries++
			n++
		}
		c.flush(c.target)
	} else if now := c.w.Clock.Now(); now >= c.queueEnd {
		for n < len(c.queue) {
			c.complete(c.queue[n], loadgen.Failed, now)
			n++
		}
	}
	if n > 0 {
		c.queue = c.queue[:copy(c.queue, c.queue[n:])]
		c.setTimer()
	}
}

// Close implements loadgen.Client.
func (c *Client) Close() error {
	if c.closed {
		return nil
	}
	c.closed, c.target = true, nil
	err := c.poller.Close()
	now := c.w.Clock.Now()
	for id := range c.slots {
		if c.slots[id].owner != ownerNone {
			c.complete(uint32(id), loadgen.Unknown, now)
		}
	}
	return err
}
