package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Default times.
const (
	// DefaultSettle is how long start watches a new process for an early end.
	DefaultSettle = 300 * time.Millisecond
	// DefaultGrace is how long stop waits after SIGTERM before SIGKILL.
	DefaultGrace = 10 * time.Second
	// probeEvery is the pause between two probes of Wait.
	probeEvery = 100 * time.Millisecond
	// probeTimeout is how long one probe may take.
	probeTimeout = 5 * time.Second
)

// State is what a node's process is doing.
type State string

// States of a node.
const (
	Running State = "running" // its process lives
	Stopped State = "stopped" // its process lives and is held by SIGSTOP
	Dead    State = "dead"    // it was started, and ended without stop
	Down    State = "down"    // it was not started, or stop ended it
)

// Status describes one node. PID and Argv are those of the last start and
// absent when down; the figures are zero unless the process lives.
type Status struct {
	Node     int      `json:"node"`
	Host     string   `json:"host"`
	State    State    `json:"state"`
	PID      int      `json:"pid,omitempty"`
	UptimeS  float64  `json:"uptime_s"`
	CPUS     float64  `json:"cpu_s"`     // user and system time of the process
	RSSBytes int64    `json:"rss_bytes"` // resident set
	Argv     []string `json:"argv,omitempty"`
}

// Alive says whether the node has a process.
func (s Status) Alive() bool { return s.State == Running || s.State == Stopped }

// Command is what start runs on each node. These placeholders in Argv are
// replaced for the node (no shell is involved); another {word} is an error:
//
//	{id}      the node's number, from 1
//	{addr}    its private address
//	{peers}   the private addresses of all nodes, with commas
//	{hosts}   the addresses of all nodes as this host reaches them, with commas
//	{dir}     the node's directory, absolute
//	{shared}  true when another node runs on the same host, else false
//	{root}    the folder of raftrig on the node's host, absolute
//
// {addr:PORT}, {peers:PORT} and {hosts:PORT} put the port behind each address.
// A program on the client's host has no {id}, but what its record has to say of
// the fleet:
//
//	{topology}  the topology's name
//	{zones}     the nodes' zones, with commas; empty when none is known
//	{rtt}       Inventory.NodeRTT
//
// Over ssh, an argument that is a path below the root here becomes the one below
// the root there.
type Command struct {
	Argv []string
	// Env are KEY=VALUE pairs added to the environment.
	Env []string
	// Settle is how long start watches for an early end; 0 means DefaultSettle.
	Settle time.Duration
	// dieWithParent has the kernel kill the process when this one ends.
	dieWithParent bool
}

// StopResult says what stop did to one node.
type StopResult struct {
	// WasRunning is false when there was nothing to stop.
	WasRunning bool
	// Killed is true when something ended by SIGKILL only.
	Killed bool
}

// NodeError is a failure on one node, or on the client's host (0).
type NodeError struct {
	Node int
	Err  error
}

func (e *NodeError) Error() string { return fmt.Sprintf("%s: %v", Title(e.Node), e.Err) }
func (e *NodeError) Unwrap() error { return e.Err }

// RunningError is start's refusal of a node that runs.
type RunningError struct{ PID int }

func (e *RunningError) Error() string {
	return fmt.Sprintf("already running (pid %d): stop it first", e.PID)
}

// ExitError is a process that ended when it should have run.
type ExitError struct {
	// How is the end: "exit status 1", "signal: killed", "dead" when not known.
	How string
	// LogFile is the node's log, and Log its last lines; empty when it was
	// never started.
	LogFile string
	Log     []string
}

func (e *ExitError) Error() string {
	s := e.How
	if e.LogFile == "" {
		return s
	}
	if len(e.Log) == 0 {
		return s + "; " + e.LogFile + " is empty"
	}
	s += "; " + e.LogFile + " ends with:"
	for _, l := range e.Log {
		s += "\n    " + l
	}
	return s
}

// transport carries the verbs to one host. Its methods are called for several
// at once, and return when the context ends.
type transport interface {
	start(context.Context, Node, Command, expander) (Status, error)
	stop(ctx context.Context, n Node, grace time.Duration) (StopResult, error)
	status(context.Context, Node) (Status, error)
	signal(context.Context, Node, unix.Signal) error
	// logs writes the last tail lines (all when negative), then with follow
	// what is added, until the context ends.
	logs(ctx context.Context, n Node, tail int, follow bool, w io.Writer) error
	// exited returns the node's end, an *ExitError, or the context's error.
	exited(context.Context, Node) error
	// run runs a command on the host and waits for it. The exit status is 128
	// and the signal's number when a signal ended it. An error means that it
	// did not run to its end, errNotStarted that it could not be run at all.
	run(context.Context, Node, task, expander) (outcome, error)
	// push brings files, by their paths below the root, to the host, and says
	// which it did not have.
	push(ctx context.Context, n Node, files []string) (sent []string, err error)
	// pull brings what lies under the paths back, if it is newer than since by
	// the host's clock, and says what was not here.
	pull(ctx context.Context, n Node, paths []string, since time.Time) (got []string, err error)
	// close ends what stays open between commands.
	close(context.Context, Node) error
}

// Fleet is the nodes of one product and the verbs over them. A verb runs on
// all nodes at once. It returns what each node gave, in the order of Nodes,
// and an error that joins a *NodeError for each node that failed.
type Fleet struct {
	// Nodes are the nodes that the verbs act on.
	Nodes []Node

	inv Inventory
	t   transport
}

// Open gives the fleet of an inventory. root is raftrig's folder on this host,
// dir the run directory of one product, below the root of each host where it is
// relative; start creates it.
func Open(inv Inventory, root, dir string) (*Fleet, error) {
	f := &Fleet{Nodes: inv.Nodes, inv: inv}
	var err error
	if inv.Transport == TransportSSH {
		f.t, err = newSSH(inv, root, dir)
	} else {
		f.t, err = newLocal(root, dir, inv.namespaces())
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Client is the client's host.
func (f *Fleet) Client() Node { return Node{Host: f.inv.Client} }

// Disconnect ends the connections that ssh keeps for the next command, to the
// nodes of f and to the client's host.
func (f *Fleet) Disconnect(ctx context.Context) error {
	_, err := each(append([]Node{f.Client()}, f.Nodes...), func(n Node) (struct{}, error) { return struct{}{}, f.t.close(ctx, n) })
	return err
}

// Only gives a fleet whose verbs act on the nodes of these numbers; 0 is the
// client's host, for what a load generator needs beside it. {peers} and {hosts}
// stay those of the whole cluster.
func (f *Fleet) Only(ids ...int) (*Fleet, error) {
	g := *f
	g.Nodes = nil
	for _, id := range ids {
		switch {
		case id == 0:
			g.Nodes = append(g.Nodes, f.Client())
		case id < 0 || id > len(f.inv.Nodes):
			return nil, fmt.Errorf("there is no node %d: want 1 to %d", id, len(f.inv.Nodes))
		default:
			g.Nodes = append(g.Nodes, f.inv.Nodes[id-1])
		}
	}
	return &g, nil
}

// each runs f for every node at once.
func each[T any](nodes []Node, f func(Node) (T, error)) ([]T, error) {
	results := make([]T, len(nodes))
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			r, err := f(n)
			results[i] = r
			if err != nil {
				errs[i] = &NodeError{n.ID, err}
			}
		})
	}
	wg.Wait()
	return results, errors.Join(errs...)
}

// NodeErrors lists the failures that a verb's error joins.
func NodeErrors(err error) []*NodeError {
	var list []*NodeError
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			list = append(list, NodeErrors(e)...)
		}
		return list
	}
	if ne, ok := err.(*NodeError); ok {
		list = append(list, ne)
	}
	return list
}

// Start starts the command on each node. A node that runs is a *RunningError;
// a process that ends within Settle is an *ExitError, and the node is then
// dead. Other nodes stay as they are.
func (f *Fleet) Start(ctx context.Context, c Command) ([]Status, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("start: no command")
	}
	if c.Settle == 0 {
		c.Settle = DefaultSettle
	}
	return each(f.Nodes, func(n Node) (Status, error) { return f.t.start(ctx, n, c, f.expander(n)) })
}

// Stop ends each node's process and what it started: SIGTERM to the process
// group (and SIGCONT, in case SIGSTOP holds it), after grace SIGKILL to the
// whole session. It returns when all have ended. A grace of 0 means
// DefaultGrace. A node that does not run is no error.
func (f *Fleet) Stop(ctx context.Context, grace time.Duration) ([]StopResult, error) {
	if grace == 0 {
		grace = DefaultGrace
	}
	return each(f.Nodes, func(n Node) (StopResult, error) { return f.t.stop(ctx, n, grace) })
}

// Status looks at each node.
func (f *Fleet) Status(ctx context.Context) ([]Status, error) {
	return each(f.Nodes, func(n Node) (Status, error) { return f.t.status(ctx, n) })
}

// Signal sends a signal to each node's process group. After SIGKILL it returns
// when the process has ended, after SIGSTOP when it stands still. A node
// without a process is an error.
func (f *Fleet) Signal(ctx context.Context, sig unix.Signal) error {
	_, err := each(f.Nodes, func(n Node) (struct{}, error) { return struct{}{}, f.t.signal(ctx, n, sig) })
	return err
}

// signals are those that Signal may be asked for by name.
var signals = map[string]unix.Signal{
	"STOP": unix.SIGSTOP, "CONT": unix.SIGCONT, "TERM": unix.SIGTERM,
	"KILL": unix.SIGKILL, "INT": unix.SIGINT, "QUIT": unix.SIGQUIT, "HUP": unix.SIGHUP,
}

// ParseSignal reads STOP, CONT, TERM, KILL, INT, QUIT or HUP, in either case,
// with or without SIG.
func ParseSignal(name string) (unix.Signal, error) {
	sig, ok := signals[strings.TrimPrefix(strings.ToUpper(name), "SIG")]
	if !ok {
		return 0, fmt.Errorf("signal %q: want STOP, CONT, TERM, KILL, INT, QUIT or HUP", name)
	}
	return sig, nil
}

// Logs writes the last tail lines of each node's log (all when negative), node
// after node, each line behind "nodeN | ". With follow it writes what is added
// to any of them, until the context ends; that is no error.
func (f *Fleet) Logs(ctx context.Context, tail int, follow bool, w io.Writer) error {
	if !follow {
		var errs []error
		for _, n := range f.Nodes {
			p := newPrefixer(w, nil, n)
			err := errors.Join(f.t.logs(ctx, n, tail, false, p), p.flush())
			if err != nil {
				errs = append(errs, &NodeError{n.ID, err})
			}
		}
		return errors.Join(errs...)
	}
	var mu sync.Mutex
	_, err := each(f.Nodes, func(n Node) (struct{}, error) {
		p := newPrefixer(w, &mu, n)
		err := f.t.logs(ctx, n, tail, true, p)
		if ctx.Err() != nil {
			err = nil
		}
		return struct{}{}, errors.Join(err, p.flush())
	})
	return err
}

// Wait runs the probe command on the client's host until it succeeds: that is
// how to wait for a leader. It gives up when the context ends, and at once when
// a node is not running or ends meanwhile; the error then carries the end of
// that node's log. What the last probe printed on stdout is returned.
func (f *Fleet) Wait(ctx context.Context, probe []string) ([]byte, error) {
	if len(probe) == 0 {
		return nil, errors.New("wait: no probe command")
	}
	begun := time.Now()
	watch, stopWatch := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopWatch(nil)
	for _, n := range f.Nodes {
		wg.Go(func() {
			err := f.t.exited(watch, n)
			if watch.Err() == nil {
				stopWatch(&NodeError{n.ID, err})
			}
		})
	}
	died := func() error {
		if cause := context.Cause(watch); len(NodeErrors(cause)) > 0 {
			return cause
		}
		return nil
	}
	said := "it did not return"
	for {
		out, complaint, err := f.probe(watch, probe)
		if err := died(); err != nil {
			return nil, err
		}
		if err == nil {
			return out, nil
		}
		if complaint != "" {
			said = complaint
		}
		if errors.Is(err, errNotStarted) {
			return nil, fmt.Errorf("wait: %w", err)
		}
		pause := time.NewTimer(probeEvery)
		select {
		case <-pause.C:
			continue
		case <-watch.Done():
			pause.Stop()
		}
		if err := died(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("wait: %s did not succeed in %.1f s: %s", probe[0], time.Since(begun).Seconds(), said)
	}
}

// probe runs one probe and gives what it printed, or what it complained of: its
// last line, or how it ended.
func (f *Fleet) probe(ctx context.Context, argv []string) (out []byte, complaint string, err error) {
	pctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	stdout, stderr := &capped{}, &capped{}
	o, err := f.t.run(pctx, f.Client(), task{Argv: argv, stdout: stdout, stderr: stderr}, f.expander(f.Client()))
	if err == nil && o.Exit == 0 {
		return stdout.Bytes(), "", nil
	}
	if err == nil {
		err = fmt.Errorf("exit status %d", o.Exit)
	}
	for _, b := range [][]byte{stderr.Bytes(), stdout.Bytes()} {
		if lines := lastLines(b, 1); len(lines) > 0 {
			return nil, lines[0], err
		}
	}
	switch {
	case ctx.Err() != nil: // cut short: what the one before said tells more
		return nil, "", err
	case pctx.Err() != nil:
		return nil, fmt.Sprintf("it did not return within %v", probeTimeout), err
	}
	return nil, err.Error(), err
}

// capped keeps the first 64 KiB of a probe's output.
type capped struct{ bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	room := 64<<10 - c.Len()
	c.Buffer.Write(p[:min(len(p), room)])
	return len(p), nil
}

// expander replaces placeholders for one node, or for the client's host.
type expander struct {
	inv  Inventory
	node Node
	root string
	dir  string
}

func (f *Fleet) expander(n Node) expander { return expander{inv: f.inv, node: n} }

var placeholderRE = regexp.MustCompile(`\{([a-z]+)(?::([0-9]+))?\}`)

func (x expander) expand(argv []string) ([]string, error) {
	out := make([]string, len(argv))
	var err error
	for i, arg := range argv {
		out[i] = placeholderRE.ReplaceAllStringFunc(arg, func(s string) string {
			m := placeholderRE.FindStringSubmatch(s)
			v, e := x.value(m[1], m[2])
			if e != nil && err == nil {
				err = fmt.Errorf("%s in argument %q: %w", s, shorten(arg), e)
			}
			return v
		})
	}
	return out, err
}

func (x expander) value(name, port string) (string, error) {
	portNum := 0
	if port != "" {
		var err error
		if portNum, err = strconv.Atoi(port); err != nil || portNum < 1 || portNum > 65535 {
			return "", errors.New("a port is 1 to 65535")
		}
	}
	join := func(addrs []string) (string, error) {
		for i := range addrs {
			addrs[i] = HostPort(addrs[i], portNum)
		}
		return strings.Join(addrs, ","), nil
	}
	switch {
	case name == "peers":
		return join(x.inv.PrivateHosts())
	case name == "hosts":
		return join(x.inv.Hosts())
	case name == "root" && port == "":
		return x.root, nil
	case name == "dir" && port == "":
		return x.dir, nil
	case name == "addr":
		return join([]string{x.node.Private})
	case x.node.ID == 0:
		return x.fleetValue(name, port)
	case name == "id" && port == "":
		return strconv.Itoa(x.node.ID), nil
	case name == "shared" && port == "":
		return strconv.FormatBool(x.inv.shared(x.node)), nil
	}
	return "", errors.New("want {id}, {addr}, {peers}, {hosts}, {dir}, {root} or {shared}")
}

// fleetValue is what a program on the client's host may ask for.
func (x expander) fleetValue(name, port string) (string, error) {
	switch {
	case port != "":
	case name == "topology":
		return x.inv.Topology, nil
	case name == "rtt":
		return x.inv.NodeRTT, nil
	case name == "zones":
		var zones []string
		known := false
		for _, n := range x.inv.Nodes {
			zones = append(zones, n.Zone)
			known = known || n.Zone != ""
		}
		if !known {
			return "", nil
		}
		return strings.Join(zones, ","), nil
	}
	return "", errors.New("want {addr}, {peers}, {hosts}, {dir}, {root}, {topology}, {zones} or {rtt}")
}
