package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"raftrig/gateway/gatewaypb"
	"raftrig/loadgen"
	"raftrig/loadgen/clienttest"
)

// verdict is what a scripted node does with a proposal.
type verdict int

const (
	apply verdict = iota
	reject
	lose    // "unknown"
	swallow // no answer, ever
)

// gatewayDouble is a gateway whose behaviour a test writes: a grpc-go server
// with no cluster behind it.
type gatewayDouble struct {
	gatewaypb.UnimplementedGatewayServer
	tb   testing.TB
	node uint32
	opts []grpc.ServerOption
	addr netip.AddrPort
	srv  *grpc.Server
	lis  *cuttable

	mu         sync.Mutex
	leadership *gatewaypb.Leadership
	script     func(p *gatewaypb.Proposal) verdict
	streams    map[*doubleStream]bool
	requests   [][]*gatewaypb.Proposal // all that came, by message
	keep       bool                    // fill requests
	statusErr  error
	stall      chan struct{} // receiving waits for it to close
	transfers  []uint32
}

type doubleStream struct {
	mu  sync.Mutex
	rpc grpc.BidiStreamingServer[gatewaypb.ProposeRequest, gatewaypb.ProposeResponse]
}

func (s *doubleStream) send(r *gatewaypb.ProposeResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rpc.Send(r)
}

// cuttable is a listener whose connections can be cut.
type cuttable struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *cuttable) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *cuttable) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	l.conns = nil
}

// newGatewayDouble starts node, which says nothing of a leader and applies what
// it gets.
func newGatewayDouble(tb testing.TB, node uint32, opts ...grpc.ServerOption) *gatewayDouble {
	n := &gatewayDouble{tb: tb, node: node, opts: opts,
		leadership: &gatewaypb.Leadership{Self: node},
		script:     func(*gatewaypb.Proposal) verdict { return apply },
		streams:    map[*doubleStream]bool{}, keep: true,
		addr: netip.MustParseAddrPort("127.0.0.1:0")}
	n.start()
	tb.Cleanup(n.stop)
	return n
}

func (n *gatewayDouble) start() {
	l, err := net.Listen("tcp", n.addr.String())
	if err != nil {
		n.tb.Fatal(err)
	}
	n.addr = l.Addr().(*net.TCPAddr).AddrPort()
	n.lis = &cuttable{Listener: l}
	n.srv = grpc.NewServer(n.opts...)
	gatewaypb.RegisterGatewayServer(n.srv, n)
	go n.srv.Serve(n.lis)
}

func (n *gatewayDouble) stop() {
	n.lis.Close() // Stop does not, when Serve has not begun
	n.lis.cut()
	n.srv.Stop()
}

func (n *gatewayDouble) says(leader uint32, term uint64) *gatewaypb.Leadership {
	return &gatewaypb.Leadership{Leader: leader, Term: term, Self: n.node}
}

// follow makes the node say that leader leads, to all streams.
func (n *gatewayDouble) follow(leader uint32, term uint64) {
	n.mu.Lock()
	n.leadership = n.says(leader, term)
	var all []*doubleStream
	for s := range n.streams {
		all = append(all, s)
	}
	r := &gatewaypb.ProposeResponse{Leadership: n.leadership}
	n.mu.Unlock()
	for _, s := range all {
		s.send(r)
	}
}

func (n *gatewayDouble) do(script func(*gatewaypb.Proposal) verdict) {
	n.mu.Lock()
	n.script = script
	n.mu.Unlock()
}

func (n *gatewayDouble) received() [][]*gatewaypb.Proposal {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.requests)
}

func (n *gatewayDouble) Propose(rpc grpc.BidiStreamingServer[gatewaypb.ProposeRequest, gatewaypb.ProposeResponse]) error {
	s := &doubleStream{rpc: rpc}
	n.mu.Lock()
	first := n.leadership
	n.streams[s] = true
	stall := n.stall
	// Before a push can overtake it.
	s.mu.Lock()
	n.mu.Unlock()
	err := rpc.Send(&gatewaypb.ProposeResponse{Leadership: first})
	s.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.streams, s)
		n.mu.Unlock()
	}()
	if stall != nil {
		select {
		case <-stall:
		case <-rpc.Context().Done():
		}
	}
	for err == nil {
		var req *gatewaypb.ProposeRequest
		if req, err = rpc.Recv(); err != nil {
			break
		}
		r := &gatewaypb.ProposeResponse{}
		n.mu.Lock()
		if n.keep {
			n.requests = append(n.requests, req.Proposals)
		}
		for _, p := range req.Proposals {
			switch n.script(p) {
			case apply:
				r.Applied = append(r.Applied, p.Id)
			case reject:
				r.Rejected = append(r.Rejected, p.Id)
				r.Leadership = n.leadership
				r.Reason = "scripted"
			case lose:
				r.Unknown = append(r.Unknown, p.Id)
			}
		}
		n.mu.Unlock()
		if len(r.Applied)+len(r.Rejected)+len(r.Unknown) > 0 {
			err = s.send(r)
		}
	}
	if err == io.EOF {
		return nil
	}
	return err
}

func (n *gatewayDouble) Status(context.Context, *gatewaypb.StatusRequest) (*gatewaypb.StatusResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.statusErr != nil {
		return nil, n.statusErr
	}
	r := &gatewaypb.StatusResponse{Node: n.node, Role: gatewaypb.Role_ROLE_FOLLOWER, Leader: n.leadership.Leader,
		Term: n.leadership.Term, Applied: 10, Count: 7, Digest: "d", Version: "scripted v1", Log: "in memory"}
	if r.Leader == n.node {
		r.Role = gatewaypb.Role_ROLE_LEADER
	}
	return r, nil
}

func (n *gatewayDouble) TransferLeader(_ context.Context, r *gatewaypb.TransferLeaderRequest) (*gatewaypb.TransferLeaderResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leadership.Leader != n.node {
		return nil, status.Error(codes.FailedPrecondition, "not the leader")
	}
	n.transfers = append(n.transfers, r.To)
	return &gatewaypb.TransferLeaderResponse{}, nil
}

// clientRig drives a client as a lane does, and checks what every client must
// do: each id ends once, after it was submitted and before it is again.
type clientRig struct {
	tb          testing.TB
	c           *Client
	clock       *clienttest.Clock
	outstanding []bool
	inFlight    int
	ends        [3]int // by Outcome
	last        map[uint32]loadgen.Outcome
	reports     []string
	closed      bool
	onEnd       func(uint32, loadgen.Outcome) // may be nil
}

func newClientRig(tb testing.TB, slots, size int, nodes ...*gatewayDouble) *clientRig {
	var addrs []netip.AddrPort
	for _, n := range nodes {
		addrs = append(addrs, n.addr)
	}
	return newClientRigAt(tb, slots, size, addrs)
}

func newClientRigAt(tb testing.TB, slots, size int, addrs []netip.AddrPort) *clientRig {
	tb.Helper()
	r := &clientRig{tb: tb, clock: clienttest.NewClock(), outstanding: make([]bool, slots),
		last: map[uint32]loadgen.Outcome{}}
	var err error
	r.c, err = NewClient(loadgen.Wiring{Lanes: 1, Slots: slots, Size: size, Clock: r.clock, Complete: r.complete, Event: func(string) {}}, addrs, DefaultKeys)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.close)
	return r
}

func (r *clientRig) complete(id uint32, outcome loadgen.Outcome, at int64) {
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
	r.last[id] = outcome
	if r.onEnd != nil {
		r.onEnd(id, outcome)
	}
}

func (r *clientRig) submit(id uint32) bool {
	if !r.c.Submit(id) {
		return false
	}
	r.outstanding[id] = true
	r.inFlight++
	return true
}

func (r *clientRig) flush() {
	if err := r.c.Flush(); err != nil {
		r.reports = append(r.reports, err.Error())
	}
}

// until drives the client until done.
func (r *clientRig) until(what string, done func() bool) {
	r.tb.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			r.tb.Fatalf("%s: not within 10 s; in flight %d, ends %v, reports %q", what, r.inFlight, r.ends, r.reports)
		}
		before := r.inFlight
		if n := r.c.Wait(r.clock.Now() + 5e6); n != before-r.inFlight {
			r.tb.Fatalf("Wait says %d completions of %d", n, before-r.inFlight)
		}
		r.flush()
	}
}

func (r *clientRig) ready() { r.tb.Helper(); r.until("ready", r.c.Ready) }

// live waits for all nodes, so that a leap of the clock times out none.
func (r *clientRig) live() {
	r.tb.Helper()
	for i := range r.c.peers {
		r.until("live", func() bool { return r.c.peers[i].state == peerLive })
	}
	r.ready()
}

func (r *clientRig) idle() {
	r.tb.Helper()
	r.until("all ended", func() bool { return r.inFlight == 0 })
}

func (r *clientRig) close() {
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
	if r.c.Poll() != 0 || r.c.Ready() || r.c.Submit(0) {
		r.tb.Error("alive after Close")
	}
	if err := r.c.Close(); err != nil {
		r.tb.Errorf("second Close: %v", err)
	}
}

func (r *clientRig) wantEnds(ok, failed, unknown int) {
	r.tb.Helper()
	if r.ends != [3]int{ok, failed, unknown} {
		r.tb.Errorf("ended %d ok, %d failed, %d unknown; want %d, %d, %d", r.ends[0], r.ends[1], r.ends[2], ok, failed, unknown)
	}
}

// wantReport wants one of the errors of Flush to have all of the words.
func (r *clientRig) wantReport(words ...string) {
	r.tb.Helper()
	for _, s := range r.reports {
		all := true
		for _, w := range words {
			all = all && strings.Contains(s, w)
		}
		if all && !strings.ContainsAny(s, "\n\r") {
			return
		}
	}
	r.tb.Errorf("reports %q, none of which has %q in one line", r.reports, words)
}

// cluster starts three scripted nodes, of which leader leads in term 1.
func cluster(tb testing.TB, leader uint32, opts ...grpc.ServerOption) (nodes []*gatewayDouble) {
	for i := range uint32(3) {
		n := newGatewayDouble(tb, i+1, opts...)
		n.follow(leader, 1)
		nodes = append(nodes, n)
	}
	return nodes
}

func TestClientApplied(t *testing.T) {
	nodes := cluster(t, 2)
	r := newClientRig(t, 100, 64, nodes...)
	r.ready()
	if node, term := r.c.Leader(); node != 2 || term != 1 {
		t.Errorf("leader %d term %d", node, term)
	}
	for id := range uint32(100) {
		if !r.submit(id) {
			t.Fatalf("id %d refused", id)
		}
	}
	r.flush()
	r.idle()
	r.wantEnds(100, 0, 0)
	got := nodes[1].received()
	if len(got) != 1 || len(got[0]) != 100 {
		t.Fatalf("100 requests of one instant came as %d messages", len(got))
	}
	for i, p := range got[0] {
		seq := binary.LittleEndian.Uint64(p.Command[8:])
		if p.Id != uint32(i) || len(p.Command) != 8+64 || seq != uint64(i) || binary.LittleEndian.Uint64(p.Command) != uint64(i) {
			t.Fatalf("proposal %d: id %d, %d bytes, key and sequence %x", i, p.Id, len(p.Command), p.Command[:16])
		}
	}
	if len(nodes[0].received())+len(nodes[2].received()) != 0 {
		t.Error("followers got requests")
	}
}

// Sequence numbers are unique over lanes, keys wrap.
func TestClientCommands(t *testing.T) {
	n := newGatewayDouble(t, 1)
	n.follow(1, 1)
	clock := clienttest.NewClock()
	seen := map[uint64]bool{}
	for lane := range 3 {
		ended := 0
		c, err := NewClient(loadgen.Wiring{Lane: lane, Lanes: 3, Slots: 1, Size: 8, Clock: clock,
			Complete: func(uint32, loadgen.Outcome, int64) { ended++ }, Event: func(string) {}}, []netip.AddrPort{n.addr}, 7)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			for !c.Ready() || !c.Submit(0) {
				c.Wait(clock.Now() + 1e6)
			}
			c.Flush()
			for ended == i {
				c.Wait(clock.Now() + 1e6)
			}
		}
		c.Close()
	}
	for i, m := range n.received() {
		key, seq := binary.LittleEndian.Uint64(m[0].Command), binary.LittleEndian.Uint64(m[0].Command[8:])
		if seen[seq] {
			t.Errorf("sequence %d twice", seq)
		}
		seen[seq] = true
		if want := uint64(i%20) % 7; key != want {
			t.Errorf("request %d has key %d, want %d", i, key, want)
		}
	}
	if len(seen) != 60 {
		t.Errorf("%d sequence numbers, want 60", len(seen))
	}
}

func TestClientSizes(t *testing.T) {
	n := newGatewayDouble(t, 1)
	n.follow(1, 1)
	for _, size := range []int{0, 7, 8, 9, 100_000, maxSize} {
		r := newClientRig(t, 3, size, n)
		r.ready()
		for id := range uint32(3) {
			r.until("submit", func() bool { return r.submit(id) })
		}
		r.flush()
		r.idle()
		r.wantEnds(3, 0, 0)
		got := n.received()
		for _, m := range got {
			for _, p := range m {
				if len(p.Command) != 8+size {
					t.Errorf("SIZE %d: a command of %d bytes", size, len(p.Command))
				}
			}
		}
		n.mu.Lock()
		n.requests = nil
		n.mu.Unlock()
		r.close()
	}
	for _, size := range []int{-1, maxSize + 1} {
		if _, err := NewClient(loadgen.Wiring{Slots: 1, Size: size}, []netip.AddrPort{n.addr}, 1); err == nil || !strings.Contains(err.Error(), "SIZE") {
			t.Errorf("size %d: %v", size, err)
		}
	}
}

// A deposed leader rejects what it holds and says who leads: the requests go
// there, and keep their commands.
func TestClientRedirect(t *testing.T) {
	nodes := cluster(t, 1)
	r := newClientRig(t, 10, 64, nodes...)
	r.ready()
	nodes[1].follow(2, 2)
	r.until("told of node 2", func() bool { return !r.c.Ready() || r.c.target.node == 2 })
	if r.c.Leader(); !r.c.Ready() {
		t.Fatal("not ready, though node 2 says it leads at a higher term")
	}
	nodes[0].follow(2, 2)
	r.until("node 1 follows", func() bool { return r.c.peers[0].claim.term == 2 })
	// Back to 1, as if the change had crossed with the requests.
	nodes[0].do(func(*gatewaypb.Proposal) verdict { return reject })
	for id := range uint32(10) {
		r.c.slots[id].sequence = uint64(id)
		if !r.c.send(&r.c.peers[0], id) {
			t.Fatal("refused")
		}
		r.c.slots[id].tries = 1
		r.outstanding[id] = true
		r.inFlight++
	}
	r.flush()
	r.idle()
	r.wantEnds(10, 0, 0)
	if r.c.Retries() != 10 {
		t.Errorf("%d retries, want 10", r.c.Retries())
	}
	a, b := slices.Concat(nodes[0].received()...), slices.Concat(nodes[1].received()...)
	if len(a) != 10 || len(b) != 10 {
		t.Fatalf("node 1 got %d, node 2 %d", len(a), len(b))
	}
	for i := range a {
		if a[i].Id != b[i].Id || !bytes.Equal(a[i].Command, b[i].Command) {
			t.Errorf("request %d was sent again as another", i)
		}
	}
}

func TestClientRejectedByTheLeader(t *testing.T) {
	nodes := cluster(t, 1)
	nodes[0].do(func(p *gatewaypb.Proposal) verdict { return []verdict{apply, reject, lose}[p.Id%3] })
	r := newClientRig(t, 9, 64, nodes...)
	r.ready()
	for id := range uint32(9) {
		r.submit(id)
	}
	r.flush()
	r.idle()
	r.wantEnds(3, 3, 3)
	if r.c.Retries() != 0 {
		t.Errorf("%d sent again to the leader that had rejected them", r.c.Retries())
	}
	for id, o := range r.last {
		if want := []loadgen.Outcome{loadgen.OK, loadgen.Failed, loadgen.Unknown}[id%3]; o != want {
			t.Errorf("id %d: %v, want %v", id, o, want)
		}
	}
}

func TestClientCutConnection(t *testing.T) {
	nodes := cluster(t, 3)
	nodes[2].do(func(*gatewaypb.Proposal) verdict { return swallow })
	r := newClientRig(t, 10, 64, nodes...)
	r.ready()
	for id := range uint32(10) {
		r.submit(id)
	}
	r.flush()
	r.until("requests arrived", func() bool { return len(nodes[2].received()) == 1 })
	nodes[2].lis.cut()
	r.idle()
	r.wantEnds(0, 0, 10)
	r.until("reported", func() bool { return len(r.reports) > 0 })
	r.wantReport("node 3", nodes[2].addr.String(), "connection reset")
	nodes[2].do(func(*gatewaypb.Proposal) verdict { return apply })
	r.ready()
	r.submit(4)
	r.flush()
	r.idle()
	r.wantEnds(1, 0, 10)
}

// Nodes that are not there are named, and found when they come.
func TestClientNodesComeLater(t *testing.T) {
	nodes := cluster(t, 1)
	for _, n := range nodes {
		n.stop()
	}
	r := newClientRig(t, 1, 64, nodes...)
	for i := range nodes {
		r.until("refused", func() bool { return len(r.reports) > i })
	}
	r.wantReport("node 1", "connection refused")
	if r.c.Ready() || r.c.Submit(0) {
		t.Error("ready without a cluster")
	}
	for _, n := range nodes {
		n.start()
	}
	r.ready()
	r.submit(0)
	r.flush()
	r.idle()
	r.wantEnds(1, 0, 0)
	if len(r.reports) > 3 {
		t.Errorf("a node that stays down is reported once: %q", r.reports)
	}
}

func TestClientCloseEndsAll(t *testing.T) {
	nodes := cluster(t, 1)
	nodes[0].do(func(*gatewaypb.Proposal) verdict { return swallow })
	r := newClientRig(t, 50, 64, nodes...)
	r.ready()
	for id := range uint32(50) {
		r.submit(id)
		if id == 30 {
			r.flush() // the rest has not been sent
		}
	}
	r.close()
	r.wantEnds(0, 0, 50)
}

// A leader that hangs is left as soon as a follower says that another leads,
// and what it holds ends a second later.
func TestClientHungLeader(t *testing.T) {
	nodes := cluster(t, 1)
	nodes[0].do(func(*gatewaypb.Proposal) verdict { return swallow })
	r := newClientRig(t, 10, 64, nodes...)
	r.live()
	for id := range uint32(5) {
		r.submit(id)
	}
	r.flush()
	nodes[2].follow(2, 2)
	r.until("told", func() bool { return r.c.peers[2].claim.leader == 2 })
	if r.c.Ready() {
		t.Error("ready, though node 2 has not said that it leads")
	}
	nodes[1].follow(2, 2)
	r.ready()
	for id := uint32(5); id < 10; id++ {
		r.submit(id)
	}
	r.flush()
	r.until("node 2 answered", func() bool { return r.ends[loadgen.OK] == 5 })
	if r.inFlight != 5 {
		t.Fatalf("%d in flight: those of node 1 ended before their time", r.inFlight)
	}
	r.clock.Leap(switchGrace)
	r.idle()
	r.wantEnds(5, 0, 5)
	r.until("reported", func() bool { return len(r.reports) > 0 })
	r.wantReport("node 1", "left 5 requests unanswered")
	r.until("node 1 again", func() bool { return r.c.peers[0].state == peerLive })
	if !r.c.Ready() || r.c.target.node != 2 {
		t.Error("the claim of the lower term counts")
	}
}

// A late answer of a deposed leader is as good as any.
func TestClientOldLeaderAnswersInTime(t *testing.T) {
	nodes := cluster(t, 1)
	release := make(chan struct{})
	nodes[0].do(func(*gatewaypb.Proposal) verdict { <-release; return lose })
	r := newClientRig(t, 1, 64, nodes...)
	r.live()
	r.submit(0)
	r.flush()
	nodes[1].follow(2, 2)
	r.until("switched", func() bool { return r.c.target == &r.c.peers[1] })
	close(release)
	r.idle()
	r.wantEnds(0, 0, 1)
	r.clock.Leap(2 * switchGrace)
	r.until("deadline passed", func() bool { return r.c.peers[0].deadline == 0 })
	if len(r.reports) != 0 || r.c.peers[0].state != peerLive {
		t.Errorf("node 1 was cut off: %q", r.reports)
	}
}

// GracefulStop ends when the client has its answers, and the client comes
// back.
func TestClientServerStops(t *testing.T) {
	n := newGatewayDouble(t, 1)
	n.follow(1, 1)
	held := make(chan struct{})
	n.do(func(*gatewaypb.Proposal) verdict { <-held; return apply })
	r := newClientRig(t, 5, 64, n)
	r.ready()
	for id := range uint32(5) {
		r.submit(id)
	}
	r.flush()
	stopped := make(chan struct{})
	go func() { n.srv.GracefulStop(); close(stopped) }()
	r.until("draining", func() bool { return !r.c.Ready() })
	close(held)
	r.idle()
	r.wantEnds(5, 0, 0)
	r.until("stopped", func() bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
	r.until("reported", func() bool { return len(r.reports) > 0 })
	n.start()
	r.ready()
}

func TestClientMistakenHosts(t *testing.T) {
	n := newGatewayDouble(t, 2)
	r := newClientRig(t, 1, 64, n)
	r.until("reported", func() bool { return len(r.reports) > 0 })
	r.wantReport("node 1", "it says it is node 2", "order")
	n1 := newGatewayDouble(t, 1)
	n1.follow(3, 1)
	r = newClientRig(t, 1, 64, n1)
	r.until("reported", func() bool { return len(r.reports) > 0 })
	r.wantReport("node 3 leads, of 1 nodes")
}

// Servers of something else, or of nothing.
func TestClientNotAGateway(t *testing.T) {
	answer := func(t *testing.T, b string) netip.AddrPort {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, b)
				go func() { io.Copy(io.Discard, c); c.Close() }()
			}
		}()
		return l.Addr().(*net.TCPAddr).AddrPort()
	}
	for _, c := range []struct {
		name, answer, want string
		leap               int64
	}{
		{"http", "HTTP/1.1 400 Bad Request\r\n\r\n", "not HTTP/2", 0},
		{"silent", "", "did not say who leads within 2 s", dialTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newClientRigAt(t, 1, 64, []netip.AddrPort{answer(t, c.answer)})
			r.until("connected", func() bool { return r.c.peers[0].state != peerConnecting })
			r.clock.Leap(c.leap)
			r.until("reported", func() bool { return len(r.reports) > 0 })
			r.wantReport("node 1", c.want)
		})
	}
	t.Run("other gRPC service", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv := grpc.NewServer()
		go srv.Serve(l)
		t.Cleanup(srv.Stop)
		r := newClientRigAt(t, 1, 64, []netip.AddrPort{l.Addr().(*net.TCPAddr).AddrPort()})
		r.until("reported", func() bool { return len(r.reports) > 0 })
		r.wantReport("Unimplemented", "unknown service")
	})
}

// An answer nobody asked for ends the connection, not the process.
func TestClientBogusAnswers(t *testing.T) {
	for _, bogus := range []*gatewaypb.ProposeResponse{
		{Applied: []uint32{1}}, {Rejected: []uint32{0, 0}}, {Unknown: []uint32{1 << 31}}, {Applied: []uint32{4_000_000_000}},
	} {
		n := newGatewayDouble(t, 1)
		n.follow(1, 1)
		n.do(func(*gatewaypb.Proposal) verdict { return swallow })
		r := newClientRig(t, 2, 64, n)
		r.ready()
		r.submit(0)
		r.flush()
		r.until("arrived", func() bool { return len(n.received()) == 1 })
		n.mu.Lock()
		for s := range n.streams {
			s.send(bogus)
		}
		n.mu.Unlock()
		r.idle()
		r.until("reported", func() bool { return len(r.reports) > 0 })
		r.wantReport("which it does not hold")
		r.ready()
		r.close()
	}
}

// A server that does not read: Submit says "not now" before the buffers have
// grown beyond their bounds, the lane never blocks, and all ends well.
func TestClientBackPressure(t *testing.T) {
	for _, size := range []int{64, 5000, 300_000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			n := newGatewayDouble(t, 1)
			n.follow(1, 1)
			stall := make(chan struct{})
			n.mu.Lock()
			n.stall, n.keep = stall, false
			n.mu.Unlock()
			r := newClientRig(t, 10_000, size, n)
			r.ready()
			sent, refused := uint32(0), 0
			for refused < 100 && sent < 10_000 {
				if r.submit(sent) {
					sent++
				} else {
					refused++
					r.c.Poll()
				}
				if sent%10 == 0 {
					r.flush()
				}
			}
			if refused == 0 {
				t.Fatal("10000 requests taken by a server that reads none")
			}
			if r.inFlight != int(sent) {
				t.Fatal("some were answered")
			}
			close(stall)
			more := min(1000, 3_000_000/size)
			r.until("the rest", func() bool {
				for more > 0 && sent < 10_000 && r.submit(sent) {
					sent++
					more--
				}
				return (more == 0 || sent == 10_000) && r.inFlight == 0
			})
			r.wantEnds(int(sent), 0, 0)
		})
	}
}

// Whatever the nodes do to it, each id ends exactly once (clientRig checks),
// and no command is applied that was told to be Failed.
func TestClientAnyOrder(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			nodes := cluster(t, 1)
			var mu sync.Mutex
			applied := map[uint64]bool{} // by any node
			for _, n := range nodes {
				rng := rand.New(rand.NewPCG(seed, uint64(n.node)))
				n.do(func(p *gatewaypb.Proposal) verdict {
					mu.Lock()
					defer mu.Unlock()
					seq := binary.LittleEndian.Uint64(p.Command[8:])
					if applied[seq] {
						t.Errorf("node %d got request %d after it had been applied", n.node, seq)
					}
					switch v := rng.IntN(100); {
					case v < 80:
						applied[seq] = true
						return apply
					case v < 90:
						return reject
					case v < 99:
						return lose
					}
					return swallow
				})
			}
			const slots = 64
			r := newClientRig(t, slots, 64, nodes...)
			r.onEnd = func(id uint32, outcome loadgen.Outcome) {
				mu.Lock()
				defer mu.Unlock()
				switch seq := r.c.slots[id].sequence; {
				case outcome == loadgen.OK && !applied[seq]:
					t.Errorf("request %d is OK and was not applied", seq)
				case outcome == loadgen.Failed && applied[seq]:
					t.Errorf("request %d is Failed and was applied", seq)
				}
			}
			rng := rand.New(rand.NewPCG(seed, 99))
			stop := make(chan struct{})
			var wg sync.WaitGroup
			chaos := rand.New(rand.NewPCG(seed, 100))
			wg.Go(func() {
				for term := uint64(2); ; term++ {
					select {
					case <-stop:
						return
					case <-time.After(time.Duration(chaos.IntN(3000)) * time.Microsecond):
					}
					n := nodes[chaos.IntN(3)]
					switch chaos.IntN(6) {
					case 0:
						n.lis.cut()
					case 1:
						n.stop()
						n.start()
					default:
						leader := uint32(1 + chaos.IntN(3))
						for _, n := range nodes {
							if chaos.IntN(5) > 0 {
								n.follow(leader, term)
							}
						}
					}
				}
			})
			submitted := 0
			for deadline := time.Now().Add(700 * time.Millisecond); time.Now().Before(deadline); {
				for range rng.IntN(20) {
					id := rng.Uint32N(slots)
					if !r.outstanding[id] && r.submit(id) {
						submitted++
					}
				}
				if rng.IntN(3) > 0 {
					r.flush()
				}
				if rng.IntN(10) == 0 {
					r.clock.Leap(rng.Int64N(switchGrace))
				}
				before := r.inFlight
				n := 0
				if rng.IntN(2) == 0 {
					n = r.c.Poll()
				} else {
					n = r.c.Wait(r.clock.Now() + rng.Int64N(100_000))
				}
				if n != before-r.inFlight {
					t.Fatalf("says %d completions of %d", n, before-r.inFlight)
				}
				for i := range r.c.peers {
					if p := &r.c.peers[i]; p.outstanding < 0 || p.state == peerDown && p.outstanding != 0 {
						t.Fatalf("node %d: state %d, outstanding %d", p.node, p.state, p.outstanding)
					}
				}
			}
			close(stop)
			wg.Wait()
			r.close()
			if sum := r.ends[0] + r.ends[1] + r.ends[2]; sum != submitted {
				t.Errorf("%d submitted, %d ended", submitted, sum)
			}
			if r.ends[loadgen.OK] == 0 {
				t.Error("none ended well: nothing was tested")
			}
			t.Logf("%d submitted, ends %v, %d retries", submitted, r.ends, r.c.Retries())
		})
	}
}

// offline is a client without a network, whose nodes are live and speak
// through say.
func offline(t *testing.T, slots int) (r *clientRig, say func(node int, resp *gatewaypb.ProposeResponse)) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	r = newClientRigAt(t, slots, 16, []netip.AddrPort{addr, addr, addr})
	for i := range r.c.peers {
		p := &r.c.peers[i]
		p.h2.out = &boundedOutput{capacity: 1 << 20}
		p.h2.start("x")
		p.state, p.deadline = peerOpening, 0
	}
	return r, func(node int, resp *gatewaypb.ProposeResponse) {
		t.Helper()
		b := marshal(t, resp)
		r.c.at = r.clock.Now()
		if err := r.c.peers[node-1].message(b); err != nil {
			t.Fatal(err)
		}
	}
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestClientElection(t *testing.T) {
	type says struct {
		node   int
		leader uint32
		term   uint64
	}
	for _, c := range []struct {
		name string
		says []says
		want int
	}{
		{"nobody knows", []says{{1, 0, 5}, {2, 0, 5}, {3, 0, 5}}, 0},
		{"only followers say so", []says{{1, 2, 5}, {3, 2, 5}}, 0},
		{"it says so itself", []says{{1, 2, 5}, {2, 2, 5}}, 2},
		{"itself alone", []says{{2, 2, 5}}, 2},
		{"a stale follower", []says{{1, 3, 4}, {2, 2, 5}, {3, 3, 4}}, 2},
		{"a follower knows of a newer one", []says{{2, 2, 5}, {1, 3, 6}}, 0},
		{"the newer one agrees", []says{{2, 2, 5}, {1, 3, 6}, {3, 3, 6}}, 3},
		{"two at one term: its own word counts", []says{{1, 3, 5}, {2, 2, 5}}, 2},
		{"the same, told in the other order", []says{{2, 2, 5}, {1, 3, 5}, {3, 0, 5}}, 2},
		{"it resigns", []says{{2, 2, 5}, {1, 2, 5}, {2, 0, 5}}, 0},
		{"it is elected again before it knows", []says{{1, 2, 7}, {2, 2, 5}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, say := offline(t, 1)
			for _, s := range c.says {
				say(s.node, &gatewaypb.ProposeResponse{Leadership: &gatewaypb.Leadership{Self: uint32(s.node), Leader: s.leader, Term: s.term}})
			}
			if node, _ := r.c.Leader(); node != c.want || r.c.Ready() != (c.want != 0) {
				t.Errorf("leader %d, ready %v; want %d", node, r.c.Ready(), c.want)
			}
		})
	}
}

// A request that every node sends on to another is sent three times, no more.
func TestClientThreeTries(t *testing.T) {
	r, say := offline(t, 1)
	lead := func(node int, leader uint32, term uint64, rejected ...uint32) {
		t.Helper()
		say(node, &gatewaypb.ProposeResponse{Rejected: rejected,
			Leadership: &gatewaypb.Leadership{Self: uint32(node), Leader: leader, Term: term}})
	}
	lead(1, 1, 1)
	if !r.submit(0) {
		t.Fatal("refused")
	}
	lead(2, 2, 2)
	lead(1, 2, 2, 0)
	r.c.resend()
	lead(1, 1, 3)
	lead(2, 1, 3, 0)
	r.c.resend()
	if r.inFlight != 1 || r.c.peers[0].outstanding != 1 || r.c.Retries() != 2 {
		t.Fatalf("in flight %d, at node 1 %d, retries %d", r.inFlight, r.c.peers[0].outstanding, r.c.Retries())
	}
	lead(2, 2, 4)
	lead(1, 2, 4, 0)
	r.wantEnds(0, 1, 0)
}

// A rejected request waits for a leader, but not for ever: whether none is
// known, or one that has not yet said so itself, or others take the node that
// has just resigned for the leader.
func TestClientRejectedWaitsForALeader(t *testing.T) {
	for name, next := range map[string]uint32{"none known": 0, "the next one": 3, "itself by hearsay": 2} {
		t.Run(name, func(t *testing.T) {
			r, say := offline(t, 1)
			lead := func(node int, leader uint32, term uint64, rejected ...uint32) {
				t.Helper()
				say(node, &gatewaypb.ProposeResponse{Rejected: rejected,
					Leadership: &gatewaypb.Leadership{Self: uint32(node), Leader: leader, Term: term}})
			}
			term := uint64(1)
			reject := func() {
				t.Helper()
				lead(2, 2, term)
				if !r.submit(0) {
					t.Fatal("refused")
				}
				switch next {
				case 0, 3:
					term++
					lead(1, next, term)
					lead(3, 0, term)
					lead(2, next, term, 0)
				case 2:
					lead(1, 2, term)
					lead(2, 0, term, 0)
				}
				r.c.resend()
				if r.inFlight != 1 || r.c.Ready() || r.c.timer == 0 || r.c.timer > r.clock.Now()+switchGrace {
					t.Fatalf("in flight %d, ready %v, timer %d", r.inFlight, r.c.Ready(), r.c.timer)
				}
			}
			reject()
			lead(3, 3, term+1)
			r.c.resend()
			say(3, &gatewaypb.ProposeResponse{Applied: []uint32{0}})
			r.wantEnds(1, 0, 0)

			term += 2
			reject()
			r.clock.Leap(switchGrace)
			r.c.resend()
			r.wantEnds(1, 1, 0)
		})
	}
}

func TestClientSubmitTwicePanics(t *testing.T) {
	r, say := offline(t, 1)
	say(1, &gatewaypb.ProposeResponse{Leadership: &gatewaypb.Leadership{Self: 1, Leader: 1, Term: 1}})
	r.submit(0)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	r.c.Submit(0)
}

// The leadership goes round under load: nothing is lost, nothing fails, and the
// client follows. On the real server.
func TestClientFollowsTransfers(t *testing.T) {
	addrs, _ := startChild(t, "cluster", 3)
	sys := &System{addrs: addrs, keys: DefaultKeys}
	r := newClientRigAt(t, 100, 64, addrs)
	r.ready()
	ok := 0
	for round := range 12 {
		to := 1 + (round+1)%3
		done := make(chan error, 1)
		go func() { done <- sys.TransferLeader(t.Context(), to) }()
		r.until("the client follows", func() bool {
			for id := range uint32(100) {
				if !r.outstanding[id] && r.submit(id) {
					ok++
				}
			}
			node, _ := r.c.Leader()
			return node == to
		})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	r.idle()
	r.wantEnds(ok, 0, 0)
	if n := sys.Status(t.Context())[0]; n.Count != uint64(r.ends[loadgen.OK]) {
		t.Errorf("%d applied, %d acknowledged: %+v", n.Count, r.ends[loadgen.OK], n)
	}
	t.Logf("ends %v, %d retries", r.ends, r.c.Retries())
}

func TestSystem(t *testing.T) {
	// One port on three addresses, as on a host that runs the cluster.
	var nodes []*gatewayDouble
	hosts := []string{"127.0.0.11", "127.0.0.12", "127.0.0.13"}
	port := freePort(t, hosts)
	for i, h := range hosts {
		n := &gatewayDouble{tb: t, node: uint32(i + 1), leadership: &gatewaypb.Leadership{Self: uint32(i + 1), Leader: 2, Term: 4},
			script: func(*gatewaypb.Proposal) verdict { return apply }, streams: map[*doubleStream]bool{},
			addr: netip.AddrPortFrom(netip.MustParseAddr(h), uint16(port))}
		n.start()
		t.Cleanup(n.stop)
		nodes = append(nodes, n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	p := Product("scripted", 1)
	f := flag.NewFlagSet("", flag.ContinueOnError)
	p.Flags(f)
	if err := f.Parse([]string{"-port", fmt.Sprint(port), "-keys", "5"}); err != nil {
		t.Fatal(err)
	}
	sys, err := p.Open(ctx, hosts)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()

	for i, n := range sys.Status(ctx) {
		want := loadgen.NodeStatus{Node: i + 1, Addr: fmt.Sprintf("%s:%d", hosts[i], port), Leads: i == 1, Leader: 2, Term: 4,
			Applied: 10, Count: 7, Digest: "d", Version: "scripted v1", Log: "in memory"}
		if n != want {
			t.Errorf("got  %+v\nwant %+v", n, want)
		}
	}
	if err := sys.TransferLeader(ctx, 2); err != nil {
		t.Error(err)
	}
	if err := sys.TransferLeader(ctx, 3); err != nil {
		t.Error(err)
	}
	if !slices.Equal(nodes[1].transfers, []uint32{3}) {
		t.Errorf("node 2 was asked to transfer to %v", nodes[1].transfers)
	}
	if err := sys.TransferLeader(ctx, 4); err == nil || !strings.Contains(err.Error(), "nodes 1 to 3") {
		t.Errorf("%v", err)
	}

	ended := 0
	clock := clienttest.NewClock()
	c, err := sys.Dial(loadgen.Wiring{Slots: 1, Size: 64, Clock: clock, Complete: func(uint32, loadgen.Outcome, int64) { ended++ }, Event: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	for !c.Ready() && ctx.Err() == nil {
		c.Wait(clock.Now() + 1e6)
	}
	c.Submit(0)
	c.Flush()
	for ended == 0 && ctx.Err() == nil {
		c.Wait(clock.Now() + 1e6)
	}
	c.Close()
	if ended != 1 {
		t.Error("the request did not end")
	}

	// Nodes that are down, or cannot, have their own entries.
	nodes[0].stop()
	nodes[1].mu.Lock()
	nodes[1].statusErr = status.Error(codes.Unimplemented, "no status here")
	nodes[1].mu.Unlock()
	st := sys.Status(ctx)
	if st[0].Err == nil || !strings.Contains(st[0].Err.Error(), "node 1 at 127.0.0.11") || st[0].Node != 1 {
		t.Errorf("%+v", st[0])
	}
	if !errors.Is(st[1].Err, errors.ErrUnsupported) {
		t.Errorf("%v", st[1].Err)
	}
	if st[2].Err != nil {
		t.Errorf("%v", st[2].Err)
	}
	if err := sys.TransferLeader(ctx, 3); err == nil || !strings.Contains(err.Error(), "no leader") {
		t.Errorf("%v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	for _, c := range []struct {
		hosts []string
		port  int
		keys  uint64
		want  string
	}{
		{[]string{"127.0.0.1"}, 0, 1, "-port 0"},
		{[]string{"127.0.0.1"}, 65536, 1, "-port 65536"},
		{[]string{"127.0.0.1"}, 1, 0, "-keys 0"},
		{nil, 1, 1, "0 hosts"},
		{[]string{"127.0.0.1", "not a host"}, 1, 1, "node 2"},
	} {
		_, err := Open(t.Context(), c.hosts, c.port, c.keys)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.hosts, err, c.want)
		}
	}
}

func freePort(t *testing.T, hosts []string) int {
	for range 20 {
		l, err := net.Listen("tcp", hosts[0]+":0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		free := true
		for _, h := range hosts[1:] {
			m, err := net.Listen("tcp", fmt.Sprintf("%s:%d", h, port))
			if free = free && err == nil; err == nil {
				m.Close()
			}
		}
		l.Close()
		if free {
			return port
		}
	}
	t.Fatal("no port is free on all addresses")
	return 0
}
