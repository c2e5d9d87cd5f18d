package gateway

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"raftrig/gateway/gatewaypb"
)

// ServerOptions bound what clients can make a server do. The zero value of
// each field stands for its default.
type ServerOptions struct {
	// Self is this node's number, told to clients with the leadership.
	Self int
	// Check says what is wrong with a command, if anything. What it refuses
	// ends Rejected and never reaches the node. Nil takes every command.
	Check func(command []byte) error
	// MaxMessageBytes bounds one ProposeRequest; a longer one ends its stream
	// with ResourceExhausted. Default 1 MiB.
	MaxMessageBytes int
	// MaxOutstanding bounds the proposals of one stream that have no end yet or
	// whose end is not yet sent. At the bound the server stops reading and
	// HTTP/2 flow control holds the client back; a single message with more ends
	// its stream. Default 131072.
	MaxOutstanding int
	// MaxOutstandingBytes bounds the messages that these proposals came in, in
	// the same way. Default 64 MiB.
	MaxOutstandingBytes int64
	// MaxStreams bounds the streams of one connection. Default 64.
	MaxStreams uint32
	// MaxConns bounds the connections; one more is closed as soon as it was
	// accepted. Default 256.
	MaxConns int
	// LeadershipPoll is how often the node is asked who leads though it has told
	// of no change; before each response with rejections it is asked too. It is
	// a net, and no shorter because each time wakes an idle process. Default
	// 100 ms.
	LeadershipPoll time.Duration
}

func (o ServerOptions) withDefaults() ServerOptions {
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, 1<<20)
	o.MaxOutstanding = cmp.Or(o.MaxOutstanding, 1<<17)
	o.MaxOutstandingBytes = cmp.Or(o.MaxOutstandingBytes, 64<<20)
	o.MaxStreams = cmp.Or(o.MaxStreams, 64)
	o.MaxConns = cmp.Or(o.MaxConns, 256)
	o.LeadershipPoll = cmp.Or(o.LeadershipPoll, 100*time.Millisecond)
	return o
}

const (
	// A client keeps thousands of small proposals in flight; a window below
	// their sum would make it wait for round trips. The windows bound what the
	// transport holds for a stream that is not read.
	streamWindowBytes = 4 << 20
	connWindowBytes   = 16 << 20
	// The handshake is one round trip; a peer that does not finish it is not a
	// gateway client.
	handshakeTimeout = 5 * time.Second
	// A client whose host vanished is given up after both of these.
	keepaliveIdle    = 10 * time.Second
	keepaliveTimeout = 5 * time.Second
	maxHeaderBytes   = 16 << 10
)

// Server answers the gateway's clients from a Node.
type Server struct {
	gatewaypb.UnimplementedGatewayServer
	node    Node
	opts    ServerOptions
	grpc    *grpc.Server
	stop    chan struct{} // closed: streams come to their end
	once    sync.Once
	running sync.WaitGroup // goroutines that gRPC does not know of
	asking  sync.Mutex     // so that an older answer does not replace a newer one

	mu         sync.Mutex
	streams    map[*stream]struct{}
	leadership Leadership
}

// NewServer makes a server for node; Serve starts it. Stop has to be called in
// either case.
func NewServer(node Node, opts ServerOptions) *Server {
	s := &Server{
		node:       node,
		opts:       opts.withDefaults(),
		stop:       make(chan struct{}),
		streams:    make(map[*stream]struct{}),
		leadership: node.Leadership(),
	}
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(serverCodec{}),
		grpc.MaxRecvMsgSize(s.opts.MaxMessageBytes),
		grpc.MaxConcurrentStreams(s.opts.MaxStreams),
		grpc.InitialWindowSize(streamWindowBytes),
		grpc.InitialConnWindowSize(connWindowBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveIdle, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	gatewaypb.RegisterGatewayServer(s.grpc, s)
	s.running.Go(s.pollLeadership)
	return s
}

// Serve accepts clients on lis until Stop, which makes it return nil, or until
// lis fails. It closes lis.
func (s *Server) Serve(lis net.Listener) error {
	err := s.grpc.Serve(&boundedListener{Listener: lis, free: int64(s.opts.MaxConns)})
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Stop refuses new streams and proposals, sends the ends of those on their way
// as long as they come before ctx ends, and closes all connections. It returns
// when no goroutine of the server is left, which needs Node.Propose to return.
func (s *Server) Stop(ctx context.Context) {
	s.once.Do(func() { close(s.stop) })
	s.wakeAll()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
	}
	s.running.Wait()
}

func (s *Server) stopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// pollLeadership asks for all streams at once.
func (s *Server) pollLeadership() {
	tick := time.NewTicker(s.opts.LeadershipPoll)
	defer tick.Stop()
	for {
		select {
		case <-s.node.LeadershipChanged():
		case <-tick.C:
		case <-s.stop:
			return
		}
		s.askLeadership()
	}
}

// askLeadership asks the node who leads and tells all streams of a change.
func (s *Server) askLeadership() {
	s.asking.Lock()
	defer s.asking.Unlock()
	now := s.node.Leadership()
	s.mu.Lock()
	changed := now != s.leadership
	s.leadership = now
	s.mu.Unlock()
	if changed {
		s.wakeAll()
	}
}

func (s *Server) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		st.mu.Lock()
		st.leadership = s.leadership
		st.wakeSender()
		st.room.Broadcast()
		st.mu.Unlock()
	}
}

// Propose serves one stream. The handler's goroutine sends; a second one
// receives and hands batches to the node.
func (s *Server) Propose(rpc grpc.BidiStreamingServer[gatewaypb.ProposeRequest, gatewaypb.ProposeResponse]) error {
	st := &stream{server: s, rpc: rpc, wake: make(chan struct{}, 1)}
	st.room.L = &st.mu
	s.mu.Lock()
	st.leadership = s.leadership
	s.streams[st] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, st)
		s.mu.Unlock()
		st.close()
	}()
	// Leaving the handler ends the receiver: it makes RecvMsg return, and close
	// wakes it where it waits for room.
	s.running.Go(st.receive)
	return st.send()
}

// Status implements the rpc of that name.
func (s *Server) Status(context.Context, *gatewaypb.StatusRequest) (*gatewaypb.StatusResponse, error) {
	st, err := s.node.Status()
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "node %d: %v", s.opts.Self, err)
	}
	return &gatewaypb.StatusResponse{
		Node:    uint32(st.Node),
		Role:    gatewaypb.Role(st.Role),
		Leader:  uint32(st.Leader),
		Term:    st.Term,
		Applied: st.Applied,
		Count:   st.Count,
		Digest:  st.Digest,
		Version: st.Version,
		Log:     st.Log,
	}, nil
}

// TransferLeader implements the rpc of that name.
func (s *Server) TransferLeader(ctx context.Context, req *gatewaypb.TransferLeaderRequest) (*gatewaypb.TransferLeaderResponse, error) {
	if req.To == 0 || req.To > 1<<16 {
		return nil, status.Errorf(codes.InvalidArgument, "transfer to node %d: nodes count from 1", req.To)
	}
	if err := s.node.TransferLeader(ctx, int(req.To)); err != nil {
		code := codes.FailedPrecondition
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			code = codes.DeadlineExceeded
		case errors.Is(err, context.Canceled):
			code = codes.Canceled
		}
		return nil, status.Errorf(code, "transfer to node %d: %v", req.To, err)
	}
	return &gatewaypb.TransferLeaderResponse{}, nil
}

// stream is the state that the receiver, the sender and the node's goroutines
// share.
type stream struct {
	server *Server
	rpc    grpc.ServerStream
	wake   chan struct{} // one token: the sender has something to look at

	mu      sync.Mutex
	room    sync.Cond // outstanding or bytes went down, or the stream is over
	waiting bool      // the sender sleeps
	closed  bool      // the handler has returned: ends go nowhere

	ends       ends
	leadership Leadership

	outstanding int   // proposals without a sent end
	bytes       int64 // of the messages that hold proposals without an end
	received    bool  // nothing more will be received
	recvErr     error // why, unless the client has just finished
}

// ends are what the next response carries.
type ends struct {
	applied, rejected, unknown []uint32
	reason                     string
}

func (e *ends) len() int { return len(e.applied) + len(e.rejected) + len(e.unknown) }

func (e *ends) reset() {
	e.applied, e.rejected, e.unknown, e.reason = e.applied[:0], e.rejected[:0], e.unknown[:0], ""
}

// batch is the Sink of one message: it keeps the account of the message's
// buffer, which lives as long as any of its commands.
type batch struct {
	stream *stream
	left   atomic.Int64
	bytes  int64
}

// Done implements Sink. It takes a lock and appends an id; the sender does the
// rest.
func (b *batch) Done(id uint32, end End, err error) {
	st := b.stream
	last := b.left.Add(-1) == 0
	st.mu.Lock()
	defer st.mu.Unlock()
	if last {
		st.bytes -= b.bytes
		st.room.Signal()
	}
	if st.closed {
		return
	}
	switch end {
	case Applied:
		st.ends.applied = append(st.ends.applied, id)
	case Rejected:
		st.ends.rejected = append(st.ends.rejected, id)
	default:
		st.ends.unknown = append(st.ends.unknown, id)
	}
	if err != nil {
		st.ends.reason = err.Error()
	}
	st.wakeSender()
}

// wakeSender is called with mu held.
func (st *stream) wakeSender() {
	if st.waiting {
		st.waiting = false
		st.wake <- struct{}{} // never blocks: one token, taken before waiting is set again
	}
}

func (st *stream) close() {
	st.mu.Lock()
	st.closed = true
	st.ends = ends{}
	st.room.Broadcast()
	st.mu.Unlock()
}

// receive reads messages until the stream ends, hands their proposals to the
// node, and tells the sender how it ended.
func (st *stream) receive() {
	err := st.receiveAll()
	st.mu.Lock()
	st.received, st.recvErr = true, err
	st.wakeSender()
	st.mu.Unlock()
}

func (st *stream) receiveAll() error {
	opts := &st.server.opts
	in := request{maxProposals: opts.MaxOutstanding}
	for {
		if err := st.rpc.RecvMsg(&in); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		n := len(in.proposals)
		if n == 0 {
			continue
		}
		if !st.reserve(n, int64(in.bytes)) {
			return status.Error(codes.Unavailable, "node is stopping")
		}
		b := &batch{stream: st, bytes: int64(in.bytes)}
		b.left.Store(int64(n))
		proposals := in.proposals
		if opts.Check != nil {
			kept := proposals[:0]
			for _, p := range proposals {
				if err := opts.Check(p.Command); err != nil {
					b.Done(p.ID, Rejected, err)
				} else {
					kept = append(kept, p)
				}
			}
			proposals = kept
		}
		if len(proposals) > 0 {
			st.server.node.Propose(proposals, b)
		}
		clear(in.proposals) // do not keep the commands alive
	}
}

// reserve waits until n proposals more fit and takes the room. It returns
// false when the stream or the server has come to its end.
func (st *stream) reserve(n int, bytes int64) bool {
	opts := &st.server.opts
	st.mu.Lock()
	defer st.mu.Unlock()
	for !st.closed && !st.server.stopping() &&
		(st.outstanding+n > opts.MaxOutstanding || st.bytes > 0 && st.bytes+bytes > opts.MaxOutstandingBytes) {
		st.room.Wait()
	}
	if st.closed || st.server.stopping() {
		return false
	}
	st.outstanding += n
	st.bytes += bytes
	return true
}

// send sends what has gathered until the stream ends.
func (st *stream) send() error {
	var out response
	told := false
	for {
		st.mu.Lock()
		for {
			if st.ends.len() > 0 || !told || st.leadership != out.leadership {
				break
			}
			if st.received && (st.recvErr != nil || st.outstanding == 0) {
				err := st.recvErr
				st.mu.Unlock()
				return err
			}
			if st.server.stopping() && st.outstanding == 0 {
				st.mu.Unlock()
				return status.Error(codes.Unavailable, "node is stopping")
			}
			st.waiting = true
			st.mu.Unlock()
			select {
			case <-st.wake:
			case <-st.rpc.Context().Done():
				return status.FromContextError(st.rpc.Context().Err()).Err()
			}
			st.mu.Lock()
		}
		out.ends, st.ends = st.ends, out.ends
		if len(out.rejected) > 0 {
			// A node rejects as soon as it has lost its office, before the poll
			// has seen that: the client shall not read the two in that order.
			st.mu.Unlock()
			st.server.askLeadership()
			st.mu.Lock()
		}
		out.withLeadership = !told || st.leadership != out.leadership
		out.leadership = st.leadership
		st.mu.Unlock()

		out.self = st.server.opts.Self
		if err := st.rpc.SendMsg(&out); err != nil {
			return err
		}
		told = true

		st.mu.Lock()
		st.outstanding -= out.ends.len()
		st.room.Signal()
		st.mu.Unlock()
		out.ends.reset()
	}
}

// boundedListener closes connections above a number.
type boundedListener struct {
	net.Listener
	free int64
	used atomic.Int64
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.used.Add(1) <= l.free {
			return &boundedConn{Conn: c, used: &l.used}, nil
		}
		l.used.Add(-1)
		c.Close()
	}
}

type boundedConn struct {
	net.Conn
	used *atomic.Int64
	once sync.Once
}

func (c *boundedConn) Close() error {
	c.once.Do(func() { c.used.Add(-1) })
	return c.Conn.Close()
}
