package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Local is a cluster of processes on this host for a Go test. Nodes are
// numbered from 1. Its processes are killed by the kernel when this one ends,
// however it ends; call StopAll in t.Cleanup all the same, which also ends
// what they started.
//
//	c := &fleet.Local{Dir: t.TempDir(), Argv: []string{bin, "-id", "{id}", "-listen", "{addr:7000}"}}
//	t.Cleanup(func() { c.StopAll() })
//	if err := c.StartAll(); err != nil { t.Fatal(err) }
type Local struct {
	// Dir is the run directory.
	Dir string
	// Hosts are the nodes' addresses; nil means 127.0.0.11 to 127.0.0.13. As
	// many nodes as hosts.
	Hosts []string
	// Argv is the command of each node, with the placeholders of Command.
	Argv []string
	// Env are KEY=VALUE pairs added to the environment.
	Env []string
	// Settle is how long a start watches for an early end; 0 means
	// DefaultSettle.
	Settle time.Duration
	// Grace is how long a stop waits before SIGKILL; 0 means DefaultGrace.
	Grace time.Duration

	once  sync.Once
	fleet *Fleet
	err   error
}

func (l *Local) open(nodes ...int) (*Fleet, error) {
	l.once.Do(func() {
		inv := Default()
		if l.Hosts != nil {
			inv.Nodes = nil
			for i, h := range l.Hosts {
				if err := checkHost(h); err != nil {
					l.err = fmt.Errorf("host %q: %w", h, err)
					return
				}
				inv.Nodes = append(inv.Nodes, Node{ID: i + 1, Host: Host{Addr: h, Private: h}})
			}
		}
		abs, err := filepath.Abs(l.Dir)
		if err != nil {
			l.err = fmt.Errorf("run directory: %w", err)
			return
		}
		l.fleet, l.err = Open(inv, ".", abs)
	})
	if l.err != nil || len(nodes) == 0 {
		return l.fleet, l.err
	}
	return l.fleet.Only(nodes...)
}

// StartAll starts all nodes; see Fleet.Start for its errors.
func (l *Local) StartAll() error { return l.start() }

// Start starts node i.
func (l *Local) Start(i int) error { return l.start(i) }

func (l *Local) start(nodes ...int) error {
	f, err := l.open(nodes...)
	if err == nil {
		_, err = f.Start(context.Background(), Command{Argv: l.Argv, Env: l.Env, Settle: l.Settle, dieWithParent: true})
	}
	return err
}

// StopAll stops all nodes and what they started. It may be called at any time.
func (l *Local) StopAll() error { return l.stop() }

// Stop stops node i.
func (l *Local) Stop(i int) error { return l.stop(i) }

func (l *Local) stop(nodes ...int) error {
	f, err := l.open(nodes...)
	if err == nil {
		_, err = f.Stop(context.Background(), l.Grace)
	}
	return err
}

// Kill ends node i by SIGKILL and returns when it has ended; Start starts it
// again.
func (l *Local) Kill(i int) error { return l.Signal(i, unix.SIGKILL) }

// Signal sends a signal to node i; see Fleet.Signal.
func (l *Local) Signal(i int, sig unix.Signal) error {
	f, err := l.open(i)
	if err == nil {
		err = f.Signal(context.Background(), sig)
	}
	return err
}

// Status looks at node i.
func (l *Local) Status(i int) (Status, error) {
	f, err := l.open(i)
	if err != nil {
		return Status{}, err
	}
	st, err := f.Status(context.Background())
	return st[0], err
}

// Log returns the last tail lines of node i's log, all when negative.
func (l *Local) Log(i, tail int) ([]byte, error) {
	f, err := l.open(i)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = f.t.logs(context.Background(), f.Nodes[0], tail, false, &b)
	return b.Bytes(), err
}

// Exited returns nil when node i has no process any more, or the context's
// error.
func (l *Local) Exited(ctx context.Context, i int) error {
	f, err := l.open(i)
	if err != nil {
		return err
	}
	err = f.t.exited(ctx, f.Nodes[0])
	if end := (*ExitError)(nil); errors.As(err, &end) {
		return nil
	}
	return err
}

// FreePorts chooses n TCP ports, each free on all hosts, which are addresses of
// this host. Nothing holds them after the return: use them soon.
func FreePorts(n int, hosts ...string) ([]int, error) {
	if len(hosts) == 0 {
		return nil, errors.New("free ports: no hosts")
	}
	// All listeners stay open until the end, so that no port is chosen twice.
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	var ports []int
	const tries = 100 // more than a host with a few hundred open ports needs
	for try := 0; len(ports) < n; try++ {
		if try == n+tries {
			return nil, fmt.Errorf("free ports: found %d of %d on %v", len(ports), n, hosts)
		}
		first, err := net.Listen("tcp", net.JoinHostPort(hosts[0], "0"))
		if err != nil {
			return nil, fmt.Errorf("free ports: %w", err)
		}
		held = append(held, first)
		port := first.Addr().(*net.TCPAddr).Port
		free := true
		for _, h := range hosts[1:] {
			l, err := net.Listen("tcp", net.JoinHostPort(h, strconv.Itoa(port)))
			if errors.Is(err, unix.EADDRINUSE) {
				free = false
				break
			}
			if err != nil {
				return nil, fmt.Errorf("free ports: %w", err)
			}
			held = append(held, l)
		}
		if free {
			ports = append(ports, port)
		}
	}
	return ports, nil
}
