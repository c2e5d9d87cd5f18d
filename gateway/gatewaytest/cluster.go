package gatewaytest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"raftrig/gateway"
	"raftrig/gateway/gatewaypb"
	"raftrig/gateway/kv"
	"raftrig/gateway/serve"
	"raftrig/loadgen"
	"raftrig/loadgen/cli"
)

const (
	// Nodes is how many a cluster has; they count from 1.
	Nodes = 3
	// Patience is far more than anything here takes; tests wait for events.
	Patience = 60 * time.Second
)

// Everyone is all nodes.
var Everyone = []int{1, 2, 3}

// Others is all nodes but id.
func Others(id int) (ids []int) {
	for _, n := range Everyone {
		if n != id {
			ids = append(ids, n)
		}
	}
	return ids
}

// Cluster is three server processes on loopback addresses of their own. What it
// waits for and does not get fails the test.
type Cluster struct {
	tb     testing.TB
	server serve.Product
	hosts  [Nodes + 1]string // by node; 0 is not used
	procs  [Nodes + 1]*process
	conns  [Nodes + 1]*grpc.ClientConn
}

type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	ready  chan struct{} // closed with the first line on stdout
	exited chan struct{}
	mu     sync.Mutex
	output bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.output.Write(b)
	if bytes.Contains(p.output.Bytes(), []byte(" ready on ")) {
		select {
		case <-p.ready:
		default:
			close(p.ready)
		}
	}
	return n, err
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// NewCluster picks addresses; Start starts nodes on them. Whatever the nodes
// are given to write to must have been made before, so that it is removed after
// their end.
func NewCluster(tb testing.TB, p Product) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, server: p.Server()}
	prefix := fmt.Sprintf("127.%d.%d", 1+rand.IntN(250), rand.IntN(256))
	for id := 1; id <= Nodes; id++ {
		c.hosts[id] = fmt.Sprintf("%s.%d", prefix, 10+id)
		conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///%s:%d", c.hosts[id], c.server.Port),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			tb.Fatal(err)
		}
		c.conns[id] = conn
	}
	tb.Cleanup(func() {
		for id := 1; id <= Nodes; id++ {
			c.conns[id].Close()
			c.Kill(id)
		}
		if tb.Failed() {
			for id := 1; id <= Nodes; id++ {
				if c.procs[id] != nil {
					tb.Logf("node %d said:\n%s", id, c.procs[id].text())
				}
			}
		}
	})
	return c
}

// Args are the arguments of node id's server.
func (c *Cluster) Args(id int, more ...string) []string {
	var peers []string
	for n := 1; n <= Nodes; n++ {
		peers = append(peers, fmt.Sprintf("%d=%s", n, c.hosts[n]))
	}
	return append([]string{"-id", strconv.Itoa(id), "-addr", c.hosts[id],
		"-port", strconv.Itoa(c.server.Port), "-raft-port", strconv.Itoa(c.server.RaftPort),
		"-peers", strings.Join(peers, ","), "-shared"}, more...)
}

func (c *Cluster) spawn(args []string, env ...string) *process {
	c.tb.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...), ready: make(chan struct{}), exited: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), serverEnv+"=1", orphanEnv+"=1"), env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		c.tb.Fatal(err)
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		c.tb.Fatal(err)
	}
	go func() {
		p.cmd.Wait()
		close(p.exited)
	}()
	c.tb.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.exited
}

// Run runs a server that is to end by itself, and returns what it said.
func (c *Cluster) Run(args []string) (text string, code int) {
	c.tb.Helper()
	p := c.spawn(args)
	select {
	case <-p.exited:
	case <-p.ready:
		p.kill()
		c.tb.Fatalf("%q started a server: %s", args, p.text())
	case <-time.After(Patience):
		p.kill()
		c.tb.Fatalf("%q does not end: %s", args, p.text())
	}
	return p.text(), p.cmd.ProcessState.ExitCode()
}

// Start starts node id and returns when it is ready.
func (c *Cluster) Start(id int, args []string, env ...string) {
	c.tb.Helper()
	p := c.spawn(c.Args(id, args...), env...)
	c.procs[id] = p
	select {
	case <-p.ready:
	case <-p.exited:
		c.tb.Fatalf("node %d did not start: %s", id, p.text())
	case <-time.After(Patience):
		c.tb.Fatalf("node %d is not ready", id)
	}
}

// StartAll starts all nodes with flags of their own.
func (c *Cluster) StartAll(args ...string) {
	c.tb.Helper()
	for id := 1; id <= Nodes; id++ {
		c.Start(id, args)
	}
}

// Signal sends sig to node id.
func (c *Cluster) Signal(id int, sig syscall.Signal) { c.procs[id].cmd.Process.Signal(sig) }

// Exited waits until node id has ended, and returns its exit status.
func (c *Cluster) Exited(id int) (code int) {
	c.tb.Helper()
	select {
	case <-c.procs[id].exited:
	case <-time.After(Patience):
		c.tb.Fatalf("node %d does not end", id)
	}
	return c.procs[id].cmd.ProcessState.ExitCode()
}

// PIDs are the processes of all nodes.
func (c *Cluster) PIDs() (pids []int) {
	for id := 1; id <= Nodes; id++ {
		pids = append(pids, c.procs[id].cmd.Process.Pid)
	}
	return pids
}

// Kill ends node id, if it runs, without a chance to tidy up.
func (c *Cluster) Kill(id int) {
	if p := c.procs[id]; p != nil {
		p.kill()
	}
}

// Until calls f every few milliseconds until it says "".
func (c *Cluster) Until(what string, f func() string) {
	c.tb.Helper()
	deadline := time.Now().Add(Patience)
	for {
		why := f()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			c.tb.Fatalf("waited in vain for %s: %s", what, why)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Status asks node id.
func (c *Cluster) Status(id int) (*gatewaypb.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	// A server that was not there yet must not be waited for by back-off.
	c.conns[id].ResetConnectBackoff()
	return gatewaypb.NewGatewayClient(c.conns[id]).Status(ctx, &gatewaypb.StatusRequest{})
}

// Leader waits until a node leads and its term is known to those of ids.
func (c *Cluster) Leader(ids ...int) (leader int) {
	c.tb.Helper()
	c.Until("a leader", func() string {
		leader = 0
		var term uint64
		for _, id := range ids {
			st, err := c.Status(id)
			if err != nil {
				return err.Error()
			}
			if st.Leader == 0 || leader != 0 && (leader != int(st.Leader) || term != st.Term) {
				return fmt.Sprintf("node %d: %v", id, st)
			}
			leader, term = int(st.Leader), st.Term
		}
		for _, id := range ids {
			if id == leader {
				if st, err := c.Status(id); err == nil && st.Role == gatewaypb.Role_ROLE_LEADER {
					return ""
				}
			}
		}
		return fmt.Sprintf("node %d is said to lead", leader)
	})
	return leader
}

// Agreed waits until the nodes have the same state with at least count
// commands, and returns it.
func (c *Cluster) Agreed(count uint64, ids ...int) (first *gatewaypb.StatusResponse) {
	c.tb.Helper()
	c.Until("agreement", func() string {
		first = nil
		for _, id := range ids {
			st, err := c.Status(id)
			if err != nil {
				return err.Error()
			}
			if first == nil {
				first = st
			}
			if st.Count < count || st.Applied != first.Applied || st.Count != first.Count || st.Digest != first.Digest {
				return fmt.Sprintf("%v and %v, count at least %d", first, st, count)
			}
		}
		return ""
	})
	return first
}

// Ends counts the ends of proposals.
type Ends struct{ Applied, Rejected, Unknown int }

func (e Ends) sum() int { return e.Applied + e.Rejected + e.Unknown }

// Propose sends n commands to node id with a number of them outstanding, keys
// counting from key, and returns when each has its end or the stream is lost,
// which makes the rest unknown. onEnd, if any, is called after each response.
func (c *Cluster) Propose(id, n, outstanding int, key uint64, onEnd func(Ends)) (got Ends) {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c.conns[id].ResetConnectBackoff()
	stream, err := gatewaypb.NewGatewayClient(c.conns[id]).Propose(ctx, grpc.WaitForReady(true))
	if err != nil {
		c.tb.Fatal(err)
	}
	sent := 0
	send := func(due int) error {
		due = min(due, n-sent)
		if due == 0 {
			return nil
		}
		req := &gatewaypb.ProposeRequest{}
		for range due {
			req.Proposals = append(req.Proposals, &gatewaypb.Proposal{Id: uint32(sent),
				Command: kv.Append(nil, key+uint64(sent), []byte("a value of some length"))})
			sent++
		}
		return stream.Send(req)
	}
	open := make(map[uint32]bool, n)
	for i := range n {
		open[uint32(i)] = true
	}
	first := true
	for got.sum() < n {
		resp, err := stream.Recv()
		if err != nil {
			got.Unknown += n - got.sum()
			break
		}
		due := 0
		for _, ids := range [][]uint32{resp.Applied, resp.Rejected, resp.Unknown} {
			for _, id := range ids {
				if !open[id] {
					c.tb.Fatalf("proposal %d ended twice or was never made", id)
				}
				delete(open, id)
				due++
			}
		}
		got.Applied += len(resp.Applied)
		got.Rejected += len(resp.Rejected)
		got.Unknown += len(resp.Unknown)
		if first {
			first = false
			if resp.Leadership == nil || due > 0 {
				c.tb.Fatalf("the first response is %v", resp)
			}
			due = outstanding
		}
		if onEnd != nil {
			onEnd(got)
		}
		if err := send(due); err != nil && err != io.EOF {
			c.tb.Fatal(err)
		}
	}
	return got
}

// System opens the cluster as a client program does.
func (c *Cluster) System() loadgen.System {
	c.tb.Helper()
	sys, err := gateway.Open(context.Background(), c.hosts[1:], c.server.Port, gateway.DefaultKeys)
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() { sys.Close() })
	return sys
}

// Client runs the product's client program in this process. A run takes its
// lock below TMPDIR, which tests set to a folder of their own.
func (c *Cluster) Client(verb string, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	args = append([]string{"-hosts", strings.Join(c.hosts[1:], ",")}, args...)
	if verb != "" {
		args = append([]string{verb}, args...)
	}
	status = cli.Main(gateway.Product(c.server.Name, c.server.Port), args, &out, &errs)
	return status, out.String(), errs.String()
}
