package serve

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"raftrig/gateway"
	"raftrig/gateway/kv"
)

// stopTimeout bounds how long a server that was told to stop waits for the
// proposals of its clients.
const stopTimeout = 3 * time.Second

// Product is what a product hands to Main. The functions belong together: Start
// reads what Flags has registered, so each Product serves one Main.
type Product struct {
	// Name of the product; the program is Name-server.
	Name string
	// Port and RaftPort are the defaults of -port and -raft-port.
	Port, RaftPort int
	// Version names the library and its version; see Version.
	Version func() string
	// Flags registers the product's own flags. It may be nil.
	Flags func(*flag.FlagSet)
	// Check says what is wrong with their values, by name; that is a usage
	// error. It may be nil.
	Check func() error
	// Start runs a node until its Close. Where its log is in memory it has to
	// start without a state, whatever an earlier process left behind.
	Start func(Config) (Node, error)
	// State makes the state machine. Nil is kv.New, which tests alone replace.
	State func() kv.Machine
}

// Node is a product's running node.
type Node interface {
	gateway.Node
	// Log says where the log is kept and whether it is synced to disk, as
	// Status does.
	Log() string
	// Close ends every proposal and stops the node. The gateway has been
	// stopped before.
	Close() error
}

// Config is what a node has to know, whatever the library.
type Config struct {
	// ID is this node's number, from 1; Peers has it too.
	ID int
	// Peers are all nodes, by number, with the host:port of their Raft
	// transport. It is the same on every node and does not change.
	Peers map[int]string
	// DataDir is where the node keeps its state, synced to disk; empty keeps it
	// in memory.
	DataDir string
	// State is the state machine, empty.
	State kv.Machine
	// LogOutput takes the library's own messages of level error.
	LogOutput io.Writer
}

// ListenRaft listens on this node's own address of Peers. A library that
// listens by itself wants the listener closed again first; the error is the
// clearer one all the same.
func (c Config) ListenRaft() (net.Listener, error) { return listen(c.Peers[c.ID], "-raft-port") }

// Main is the program of a product's server: it runs a node and its gateway as
// args say until SIGTERM or SIGINT, and returns the exit status.
func Main(p Product, args []string, stdout, stderr io.Writer) int {
	err := run(p, args, stdout, stderr)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s-server: %v\n", p.Name, err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

func run(p Product, args []string, stdout, stderr io.Writer) error {
	opts, err := parse(p, args, stdout)
	if err != nil || opts == nil {
		return err
	}
	if opts.shared {
		if err := shareHost(args); err != nil {
			return err
		}
	}
	cfg := opts.cfg
	cfg.LogOutput = stderr
	if p.State != nil {
		cfg.State = p.State()
	} else {
		cfg.State = kv.New()
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	front, err := listen(net.JoinHostPort(opts.host, strconv.Itoa(opts.port)), "-port")
	if err != nil {
		return err
	}
	defer front.Close()
	node, err := p.Start(cfg)
	if err != nil {
		return err
	}
	server := gateway.NewServer(node, gateway.ServerOptions{Self: cfg.ID, Check: kv.Check})
	served := make(chan error, 1)
	go func() { served <- server.Serve(front) }()
	fmt.Fprintf(stdout, "%s-server: node %d of %d ready on %v, raft on %s, %s, log %s\n",
		p.Name, cfg.ID, len(cfg.Peers), front.Addr(), cfg.Peers[cfg.ID], p.Version(), node.Log())

	select {
	case <-ctx.Done():
	case err = <-served:
	}
	stop() // a second signal kills
	limit, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	server.Stop(limit)
	return errors.Join(err, node.Close())
}

// listen listens on one address. Flag is the one to change if that is taken.
func listen(addr, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen %s: address already in use: stop what uses it, or choose another %s", addr, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("listen %s: not an address of this host: -addr is where this node runs", addr)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("listen %s: permission denied: choose a %s above 1023", addr, flag)
	}
	return nil, fmt.Errorf("listen %s: %w", addr, err)
}

// Version is name and the version of the module that this program was built
// with, or name alone where the program does not know, as in tests.
func Version(name, module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == module {
				return name + " " + m.Version
			}
		}
	}
	return name
}
