package openraft

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"raftrig/loadgen"
	"raftrig/loadgen/nodehttp"
	"raftrig/loadgen/sock"
)

const (
	// defaultPort of a node's HTTP API.
	defaultPort = 21001
	// defaultKeys is how many different keys are written.
	defaultKeys = 10000
	// maxInflight is the default cap: each outstanding request is a connection.
	maxInflight = 400
	// spareFiles are open files that are no connection of a lane's.
	spareFiles = 64
)

// Product is openraft as the rig takes it. It registers -port and -keys.
func Product() loadgen.Product {
	port, keys := defaultPort, uint64(defaultKeys)
	return loadgen.Product{
		Name:        "openraft",
		MaxInflight: maxInflight,
		Flags: func(f *flag.FlagSet) {
			f.IntVar(&port, "port", port, "the HTTP API's `port` on every node")
			f.Uint64Var(&keys, "keys", keys, "how many different keys are written")
		},
		Open: func(ctx context.Context, hosts []string) (loadgen.System, error) {
			return Open(ctx, hosts, port, keys)
		},
	}
}

// System is a cluster of openraft servers.
type System struct {
	addrs []netip.AddrPort
	keys  uint64
}

// Open resolves the hosts, once: node i is hosts[i-1], its API at port. It
// connects to none. keys is how many different keys the clients write.
func Open(ctx context.Context, hosts []string, port int, keys uint64) (*System, error) {
	if keys == 0 {
		return nil, errors.New("-keys 0: at least 1 is needed")
	}
	if len(hosts) == 0 {
		return nil, errors.New("0 hosts: at least 1 is needed")
	}
	addrs, err := sock.Resolve(ctx, hosts, port)
	if err != nil {
		return nil, err
	}
	return &System{addrs: addrs, keys: keys}, nil
}

// Dial implements loadgen.System.
func (s *System) Dial(w loadgen.Wiring) (loadgen.Client, error) {
	if err := enoughFiles(w.Slots * max(w.Lanes, 1)); err != nil {
		return nil, err
	}
	return NewClient(w, s.addrs, s.keys)
}

// enoughFiles says whether this process may have so many connections. Go has
// raised its limit to the hard one.
func enoughFiles(connections int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	if uint64(connections+spareFiles) > limit.Cur {
		return fmt.Errorf("%d requests outstanding are as many connections, and this process may have %d files open: use fewer (-threads, -max-inflight), or raise the hard limit (ulimit -Hn)", connections, limit.Cur)
	}
	return nil
}

// Status implements loadgen.System.
func (s *System) Status(ctx context.Context) []loadgen.NodeStatus {
	return nodehttp.Status(ctx, s.addrs, "/status")
}

// TransferLeader implements loadgen.System: it does nothing when node leads,
// and cannot do more.
func (s *System) TransferLeader(ctx context.Context, node int) error {
	if node < 1 || node > len(s.addrs) {
		return fmt.Errorf("transfer to node %d: the cluster has nodes 1 to %d", node, len(s.addrs))
	}
	n := s.Status(ctx)[node-1]
	switch {
	case n.Err != nil:
		return fmt.Errorf("transfer to node %d: %w", node, n.Err)
	case n.Leads:
		return nil
	}
	return fmt.Errorf("openraft 0.9 has no leader transfer (%w): the node that initialises the cluster leads, until it fails", errors.ErrUnsupported)
}

// Close implements loadgen.System.
func (s *System) Close() error { return nil }
