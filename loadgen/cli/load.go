package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/loadgen"
	"raftrig/loadgen/cpuidle"
	"raftrig/loadgen/report"
	"raftrig/record"
)

// checkpointEvery is how many seconds a crash can cost.
const checkpointEvery = 10

var errInterrupted = errors.New("interrupted before the run began: nothing was measured")

// load is the run: check everything that can be checked before the first
// request, run, and write down what came of it whatever happens.
func (c *command) load(ctx context.Context, args []string) error {
	var k knobs
	k.register(c.flags, c.product.Name)
	if err := c.parse(args); err != nil {
		return err
	}
	if err := k.resolve(c.flags, c.product); err != nil {
		return err
	}
	hosts, err := c.hostList()
	if err != nil {
		return err
	}
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	sys, err := c.product.Open(ctx, hosts)
	if err != nil {
		return err
	}
	defer sys.Close()
	nodes, err := c.prepare(ctx, sys, &k)
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err != nil {
		return err
	}

	base := record.Run{Schema: record.Schema, Product: c.product.Name, Started: time.Now()}
	base.Cluster = clusterOf(c.product.Name, c.topology, nodes)
	if err := c.describe(&base.Cluster); err != nil {
		return err
	}
	base.Environment = record.HostEnvironment()
	if l := loadgen.Leading(nodes); l != nil {
		base.AppliedBefore = l.Count
	}
	base.Knobs.Product = c.productKnobs()
	// Only now, for the kernel's load has settled since the servers started.
	servers := localServers(hosts)
	if c.topology == "netns" {
		servers = len(hosts) // their addresses are in other namespaces of this host
	}
	spot := place(k.pace, k.Mode, k.Lanes, servers)
	k.Pace = spot.pace
	base.Knobs.PaceReason = spot.reason

	if k.idle == idlePoll {
		release, err := cpuidle.Poll()
		if err != nil {
			return fmt.Errorf("-idle poll: %w", err)
		}
		defer release()
		base.Knobs.Idle = k.idle
	}

	out, err := openOutput(&k, base)
	if err != nil {
		return err
	}
	defer out.close()
	live := newLive(c.stderr, c.product.Name, k.Config)
	var mu sync.Mutex // of base.Cluster: checkpoints read it beside the window's boundaries
	// finish puts together what the rig measured and what it cannot know.
	finish := func(res *loadgen.Result) *record.Run {
		mu.Lock()
		defer mu.Unlock()
		run := res.Run
		run.Product, run.Cluster, run.Environment, run.AppliedBefore = base.Product, base.Cluster, base.Environment, base.AppliedBefore
		run.Knobs.Product, run.Knobs.PaceReason, run.Knobs.Idle = base.Knobs.Product, base.Knobs.PaceReason, base.Knobs.Idle
		run.Rig.RealTime = spot.realTime.Load()
		return &run
	}
	rig, err := loadgen.New(k.Config, sys.Dial, loadgen.Options{
		Second:   live.second,
		Interval: out.interval,
		Checkpoint: func(res *loadgen.Result) {
			run := finish(res)
			run.Verdict = record.Verdict{Limits: k.limits.Map(), Reasons: []record.Reason{{
				Code: "interrupted", Text: "the client ended without a word: this is what it had recorded until then",
			}}}
			out.checkpoint(run)
		},
		CheckpointEvery: checkpointEvery,
		Setup:           spot.setup,
		BeforeMeasure: func() {
			l := leader(sys)
			mu.Lock()
			defer mu.Unlock()
			base.Cluster.LeaderBefore, base.Cluster.TermBefore = l.Node, l.Term
		},
		AfterMeasure: func() {
			l := leader(sys)
			mu.Lock()
			defer mu.Unlock()
			base.Cluster.LeaderAfter, base.Cluster.TermAfter = l.Node, l.Term
		},
	})
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	spot.apply()
	limitMemory()
	stopped := interruptible(rig, live)
	res, err := rig.Run()
	stopped()
	live.end()
	if err != nil {
		return err
	}
	run := finish(res)
	run.Verdict = loadgen.Judge(run, k.limits)

	// The record before the summary: a reader of stdout may be gone.
	where, outErr := out.finish(run, res)
	err = report.Summary(c.stdout, run)
	if where != "" && err == nil {
		_, err = fmt.Fprintf(c.stdout, "record:  %s\n", where)
	}
	if outErr != nil {
		if where == "" {
			// Nowhere to write: what was measured goes where it can be seen.
			outErr = errors.Join(outErr, record.Print(c.stdout, run))
		}
		return outErr
	}
	if err != nil {
		return fmt.Errorf("the summary could not be printed: %w; the record is %s", err, where)
	}
	if run.Rig.Fault != "" {
		return errors.New(run.Rig.Fault)
	}
	if !run.Verdict.Valid {
		return errInvalid
	}
	return nil
}

// prepare sees that the cluster answers and that the asked-for node leads.
func (c *command) prepare(ctx context.Context, sys loadgen.System, k *knobs) ([]loadgen.NodeStatus, error) {
	nodes := ask(ctx, sys)
	if err := down(nodes); err != nil && !k.degraded {
		return nil, fmt.Errorf("%w: start it (make start), or run without it (DEGRADED=1)", err)
	}
	if loadgen.Leading(nodes) == nil {
		var ok bool
		if nodes, ok = await(ctx, sys, transferTimeout, func(n []loadgen.NodeStatus) bool { return loadgen.Leading(n) != nil }); !ok {
			return nil, fmt.Errorf("no node leads after %v: a majority has to run; see the servers' logs", transferTimeout)
		}
	}
	if k.leader > len(nodes) {
		return nil, loadgen.Usagef("-leader %d: the cluster has nodes 1 to %d", k.leader, len(nodes))
	}
	if k.leader == 0 || loadgen.Leading(nodes).Node == k.leader || nodes[k.leader-1].Err != nil {
		return nodes, nil
	}
	if _, err := lead(ctx, sys, k.leader); err != nil {
		if errors.Is(err, errors.ErrUnsupported) {
			fmt.Fprintf(c.stderr, "%s-client: node %d leads and cannot be moved: %v\n", c.product.Name, loadgen.Leading(nodes).Node, err)
			return nodes, nil
		}
		return nil, fmt.Errorf("%w (-leader 0 takes whichever leads)", err)
	}
	return ask(ctx, sys), nil
}

// leader as of now; node 0 when none answers.
func leader(sys loadgen.System) loadgen.NodeStatus {
	if l := loadgen.Leading(ask(context.Background(), sys)); l != nil {
		return *l
	}
	return loadgen.NodeStatus{}
}

func clusterOf(product, topology string, nodes []loadgen.NodeStatus) record.Cluster {
	c := record.Cluster{Topology: topology, Emulated: topology == "netns"}
	for _, n := range nodes {
		node := record.Node{ID: n.Node, Addr: n.Addr, Version: n.Version}
		if n.Err != nil {
			node.Err = n.Err.Error()
		}
		c.Nodes = append(c.Nodes, node)
	}
	if l := loadgen.Leading(nodes); l != nil {
		c.LeaderBefore, c.TermBefore = l.Node, l.Term
		c.LeaderAfter, c.TermAfter = l.Node, l.Term
		c.Log = l.Log
		c.Versions = map[string]string{product: l.Version}
	}
	return c
}

// describe adds what the fleet knows of the nodes.
func (c *command) describe(cluster *record.Cluster) error {
	if c.zones != "" {
		zones := strings.Split(c.zones, ",")
		if len(zones) != len(cluster.Nodes) {
			return loadgen.Usagef("-zones %q: want one zone a node, with commas between", c.zones)
		}
		for i := range cluster.Nodes {
			cluster.Nodes[i].Zone = zones[i]
		}
	}
	if c.rtt != "" {
		cluster.RTT = new(record.RTT)
		if err := json.Unmarshal([]byte(c.rtt), cluster.RTT); err != nil {
			return loadgen.Usagef("-rtt %q: not what fleet rtt -json prints: %v", c.rtt, err)
		}
	}
	return nil
}

// productKnobs are the flags that the product registered, with their values.
func (c *command) productKnobs() map[string]string {
	values := map[string]string{}
	for _, name := range c.own {
		values[name] = c.flags.Lookup(name).Value.String()
	}
	return values
}

// lock this host for one run of one user: two at a time measure each other.
func lock() (unlock func(), err error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("raftrig-%d.lock", os.Getuid()))
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		var pid [20]byte
		n, _ := f.Read(pid[:])
		f.Close()
		return nil, fmt.Errorf("another run is under way on this host (pid %s): two at once measure each other; wait for it", pid[:n])
	}
	_ = f.Truncate(0)
	_, _ = f.WriteString(strconv.Itoa(os.Getpid()))
	// The kernel unlocks it when the process ends, however it does.
	return func() { f.Close() }, nil
}

// limitMemory is the net below a run without garbage collection.
func limitMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(2 << 30)
	}
}

// interruptible makes the first signal stop the load, and the second cut the
// drain short. The returned function gives the signals back.
func interruptible(rig *loadgen.Rig, live *live) func() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			select {
			case <-done:
				return
			case <-signals:
			}
			if first {
				live.note("stopping: waiting for the last replies; once more to leave at once")
				rig.Stop()
			} else {
				rig.Abort()
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}
