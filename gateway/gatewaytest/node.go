package gatewaytest

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"raftrig/gateway"
	"raftrig/gateway/kv"
	"raftrig/gateway/serve"
)

// InProcess starts three nodes in this process, without gateways, with flags of
// the product's own, and returns them and the number of the leader: node i is
// nodes[i-1].
func InProcess(tb testing.TB, p Product, flags ...string) (nodes []serve.Node, leader int) {
	tb.Helper()
	c := NewCluster(tb, p)
	peers := make(map[int]string)
	for _, id := range Everyone {
		peers[id] = net.JoinHostPort(c.hosts[id], strconv.Itoa(c.server.RaftPort))
	}
	for _, id := range Everyone {
		server := p.Server()
		fs := flag.NewFlagSet(server.Name, flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		if server.Flags != nil {
			server.Flags(fs)
		}
		if err := fs.Parse(flags); err != nil {
			tb.Fatal(err)
		}
		if server.Check != nil {
			if err := server.Check(); err != nil {
				tb.Fatal(err)
			}
		}
		n, err := server.Start(serve.Config{ID: id, Peers: peers, State: kv.New(), LogOutput: tb.Output()})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { n.Close() })
		nodes = append(nodes, n)
	}
	c.Until("a leader", func() string {
		leader = leads(nodes)
		if leader == 0 {
			return "none"
		}
		return ""
	})
	return nodes, leader
}

// leads is the node that says it leads, at the highest term if several do.
func leads(nodes []serve.Node) (leader int) {
	var term uint64
	for _, n := range nodes {
		if st, err := n.Status(); err == nil && st.Role == gateway.Leader && st.Leader == st.Node && st.Term >= term {
			leader, term = st.Node, st.Term
		}
	}
	return leader
}

// sink collects ends.
type sink struct {
	ends chan end
}

type end struct {
	id  uint32
	end gateway.End
	err error
}

func newSink() *sink { return &sink{make(chan end, 1<<17)} }

// Done implements gateway.Sink.
func (s *sink) Done(id uint32, e gateway.End, err error) { s.ends <- end{id, e, err} }

func (s *sink) next(t *testing.T) end {
	t.Helper()
	select {
	case e := <-s.ends:
		return e
	case <-time.After(Patience):
		t.Fatal("an end is missing")
		return end{}
	}
}

// propose hands n proposals to node in a batch that it may not keep.
func (s *sink) propose(node serve.Node, n int) {
	batch := make([]gateway.Proposal, n)
	for i := range batch {
		batch[i] = gateway.Proposal{ID: uint32(i), Command: kv.Append(nil, uint64(i), []byte("v"))}
	}
	node.Propose(batch, s)
	for i := range batch {
		batch[i] = gateway.Proposal{ID: 1 << 31}
	}
}

// testEndsWhenLeadershipIsLost closes the followers so that the leader, alone,
// gives up: each proposal ends Uncertain, and later ones Rejected.
func testEndsWhenLeadershipIsLost(t *testing.T, p Product) {
	nodes, id := InProcess(t, p, p.QuickElections...)
	leader := nodes[id-1]
	s := newSink()
	const n = 3000
	s.propose(leader, n)
	for range n {
		if e := s.next(t); e.end != gateway.Applied {
			t.Fatalf("%+v", e)
		}
	}
	for _, other := range Others(id) {
		nodes[other-1].Close()
	}
	s.propose(leader, n)
	seen := make(map[uint32]bool)
	for range n {
		e := s.next(t)
		if e.end != gateway.Uncertain || e.err == nil || seen[e.id] {
			t.Fatalf("%+v, before it: %v", e, seen[e.id])
		}
		seen[e.id] = true
	}
	s.propose(leader, 2)
	for range 2 {
		if e := s.next(t); e.end != gateway.Rejected {
			t.Fatalf("%+v", e)
		}
	}
	if l := leader.Leadership(); l.Leader != 0 {
		t.Errorf("leadership %+v", l)
	}
}

// testTellsOfLeadership asks nodes only when they tell that there is news.
func testTellsOfLeadership(t *testing.T, p Product) {
	nodes, at := InProcess(t, p)
	limit := time.After(Patience)
	until := func(id int, ok func(gateway.Leadership) bool) {
		t.Helper()
		for !ok(nodes[id-1].Leadership()) {
			select {
			case <-nodes[id-1].LeadershipChanged():
			case <-limit:
				t.Fatalf("node %d tells of nothing: %+v", id, nodes[id-1].Leadership())
			}
		}
	}
	leads := func(leader int) func(gateway.Leadership) bool {
		return func(l gateway.Leadership) bool { return l.Leader == leader }
	}
	for _, id := range Everyone {
		until(id, leads(at))
	}
	to := Others(at)[0]
	failed := make(chan error, 1)
	go func() { failed <- nodes[at-1].TransferLeader(context.Background(), to) }()
	for _, id := range Everyone {
		until(id, leads(to))
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
	// Without a quorum the leader gives up.
	for _, id := range Others(to) {
		nodes[id-1].Close()
	}
	until(to, leads(0))
}

func testCloseEndsWhatIsOnItsWay(t *testing.T, p Product) {
	nodes, id := InProcess(t, p)
	leader := nodes[id-1]
	s := newSink()
	const n = 5000
	s.propose(leader, n)
	if err := leader.Close(); err != nil {
		t.Error(err)
	}
	for range n {
		select {
		case e := <-s.ends:
			if e.end != gateway.Applied {
				t.Fatalf("%+v", e)
			}
		default:
			t.Fatal("an end is missing after Close")
		}
	}
	s.propose(leader, 1)
	if e := s.next(t); e.end != gateway.Rejected {
		t.Errorf("%+v", e)
	}
	if _, err := leader.Status(); err == nil {
		t.Error("Status of a closed node")
	}
	if err := leader.TransferLeader(context.Background(), Others(id)[0]); err == nil {
		t.Error("a closed node handed over")
	}
	if err := leader.Close(); err != nil {
		t.Error(err)
	}
}

// testTransferUnderLoad: each proposal ends exactly once and what was applied
// is what all nodes count, whichever way it ended.
func testTransferUnderLoad(t *testing.T, p Product) {
	nodes, at := InProcess(t, p)
	s := newSink()
	total, stop := 0, make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for total+Nodes*50 <= cap(s.ends) {
			select {
			case <-stop:
				return
			default:
			}
			for _, n := range nodes {
				s.propose(n, 50)
				total += 50
			}
			time.Sleep(time.Millisecond)
		}
	}()
	for range 6 {
		to := at%Nodes + 1
		// A transfer may fail, and another node be elected.
		for deadline := time.Now().Add(Patience); leads(nodes) != to; {
			if time.Now().After(deadline) {
				t.Fatalf("node %d does not get to lead", to)
			}
			if from := leads(nodes); from == 0 {
				time.Sleep(time.Millisecond)
			} else if err := nodes[from-1].TransferLeader(context.Background(), to); err != nil {
				t.Logf("transfer: %v", err)
			}
		}
		at = to
	}
	close(stop)
	<-done
	applied, uncertain := 0, 0
	for range total {
		switch s.next(t).end {
		case gateway.Applied:
			applied++
		case gateway.Uncertain:
			uncertain++
		}
	}
	if applied == 0 {
		t.Error("nothing was applied")
	}
	deadline := time.Now().Add(Patience)
	for {
		a, errA := nodes[0].Status()
		b, errB := nodes[1].Status()
		c, errC := nodes[2].Status()
		if err := errors.Join(errA, errB, errC); err != nil {
			t.Fatal(err)
		}
		if a.Digest == b.Digest && b.Digest == c.Digest && a.Count >= uint64(applied) {
			if a.Count > uint64(applied+uncertain) {
				t.Errorf("count %d, %d ended Applied and %d Uncertain", a.Count, applied, uncertain)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d applied, nodes disagree: %+v %+v %+v", applied, a, b, c)
		}
		time.Sleep(10 * time.Millisecond)
	}
	select {
	case e := <-s.ends:
		t.Errorf("one end too many: %+v", e)
	default:
	}
}
