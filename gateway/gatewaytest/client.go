package gatewaytest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"raftrig/gateway/gatewaypb"
	"raftrig/loadgen"
	"raftrig/loadgen/conformance"
	"raftrig/record"
)

// The client that measures the product, on the cluster that it measures.
func testConformance(t *testing.T, p Product) {
	c := NewCluster(t, p)
	c.StartAll()
	c.Leader(Everyone...)
	sys := c.System()
	conformance.Run(t, conformance.Target{
		Dial: sys.Dial,
		Stall: func(testing.TB) func() {
			l := c.Leader(Everyone...)
			c.Signal(l, syscall.SIGSTOP)
			return func() { c.Signal(l, syscall.SIGCONT) }
		},
		KillLeader: func(testing.TB) func() {
			l := c.Leader(Everyone...)
			c.Kill(l)
			return func() { c.Start(l, nil) }
		},
		Heal:    func(testing.TB) { c.Leader(Everyone...) },
		Applied: func(testing.TB) uint64 { return c.Agreed(0, Everyone...).Count },
	})
}

const invalid = 3 // a verdict may well be INVALID on a busy machine

// Runs of both modes, then verify: what was acknowledged is there.
func testRunAndVerify(t *testing.T, p Product) {
	t.Setenv("TMPDIR", t.TempDir()) // where the lock of a run lies
	out := t.TempDir()
	c := NewCluster(t, p)
	c.StartAll()
	c.Leader(Everyone...)
	for _, args := range [][]string{
		{"-mode", "closed", "-threads", "20"},
		{"-mode", "open", "-rate", "2k", "-burst", "5", "-lanes", "2", "-size", "1000"},
	} {
		status, stdout, stderr := c.Client("", append(args, "-out", out, "-pace", "park", "-warmup", "200ms", "-measure", "1s", "-leader", "2")...)
		if status != 0 && status != invalid {
			t.Fatalf("exit status %d: %s%s", status, stdout, stderr)
		}
		if !strings.Contains(stdout, "leader node 2 term ") || !strings.Contains(stdout, "log "+p.MemoryLog) {
			t.Errorf("summary: %s", stdout)
		}
		status, stdout, stderr = c.Client("verify", "-out", out)
		if status != 0 || !strings.Contains(stdout, "verify: OK: ") {
			t.Errorf("verify: exit status %d: %s%s", status, stdout, stderr)
		}
	}
	records, _ := filepath.Glob(filepath.Join(out, "*.json"))
	if len(records) != 2 {
		t.Fatalf("records: %v", records)
	}
	for _, name := range records {
		r, err := record.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		if !r.Measured.Balanced() || r.Measured.OK == 0 || r.Cluster.LeaderAfter != 2 || r.Rig.Violations != 0 {
			t.Errorf("%s: %+v %+v %+v", name, r.Measured, r.Cluster, r.Rig)
		}
	}
}

// A state machine that forgets one request of a thousand runs is found.
func testVerifyFindsAForgottenRequest(t *testing.T, p Product) {
	t.Setenv("TMPDIR", t.TempDir())
	out := t.TempDir()
	c := NewCluster(t, p)
	c.Start(1, nil)
	c.Start(2, nil)
	c.Start(3, nil, forgetEnv+"=100")
	c.Leader(Everyone...)
	status, stdout, stderr := c.Client("", "-threads", "10", "-out", out, "-pace", "park", "-warmup", "0", "-measure", "1s")
	if status != 0 && status != invalid {
		t.Fatalf("exit status %d: %s%s", status, stdout, stderr)
	}
	status, stdout, stderr = c.Client("verify", "-out", out, "-wait", "5s")
	if status != 1 || !strings.Contains(stderr, "node 3 has applied ") || !strings.Contains(stderr, ": 1 are lost") {
		t.Errorf("verify: exit status %d, want 1 and the loss on node 3: %s%s", status, stdout, stderr)
	}
	if !strings.Contains(stderr, "nodes 1 and 3 differ at index ") {
		t.Errorf("verify does not tell that the digests differ: %s", stderr)
	}
}

// The leader killed in mid-run: the run goes on to its end, says so, and
// nothing acknowledged is lost.
func testLeaderKilledInMidRun(t *testing.T, p Product) {
	t.Setenv("TMPDIR", t.TempDir())
	out := t.TempDir()
	c := NewCluster(t, p)
	c.StartAll(p.QuickElections...)
	c.Leader(Everyone...)
	before, err := c.Status(1)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// As soon as the run's own requests are applied.
		for deadline := time.Now().Add(Patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if st, err := c.Status(1); err == nil && st.Role == gatewaypb.Role_ROLE_LEADER && st.Count > before.Count+100 {
				c.Kill(1)
				return
			}
		}
	}()
	status, stdout, stderr := c.Client("", "-mode", "open", "-rate", "500", "-out", out, "-pace", "park", "-warmup", "0", "-measure", "4s")
	<-done
	if status != invalid {
		t.Fatalf("exit status %d, want %d: %s%s", status, invalid, stdout, stderr)
	}
	for _, want := range []string{"verdict: INVALID", "  leader: the leader changed in the measured window: node 1 "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("summary without %q: %s", want, stdout)
		}
	}
	c.Start(1, nil)
	status, stdout, stderr = c.Client("verify", "-out", out, "-wait", "30s")
	if status != 0 {
		t.Errorf("verify: exit status %d: %s%s", status, stdout, stderr)
	}
}

// A node that does not answer is named before the run begins.
func testNodeDown(t *testing.T, p Product) {
	t.Setenv("TMPDIR", t.TempDir())
	c := NewCluster(t, p)
	c.Start(1, p.QuickElections)
	c.Start(2, p.QuickElections)
	c.Leader(1, 2)
	status, _, stderr := c.Client("", "-out", t.TempDir())
	if status != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, fmt.Sprintf("node 3 at %s:%d: ", c.hosts[3], c.server.Port)) || !strings.Contains(stderr, "connection refused") {
		t.Errorf("exit status %d: %s", status, stderr)
	}
	dir := filepath.Join(t.TempDir(), "none")
	if status, _, _ := c.Client("", "-mode", "open", "-rate", "0", "-out", dir); status != 2 {
		t.Errorf("exit status %d for -rate 0, want 2", status)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("wrong usage has made a folder")
	}
}

// The leadership goes round under load: the client follows, nothing fails for
// having come to the wrong node, and nothing is lost.
func testClientFollowsTransfers(t *testing.T, p Product) {
	c := NewCluster(t, p)
	c.StartAll()
	lane := c.newLane(50)
	sys := c.System()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for round := range 9 {
			to := 1 + round%Nodes
			c.transfer(sys, to)
		}
	}()
	for over := false; !over; {
		lane.closedLoop(500)
		select {
		case <-done:
			over = true
		default:
		}
	}
	ok, failed, unknown := lane.ends[loadgen.OK], lane.ends[loadgen.Failed], lane.ends[loadgen.Unknown]
	if failed > 0 {
		t.Errorf("%d ok, %d failed, %d unknown", ok, failed, unknown)
	}
	if st := c.Agreed(uint64(ok), Everyone...); st.Count > uint64(ok+unknown) {
		t.Errorf("count %d of %d acknowledged and %d unknown", st.Count, ok, unknown)
	}
}

// transfer makes node to lead. A transfer may fail, and another node be elected.
func (c *Cluster) transfer(sys loadgen.System, to int) {
	deadline := time.Now().Add(Patience)
	for time.Now().Before(deadline) {
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		err := sys.TransferLeader(ctx, to)
		cancel()
		if err == nil {
			return
		}
		c.tb.Log(err)
		time.Sleep(5 * time.Millisecond)
	}
	c.tb.Errorf("node %d does not get to lead", to)
}
