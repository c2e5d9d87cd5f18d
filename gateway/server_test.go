package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"raftrig/gateway/gatewaypb"
)

const serverPatience = 30 * time.Second

// serverScript is a Node that does what the test says.
type serverScript struct {
	mu         sync.Mutex
	leadership Leadership
	changed    chan struct{} // nil: it does not tell
	propose    func([]Proposal, Sink)
	transfer   func(context.Context, int) error
	status     Status
	statusErr  error
}

func (n *serverScript) Propose(batch []Proposal, sink Sink) { n.propose(batch, sink) }

func (n *serverScript) Leadership() Leadership {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leadership
}

func (n *serverScript) LeadershipChanged() <-chan struct{} { return n.changed }

func (n *serverScript) lead(leader int, term uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leadership = Leadership{Leader: leader, Term: term}
	if n.changed != nil {
		Notify(n.changed)
	}
}

func (n *serverScript) Status() (Status, error) { return n.status, n.statusErr }

func (n *serverScript) TransferLeader(ctx context.Context, to int) error { return n.transfer(ctx, to) }

// serverFixture is a server on loopback and a plain gRPC connection to it.
type serverFixture struct {
	server *Server
	addr   string
	conn   *grpc.ClientConn
	client gatewaypb.GatewayClient
}

// newServerFixture also checks that the test leaves no goroutine behind.
func newServerFixture(t *testing.T, node Node, opts ServerOptions) *serverFixture {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		deadline := time.Now().Add(serverPatience)
		for runtime.NumGoroutine() > before {
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(),
					stacks[:runtime.Stack(stacks, true)])
			}
			time.Sleep(time.Millisecond)
		}
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &serverFixture{server: NewServer(node, opts), addr: lis.Addr().String()}
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(lis) }()
	f.conn, err = grpc.NewClient("passthrough:///"+f.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	f.client = gatewaypb.NewGatewayClient(f.conn)
	t.Cleanup(func() {
		f.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), serverPatience)
		defer cancel()
		f.server.Stop(ctx)
		if ctx.Err() != nil {
			t.Error("the server did not stop by itself")
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return f
}

type serverStream = grpc.BidiStreamingClient[gatewaypb.ProposeRequest, gatewaypb.ProposeResponse]

func (f *serverFixture) open(t *testing.T) serverStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), serverPatience)
	t.Cleanup(cancel)
	stream, err := f.client.Propose(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func serverRecv(t *testing.T, stream serverStream) *gatewaypb.ProposeResponse {
	t.Helper()
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func serverWantLeadership(t *testing.T, resp *gatewaypb.ProposeResponse, leader uint32, term uint64, self uint32) {
	t.Helper()
	want := &gatewaypb.ProposeResponse{Leadership: &gatewaypb.Leadership{Leader: leader, Term: term, Self: self}}
	if !proto.Equal(resp, want) {
		t.Fatalf("got %v, want %v", resp, want)
	}
}

func serverRequest(first uint32, n int) *gatewaypb.ProposeRequest {
	req := &gatewaypb.ProposeRequest{}
	for i := range n {
		id := first + uint32(i)
		req.Proposals = append(req.Proposals, &gatewaypb.Proposal{Id: id, Command: fmt.Appendf(nil, "command %d", id)})
	}
	return req
}

func serverSendAll(t *testing.T, stream serverStream, reqs ...*gatewaypb.ProposeRequest) {
	t.Helper()
	for _, req := range reqs {
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
	}
}

func serverEndAll(end End, err error) func([]Proposal, Sink) {
	return func(batch []Proposal, sink Sink) {
		for _, p := range batch {
			sink.Done(p.ID, end, err)
		}
	}
}

func TestServerTellsLeadershipFirstAndPushesChanges(t *testing.T) {
	for name, test := range map[string]struct {
		node *serverScript
		poll time.Duration
	}{
		"told":  {&serverScript{changed: make(chan struct{}, 1)}, time.Hour},
		"asked": {&serverScript{}, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) { testServerPushesLeadership(t, test.node, test.poll) })
	}
}

func testServerPushesLeadership(t *testing.T, node *serverScript, poll time.Duration) {
	f := newServerFixture(t, node, ServerOptions{Self: 2, LeadershipPoll: poll})
	a := f.open(t)
	serverWantLeadership(t, serverRecv(t, a), 0, 0, 2)
	node.lead(1, 5)
	serverWantLeadership(t, serverRecv(t, a), 1, 5, 2)
	b := f.open(t)
	serverWantLeadership(t, serverRecv(t, b), 1, 5, 2)
	node.lead(0, 6)
	for _, s := range []serverStream{a, b} {
		serverWantLeadership(t, serverRecv(t, s), 0, 6, 2)
	}
}

// A node rejects what comes after it has lost its office, and the response says
// so, however late the next poll is.
func TestServerTellsTheLeadershipWithRejections(t *testing.T) {
	node := &serverScript{leadership: Leadership{Leader: 2, Term: 5}}
	node.propose = func(batch []Proposal, sink Sink) {
		node.lead(1, 6)
		serverEndAll(Rejected, errors.New("not the leader"))(batch, sink)
	}
	f := newServerFixture(t, node, ServerOptions{Self: 2, LeadershipPoll: time.Hour})
	other, stream := f.open(t), f.open(t)
	serverWantLeadership(t, serverRecv(t, other), 2, 5, 2)
	serverWantLeadership(t, serverRecv(t, stream), 2, 5, 2)
	serverSendAll(t, stream, serverRequest(7, 1))
	want := &gatewaypb.ProposeResponse{Rejected: []uint32{7}, Reason: "not the leader",
		Leadership: &gatewaypb.Leadership{Leader: 1, Term: 6, Self: 2}}
	if resp := serverRecv(t, stream); !proto.Equal(resp, want) {
		t.Errorf("got %v, want %v", resp, want)
	}
	serverWantLeadership(t, serverRecv(t, other), 1, 6, 2)
}

func TestServerHandsBatchesOnInOrderAndReturnsEveryEnd(t *testing.T) {
	var got []string
	node := &serverScript{}
	node.propose = func(batch []Proposal, sink Sink) {
		for _, p := range batch {
			got = append(got, string(p.Command))
			switch p.ID % 3 {
			case 0:
				sink.Done(p.ID, Applied, nil)
			case 1:
				sink.Done(p.ID, Rejected, errors.New("not the leader"))
			case 2:
				go sink.Done(p.ID, Uncertain, errors.New("lost"))
			}
		}
	}
	f := newServerFixture(t, node, ServerOptions{})
	stream := f.open(t)
	serverRecv(t, stream)
	serverSendAll(t, stream, serverRequest(0, 1), serverRequest(1, 300), &gatewaypb.ProposeRequest{}, serverRequest(301, 99))
	stream.CloseSend()
	ends := map[uint32]int{}
	var reasons []string
	for {
		resp, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for kind, ids := range [][]uint32{resp.Applied, resp.Rejected, resp.Unknown} {
			for _, id := range ids {
				if _, twice := ends[id]; twice || int(id%3) != kind {
					t.Fatalf("id %d: end %d, twice %v", id, kind, twice)
				}
				ends[id] = kind
			}
		}
		reasons = append(reasons, resp.Reason)
	}
	if len(ends) != 400 {
		t.Errorf("%d ends of 400", len(ends))
	}
	if !slices.Contains(reasons, "not the leader") && !slices.Contains(reasons, "lost") {
		t.Errorf("reasons %q", reasons)
	}
	for i, c := range got {
		if want := fmt.Sprintf("command %d", i); c != want {
			t.Fatalf("command %d is %q, want %q", i, c, want)
		}
	}
}

func TestServerEchoesIDsItDoesNotTrack(t *testing.T) {
	f := newServerFixture(t, &serverScript{propose: serverEndAll(Applied, nil)}, ServerOptions{})
	stream := f.open(t)
	serverRecv(t, stream)
	serverSendAll(t, stream, &gatewaypb.ProposeRequest{Proposals: []*gatewaypb.Proposal{{Id: 1 << 31}, {Id: 7}, {Id: 7}}})
	stream.CloseSend()
	var ids []uint32
	for {
		resp, err := stream.Recv()
		if err != nil {
			break
		}
		ids = append(ids, resp.Applied...)
	}
	if !slices.Equal(ids, []uint32{1 << 31, 7, 7}) {
		t.Errorf("ids %v", ids)
	}
}

func TestServerRejectsWhatCheckRefuses(t *testing.T) {
	var proposed []string
	node := &serverScript{propose: func(batch []Proposal, sink Sink) {
		for _, p := range batch {
			proposed = append(proposed, string(p.Command))
			sink.Done(p.ID, Applied, nil)
		}
	}}
	f := newServerFixture(t, node, ServerOptions{Check: func(cmd []byte) error {
		if len(cmd) == 0 {
			return errors.New("empty\xff command")
		}
		return nil
	}})
	stream := f.open(t)
	serverRecv(t, stream)
	empty := &gatewaypb.Proposal{Id: 3}
	serverSendAll(t, stream,
		&gatewaypb.ProposeRequest{Proposals: []*gatewaypb.Proposal{empty, {Id: 4, Command: []byte("x")}, empty}},
		&gatewaypb.ProposeRequest{Proposals: []*gatewaypb.Proposal{empty}})
	stream.CloseSend()
	rejected, applied := 0, 0
	for {
		resp, err := stream.Recv()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		rejected += len(resp.Rejected)
		applied += len(resp.Applied)
		if len(resp.Rejected) > 0 && resp.Reason != "empty command" {
			t.Errorf("reason %q", resp.Reason)
		}
	}
	if rejected != 3 || applied != 1 || !slices.Equal(proposed, []string{"x"}) {
		t.Errorf("%d rejected, %d applied, %q proposed", rejected, applied, proposed)
	}
}

// serverRawCodec sends bytes as they are.
type serverRawCodec struct{}

func (serverRawCodec) Name() string { return protocodec.Name }

func (serverRawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	return encoding.GetCodecV2(protocodec.Name).Marshal(v)
}

func (serverRawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2(protocodec.Name).Unmarshal(data, v)
}

func TestServerEndsTheStreamOfABadMessageAndNothingElse(t *testing.T) {
	f := newServerFixture(t, &serverScript{propose: serverEndAll(Applied, nil)},
		ServerOptions{MaxMessageBytes: 4096, MaxOutstanding: 100})
	bystander := f.open(t)
	serverRecv(t, bystander)
	many := bytes.Repeat([]byte{0x0a, 0}, 101)
	for name, bad := range map[string][]byte{
		"oversized":          protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), make([]byte, 5000)),
		"cut off":            {0x0a, 0x10, 0x08},
		"bad tag":            {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"bad proposal":       {0x0a, 0x02, 0x12, 0x09},
		"too many proposals": many,
	} {
		ctx, cancel := context.WithTimeout(context.Background(), serverPatience)
		raw, err := f.conn.NewStream(ctx, &gatewaypb.Gateway_ServiceDesc.Streams[0],
			gatewaypb.Gateway_Propose_FullMethodName, grpc.ForceCodecV2(serverRawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.SendMsg(bad); err != nil {
			t.Fatal(err)
		}
		var resp gatewaypb.ProposeResponse
		for err == nil {
			err = raw.RecvMsg(&resp)
		}
		cancel()
		want := codes.Internal
		if name == "oversized" {
			want = codes.ResourceExhausted
		}
		if status.Code(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	serverSendAll(t, bystander, serverRequest(1, 1))
	if resp := serverRecv(t, bystander); !slices.Equal(resp.Applied, []uint32{1}) {
		t.Errorf("the bystander got %v", resp)
	}
}

func TestServerSurvivesWhatIsNotHTTP2(t *testing.T) {
	f := newServerFixture(t, &serverScript{}, ServerOptions{})
	for _, junk := range []string{"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x00"} {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, junk)
		c.SetReadDeadline(time.Now().Add(serverPatience))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: connection stays open", junk)
		}
		c.Close()
	}
	serverWantLeadership(t, serverRecv(t, f.open(t)), 0, 0, 0)
}

func TestServerRefusesConnectionsAboveItsBound(t *testing.T) {
	f := newServerFixture(t, &serverScript{}, ServerOptions{MaxConns: 1})
	serverRecv(t, f.open(t))
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(serverPatience))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a second connection was served: %v", err)
	}
	f.conn.Close()
	for { // the place is free again
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		c.SetReadDeadline(time.Now().Add(serverPatience))
		_, err = c.Read(make([]byte, 1))
		c.Close()
		if err == nil {
			return
		}
	}
}

// serverHolder keeps what it is given until the test lets go.
type serverHolder struct {
	serverScript
	taken chan int
	heldm sync.Mutex
	held  []func(End)
}

func newServerHolder() *serverHolder {
	n := &serverHolder{taken: make(chan int, 1000)}
	n.propose = func(batch []Proposal, sink Sink) {
		n.heldm.Lock()
		for _, p := range batch {
			n.held = append(n.held, func(e End) { sink.Done(p.ID, e, nil) })
		}
		n.heldm.Unlock()
		n.taken <- len(batch)
	}
	return n
}

func (n *serverHolder) release(count int) {
	n.heldm.Lock()
	defer n.heldm.Unlock()
	for _, done := range n.held[:count] {
		done(Applied)
	}
	n.held = n.held[count:]
}

func TestServerStopsReadingAtItsBounds(t *testing.T) {
	for name, opts := range map[string]ServerOptions{
		"proposals": {MaxOutstanding: 10},
		"bytes":     {MaxOutstandingBytes: int64(2 * proto.Size(serverRequest(10, 5)))},
	} {
		t.Run(name, func(t *testing.T) {
			node := newServerHolder()
			f := newServerFixture(t, node, opts)
			stream := f.open(t)
			serverRecv(t, stream)
			for i := range 4 {
				serverSendAll(t, stream, serverRequest(10+uint32(5*i), 5))
			}
			<-node.taken
			<-node.taken
			// The third message has arrived once Status, sent behind it on the
			// same connection, is answered; give its reader time to be wrong.
			f.client.Status(context.Background(), &gatewaypb.StatusRequest{})
			select {
			case <-node.taken:
				t.Fatal("took more than the bound")
			case <-time.After(20 * time.Millisecond):
			}
			node.release(5)
			<-node.taken
			node.release(10)
			<-node.taken
			node.release(5)
			stream.CloseSend()
			ids := map[uint32]bool{}
			for {
				resp, err := stream.Recv()
				if err != nil {
					break
				}
				for _, id := range resp.Applied {
					ids[id] = true
				}
			}
			if len(ids) != 20 {
				t.Errorf("%d ends of 20", len(ids))
			}
		})
	}
}

func TestServerHoldsBoundedEndsForAClientThatDoesNotRead(t *testing.T) {
	const bound = 1000
	var mu sync.Mutex
	taken := 0
	node := &serverScript{}
	node.propose = func(batch []Proposal, sink Sink) {
		mu.Lock()
		taken += len(batch)
		mu.Unlock()
		serverEndAll(Applied, nil)(batch, sink)
	}
	f := newServerFixture(t, node, ServerOptions{MaxOutstanding: bound})
	ctx, cancel := context.WithTimeout(context.Background(), serverPatience)
	defer cancel()
	stream, err := f.client.Propose(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sending := make(chan int)
	go func() {
		sent := 0
		for stream.Send(serverRequest(1<<28, 500)) == nil {
			sent += 500
			select {
			case sending <- sent:
			case <-ctx.Done():
			}
		}
		close(sending)
	}()
	// Without reading, the client can send what the windows take and no more.
	sent := 0
	for stuck := false; !stuck; {
		select {
		case sent = <-sending:
		case <-time.After(300 * time.Millisecond):
			stuck = true
		}
	}
	mu.Lock()
	unread := taken
	mu.Unlock()
	// Ends of 6 bytes: 64 KiB of window, as much in the transport, and the bound.
	if most := (64<<10+64<<10)/6*2 + 2*bound; unread > most {
		t.Errorf("%d proposals were taken from a client that reads nothing, want at most %d", unread, most)
	}
	for ended := 0; ended < sent; {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		ended += len(resp.Applied)
	}
	cancel()
	for range sending {
	}
}

func TestServerDropsEndsOfAStreamThatIsGone(t *testing.T) {
	node := newServerHolder()
	f := newServerFixture(t, node, ServerOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := f.client.Propose(ctx)
	if err != nil {
		t.Fatal(err)
	}
	serverRecv(t, stream)
	serverSendAll(t, stream, serverRequest(0, 10))
	<-node.taken
	cancel()
	f.waitForStreams(t, 0)
	node.release(10)
	other := f.open(t)
	serverRecv(t, other)
	serverSendAll(t, other, serverRequest(100, 1))
	<-node.taken
	node.release(1)
	if resp := serverRecv(t, other); !slices.Equal(resp.Applied, []uint32{100}) {
		t.Errorf("got %v", resp)
	}
}

func (f *serverFixture) waitForStreams(t *testing.T, n int) {
	t.Helper()
	deadline := time.Now().Add(serverPatience)
	for {
		f.server.mu.Lock()
		now := len(f.server.streams)
		f.server.mu.Unlock()
		if now == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d streams, want %d", now, n)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestServerStopSendsEndsThatComeInTime(t *testing.T) {
	node := newServerHolder()
	f := newServerFixture(t, node, ServerOptions{})
	stream := f.open(t)
	serverRecv(t, stream)
	serverSendAll(t, stream, serverRequest(0, 3))
	<-node.taken
	stopped := make(chan struct{})
	go func() {
		f.server.Stop(context.Background())
		close(stopped)
	}()
	<-f.server.stop
	node.release(3)
	resp := serverRecv(t, stream)
	if !slices.Equal(resp.Applied, []uint32{0, 1, 2}) {
		t.Errorf("got %v", resp)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("the stream ended with %v", err)
	}
	<-stopped
}

func TestServerStopGivesUpAtItsLimit(t *testing.T) {
	node := newServerHolder()
	f := newServerFixture(t, node, ServerOptions{})
	stream := f.open(t)
	serverRecv(t, stream)
	serverSendAll(t, stream, serverRequest(0, 3))
	<-node.taken
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f.server.Stop(ctx)
	if _, err := stream.Recv(); err == nil {
		t.Error("the stream goes on")
	}
	node.release(3)
}

func TestServerStatus(t *testing.T) {
	node := &serverScript{status: Status{Node: 2, Role: Candidate, Leader: 3, Term: 4, Applied: 5, Count: 6,
		Digest: "d", Version: "v", Log: "l"}}
	f := newServerFixture(t, node, ServerOptions{Self: 2})
	got, err := f.client.Status(context.Background(), &gatewaypb.StatusRequest{})
	want := &gatewaypb.StatusResponse{Node: 2, Role: gatewaypb.Role_ROLE_CANDIDATE, Leader: 3, Term: 4, Applied: 5,
		Count: 6, Digest: "d", Version: "v", Log: "l"}
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	node.statusErr = errors.New("shut down")
	if _, err := f.client.Status(context.Background(), &gatewaypb.StatusRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("error %v", err)
	}
}

func TestServerTransferLeader(t *testing.T) {
	node := &serverScript{}
	f := newServerFixture(t, node, ServerOptions{})
	for _, c := range []struct {
		to   uint32
		err  error
		want codes.Code
	}{
		{2, nil, codes.OK},
		{2, errors.New("node 3 leads"), codes.FailedPrecondition},
		{2, fmt.Errorf("slow: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{0, nil, codes.InvalidArgument},
		{1 << 31, nil, codes.InvalidArgument},
	} {
		asked := 0
		node.transfer = func(_ context.Context, to int) error { asked = to; return c.err }
		_, err := f.client.TransferLeader(context.Background(), &gatewaypb.TransferLeaderRequest{To: c.to})
		if status.Code(err) != c.want {
			t.Errorf("to %d: %v, want %v", c.to, err, c.want)
		}
		if c.err != nil && !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("to %d: %v does not say %q", c.to, err, c.err)
		}
		if c.want != codes.InvalidArgument && asked != int(c.to) {
			t.Errorf("asked for %d, want %d", asked, c.to)
		}
	}
	node.transfer = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := f.client.TransferLeader(ctx, &gatewaypb.TransferLeaderRequest{To: 1}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("error %v", err)
	}
}

// FuzzServerDecode holds the decoder against the generated one.
func FuzzServerDecode(f *testing.F) {
	good, _ := proto.Marshal(serverRequest(1<<31, 3))
	f.Add(good)
	f.Add([]byte{})
	f.Add([]byte{0x0a, 0x00})
	f.Add([]byte{0x0a, 0x05, 0x08, 0x01, 0x08, 0x02, 0x20, 0x07, 0x08, 0x96, 0x01})
	f.Add(append(bytes.Clone(good), 0x0b, 0x0c))
	f.Add([]byte{0x80, 0x90, 0x90, 0xff, 0x30, 0x90, 0x90, 0x30}) // a field number that is too large
	f.Fuzz(func(t *testing.T, data []byte) {
		var want gatewaypb.ProposeRequest
		wantErr := proto.Unmarshal(data, &want)
		got := request{maxProposals: 1 << 20}
		err := got.decode(bytes.Clone(data))
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%x: error %v, generated decoder %v", data, err, wantErr)
		}
		if err != nil {
			return
		}
		if len(got.proposals) != len(want.Proposals) {
			t.Fatalf("%x: %d proposals, want %d", data, len(got.proposals), len(want.Proposals))
		}
		for i, p := range got.proposals {
			if w := want.Proposals[i]; p.ID != w.Id || !bytes.Equal(p.Command, w.Command) || cap(p.Command) != len(p.Command) {
				t.Fatalf("%x: proposal %d is %v, want %v", data, i, p, w)
			}
		}
	})
}

// FuzzServerEncode lets the generated decoder read what the encoder writes.
func FuzzServerEncode(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x80\xff\xff\xff"), "no leader", true, int64(3), uint64(7))
	f.Fuzz(func(t *testing.T, ids []byte, reason string, leadership bool, leader int64, term uint64) {
		out := response{withLeadership: leadership, leadership: Leadership{int(uint32(leader)), term}, self: 2}
		out.reason = reason
		for i := 0; i+4 <= len(ids); i += 4 {
			list := []*[]uint32{&out.applied, &out.rejected, &out.unknown}[i/4%3]
			*list = append(*list, binary.LittleEndian.Uint32(ids[i:]))
		}
		data := out.append(nil)
		if len(data) > out.size() {
			t.Fatalf("%d bytes, size promised %d", len(data), out.size())
		}
		var got gatewaypb.ProposeResponse
		if err := proto.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Applied, out.applied) || !slices.Equal(got.Rejected, out.rejected) || !slices.Equal(got.Unknown, out.unknown) {
			t.Fatalf("ids %v", &got)
		}
		if leadership != (got.Leadership != nil) || leadership &&
			(got.Leadership.Leader != uint32(leader) || got.Leadership.Term != term || got.Leadership.Self != 2) {
			t.Fatalf("leadership %v", got.Leadership)
		}
		if !strings.HasPrefix(strings.ToValidUTF8(reason, ""), got.Reason) {
			t.Fatalf("reason %q from %q", got.Reason, reason)
		}
	})
}
