// Package clustertest runs a product's real servers on this host for its tests,
// and holds the tests that every product whose servers are not written in Go
// has to pass with its client. (Those in Go have gateway/gatewaytest, which can
// look inside a node.)
//
//	func TestProduct(t *testing.T) {
//		clustertest.Build(t, "openraft")
//		clustertest.Run(t, clustertest.Product{...})
//	}
package clustertest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/fleet"
	"raftrig/loadgen"
	"raftrig/loadgen/cli"
	"raftrig/loadgen/conformance"
)

// Nodes is how many a cluster has; they count from 1.
const Nodes = 3

// patience is far more than anything here takes; tests wait for events.
const patience = 90 * time.Second

// Product says what a test has to know of a product.
type Product struct {
	// Client makes the product as its client program does, anew for each use.
	Client func() loadgen.Product
	// Argv starts a server, with the placeholders of fleet.Command. The nodes'
	// addresses are their cluster's own, so ports may be fixed.
	Argv []string
	// Flags are the client's, beside -hosts.
	Flags []string
	// QuickElections are more arguments of the server, with which a follower
	// stands for election within a second or so of its leader's end.
	QuickElections []string
	// Form makes a cluster of nodes that have been started, where that is a
	// step of its own, and again after a node has been started anew. It may be
	// nil.
	Form func(*Cluster)
	// Conformance is given on to the suite; the hooks are set here.
	Conformance conformance.Target
}

// Build makes the product's server as make does, or skips the test when the
// product's Makefile says what this host lacks for it. The test runs in the
// product's folder.
func Build(tb testing.TB, product string) {
	tb.Helper()
	for _, target := range []string{"missing", "server"} {
		cmd := exec.Command("make", "--no-print-directory", "-s", "-C", "../"+product, target)
		out, err := cmd.CombinedOutput()
		if err != nil {
			tb.Fatalf("make -C %s %s: %v: %s", product, target, err, out)
		}
		if why := strings.TrimSpace(string(out)); target == "missing" && why != "" {
			tb.Skip(why)
		}
	}
}

// Bin is the path of a program or jar below bin/, for a test that runs in a
// product's folder.
func Bin(tb testing.TB, name string) string {
	tb.Helper()
	path, err := filepath.Abs(filepath.Join("..", "bin", name))
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Cluster is three server processes on loopback addresses of their own. What it
// waits for and does not get fails the test.
type Cluster struct {
	TB    testing.TB
	Sys   loadgen.System
	Hosts []string

	product Product
	local   fleet.Local
}

// Start starts a cluster with more arguments for its servers, and returns when
// it has a leader. It ends with the test.
func Start(tb testing.TB, p Product, args ...string) *Cluster {
	tb.Helper()
	c := New(tb, p, args...)
	if err := c.local.StartAll(); err != nil {
		tb.Fatal(err)
	}
	c.form()
	c.Leader()
	return c
}

// New is Start without the start: no node runs.
func New(tb testing.TB, p Product, args ...string) *Cluster {
	tb.Helper()
	c := &Cluster{TB: tb, product: p}
	prefix := fmt.Sprintf("127.%d.%d", 1+rand.IntN(250), rand.IntN(256))
	for id := 1; id <= Nodes; id++ {
		c.Hosts = append(c.Hosts, fmt.Sprintf("%s.%d", prefix, 10+id))
	}
	c.local = fleet.Local{Dir: tb.TempDir(), Hosts: c.Hosts, Argv: append(append([]string{}, p.Argv...), args...)}
	tb.Cleanup(func() {
		if err := c.local.StopAll(); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			for id := 1; id <= Nodes; id++ {
				if text, err := c.local.Log(id, 50); err == nil {
					tb.Logf("node %d said:\n%s", id, text)
				}
			}
		}
	})
	c.Sys = c.open()
	return c
}

// open the cluster as the client program does, flags included.
func (c *Cluster) open() loadgen.System {
	c.TB.Helper()
	p := c.product.Client()
	if err := parse(p, c.product.Flags); err != nil {
		c.TB.Fatal(err)
	}
	sys, err := p.Open(context.Background(), c.Hosts)
	if err != nil {
		c.TB.Fatal(err)
	}
	c.TB.Cleanup(func() { sys.Close() })
	return sys
}

func (c *Cluster) form() {
	c.TB.Helper()
	if c.product.Form != nil {
		c.product.Form(c)
	}
}

// StartNode starts node id, and forms the cluster again where the product wants
// that.
func (c *Cluster) StartNode(id int) {
	c.TB.Helper()
	if err := c.local.Start(id); err != nil {
		c.TB.Fatal(err)
	}
	c.form()
}

// Kill ends node id by SIGKILL.
func (c *Cluster) Kill(id int) {
	c.TB.Helper()
	if err := c.local.Kill(id); err != nil {
		c.TB.Fatal(err)
	}
}

// Signal sends sig to node id.
func (c *Cluster) Signal(id int, sig unix.Signal) {
	c.TB.Helper()
	if err := c.local.Signal(id, sig); err != nil {
		c.TB.Fatal(err)
	}
}

// Log is what node id has said.
func (c *Cluster) Log(id int) string {
	c.TB.Helper()
	text, err := c.local.Log(id, -1)
	if err != nil {
		c.TB.Fatal(err)
	}
	return string(text)
}

// Until calls f every few milliseconds until it says "".
func (c *Cluster) Until(what string, f func() string) {
	c.TB.Helper()
	deadline := time.Now().Add(patience)
	for {
		why := f()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			c.TB.Fatalf("waited in vain for %s: %s", what, why)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Status asks all nodes.
func (c *Cluster) Status() []loadgen.NodeStatus {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return c.Sys.Status(ctx)
}

// Leader waits until the nodes that answer, a majority, agree on a leader that
// says so itself.
func (c *Cluster) Leader() (leader int) {
	c.TB.Helper()
	c.Until("a leader", func() string {
		leader = 0
		answers := 0
		for _, n := range c.Status() {
			if n.Err != nil {
				continue
			}
			answers++
			if n.Leader == 0 || leader != 0 && n.Leader != leader || n.Leads != (n.Leader == n.Node) {
				return fmt.Sprintf("%+v", n)
			}
			leader = n.Leader
		}
		if answers < Nodes/2+1 {
			return fmt.Sprintf("%d nodes answer", answers)
		}
		if st := c.Status()[leader-1]; st.Err != nil || !st.Leads {
			return fmt.Sprintf("node %d is said to lead: %+v", leader, st)
		}
		return ""
	})
	return leader
}

// Agreed waits until all nodes answer, have a leader and the same state, and
// returns it.
func (c *Cluster) Agreed() (first loadgen.NodeStatus) {
	c.TB.Helper()
	c.Until("agreement", func() string {
		all := c.Status()
		first = all[0]
		for _, n := range all {
			if n.Err != nil {
				return n.Err.Error()
			}
			if n.Leader == 0 || n.Leader != first.Leader || n.Applied != first.Applied || n.Count != first.Count || n.Digest != first.Digest {
				return fmt.Sprintf("%+v and %+v", first, n)
			}
		}
		return ""
	})
	return first
}

// Client runs the product's client program in this process. A run takes its
// lock below TMPDIR, which a test sets to a folder of its own.
func (c *Cluster) Client(verb string, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	all := append([]string{"-hosts", strings.Join(c.Hosts, ",")}, c.product.Flags...)
	if verb != "" {
		all = append([]string{verb}, all...)
	}
	status = cli.Main(c.product.Client(), append(all, args...), &out, &errs)
	return status, out.String(), errs.String()
}

// Target is the cluster as the conformance suite takes it.
func (c *Cluster) Target() conformance.Target {
	t := c.product.Conformance
	t.Dial = c.Sys.Dial
	t.Stall = func(testing.TB) func() {
		l := c.Leader()
		c.Signal(l, unix.SIGSTOP)
		return func() { c.Signal(l, unix.SIGCONT) }
	}
	t.KillLeader = func(testing.TB) func() {
		l := c.Leader()
		c.Kill(l)
		return func() { c.StartNode(l) }
	}
	t.Heal = func(testing.TB) { c.Agreed() }
	t.Applied = func(testing.TB) uint64 { return c.Agreed().Count }
	return t
}

// ownTemp gives a test a TMPDIR of its own, where the lock of a run lies.
func ownTemp(t *testing.T) {
	dir, err := os.MkdirTemp("", "raftrig-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
}
