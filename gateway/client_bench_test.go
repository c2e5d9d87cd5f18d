package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"raftrig/gateway/gatewaypb"
	"raftrig/gateway/kv"
	"raftrig/loadgen"
	"raftrig/loadgen/clienttest"
)

// The test binary is its own helper: a gateway that answers at once, or three
// of the real ones, in a process of its own so that the client's CPU and
// allocations stand alone and the servers can be stopped with a signal.
const childVariable = "GATEWAY_CLIENT_TEST_CHILD"

func init() {
	var serve []func(net.Listener) error
	switch os.Getenv(childVariable) {
	case "":
		return
	case "instant":
		srv := grpc.NewServer(grpc.InitialWindowSize(4<<20), grpc.InitialConnWindowSize(4<<20))
		gatewaypb.RegisterGatewayServer(srv, instantServer{})
		serve = append(serve, srv.Serve)
	case "echo":
		serve = append(serve, func(l net.Listener) error {
			c, err := l.Accept()
			if err != nil {
				return err
			}
			_, err = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, 64<<10))
			return err
		})
	case "cluster":
		group := &memoryGroup{leader: 1, term: 1, state: kv.New()}
		for self := 1; self <= 3; self++ {
			serve = append(serve, NewServer(&memoryNode{group, self}, ServerOptions{Self: self, Check: kv.Check}).Serve)
		}
	}
	for _, s := range serve {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go s(l)
		fmt.Println(l.Addr())
	}
	io.Copy(io.Discard, os.Stdin) // ends with the parent
	os.Exit(0)
}

// memoryGroup is a cluster of memoryNodes, which share one state machine.
type memoryGroup struct {
	mu      sync.Mutex
	leader  int
	term    uint64
	applied uint64
	state   *kv.Map
}

type memoryNode struct {
	group *memoryGroup
	self  int
}

func (n *memoryNode) Propose(batch []Proposal, sink Sink) {
	g := n.group
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range batch {
		if g.leader != n.self {
			sink.Done(p.ID, Rejected, errors.New("not the leader"))
			continue
		}
		g.applied++
		g.state.Apply(g.applied, p.Command)
		sink.Done(p.ID, Applied, nil)
	}
}

func (n *memoryNode) Leadership() Leadership {
	n.group.mu.Lock()
	defer n.group.mu.Unlock()
	return Leadership{Leader: n.group.leader, Term: n.group.term}
}

func (n *memoryNode) LeadershipChanged() <-chan struct{} { return nil }

func (n *memoryNode) Status() (Status, error) {
	g := n.group
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Status{Node: n.self, Role: Follower, Leader: g.leader, Term: g.term, Applied: g.applied, Count: g.applied, Digest: g.state.Status().Digest}
	if g.leader == n.self {
		s.Role = Leader
	}
	return s, nil
}

func (n *memoryNode) TransferLeader(_ context.Context, to int) error {
	n.group.mu.Lock()
	defer n.group.mu.Unlock()
	n.group.leader = to
	n.group.term++
	return nil
}

// instantServer leads and applies all it gets.
type instantServer struct {
	gatewaypb.UnimplementedGatewayServer
}

func (instantServer) Propose(rpc grpc.BidiStreamingServer[gatewaypb.ProposeRequest, gatewaypb.ProposeResponse]) error {
	err := rpc.Send(&gatewaypb.ProposeResponse{Leadership: &gatewaypb.Leadership{Leader: 1, Term: 1, Self: 1}})
	for err == nil {
		var req *gatewaypb.ProposeRequest
		if req, err = rpc.Recv(); err != nil {
			break
		}
		r := &gatewaypb.ProposeResponse{Applied: make([]uint32, len(req.Proposals))}
		for i, p := range req.Proposals {
			r.Applied[i] = p.Id
		}
		err = rpc.Send(r)
	}
	return err
}

// instant starts an instantServer in a child process.
func instant(tb testing.TB) netip.AddrPort {
	tb.Helper()
	addrs, _ := startChild(tb, "instant", 1)
	return addrs[0]
}

// startChild starts a child process with servers, and ends it with the test.
func startChild(tb testing.TB, what string, servers int) ([]netip.AddrPort, *os.Process) {
	tb.Helper()
	child, process := clienttest.Child(tb, childVariable+"="+what)
	var addrs []netip.AddrPort
	for range servers {
		addrs = append(addrs, clienttest.Addr(tb, child))
	}
	return addrs, process
}

func newClosedLoop(tb testing.TB, addr netip.AddrPort, outstanding int) *clienttest.ClosedLoop {
	tb.Helper()
	return clienttest.NewClosedLoop(tb, outstanding, 64, func(w loadgen.Wiring) (loadgen.Client, error) {
		return NewClient(w, []netip.AddrPort{addr}, DefaultKeys)
	})
}

// The path of a request allocates nothing, replies included. The server is in
// another process, so all allocations counted are the client's.
func TestClientNoAllocations(t *testing.T) {
	l := newClosedLoop(t, instant(t), 100)
	defer l.Client.Close()
	l.Run(10_000, 10)
	if n := testing.AllocsPerRun(20, func() { l.Run(1000, 1); l.Run(1000, 10); l.Run(1000, 100) }); n != 0 {
		t.Errorf("%v allocations for 3000 requests", n)
	}
	if l.Bad != 0 {
		t.Errorf("%d requests not OK", l.Bad)
	}
}

// BenchmarkClient is the CPU that a request costs the lane's thread, closed
// loop with 100 outstanding, against a grpc-go server in another process that
// answers at once; beside it the same with grpc-go's own stream, two
// goroutines a stream, where all threads of the process count. The floor is a
// bare socket that sends as many bytes as often to an echo.
func BenchmarkClient(b *testing.B) {
	for _, burst := range []int{1, 10} {
		b.Run(fmt.Sprintf("lane/burst=%d", burst), func(b *testing.B) {
			addr := instant(b)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			l := newClosedLoop(b, addr, 100)
			defer l.Client.Close()
			l.Run(10_000, burst)
			b.ReportAllocs()
			b.ResetTimer()
			thread, process := clienttest.CPU(unix.RUSAGE_THREAD), clienttest.CPU(unix.RUSAGE_SELF)
			l.Run(b.N, burst)
			b.ReportMetric(float64(clienttest.CPU(unix.RUSAGE_THREAD)-thread)/1e3/float64(b.N), "thread_cpu_us/op")
			b.ReportMetric(float64(clienttest.CPU(unix.RUSAGE_SELF)-process)/1e3/float64(b.N), "process_cpu_us/op")
			if l.Bad != 0 {
				b.Fatalf("%d requests not OK", l.Bad)
			}
		})
		b.Run(fmt.Sprintf("floor/burst=%d", burst), func(b *testing.B) {
			addrs, _ := startChild(b, "echo", 1)
			size := frameHeaderLen + messagePrefixLen + burst*(proposalMax(72)-3)
			clienttest.Floor(b, addrs[0], size, burst)
		})
		b.Run(fmt.Sprintf("grpc-go/burst=%d", burst), func(b *testing.B) {
			addr := instant(b)
			conn, err := grpc.NewClient("passthrough:///"+addr.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			stream, err := gatewaypb.NewGatewayClient(conn).Propose(ctx)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				b.Fatal(err)
			}
			run := func(n int) {
				free := make(chan uint32, 100)
				for id := range uint32(100) {
					free <- id
				}
				failed := make(chan error, 1)
				go func() {
					for got := 0; got < n; {
						r, err := stream.Recv()
						if err != nil {
							failed <- err
							return
						}
						got += len(r.Applied)
						for _, id := range r.Applied {
							free <- id
						}
					}
					failed <- nil
				}()
				req := &gatewaypb.ProposeRequest{}
				for sent := 0; sent < n; {
					req.Proposals = req.Proposals[:0]
					for range min(burst, n-sent) {
						req.Proposals = append(req.Proposals, &gatewaypb.Proposal{Id: <-free, Command: make([]byte, 72)})
					}
					if err := stream.Send(req); err != nil {
						b.Fatal(err)
					}
					sent += len(req.Proposals)
				}
				if err := <-failed; err != nil {
					b.Fatal(err)
				}
			}
			run(10_000)
			b.ReportAllocs()
			b.ResetTimer()
			process := clienttest.CPU(unix.RUSAGE_SELF)
			run(b.N)
			b.ReportMetric(float64(clienttest.CPU(unix.RUSAGE_SELF)-process)/1e3/float64(b.N), "process_cpu_us/op")
		})
	}
}

// BenchmarkClientPoll is a spinning lane's poll while no reply is there: one
// question to the poller. To read from the leader without asking costs nearly
// twice as much when nothing has come, and nothing has come most of the time.
func BenchmarkClientPoll(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := newClosedLoop(b, instant(b), 1)
	defer l.Client.Close()
	b.ReportAllocs()
	thread, n := clienttest.CPU(unix.RUSAGE_THREAD), 0
	for b.Loop() {
		l.Client.Poll()
		n++
	}
	b.ReportMetric(float64(clienttest.CPU(unix.RUSAGE_THREAD)-thread)/float64(n), "thread_cpu_ns/op")
}

// BenchmarkClientEncode is a Submit without a network: the proposal's encoding.
func BenchmarkClientEncode(b *testing.B) {
	command := make([]byte, 72)
	msg := make([]byte, 0, messageMax)
	b.ReportAllocs()
	for id := uint32(0); b.Loop(); id++ {
		if len(msg)+proposalMax(72) > messageMax {
			msg = msg[:0]
		}
		msg = appendProposal(msg, id, command)
	}
}

// BenchmarkClientDecode is what 100 answers in one message cost.
func BenchmarkClientDecode(b *testing.B) {
	var ids []byte
	for id := range uint32(100) {
		ids = append(ids, byte(id))
	}
	msg := append([]byte{0x0a, 100}, ids...)
	var a answers
	b.ReportAllocs()
	for b.Loop() {
		if err := a.decode(msg); err != nil {
			b.Fatal(err)
		}
	}
}
