package braft

import (
	"context"
	"flag"
	"fmt"
	"net/netip"

	"raftrig/loadgen"
	"raftrig/loadgen/nodehttp"
	"raftrig/loadgen/sock"
)

const (
	// defaultPort is of everything that a node offers: brpc tells protocols
	// apart by their first bytes.
	defaultPort  = 8300
	defaultGroup = "Atomic"
	// payload of a request: key, expected value and new value. On the wire the
	// three numbers have 1 to 9 bytes each, with a tag before each.
	payload = 3 * 8

	statusPath   = "/raftrig/status"
	transferPath = "/braft.CliService/transfer_leader"
)

// Product is braft with its replicated counters. It registers -port and -group.
func Product() loadgen.Product {
	port, group := defaultPort, defaultGroup
	return loadgen.Product{
		Name: "braft",
		Size: payload,
		Flags: func(f *flag.FlagSet) {
			f.IntVar(&port, "port", port, "the `port` of every node")
			f.StringVar(&group, "group", group, "`name` of the Raft group")
		},
		Open: func(ctx context.Context, hosts []string) (loadgen.System, error) {
			return Open(ctx, hosts, port, group)
		},
	}
}

// System is a braft group.
type System struct {
	addrs []netip.AddrPort
	group string
}

// Open resolves the hosts, once: node i is hosts[i-1], at port. It connects to
// none.
func Open(ctx context.Context, hosts []string, port int, group string) (*System, error) {
	if len(group) == 0 || len(group) > maxGroup {
		return nil, loadgen.Usagef("-group %.60q: a name of 1 to %d bytes is possible", group, maxGroup)
	}
	if len(hosts) == 0 || len(hosts) > maxNodes {
		return nil, fmt.Errorf("%d hosts: 1 to %d are possible", len(hosts), maxNodes)
	}
	addrs, err := sock.Resolve(ctx, hosts, port)
	if err != nil {
		return nil, err
	}
	// A node is known by its address.
	for i, a := range addrs {
		for j := range i {
			if addrs[j] == a {
				return nil, fmt.Errorf("nodes %d and %d have one address, %s", j+1, i+1, a)
			}
		}
	}
	return &System{addrs: addrs, group: group}, nil
}

// Dial implements loadgen.System.
func (s *System) Dial(w loadgen.Wiring) (loadgen.Client, error) {
	return NewClient(w, s.addrs, s.group)
}

// Close implements loadgen.System.
func (s *System) Close() error { return nil }

// Status implements loadgen.System.
func (s *System) Status(ctx context.Context) []loadgen.NodeStatus {
	return nodehttp.Status(ctx, s.addrs, statusPath)
}

// TransferLeader implements loadgen.System: it asks the leader, over the same
// service as braft's own command-line tool. It does nothing when node leads
// already.
func (s *System) TransferLeader(ctx context.Context, node int) error {
	leader, err := loadgen.HandsOver(s.Status(ctx), node)
	if leader == 0 {
		return err
	}
	request := struct {
		Group  string `json:"group_id"`
		Leader string `json:"leader_id"`
		Peer   string `json:"peer_id"`
	}{s.group, peerID(s.addrs[leader-1]), peerID(s.addrs[node-1])}
	err = nodehttp.Post(ctx, s.addrs[leader-1], transferPath, request, nil)
	if err != nil {
		return fmt.Errorf("transfer from node %d to node %d: %w", leader, node, err)
	}
	return nil
}
