package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"

	"raftrig/gateway/kv"
	"raftrig/loadgen"
	"raftrig/loadgen/sock"
)

// Times of the client, in nanoseconds.
const (
	// dialTimeout is how long a node may take from the connect to saying who
	// leads.
	dialTimeout = 2_000_000_000
	// A node that is down is tried again after minBackoff, doubling to
	// maxBackoff.
	minBackoff = 10_000_000
	maxBackoff = 500_000_000
	// switchGrace is how long a node may take to end what it has been sent,
	// once another leads or it has asked to close. A deposed leader that is
	// alive rejects what it holds or calls it unknown; one that hangs never
	// will, and is cut off. Rejected requests wait as long for a leader.
	switchGrace = 1_000_000_000
)

const (
	// maxTries bounds how often a request is sent: once, and again when a node
	// that does not lead rejects it.
	maxTries = 3
	// maxSize bounds Wiring.Size by what the state machine takes.
	maxSize = kv.MaxCommand - kv.KeySize
	// maxNodes bounds the cluster; owner numbers are a byte.
	maxNodes = 200

	sequenceLen = 8
)

// Owners of a slot that are no node.
const (
	ownerNone  = 0
	ownerQueue = 255 // rejected, to be sent to the leader
)

// Client sends one lane's requests to a cluster behind gateways. It keeps a
// Propose stream to every node, because every node tells who leads, and sends
// to the leader. All I/O is the lane's own (package sock); nothing is allocated
// on the path of a request.
//
// A request is a command of the gateway/kv state machine: a key of 8 bytes,
// little-endian, and Wiring.Size bytes of value. The key is the request's
// sequence number modulo the number of keys, the value's first 8 bytes are the
// number itself, unique over the lanes; a value shorter than that has none.
//
// Who leads: of what the connected nodes say, the claim of the highest term
// counts, and at equal terms a node's own. The client is Ready when the node
// claimed is connected and says of itself that it leads in that term.
//
// How requests end:
//   - applied: OK.
//   - rejected by a node that says it leads: Failed.
//   - rejected by any other: sent to the leader, up to three sends in all; if
//     none gets ready within 1 s, Failed. The time that takes is the request's.
//   - unknown: Unknown.
//   - the connection is lost: Unknown, for all that were sent on it.
//   - another node leads and the old leader does not answer for 1 s: its
//     connection is closed, so Unknown. It is not sooner, because an old leader
//     that is alive knows more than we do.
//
// Connections are made without blocking and again with a backoff of 10 ms to
// 500 ms, driven by Poll and Wait.
type Client struct {
	w      loadgen.Wiring
	poller *sock.Poller
	peers  []peer
	target *peer       // whom the claim that counts names, once that node agrees; else nil
	told   leaderClaim // the last leader that Event was told of

	slots     []slot
	queue     []uint32 // slots to be sent again
	queueEnd  int64    // when to give up on them if there is nobody to send to
	sequence  uint64   // of the next request
	keys      uint64
	command   []byte // of the request being encoded
	size      int    // bounds its encoding
	answers   answers
	completed int

	timer   int64 // the earliest deadline of a peer; 0 for none
	at      int64 // when the last read returned
	lost    bool  // a peer has err set
	reports bool  // a peer has report set
	retries int64
	closed  bool
}

// slot is the state of one id.
type slot struct {
	sequence uint64
	owner    uint8 // the node it was sent to, ownerNone or ownerQueue
	tries    uint8
}

type peerState uint8

const (
	peerDown       peerState = iota // deadline: when to connect
	peerConnecting                  // deadline: when to give up
	peerOpening                     // connected, has not said who leads; the same deadline
	peerLive                        // deadline: when to cut it off; 0 for never
)

// peer is one node and the stream to it.
type peer struct {
	client      *Client
	node        uint8 // from 1
	addr        netip.AddrPort
	conn        *sock.Conn
	h2          h2Conn
	state       peerState
	claim       leaderClaim // valid while live
	outstanding int
	deadline    int64
	backoff     int64
	err         error // ends the connection; reap acts on it
	report      error // why it is down, for Flush to return
	reported    bool  // so that each try again is not
}

// NewClient starts to connect to the gateways at addrs, node i at addrs[i-1],
// and does not wait for them. keys is how many different keys are written, at
// least 1.
func NewClient(w loadgen.Wiring, addrs []netip.AddrPort, keys uint64) (*Client, error) {
	switch {
	case len(addrs) == 0 || len(addrs) > maxNodes:
		return nil, fmt.Errorf("gateway: %d nodes: 1 to %d are possible", len(addrs), maxNodes)
	case w.Size < 0 || w.Size > maxSize:
		return nil, fmt.Errorf("gateway: SIZE %d: 0 to %d bytes are possible", w.Size, maxSize)
	case keys == 0:
		return nil, errors.New("gateway: 0 keys: at least 1 is needed")
	}
	w.Lanes = max(w.Lanes, 1)
	poller, err := sock.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	c := &Client{
		w: w, poller: poller, keys: keys,
		slots:    make([]slot, w.Slots),
		queue:    make([]uint32, 0, w.Slots),
		sequence: uint64(w.Lane),
		command:  make([]byte, kv.KeySize+w.Size),
		size:     proposalMax(kv.KeySize + w.Size),
		peers:    make([]peer, len(addrs)),
	}
	// Values that do not compress, the same in every run.
	rng := rand.New(rand.NewPCG(uint64(w.Lane), 0))
	for i := range c.command {
		c.command[i] = byte(rng.Uint32())
	}
	now := w.Clock.Now()
	for i := range c.peers {
		p := &c.peers[i]
		p.client, p.node, p.addr = c, uint8(i+1), addrs[i]
		p.conn = sock.NewConn(sock.Config{Out: 256<<10 + c.size})
		p.conn.Tag = i
		p.h2.out, p.h2.onMessage = p.conn, p.message
		p.h2.msg = make([]byte, 0, messagePrefixLen+messageMax+c.size)
		p.backoff, p.deadline = minBackoff, now
		c.connect(p, now)
	}
	c.setTimer()
	return c, nil
}

// Ready implements loadgen.Client.
func (c *Client) Ready() bool { return c.target != nil }

// Leader returns the node that requests go to, from 1, and its term; 0 while
// none is known.
func (c *Client) Leader() (node int, term uint64) {
	if c.target == nil {
		return 0, 0
	}
	return int(c.target.node), c.target.claim.term
}

// Retries is how many requests were sent again because a node that did not
// lead had rejected them.
func (c *Client) Retries() int64 { return c.retries }

// Submit implements loadgen.Client. It is false while no leader is known, and
// while the stream's flow-control window or the connection's buffer is full.
func (c *Client) Submit(id uint32) bool {
	s := &c.slots[id]
	if s.owner != ownerNone {
		panic(fmt.Sprintf("gateway: id %d submitted while outstanding", id))
	}
	if c.target == nil {
		return false
	}
	s.sequence = c.sequence
	if !c.send(c.target, id) {
		return false
	}
	s.tries = 1
	c.sequence += uint64(c.w.Lanes)
	return true
}

// send adds request id to p's current message. False: no room now.
func (c *Client) send(p *peer, id uint32) bool {
	h := &p.h2
	if n := len(h.msg); n > 0 && (h.ended || n+c.size > min(h.room(), messageMax)) {
		h.end()
		p.flush()
		if h.ended {
			return false // the rest of it waits for the window
		}
	}
	// An empty window takes nothing. A small one takes one request all the
	// same, of which the rest follows: else a request larger than the peer's
	// window could never be sent.
	if h.room() <= messagePrefixLen && len(h.msg) == 0 {
		p.flush()
		return false
	}
	s := &c.slots[id]
	binary.LittleEndian.PutUint64(c.command, s.sequence/uint64(c.w.Lanes)%c.keys)
	if c.w.Size >= sequenceLen {
		binary.LittleEndian.PutUint64(c.command[kv.KeySize:], s.sequence)
	}
	h.begin()
	h.msg = appendProposal(h.msg, id, c.command)
	s.owner = p.node
	p.outstanding++
	return true
}

// Flush implements loadgen.Client: one gRPC message, one write. The error it
// returns is the loss of a connection, or the failure to make one; once each,
// until the node has been back.
func (c *Client) Flush() error {
	for i := range c.peers {
		if p := &c.peers[i]; len(p.h2.msg) > 0 && p.state == peerLive {
			p.h2.end()
			p.flush()
		}
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
func (p *peer) flush() {
	if p.conn.Pending() == 0 {
		return
	}
	if err := p.conn.Flush(); err != nil {
		p.fail(err)
	}
}

// Poll implements loadgen.Client.
func (c *Client) Poll() int { return c.drive(0) }

// Wait implements loadgen.Client. It also wakes for its own timers.
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
	// Acknowledgements that the last call left, unless a Flush has taken them
	// along; and what waited for a window.
	for i := range c.peers {
		if p := &c.peers[i]; p.state >= peerOpening {
			p.h2.push()
			p.flush()
		}
	}
	if c.lost {
		timeoutNS = 0
	}
	for _, conn := range c.poller.Wait(timeoutNS) {
		c.ready(&c.peers[conn.Tag])
	}
	if c.timer != 0 {
		if now := c.w.Clock.Now(); now >= c.timer {
			c.tick(now)
		}
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
		if err := p.h2.start(p.addr.String()); err != nil {
			p.fail(err)
			return
		}
		p.flush()
	}
	if !p.conn.Readable() {
		if err := p.conn.Err(); err != nil {
			p.fail(err)
		}
		return
	}
	c.read(p)
}

// read takes what p has sent.
func (c *Client) read(p *peer) {
	n, err := p.conn.Fill()
	if n > 0 {
		c.at = c.w.Clock.Now()
		used, err := p.h2.receive(p.conn.In())
		if err != nil {
			var v *violation
			if errors.As(err, &v) {
				p.h2.goAway(v.code)
				p.flush()
			}
			p.fail(err)
			return
		}
		p.conn.Discard(used)
		if p.h2.draining {
			if p.outstanding == 0 {
				p.fail(errors.New("the node is stopping"))
			} else if p.deadline == 0 {
				c.elect(c.at)
			}
		}
		return
	}
	if err != nil {
		p.fail(err)
	}
}

// message takes one ProposeResponse.
func (p *peer) message(b []byte) error {
	c, a := p.client, &p.client.answers
	if err := a.decode(b); err != nil {
		return &violation{errProtocol, err.Error()}
	}
	if a.claimed {
		if a.claim.self != uint32(p.node) {
			return fmt.Errorf("it says it is node %d: name the hosts in the order of their nodes, and the port of this cluster", a.claim.self)
		}
		if a.claim.leader > uint32(len(c.peers)) {
			return fmt.Errorf("it says that node %d leads, of %d nodes: name all hosts of the cluster", a.claim.leader, len(c.peers))
		}
		if p.state == peerOpening {
			p.state, p.deadline, p.backoff, p.reported = peerLive, 0, minBackoff, false
		}
		p.claim = a.claim
		c.elect(c.at)
	}
	if p.state != peerLive {
		return violated(errProtocol, "the first response does not say who leads")
	}
	for _, id := range a.applied {
		if err := p.answered(id); err != nil {
			return err
		}
		c.complete(id, loadgen.OK, c.at)
	}
	for _, id := range a.rejected {
		if err := p.answered(id); err != nil {
			return err
		}
		s := &c.slots[id]
		if p.claim.leader == p.claim.self || s.tries >= maxTries {
			c.complete(id, loadgen.Failed, c.at)
			continue
		}
		if len(c.queue) == 0 {
			c.queueEnd = c.at + switchGrace
		}
		s.owner = ownerQueue
		c.queue = append(c.queue, id)
	}
	if len(c.queue) > 0 {
		c.setTimer()
	}
	for _, id := range a.unknown {
		if err := p.answered(id); err != nil {
			return err
		}
		c.complete(id, loadgen.Unknown, c.at)
	}
	return nil
}

// answered checks that id is p's to end.
func (p *peer) answered(id uint32) error {
	if int(id) >= len(p.client.slots) || p.client.slots[id].owner != p.node {
		return violated(errProtocol, "an answer to proposal %d, which it does not hold", id)
	}
	p.outstanding--
	return nil
}

func (c *Client) complete(id uint32, outcome loadgen.Outcome, at int64) {
	c.slots[id].owner = ownerNone
	c.completed++
	c.w.Complete(id, outcome, at)
}

// elect decides where requests go, after a claim came or went, and sets the
// deadlines of nodes that hold requests and do not lead.
func (c *Client) elect(now int64) {
	best := leaderClaim{}
	for i := range c.peers {
		p := &c.peers[i]
		if p.state != peerLive || p.claim.leader == 0 || p.claim.term < best.term {
			continue
		}
		if p.claim.term > best.term || best.leader == 0 || p.claim.leader == p.claim.self {
			best = p.claim
		}
	}
	c.target = nil
	if best.leader != 0 {
		p := &c.peers[best.leader-1]
		if p.state == peerLive && p.err == nil && !p.h2.draining && p.claim.leader == best.leader && p.claim.term >= best.term {
			c.target = p
			if p.claim != c.told {
				c.told = p.claim
				c.w.Event(fmt.Sprintf("node %d leads, term %d", p.node, p.claim.term))
			}
		}
	}
	for i := range c.peers {
		p := &c.peers[i]
		if p.state != peerLive {
			continue
		}
		deposed := p.h2.draining || (best.leader != 0 && best.leader != uint32(p.node))
		switch {
		case !deposed || p.outstanding == 0:
			p.deadline = 0
		case p.deadline == 0:
			p.deadline = now + switchGrace
		}
	}
	c.setTimer()
}

func (c *Client) setTimer() {
	c.timer = 0
	if len(c.queue) > 0 && c.target == nil {
		c.timer = c.queueEnd
	}
	for i := range c.peers {
		if d := c.peers[i].deadline; d != 0 && (c.timer == 0 || d < c.timer) {
			c.timer = d
		}
	}
}

// tick acts on the deadlines that have passed.
func (c *Client) tick(now int64) {
	for i := range c.peers {
		p := &c.peers[i]
		if p.deadline == 0 || now < p.deadline || p.err != nil {
			continue
		}
		p.deadline = 0
		switch p.state {
		case peerDown:
			c.connect(p, now)
		case peerConnecting:
			p.fail(errors.New("no connection within 2 s"))
		case peerOpening:
			p.fail(errors.New("connected, and did not say who leads within 2 s"))
		case peerLive:
			if p.outstanding > 0 {
				p.fail(fmt.Errorf("left %d requests unanswered for 1 s after it had ceased to lead", p.outstanding))
			}
		}
	}
	c.setTimer()
}

func (c *Client) connect(p *peer, now int64) {
	p.state, p.deadline = peerConnecting, now+dialTimeout
	if err := c.poller.Dial(p.conn, p.addr); err != nil {
		p.fail(err)
	}
}

// fail marks p's connection as ended by err; the next drive reaps it, so that
// requests complete there and not in the middle of something else.
func (p *peer) fail(err error) {
	if p.err != nil {
		return
	}
	c := p.client
	p.err, c.lost = err, true
	if c.target == p {
		c.target = nil
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
			c.w.Event(fmt.Sprintf("node %d at %s: %v; %d requests lost with it", p.node, p.addr, err, p.outstanding))
		}
		p.conn.Close()
		p.state, p.err, p.claim = peerDown, nil, leaderClaim{}
		p.deadline = now + p.backoff
		p.backoff = min(2*p.backoff, maxBackoff)
		p.h2.msg = p.h2.msg[:0]
		outstanding := p.outstanding
		p.outstanding = 0
		c.elect(now)
		for id := 0; outstanding > 0; id++ {
			if c.slots[id].owner == p.node {
				outstanding--
				c.complete(uint32(id), loadgen.Unknown, now)
			}
		}
	}
}

// resend sends rejected requests to the leader. While none is ready they wait,
// up to queueEnd; then they fail.
func (c *Client) resend() {
	n := 0
	if c.target != nil {
		for n < len(c.queue) && c.send(c.target, c.queue[n]) {
			c.slots[c.queue[n]].tries++
			c.retries++
			n++
		}
		c.target.h2.end()
		c.target.flush()
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
	c.closed, c.target, c.timer = true, nil, 0
	err := c.poller.Close()
	now := c.w.Clock.Now()
	for id := range c.slots {
		if c.slots[id].owner != ownerNone {
			c.complete(uint32(id), loadgen.Unknown, now)
		}
	}
	return err
}
