package clustertest

import (
	"flag"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/loadgen"
	"raftrig/loadgen/conformance"
	"raftrig/record"
)

const (
	failure = 1
	invalid = 3 // a verdict may well be INVALID on a busy machine
)

// Run runs all tests.
func Run(t *testing.T, p Product) {
	for _, test := range []struct {
		name string
		f    func(*testing.T, Product)
	}{
		{"Conformance", testConformance},
		{"RunAndVerify", testRunAndVerify},
		{"StallInMidRun", testStallInMidRun},
		{"LeaderKilledInMidRun", testLeaderKilledInMidRun},
		{"NodeDown", testNodeDown},
		{"NobodyAnswers", testNobodyAnswers},
	} {
		t.Run(test.name, func(t *testing.T) { test.f(t, p) })
	}
}

func parse(p loadgen.Product, args []string) error {
	f := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	if p.Flags != nil {
		p.Flags(f)
	}
	return f.Parse(args)
}

// The client that measures the product, on the cluster that it measures.
func testConformance(t *testing.T, p Product) {
	conformance.Run(t, Start(t, p, p.QuickElections...).Target())
}

// run one load and return its record.
func run(t *testing.T, c *Cluster, want []int, args ...string) (*record.Run, string) {
	t.Helper()
	out := t.TempDir()
	status, stdout, stderr := c.Client("", append([]string{"-out", out, "-pace", "park", "-leader", "0"}, args...)...)
	ok := false
	for _, w := range want {
		ok = ok || status == w
	}
	if !ok {
		t.Fatalf("exit status %d, want %v: %s%s", status, want, stdout, stderr)
	}
	records, err := filepath.Glob(filepath.Join(out, "*.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records: %v, %v: %s%s", records, err, stdout, stderr)
	}
	r, err := record.Read(records[0])
	if err != nil {
		t.Fatal(err)
	}
	if !r.Measured.Balanced() || r.Rig.Violations != 0 {
		t.Errorf("%+v %+v", r.Measured, r.Rig)
	}
	status, verified, stderr := c.Client("verify", "-record", records[0], "-wait", "60s")
	if status != 0 || !strings.Contains(verified, "verify: OK: ") {
		t.Errorf("verify: exit status %d: %s%s", status, verified, stderr)
	}
	return r, stdout
}

// Runs of both modes, then verify: what was acknowledged is there.
func testRunAndVerify(t *testing.T, p Product) {
	ownTemp(t)
	c := Start(t, p)
	for _, args := range [][]string{
		{"-mode", "closed", "-threads", "20"},
		{"-mode", "open", "-rate", "2k", "-burst", "5", "-lanes", "2"},
	} {
		r, stdout := run(t, c, []int{0, invalid}, append(args, "-warmup", "200ms", "-measure", "1s")...)
		if r.Measured.OK == 0 || r.Measured.Failed > 0 {
			t.Errorf("%v: %+v", args, r.Measured)
		}
		if !strings.Contains(stdout, "leader node ") || r.Cluster.Log == "" || r.Cluster.Nodes[0].Version == "" {
			t.Errorf("%v: %+v: %s", args, r.Cluster, stdout)
		}
	}
}

// during calls f once, off the run's goroutine, when the cluster has applied
// some of the run's requests; wait for it before the test ends.
func during(c *Cluster, f func(leader int)) (wait func()) {
	leader := c.Leader()
	before := c.Status()[leader-1].Count
	done := make(chan struct{})
	var cancelled atomic.Bool
	go func() {
		defer close(done)
		for deadline := time.Now().Add(patience); time.Now().Before(deadline) && !cancelled.Load(); time.Sleep(5 * time.Millisecond) {
			if n := c.Status()[leader-1]; n.Err == nil && n.Count > before+100 {
				f(leader)
				return
			}
		}
	}()
	return func() {
		cancelled.Store(true)
		<-done
	}
}

// The leader stands still for half a second. Open mode goes on by the clock and
// its latency covers the stall.
func testStallInMidRun(t *testing.T, p Product) {
	ownTemp(t)
	c := Start(t, p)
	const stall = 500 * time.Millisecond
	var stalled atomic.Bool
	wait := during(c, func(leader int) {
		c.Signal(leader, unix.SIGSTOP)
		time.Sleep(stall) // the fault itself, nothing is waited for
		c.Signal(leader, unix.SIGCONT)
		stalled.Store(true)
	})
	r, _ := run(t, c, []int{0, invalid}, "-mode", "open", "-rate", "500", "-warmup", "0", "-measure", "3s")
	wait()
	if !stalled.Load() {
		t.Fatal("the leader was not stalled: the run ended before it had applied 100 requests")
	}
	if max, _ := r.Latency.At(100); max.US < float64(stall.Microseconds())*0.9 {
		t.Errorf("latency max %v us does not cover a stall of %v", max.US, stall)
	}
	if want := int64(1500); r.Measured.Offered != want {
		t.Errorf("offered %d, want %d", r.Measured.Offered, want)
	}
}

// The leader killed in mid-run: the run goes on to its end, says so, and
// nothing acknowledged is lost.
func testLeaderKilledInMidRun(t *testing.T, p Product) {
	ownTemp(t)
	c := Start(t, p, p.QuickElections...)
	killed := make(chan int, 1)
	wait := during(c, func(leader int) {
		c.Kill(leader)
		killed <- leader
		c.Leader()
		c.StartNode(leader)
	})
	r, stdout := run(t, c, []int{invalid}, "-mode", "open", "-rate", "500", "-warmup", "0", "-measure", "6s")
	wait()
	select {
	case <-killed:
	default:
		t.Fatal("the leader was not killed: the run ended before it had applied 100 requests")
	}
	if r.Cluster.LeaderAfter == r.Cluster.LeaderBefore && r.Cluster.TermAfter == r.Cluster.TermBefore {
		t.Errorf("%+v", r.Cluster)
	}
	if !strings.Contains(stdout, "  leader: the leader changed in the measured window: ") {
		t.Errorf("summary: %s", stdout)
	}
	if r.Silence.S == 0 || len(r.Events) == 0 {
		t.Errorf("silence %+v, events %+v", r.Silence, r.Events)
	}
}

// A node that is down is named before the run, which DEGRADED allows.
func testNodeDown(t *testing.T, p Product) {
	ownTemp(t)
	c := Start(t, p)
	down := c.Leader()%Nodes + 1
	c.Kill(down)
	status, stdout, stderr := c.Client("", "-out", t.TempDir())
	if status != failure || !strings.Contains(stderr, "DEGRADED=1") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit status %d: %s%s", status, stdout, stderr)
	}
	status, stdout, stderr = c.Client("", "-out", t.TempDir(), "-degraded", "-leader", "0", "-pace", "park", "-warmup", "0", "-measure", "500ms", "-threads", "5")
	if status != 0 && status != invalid {
		t.Errorf("exit status %d: %s%s", status, stdout, stderr)
	}
}

// Without a server the client says so in a line, for every verb.
func testNobodyAnswers(t *testing.T, p Product) {
	ownTemp(t)
	c := New(t, p)
	for _, verb := range []string{"", "leader", "transfer"} {
		args := map[string][]string{"": {"-out", t.TempDir()}, "leader": {"-wait", "0s"}, "transfer": {"-to", "1"}}[verb]
		status, stdout, stderr := c.Client(verb, args...)
		if status != failure || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit status %d: %s%s", verb, status, stdout, stderr)
		}
	}
}
