package loadgen

import (
	"context"
	"flag"
	"fmt"
)

// Product is what a product's client program hands to the rig: a name, its own
// flags, and how to reach a cluster. The rig knows nothing else of it.
type Product struct {
	// Name as printed and as the folder under results/ is called.
	Name string
	// MaxInflight lowers the default in-flight cap where the transport needs
	// it; 0 leaves the rig's default.
	MaxInflight int
	// Size is the payload of a request in bytes where the product's protocol
	// fixes it; 0 leaves it to -size.
	Size int
	// Flags registers the product's own flags; it may be nil.
	Flags func(*flag.FlagSet)
	// Open reaches the cluster at the given hosts (no ports; node i is
	// hosts[i-1]). It does not wait for a leader.
	Open func(ctx context.Context, hosts []string) (System, error)
}

// System is a running cluster.
type System interface {
	// Dial makes the client of one lane. It may return before a leader is
	// known; Ready tells.
	Dial(Wiring) (Client, error)

	// Status asks every node at once, bounded by ctx. There is one entry a
	// node, in order; a node that did not answer has Err set.
	Status(ctx context.Context) []NodeStatus

	// TransferLeader makes node lead (counted from 1) and returns when the
	// request has been taken; Status tells when it holds. A product that
	// cannot returns an error that wraps errors.ErrUnsupported.
	TransferLeader(ctx context.Context, node int) error

	// Close frees what Open took.
	Close() error
}

// NodeStatus is what a node says of itself.
type NodeStatus struct {
	// Node counts from 1.
	Node int
	// Addr is where it was asked, host:port.
	Addr string
	// Leads says whether the node is the leader.
	Leads bool
	// Leader is the node it follows or is; 0 when it knows none.
	Leader int
	Term   uint64
	// Applied is the index of the last entry that its state machine holds.
	Applied uint64
	// Count is how many requests its state machine has applied since the
	// cluster began.
	Count uint64
	// Digest is of the state at Applied: equal states have equal digests.
	Digest string
	// Version names the product's library and its version.
	Version string
	// Log says where the log is kept and whether it is synced to disk.
	Log string
	// Err is why the node did not answer.
	Err error
}

// Leading is the node that leads by the highest term; nil when none does.
func Leading(nodes []NodeStatus) *NodeStatus {
	var best *NodeStatus
	for i := range nodes {
		if n := &nodes[i]; n.Err == nil && n.Leads && (best == nil || n.Term > best.Term) {
			best = n
		}
	}
	return best
}

// HandsOver is the node to ask for a transfer of the leadership to another: the
// leader, or 0 when that is the other already.
func HandsOver(nodes []NodeStatus, to int) (leader int, err error) {
	if to < 1 || to > len(nodes) {
		return 0, fmt.Errorf("transfer to node %d: the cluster has nodes 1 to %d", to, len(nodes))
	}
	if l := Leading(nodes); l != nil {
		if l.Node == to {
			return 0, nil
		}
		return l.Node, nil
	}
	for _, n := range nodes {
		if n.Err != nil {
			return 0, fmt.Errorf("transfer to node %d: no leader; %w", to, n.Err)
		}
	}
	return 0, fmt.Errorf("transfer to node %d: no leader", to)
}
