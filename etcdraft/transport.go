package etcdraft

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"
)

const (
	// maxQueued bounds the messages that wait for a connection; what they carry
	// is the log's own memory. The library sends a few of them a heartbeat, and
	// as many append requests as may be in flight.
	maxQueued = 4096
	// flushBytes is how much goes out in one write at least, if there is as much.
	flushBytes       = 256 << 10
	readBufferBytes  = 256 << 10
	deliveredAtOnce  = 256 // messages
	dialTimeout      = 2 * time.Second
	handshakeTimeout = 5 * time.Second
	// A write that makes no progress for as long means a peer that is gone, or
	// one that cannot keep up.
	writeTimeout = 10 * time.Second
	// Pauses between attempts to connect.
	redialAfter = 100 * time.Millisecond
	refusedWait = time.Second
	// maxStrangers bounds the connections that have not said hello yet.
	maxStrangers  = 32
	maxComplaints = 100
)

// transport carries messages between nodes: an ordered TCP connection in each
// direction between any two. What cannot be sent is dropped, and the library
// told.
//
// Every message belongs to one process of its receiver, its incarnation. What
// the loop made for one that has ended is not sent to its successor, and what a
// former process of a peer has sent is told apart by the loop. See Node.relink.
type transport struct {
	self        int
	voters      []uint64
	cluster     string
	incarnation uint64
	listener    net.Listener
	in          *mailbox
	log         *logger
	links       map[int]*link

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu        sync.Mutex
	incoming  map[int]net.Conn // the connection that each peer has dialled
	outgoing  map[int]*sender  // and the one to it, nil when there is none
	strangers map[net.Conn]struct{}
	said      map[string]bool // complaints, so that each is made once
}

func newTransport(self int, peers map[int]string, listener net.Listener, in *mailbox, log *logger) *transport {
	t := &transport{
		self:        self,
		incarnation: rand.Uint64() | 1, // not 0, which means unknown
		listener:    listener,
		in:          in,
		log:         log,
		links:       make(map[int]*link),
		incoming:    make(map[int]net.Conn),
		outgoing:    make(map[int]*sender),
		strangers:   make(map[net.Conn]struct{}),
		said:        make(map[string]bool),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	var list []string
	for _, id := range slices.Sorted(maps.Keys(peers)) {
		t.voters = append(t.voters, uint64(id))
		list = append(list, fmt.Sprintf("%d=%s", id, peers[id]))
		if id != self {
			t.links[id] = &link{t: t, peer: id, addr: peers[id], wake: make(chan struct{}, 1)}
		}
	}
	t.cluster = strings.Join(list, ",")
	return t
}

// start begins to accept and to dial.
func (t *transport) start() {
	t.running.Go(t.accept)
	for _, l := range t.links {
		t.running.Go(l.run)
	}
}

// close ends all connections and returns when no goroutine is left. The mailbox
// has to be closed before.
func (t *transport) close() {
	t.cancel()
	t.listener.Close()
	t.mu.Lock()
	for _, c := range t.incoming {
		c.Close()
	}
	for c := range t.strangers {
		c.Close()
	}
	for _, s := range t.outgoing {
		if s != nil {
			s.conn.Close()
		}
	}
	t.mu.Unlock()
	t.running.Wait()
}

// complain writes a line, if it has not been written before. Strangers can make
// a node say things: there is a limit to that.
func (t *transport) complain(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	t.mu.Lock()
	known := t.said[text] || len(t.said) >= maxComplaints
	if !known {
		t.said[text] = true
	}
	t.mu.Unlock()
	if !known && t.ctx.Err() == nil {
		t.log.line(text)
	}
}

func (t *transport) accept() {
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			if t.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			t.complain("accept on %v: %v", t.listener.Addr(), err)
			select {
			case <-time.After(redialAfter): // out of file descriptors, most likely
			case <-t.ctx.Done():
			}
			continue
		}
		t.mu.Lock()
		full := len(t.strangers) >= maxStrangers || t.ctx.Err() != nil
		if !full {
			t.strangers[conn] = struct{}{}
		}
		t.mu.Unlock()
		if full {
			conn.Close()
			continue
		}
		t.running.Go(func() { t.receive(conn) })
	}
}

// receive serves a connection that a peer has dialled.
func (t *transport) receive(conn net.Conn) {
	defer conn.Close()
	h, err := t.welcome(conn)
	t.mu.Lock()
	delete(t.strangers, conn)
	if err != nil || t.ctx.Err() != nil {
		t.mu.Unlock()
		if err != nil {
			t.complain("connection from %v: %v", remoteHost(conn), err)
		}
		return
	}
	if old := t.incoming[h.from]; old != nil {
		old.Close()
	}
	t.incoming[h.from] = conn
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		if t.incoming[h.from] == conn {
			delete(t.incoming, h.from)
		}
		t.mu.Unlock()
	}()
	t.kick(h.from, h.incarnation)
	if err := t.deliver(conn, h); !isDisconnect(err) {
		t.complain("connection from node %d: %v", h.from, err)
	}
}

// isDisconnect says that a connection has ended as they do when a process ends.
func isDisconnect(err error) bool {
	return err == io.EOF || err == io.ErrUnexpectedEOF || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ETIMEDOUT)
}

// kick ends the connection to a peer if its other end is another process than
// the one that has just said hello. A host that vanished leaves such a one behind.
func (t *transport) kick(peer int, incarnation uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.outgoing[peer]; s != nil && s.incarnation != incarnation {
		s.conn.Close()
	}
}

func (t *transport) linkUp(peer int, s *sender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outgoing[peer] = s
	if s != nil && t.ctx.Err() != nil {
		s.conn.Close()
	}
}

func remoteHost(conn net.Conn) string {
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	return host
}

// welcome takes a hello and replies.
func (t *transport) welcome(conn net.Conn) (hello, error) {
	conn.SetDeadline(time.Now().Add(handshakeTimeout))
	defer conn.SetDeadline(time.Time{})
	h, err := readHello(conn)
	if err != nil {
		return h, fmt.Errorf("hello: %w", err)
	}
	a := reply{incarnation: t.incarnation}
	switch {
	case h.cluster != t.cluster:
		a.refusal = fmt.Sprintf("its -peers are %s, those of node %d are %s: start all nodes with the same", t.cluster, h.from, h.cluster)
	case h.to != t.self:
		a.refusal = fmt.Sprintf("it is node %d", t.self)
	case t.links[h.from] == nil:
		a.refusal = fmt.Sprintf("there is no other node %d", h.from)
	}
	if _, err := conn.Write(a.append(nil)); err != nil {
		return h, fmt.Errorf("reply: %w", err)
	}
	if a.refusal != "" {
		return h, errors.New("refused: " + a.refusal)
	}
	return h, nil
}

// deliver hands the messages of a connection to the loop, as many at once as
// have arrived.
func (t *transport) deliver(conn net.Conn, h hello) error {
	r := bufio.NewReaderSize(conn, readBufferBytes)
	d := decoder{r: r, from: uint64(h.from), to: uint64(t.self), voters: t.voters}
	var batch []event
	bytes := 0
	for {
		m, n, err := d.next()
		if err != nil {
			t.in.deliver(batch, bytes)
			return err
		}
		batch = append(batch, event{kind: received, msg: m, peer: h.from, incarnation: h.incarnation})
		bytes += n
		if r.Buffered() >= frameHeader && len(batch) < deliveredAtOnce {
			continue
		}
		if !t.in.deliver(batch, bytes) {
			return io.EOF
		}
		clear(batch)
		batch, bytes = batch[:0], 0
	}
}

// link is the way to one peer. Its goroutine connects and sends.
type link struct {
	t    *transport
	peer int
	addr string
	wake chan struct{} // one token: there is something to send

	mu    sync.Mutex
	queue []outgoing
}

type outgoing struct {
	msg         *pb.Message
	incarnation uint64
}

// send queues a message for a process of a peer; 0 is whichever comes first.
func (t *transport) send(m *pb.Message, incarnation uint64) {
	l := t.links[int(m.GetTo())]
	if l == nil {
		return
	}
	l.mu.Lock()
	full := len(l.queue) >= maxQueued
	if !full {
		l.queue = append(l.queue, outgoing{m, incarnation})
	}
	l.mu.Unlock()
	if full {
		l.lost([]outgoing{{m, incarnation}})
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take returns what is queued. The slice that it was given is filled next.
func (l *link) take(spare []outgoing) []outgoing {
	clear(spare)
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := l.queue
	l.queue = spare[:0]
	return batch
}

// lost tells the library of messages that did not go out.
func (l *link) lost(batch []outgoing) {
	if len(batch) == 0 {
		return
	}
	l.report(unreachable)
	for _, o := range batch {
		if o.msg.GetType() == pb.MsgSnap {
			l.report(snapshotLost)
			return
		}
	}
}

func (l *link) report(kind eventKind) { l.t.in.post(event{kind: kind, peer: l.peer}) }

// run keeps a connection to the peer.
func (l *link) run() {
	for l.t.ctx.Err() == nil {
		conn, incarnation, err := l.dial()
		pause := redialAfter
		if err == nil {
			l.t.in.post(event{kind: linked, peer: l.peer, incarnation: incarnation})
			l.serve(conn, incarnation)
			l.report(unreachable) // who knows what has arrived
		} else if refused, ok := errors.AsType[refusal](err); ok {
			pause = refusedWait
			l.t.complain("node %d at %s refuses this node: %s", l.peer, l.addr, string(refused))
		} else if _, ok := errors.AsType[net.Error](err); !ok && !isDisconnect(err) {
			l.t.complain("node %d at %s: %v", l.peer, l.addr, err)
		}
		l.lost(l.take(nil))
		select {
		case <-time.After(pause):
		case <-l.t.ctx.Done():
		}
	}
}

// refusal is why a peer does not take this node's hello.
type refusal string

func (r refusal) Error() string { return string(r) }

// dial connects and says hello. It dials from the node's own address: nodes
// that share a host are told apart by it, for delays between them.
func (l *link) dial() (_ net.Conn, incarnation uint64, err error) {
	d := net.Dialer{Timeout: dialTimeout}
	d.Control = func(_, _ string, c syscall.RawConn) (err error) {
		// Without it a host that vanished is noticed after a quarter of an hour.
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(writeTimeout.Milliseconds()))
		}), err)
	}
	if own, ok := l.t.listener.Addr().(*net.TCPAddr); ok {
		d.LocalAddr = &net.TCPAddr{IP: own.IP, Zone: own.Zone}
	}
	conn, err := d.DialContext(l.t.ctx, "tcp", l.addr)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	defer context.AfterFunc(l.t.ctx, func() { conn.Close() })()
	conn.SetDeadline(time.Now().Add(handshakeTimeout))
	h := hello{from: l.t.self, to: l.peer, incarnation: l.t.incarnation, cluster: l.t.cluster}
	if _, err := conn.Write(h.append(nil)); err != nil {
		return nil, 0, err
	}
	a, err := readReply(conn)
	if err != nil {
		return nil, 0, err
	}
	if a.refusal != "" {
		return nil, 0, refusal(a.refusal)
	}
	return conn, a.incarnation, conn.SetDeadline(time.Time{})
}

// serve sends until the connection breaks.
func (l *link) serve(conn net.Conn, incarnation uint64) {
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		conn.Read(make([]byte, 1)) // the peer sends nothing: it is gone
	}()
	s := &sender{l: l, conn: conn, incarnation: incarnation}
	l.t.linkUp(l.peer, s)
	defer func() {
		conn.Close()
		l.t.linkUp(l.peer, nil)
		<-broken
	}()
	for {
		if err := s.sendQueued(); err != nil {
			return
		}
		select {
		case <-l.wake:
		case <-broken:
			return
		case <-l.t.ctx.Done():
			return
		}
	}
}

// sender writes to one connection.
type sender struct {
	l           *link
	conn        net.Conn
	incarnation uint64
	buf         []byte // not written yet
	spare       []outgoing
	deadline    time.Time
}

// sendQueued sends what is queued, in few writes. Whatever it fails to send is
// reported.
func (s *sender) sendQueued() (err error) {
	batch := s.l.take(s.spare)
	s.spare = batch
	defer func() {
		if err != nil {
			s.l.lost(batch)
		}
	}()
	for _, o := range batch {
		if s.stale(o) {
			continue
		}
		if o.msg.GetType() == pb.MsgSnap {
			err = s.writeSnapshot(o.msg)
		} else {
			err = s.write(o.msg)
		}
		if err != nil {
			return err
		}
	}
	return s.flush()
}

// stale says that a message was made for a process that has ended.
func (s *sender) stale(o outgoing) bool {
	return o.incarnation != 0 && o.incarnation != s.incarnation
}

func (s *sender) write(m *pb.Message) error {
	buf, err := appendMessage(s.buf, m)
	if err != nil {
		s.l.t.log.line(fmt.Sprintf("to node %d: %v", s.l.peer, err))
		return err
	}
	if s.buf = buf; len(s.buf) < flushBytes {
		return nil
	}
	return s.flush()
}

// writeSnapshot sends the data in pieces, and what else comes up in between: a
// peer that hears nothing for long would call for an election.
func (s *sender) writeSnapshot(m *pb.Message) error {
	snap := m.GetSnapshot()
	for data := range slices.Chunk(snap.GetData(), chunkBytes) {
		s.buf = appendChunk(s.buf, data)
		if err := s.flush(); err != nil {
			return err
		}
		for _, o := range s.l.take(nil) {
			if s.stale(o) {
				continue
			}
			if o.msg.GetType() == pb.MsgSnap { // one at a time
				s.l.lost([]outgoing{o})
				continue
			}
			if err := s.write(o.msg); err != nil {
				return err
			}
		}
	}
	bare := &pb.Message{Type: m.Type, To: m.To, From: m.From, Term: m.Term, Snapshot: &pb.Snapshot{Metadata: snap.GetMetadata()}}
	if err := s.write(bare); err != nil {
		return err
	}
	if err := s.flush(); err != nil {
		return err
	}
	s.l.report(snapshotSent)
	return nil
}

func (s *sender) flush() error {
	if len(s.buf) == 0 {
		return nil
	}
	if now := time.Now(); s.deadline.Sub(now) < writeTimeout/2 {
		s.deadline = now.Add(writeTimeout)
		s.conn.SetWriteDeadline(s.deadline)
	}
	_, err := s.conn.Write(s.buf)
	if s.buf = s.buf[:0]; cap(s.buf) > 4*flushBytes {
		s.buf = nil
	}
	return err
}
