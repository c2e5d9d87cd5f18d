// Package product runs a product through its own Makefile: the client with a
// load, the nodes' status, a signal to a node. Values go to make as arguments,
// no shell reads them.
package product

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"raftrig/record"
)

// Product is a folder with a Makefile that common.mk completes.
type Product struct {
	root, name string
	// Knobs are variables of every client run, NAME=value.
	Knobs []string
	// Live gets each live line of a client; it may be nil.
	Live func(line string)
	// Again tells that the user does not want to wait for a run that has been
	// interrupted; it may be nil.
	Again <-chan struct{}
}

var nameRE = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)

// Open sees that the product is there.
func Open(root, name string) (*Product, error) {
	if !nameRE.MatchString(name) {
		return nil, fmt.Errorf("-product %q: want the name of a product's folder", name)
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(root, name, "Makefile")); err != nil {
		return nil, fmt.Errorf("-product %s: no %s/Makefile in %s: run it in the root of raftrig, or say where that is by -root", name, name, root)
	}
	return &Product{root: root, name: name}, nil
}

// Name of the product.
func (p *Product) Name() string { return p.name }

// knobRE is what a variable of make is called.
var knobRE = regexp.MustCompile(`^[A-Z][A-Z0-9_]*=`)

// reserved knobs are set by the sweep itself.
var reserved = map[string]bool{"MODE": true, "RATE": true, "THREADS": true, "OUT": true, "HDR_OUT": true, "SEED": true, "JSON": true, "SIG": true, "NODES": true}

// CheckKnobs says which of them cannot be handed on.
func CheckKnobs(knobs []string) error {
	seen := map[string]bool{}
	for _, k := range knobs {
		name, value, _ := strings.Cut(k, "=")
		switch {
		case !knobRE.MatchString(k):
			return fmt.Errorf("%q: want a knob of the client, NAME=value", k)
		case reserved[name]:
			return fmt.Errorf("%s: the sweep sets it itself", name)
		case seen[name]:
			return fmt.Errorf("%s is there twice", name)
		case strings.ContainsAny(value, "\n\r\x00"):
			return fmt.Errorf("%s holds a line break", name)
		}
		seen[name] = true
	}
	return nil
}

// Knob is the value of a knob, empty when it is not set.
func (p *Product) Knob(name string) string {
	for _, k := range p.Knobs {
		if value, ok := strings.CutPrefix(k, name+"="); ok {
			return value
		}
	}
	return ""
}

// Seconds is the value of a knob that is a time, as the client takes it.
func (p *Product) Seconds(name string, otherwise time.Duration) time.Duration {
	s := p.Knob(name)
	if d, err := time.ParseDuration(s); err == nil {
		return d
	}
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		return time.Duration(n * float64(time.Second))
	}
	return otherwise
}

// command is make with a target and variables. It runs in a process group of
// its own: Ctrl-C on a terminal then reaches the sweep alone, which passes it
// on in its own time.
func (p *Product) command(target string, vars ...string) *exec.Cmd {
	args := []string{"--no-print-directory", "-s", "-C", filepath.Join(p.root, p.name), target}
	for _, v := range vars {
		args = append(args, strings.ReplaceAll(v, "$", "$$"))
	}
	cmd := exec.Command("make", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// tail keeps the end of what is written, and hands each whole line on.
type tail struct {
	mu    sync.Mutex
	keep  []byte
	part  []byte
	line  func(string)
	limit int
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keep = append(t.keep, b...)
	if over := len(t.keep) - t.limit; over > 0 {
		t.keep = append(t.keep[:0], t.keep[over:]...)
	}
	if t.line == nil {
		return len(b), nil
	}
	t.part = append(t.part, b...)
	for {
		line, rest, whole := bytes.Cut(t.part, []byte("\n"))
		if !whole {
			break
		}
		t.line(string(line))
		t.part = append([]byte(nil), rest...)
	}
	if len(t.part) > t.limit {
		t.part = nil
	}
	return len(b), nil
}

// complaint is the last line that make did not add itself.
func complaint(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(lines[i]); line != "" && !strings.HasPrefix(line, "make") && !isLive(line) {
			return line
		}
	}
	return ""
}

func isLive(line string) bool { return strings.Contains(line, " at qps=") }

// run the command to its end. When ctx ends, the group is interrupted, and
// again with the user's second wish; what it still says is waited for.
func (p *Product) run(ctx context.Context, cmd *exec.Cmd, line func(string)) (stdout, stderr string, err error) {
	out, errs := &tail{limit: 1 << 20}, &tail{limit: 64 << 10, line: line}
	cmd.Stdout, cmd.Stderr = out, errs
	// Whoever else holds the pipes open does not hold up the sweep.
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return "", "", err
	}
	done := make(chan struct{})
	var passed sync.WaitGroup
	passed.Go(func() {
		select {
		case <-done:
			return
		case <-ctx.Done():
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		select {
		case <-done:
		case <-p.Again:
			syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		}
	})
	err = cmd.Wait()
	close(done)
	passed.Wait()
	return string(out.keep), string(errs.keep), err
}

// A RunError is a client that left no record: the load did not start, or it
// could not be kept.
type RunError struct{ Text string }

func (e *RunError) Error() string { return e.Text }

// Client runs the load and returns its record and where that lies. A record
// whose verdict is INVALID is a result like any other, and so is one that was
// cut short because ctx ended: Rig.Interrupted tells.
func (p *Product) Client(ctx context.Context, out string, vars ...string) (*record.Run, string, error) {
	out, err := filepath.Abs(out)
	if err != nil {
		return nil, "", err
	}
	// Empty: what an outer make was given is not meant for each run. The last
	// of two counts.
	all := append([]string{"RATE=", "THREADS=", "SEED=", "HDR_OUT=", "OUT=" + out}, p.Knobs...)
	all = append(all, vars...)
	stdout, stderr, err := p.run(ctx, p.command("client", all...), func(line string) {
		if p.Live != nil && isLive(line) {
			p.Live(line)
		}
	})
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, "", err
	}
	path := ""
	for l := range strings.Lines(stdout) {
		if rest, ok := strings.CutPrefix(l, "record:"); ok {
			path = strings.TrimSpace(rest)
		}
	}
	if path == "" {
		if ctx.Err() != nil {
			return nil, "", ctx.Err()
		}
		why := complaint(stderr)
		if why == "" {
			why = fmt.Sprintf("make client ended without a record: %v", err)
		}
		return nil, "", &RunError{why}
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.root, path)
	}
	run, err := record.Read(path)
	if err != nil {
		return nil, "", err
	}
	if filepath.Dir(path) != out {
		return nil, "", &RunError{fmt.Sprintf("the record is not in %s but %s: is the disk full?", out, path)}
	}
	return run, path, nil
}

// Node is what a node says of itself.
type Node struct {
	Node    int
	Leads   bool
	Leader  int
	Term    uint64
	Applied uint64
	Version string
	Err     string
}

// Nodes asks all nodes.
func (p *Product) Nodes(ctx context.Context) ([]Node, error) {
	stdout, stderr, err := p.run(ctx, p.command("status", "JSON=1", "NODES="), nil)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	// The exit status tells whether all is well; the nodes tell what is not.
	var nodes []Node
	if e := json.Unmarshal([]byte(stdout), &nodes); e == nil && len(nodes) > 0 {
		return nodes, nil
	}
	if why := complaint(stderr); why != "" {
		return nil, errors.New(why)
	}
	return nil, fmt.Errorf("make status JSON=1 did not say what the nodes are: %v", err)
}

// Leader of nodes; 0 when none leads.
func Leader(nodes []Node) int {
	leader, term := 0, uint64(0)
	for _, n := range nodes {
		if n.Err == "" && n.Leads && n.Term >= term {
			leader, term = n.Node, n.Term
		}
	}
	return leader
}

// unsettled says what keeps the cluster from being measured, empty for nothing.
// With degraded, nodes that do not answer are left aside.
func unsettled(nodes []Node, degraded bool) string {
	leader := Leader(nodes)
	var first *Node
	for i := range nodes {
		n := &nodes[i]
		switch {
		case n.Err != "" && degraded:
			continue
		case n.Err != "":
			return n.Err
		case leader == 0:
			return "no node leads"
		case n.Leader != leader:
			return fmt.Sprintf("node %d does not follow node %d, which leads", n.Node, leader)
		}
		if first == nil {
			first = n
		}
		if n.Applied != first.Applied {
			return fmt.Sprintf("node %d has applied up to %d, node %d up to %d", first.Node, first.Applied, n.Node, n.Applied)
		}
	}
	if leader == 0 {
		return "no node leads"
	}
	return ""
}

// settlePause lies between two questions to the nodes.
const settlePause = 200 * time.Millisecond

// Settle waits until every node answers, all follow one leader and all have
// applied the same. The error says what was still missing after the limit.
func (p *Product) Settle(ctx context.Context, limit time.Duration) ([]Node, error) {
	end := time.Now().Add(limit)
	for {
		nodes, err := p.Nodes(ctx)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		why := ""
		if err != nil {
			why = err.Error()
		} else if why = unsettled(nodes, p.Knob("DEGRADED") != ""); why == "" {
			return nodes, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("the %s cluster is not fit to be measured after %v: %s: see make -C %s status and logs", p.name, limit, why, p.name)
		}
		if err := Sleep(ctx, settlePause); err != nil {
			return nil, err
		}
	}
}

// Signal a node.
func (p *Product) Signal(ctx context.Context, node int, signal string) error {
	_, stderr, err := p.run(ctx, p.command("signal", "SIG="+signal, "NODES="+strconv.Itoa(node)), nil)
	if err == nil {
		return nil
	}
	if why := complaint(stderr); why != "" {
		return errors.New(why)
	}
	return fmt.Errorf("make signal SIG=%s NODES=%d: %w", signal, node, err)
}

// Sleep unless ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
