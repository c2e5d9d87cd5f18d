package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"raftrig/loadgen"
	"raftrig/record"
)

// The commands run in processes of their own: this binary, started anew under
// the name rig-client.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"rig-client": func() { os.Exit(Main(product(), os.Args[1:], os.Stdout, os.Stderr)) },
		// The same with limits that no busy machine breaks: the scripts are
		// about what is printed.
		"rig-lenient": func() {
			args := append([]string{"-max-lag-p50", "1e6", "-max-lag-p99", "1e6", "-max-little", "1e6", "-max-off", "1", "-max-dropped", "1"}, os.Args[1:]...)
			os.Exit(Main(product(), args, os.Stdout, os.Stderr))
		},
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Condition: func(cond string) (bool, error) {
			if cond != "mounts" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			return exec.Command("unshare", "-m", "true").Run() == nil, nil
		},
		Setup: func(e *testscript.Env) error {
			// The lock of a run lies in the temporary folder: one a script.
			e.Setenv("TMPDIR", e.WorkDir)
			return nil
		},
	})
}

// product is a cluster in the client's own process whose faults are flags. It
// answers at the next poll.
func product() loadgen.Product {
	f := &faults{}
	return loadgen.Product{
		Name: "rig",
		Flags: func(fs *flag.FlagSet) {
			fs.IntVar(&f.down, "down", 0, "node that does not answer")
			fs.BoolVar(&f.leaderless, "leaderless", false, "no node leads")
			fs.IntVar(&f.stuck, "stuck", 0, "node that leads and cannot be moved")
			fs.BoolVar(&f.flips, "flips", false, "the term grows with each question")
			fs.BoolVar(&f.forgets, "forgets", false, "node 2 has applied one request less")
			fs.BoolVar(&f.differs, "differs", false, "node 3 has another digest")
			fs.IntVar(&f.applied, "applied", 0, "applied requests")
			fs.BoolVar(&f.mute, "mute", false, "no request is answered")
			fs.BoolVar(&f.breaks, "breaks", false, "the first reply is wrong")
		},
		Open: func(_ context.Context, hosts []string) (loadgen.System, error) {
			f.hosts, f.lead = hosts, 2
			if f.stuck > 0 {
				f.lead = f.stuck
			}
			return f, nil
		},
	}
}

type faults struct {
	down, stuck, applied, lead int
	leaderless, flips          bool
	forgets, differs           bool
	mute, breaks               bool
	hosts                      []string
	term                       uint64
}

func (f *faults) Status(context.Context) []loadgen.NodeStatus {
	if f.flips {
		f.term++
	}
	nodes := make([]loadgen.NodeStatus, len(f.hosts))
	for i := range nodes {
		n := &nodes[i]
		*n = loadgen.NodeStatus{
			Node: i + 1, Addr: f.hosts[i] + ":1", Leads: f.lead == i+1 && !f.leaderless, Leader: f.lead, Term: 7 + f.term,
			Applied: uint64(f.applied), Count: uint64(f.applied), Digest: "d1", Version: "rig 1.0", Log: "nowhere",
		}
		switch {
		case f.down == i+1:
			n.Err = errors.New("node " + f.hosts[i] + " does not answer")
		case f.forgets && i == 1:
			n.Count--
		case f.differs && i == 2:
			n.Digest = "d2"
		}
	}
	return nodes
}

func (f *faults) TransferLeader(_ context.Context, node int) error {
	if f.stuck > 0 {
		return errors.ErrUnsupported
	}
	f.lead = node
	return nil
}

func (f *faults) Close() error { return nil }

func (f *faults) Dial(w loadgen.Wiring) (loadgen.Client, error) {
	return &echo{w: w, mute: f.mute, breaks: f.breaks}, nil
}

// echo answers a request 2 ms after it was sent.
type echo struct {
	w    loadgen.Wiring
	sent []sent

	mute, breaks bool
}

type sent struct {
	id uint32
	at int64
}

const delay = int64(2 * time.Millisecond)

func (c *echo) Ready() bool { return true }
func (c *echo) Submit(id uint32) bool {
	c.sent = append(c.sent, sent{id, c.w.Clock.Now()})
	return true
}
func (c *echo) Flush() error { return nil }
func (c *echo) Poll() (n int) {
	now := c.w.Clock.Now()
	for len(c.sent) > 0 && !c.mute && c.sent[0].at+delay <= now {
		id := c.sent[0].id
		c.sent = c.sent[1:]
		if c.breaks {
			c.w.Event("a wrong reply")
			c.w.Fail(errors.New("the reply to request 7 is of another request"))
		}
		c.w.Complete(id, loadgen.OK, now)
		n++
	}
	return n
}
func (c *echo) Wait(until int64) int {
	if len(c.sent) > 0 && !c.mute {
		until = min(until, c.sent[0].at+delay)
	}
	time.Sleep(time.Duration(until - c.w.Clock.Now()))
	return c.Poll()
}
func (c *echo) Close() error {
	for _, s := range c.sent {
		c.w.Complete(s.id, loadgen.Unknown, c.w.Clock.Now())
	}
	c.sent = nil
	return nil
}

func TestRateFlag(t *testing.T) {
	for s, want := range map[string]int64{
		"1": 1, "5000": 5000, "150k": 150_000, "1.5k": 1500, "2M": 2_000_000, "0.5M": 500_000, "100M": 100_000_000,
	} {
		var r rate
		if err := r.Set(s); err != nil || int64(r) != want {
			t.Errorf("%q = %d, %v, want %d", s, r, err, want)
		}
	}
	for _, s := range []string{"", "0", "-1", "abc", "1.5", "k", "1e9", "0x10", "1/2", "1_000", "101M", "99999999999999999999k", " 1", "NaN", "."} {
		var r rate
		if err := r.Set(s); err == nil {
			t.Errorf("%q was taken, as %d", s, r)
		}
	}
}

func TestDurationFlag(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"10s": 10 * time.Second, "500ms": 500 * time.Millisecond, "10": 10 * time.Second, "0.5": 500 * time.Millisecond, "0": 0,
	} {
		var d duration
		if err := d.Set(s); err != nil || time.Duration(d) != want {
			t.Errorf("%q = %v, %v, want %v", s, time.Duration(d), err, want)
		}
	}
	for _, s := range []string{"", "-1s", "abc", "25h", "1e9", "NaN", "Inf", "-5"} {
		var d duration
		if err := d.Set(s); err == nil {
			t.Errorf("%q was taken, as %v", s, time.Duration(d))
		}
	}
}

func TestDecidePace(t *testing.T) {
	cores := func(n int) []int {
		c := make([]int, n)
		for i := range c {
			c[i] = i
		}
		return c
	}
	for _, x := range []struct {
		want           string
		lanes, cores   int
		servers        int
		busy           float64
		pace           loadgen.Pace
		pinned         int
		reasonContains string
	}{
		{"auto", 1, 2, 3, 0, loadgen.Park, 0, "2 cores for 1 lane, 3 servers here: none to spare"},
		{"auto", 1, 8, 3, 0, loadgen.Spin, 1, "8 cores for 1 lane, 3 servers here"},
		{"auto", 4, 8, 3, 0, loadgen.Spin, 4, ""},
		{"auto", 5, 8, 3, 0, loadgen.Park, 0, ""},
		{"auto", 1, 2, 0, 0, loadgen.Spin, 1, "0 servers here"},
		{"auto", 1, 1, 0, 0, loadgen.Park, 0, "1 core for"},
		{"auto", 1, 8, 0, 7, loadgen.Park, 0, "7.0 of them busy"},
		{"spin", 1, 2, 3, 0, loadgen.Spin, 0, "asked for"},
		{"spin", 1, 8, 0, 0, loadgen.Spin, 1, "asked for"},
		{"park", 1, 64, 0, 0, loadgen.Park, 0, "asked for"},
	} {
		p := decide(x.want, x.lanes, cores(x.cores), x.servers, x.busy)
		if p.pace != x.pace || len(p.cores) != x.pinned || !strings.Contains(p.reason, x.reasonContains) {
			t.Errorf("%+v: %+v", x, p)
		}
	}
}

func TestCPUTicks(t *testing.T) {
	busy, total := cpuTicks("cpu  10 20 30 400 5 6 7 8 9 10\ncpu0 1 1 1 1\n")
	if busy != 10+20+30+6+7 || total != 10+20+30+400+5+6+7+8 {
		t.Errorf("busy %v of %v", busy, total)
	}
	if busy, total := cpuTicks(""); busy != 0 || total != 0 {
		t.Errorf("empty: %v of %v", busy, total)
	}
}

func TestIsLocal(t *testing.T) {
	for host, want := range map[string]bool{"127.0.0.11": true, "localhost": true, "192.0.2.1": false, "": false} {
		if isLocal(host) != want {
			t.Errorf("%q: %v", host, !want)
		}
	}
}

// Check is what verify stands on.
func TestCheck(t *testing.T) {
	node := func(n int, applied, count uint64, digest string) loadgen.NodeStatus {
		return loadgen.NodeStatus{Node: n, Applied: applied, Count: count, Digest: digest}
	}
	run := &record.Run{AckedTotal: 100, AppliedBefore: 50}
	for _, x := range []struct {
		name    string
		nodes   []loadgen.NodeStatus
		settled bool
		want    string
	}{
		{"all there", []loadgen.NodeStatus{node(1, 9, 150, "a"), node(2, 9, 150, "a")}, true, ""},
		{"more than acknowledged", []loadgen.NodeStatus{node(1, 9, 155, "a"), node(2, 9, 155, "a")}, true, ""},
		{"one lost everywhere", []loadgen.NodeStatus{node(1, 9, 149, "a"), node(2, 9, 149, "a")}, true, "100 were acknowledged: 1 are lost"},
		{"one lost on node 2", []loadgen.NodeStatus{node(1, 9, 150, "a"), node(2, 9, 149, "b")}, true, "node 2 has applied 99"},
		{"digests differ", []loadgen.NodeStatus{node(1, 9, 150, "a"), node(2, 9, 150, "b")}, true, "nodes 1 and 2 differ at index 9: digests a and b"},
		{"behind", []loadgen.NodeStatus{node(1, 9, 150, "a"), node(2, 8, 150, "b")}, false, "do not come to one index: node 1 9, node 2 8"},
		{"started anew", []loadgen.NodeStatus{node(1, 9, 40, "a")}, true, "fewer than the 50 before the run"},
	} {
		faults := strings.Join(Check(run, x.nodes, x.settled), "; ")
		if (x.want == "") != (faults == "") || !strings.Contains(faults, x.want) {
			t.Errorf("%s: %q, want %q", x.name, faults, x.want)
		}
	}
}
