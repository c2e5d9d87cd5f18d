package gatewaytest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"raftrig/gateway/gatewaypb"
)

func testAppliesEverywhereAndHandsOver(t *testing.T, p Product) {
	c := NewCluster(t, p)
	c.StartAll()
	leader := c.Leader(Everyone...)
	const n = 10000
	if got := c.Propose(leader, n, 200, 0, nil); got.Applied != n {
		t.Fatalf("of %d on the leader: %+v", n, got)
	}
	st := c.Agreed(n, Everyone...)
	if st.Count != n {
		t.Errorf("count is %d", st.Count)
	}
	if st.Version != c.server.Version() || !strings.HasPrefix(st.Log, p.MemoryLog) {
		t.Errorf("version %q, log %q", st.Version, st.Log)
	}

	follower := Others(leader)[0]
	if got := c.Propose(follower, 50, 10, 0, nil); got.Rejected != 50 {
		t.Errorf("of 50 on a follower: %+v", got)
	}

	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	transfer := func(at, to int) error {
		_, err := gatewaypb.NewGatewayClient(c.conns[at]).TransferLeader(ctx, &gatewaypb.TransferLeaderRequest{To: uint32(to)})
		return err
	}
	err := transfer(follower, follower)
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), fmt.Sprintf("ask node %d", leader)) {
		t.Errorf("transfer at a follower: %v", err)
	}
	if err := transfer(leader, 9); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("transfer to node 9: %v", err)
	}
	if err := transfer(leader, leader); err != nil {
		t.Errorf("transfer to the leader: %v", err)
	}
	if err := transfer(leader, follower); err != nil {
		t.Fatalf("transfer: %v", err)
	}
	if now := c.Leader(Everyone...); now != follower {
		t.Fatalf("node %d leads after a transfer to node %d", now, follower)
	}
	if got := c.Propose(follower, 500, 20, n, nil); got.Applied != 500 {
		t.Errorf("of 500 on the new leader: %+v", got)
	}
	if st := c.Agreed(n+500, Everyone...); st.Count != n+500 {
		t.Errorf("count is %d", st.Count)
	}

	for _, id := range Everyone {
		c.Signal(id, syscall.SIGTERM)
	}
	for _, id := range Everyone {
		if code := c.Exited(id); code != 0 {
			t.Errorf("node %d exited with %d on SIGTERM", id, code)
		}
	}
}

// testLeaderKilled also kills the process that the test has its proposals in:
// what was acknowledged is counted by the others.
func testLeaderKilled(t *testing.T, p Product) {
	c := NewCluster(t, p)
	c.StartAll(p.QuickElections...)
	leader := c.Leader(Everyone...)
	killed := false
	got := c.Propose(leader, 100000, 100, 0, func(e Ends) {
		if e.Applied > 3000 && !killed {
			killed = true
			c.Signal(leader, syscall.SIGKILL)
		}
	})
	if got.Applied < 3000 || got.Unknown == 0 {
		t.Fatalf("%+v", got)
	}
	rest := Others(leader)
	next := c.Leader(rest...)
	if next == leader {
		t.Fatalf("node %d still leads", next)
	}
	st := c.Agreed(uint64(got.Applied), rest...)
	if st.Count > uint64(got.Applied+100) {
		t.Errorf("count %d of %d acknowledged and 100 outstanding", st.Count, got.Applied)
	}
	if more := c.Propose(next, 1000, 50, 1<<40, nil); more.Applied != 1000 {
		t.Errorf("of 1000 on the next leader: %+v", more)
	}
}

// testPausedLeaderKeepsOffice: 500 ms are what a stall measures, and the
// default timeouts bear them.
func testPausedLeaderKeepsOffice(t *testing.T, p Product) {
	c := NewCluster(t, p)
	c.StartAll()
	leader := c.Leader(Everyone...)
	before, err := c.Status(leader)
	if err != nil {
		t.Fatal(err)
	}
	c.Signal(leader, syscall.SIGSTOP)
	time.Sleep(500 * time.Millisecond)
	c.Signal(leader, syscall.SIGCONT)
	if got := c.Propose(leader, 1000, 50, 0, nil); got.Applied != 1000 {
		t.Errorf("%+v", got)
	}
	if after := c.Agreed(1000, Everyone...); after.Term != before.Term {
		t.Errorf("term %d became %d", before.Term, after.Term)
	}
}

// testFollowerComesBackEmpty: a node in memory is brought up to date by a
// snapshot when the leader's log no longer reaches back to its beginning.
func testFollowerComesBackEmpty(t *testing.T, p Product) {
	c := NewCluster(t, p)
	c.StartAll(p.SmallSnapshots...)
	leader := c.Leader(Everyone...)
	gone := Others(leader)[0]
	c.Propose(leader, 5000, 100, 0, nil)
	c.Kill(gone)
	// Past a snapshot that the node had no part in.
	if got := c.Propose(leader, 5000, 100, 1<<40, nil); got.Applied != 5000 {
		t.Fatalf("with one node down: %+v", got)
	}
	c.Start(gone, p.SmallSnapshots)
	st := c.Agreed(10000, Everyone...)
	if st.Count != 10000 {
		t.Errorf("count is %d", st.Count)
	}
	if got := c.Propose(leader, 1000, 100, 1<<41, nil); got.Applied != 1000 {
		t.Errorf("afterwards: %+v", got)
	}
	c.Agreed(11000, Everyone...)
}

// testKilledWithData kills all nodes at once while they write, several times:
// nothing that was acknowledged may be missing.
func testKilledWithData(t *testing.T, p Product) {
	dir := t.TempDir() // before the cluster: removed after its processes are gone
	c := NewCluster(t, p)
	start := func() {
		for _, id := range Everyone {
			data := []string{"-data", filepath.Join(dir, fmt.Sprint(id))}
			c.Start(id, slices.Concat(data, p.QuickElections, p.SmallSnapshots))
		}
	}
	acked, sent := 0, 0
	for round := range 3 {
		start()
		leader := c.Leader(Everyone...)
		st := c.Agreed(uint64(acked), Everyone...)
		if st.Count > uint64(sent) {
			t.Fatalf("count %d of %d that were sent", st.Count, sent)
		}
		if !strings.HasPrefix(st.Log, p.DiskLog) {
			t.Errorf("log %q", st.Log)
		}
		killed := false
		got := c.Propose(leader, 20000, 100, uint64(round)<<40, func(e Ends) {
			if e.Applied > 800 && !killed {
				killed = true
				for _, id := range Everyone {
					c.Signal(id, syscall.SIGKILL)
				}
			}
		})
		if got.Applied < 800 {
			t.Fatalf("round %d: %+v", round, got)
		}
		acked += got.Applied
		sent += got.Applied + 100 // at most that many were outstanding
		for _, id := range Everyone {
			c.Exited(id)
		}
	}
	start()
	c.Leader(Everyone...)
	if st := c.Agreed(uint64(acked), Everyone...); st.Count > uint64(sent) {
		t.Errorf("count %d of %d that were sent", st.Count, sent)
	}
}

func testRefusesToStart(t *testing.T, p Product) {
	c := NewCluster(t, p)
	l, err := net.Listen("tcp", net.JoinHostPort(c.hosts[1], strconv.Itoa(c.server.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l2, err := net.Listen("tcp", net.JoinHostPort(c.hosts[2], strconv.Itoa(c.server.RaftPort)))
	if err != nil {
		t.Fatal(err)
	}
	defer l2.Close()
	notDir := filepath.Join(t.TempDir(), "file")
	os.WriteFile(notDir, nil, 0o600)
	type refused struct {
		args []string
		code int
		want string
	}
	cases := map[string]refused{
		"gateway port in use": {c.Args(1), 1, "listen " + l.Addr().String() + ": address already in use: stop what uses it, or choose another -port"},
		"raft port in use":    {c.Args(2), 1, "listen " + l2.Addr().String() + ": address already in use: stop what uses it, or choose another -raft-port"},
		"not our address":     {[]string{"-id", "1", "-addr", "192.0.2.1", "-peers", "1=192.0.2.1"}, 1, "not an address of this host"},
		"data is a file":      {c.Args(3, "-data", notDir), 1, "data directory " + notDir},
		"unknown flag":        {c.Args(3, "-fsync"), 2, "-fsync"},
	}
	for _, f := range p.Refused {
		cases[f[0]+" "+f[1]] = refused{c.Args(3, f[0], f[1]), 2, f[0]}
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			text, code := c.Run(tc.args)
			if code != tc.code {
				t.Errorf("exit status %d, want %d", code, tc.code)
			}
			if !strings.HasPrefix(text, c.server.Name+"-server: ") || strings.Count(text, "\n") != 1 || !strings.Contains(text, tc.want) {
				t.Errorf("said %q, want one line with %q", text, tc.want)
			}
		})
	}
}

func testDataOfAnother(t *testing.T, p Product) {
	dir := t.TempDir() // before the cluster: removed after its processes are gone
	c := NewCluster(t, p)
	c.Start(1, []string{"-data", dir})
	if text, _ := c.Run(c.Args(2, "-data", dir)); !strings.Contains(text, "in use by another process") || strings.Count(text, "\n") != 1 {
		t.Errorf("said %q", text)
	}
	c.Signal(1, syscall.SIGTERM)
	c.Exited(1)
	otherCluster := NewCluster(t, p)
	for name, args := range map[string][]string{
		"another node":    c.Args(2, "-data", dir),
		"another cluster": otherCluster.Args(1, "-data", dir),
	} {
		text, code := c.Run(args)
		if code != 1 || !strings.Contains(text, "belongs to node 1 of 1="+c.hosts[1]) || strings.Count(text, "\n") != 1 {
			t.Errorf("%s: said %q", name, text)
		}
	}
}
