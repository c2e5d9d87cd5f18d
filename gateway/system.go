package gateway

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"raftrig/gateway/gatewaypb"
	"raftrig/loadgen"
	"raftrig/loadgen/sock"
)

// DefaultKeys is how many different keys a client writes unless told
// otherwise.
const DefaultKeys = 10000

// Product is a product whose servers run a gateway, on the same port of every
// host unless a flag says otherwise. It registers -port and -keys.
func Product(name string, port int) loadgen.Product {
	keys := uint64(DefaultKeys)
	return loadgen.Product{
		Name: name,
		Flags: func(f *flag.FlagSet) {
			f.IntVar(&port, "port", port, "the gateway's `port` on every node")
			f.Uint64Var(&keys, "keys", keys, "how many different keys are written")
		},
		Open: func(ctx context.Context, hosts []string) (loadgen.System, error) {
			return Open(ctx, hosts, port, keys)
		},
	}
}

// System is a cluster behind gateways.
type System struct {
	addrs []netip.AddrPort
	keys  uint64
}

// Open resolves the hosts, once: node i is hosts[i-1], its gateway at port. It
// connects to none. keys is how many different keys the clients write.
func Open(ctx context.Context, hosts []string, port int, keys uint64) (*System, error) {
	if keys == 0 {
		return nil, errors.New("-keys 0: at least 1 is needed")
	}
	if len(hosts) == 0 || len(hosts) > maxNodes {
		return nil, fmt.Errorf("%d hosts: 1 to %d are possible", len(hosts), maxNodes)
	}
	addrs, err := sock.Resolve(ctx, hosts, port)
	if err != nil {
		return nil, err
	}
	return &System{addrs: addrs, keys: keys}, nil
}

// Dial implements loadgen.System.
func (s *System) Dial(w loadgen.Wiring) (loadgen.Client, error) {
	return NewClient(w, s.addrs, s.keys)
}

// Close implements loadgen.System.
func (s *System) Close() error { return nil }

// call makes one unary call to a node. It has a connection of its own: the
// calls are rare, and a grpc.ClientConn that is kept would go on working in
// the background of a measurement, and answer from its backoff while a node
// comes up.
func (s *System) call(node int, f func(gatewaypb.GatewayClient) error) error {
	// What the dial says is said better than what gRPC makes of it.
	var refused atomic.Pointer[error]
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			refused.Store(&err)
		}
		return c, err
	}
	conn, err := grpc.NewClient("passthrough:///"+s.addrs[node-1].String(), grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := f(gatewaypb.NewGatewayClient(conn)); err != nil {
		s := status.Convert(err)
		if dialErr := refused.Load(); dialErr != nil && s.Code() == codes.Unavailable {
			var op *net.OpError
			if errors.As(*dialErr, &op) {
				return op.Err // the caller names the address
			}
			return *dialErr
		}
		if s.Code() == codes.DeadlineExceeded {
			return fmt.Errorf("connected, but no answer in time: %w", context.DeadlineExceeded)
		}
		if s.Code() == codes.Unimplemented {
			return fmt.Errorf("%s: %w", s.Message(), errors.ErrUnsupported)
		}
		return fmt.Errorf("%s: %s", s.Code(), s.Message())
	}
	return nil
}

// Status implements loadgen.System.
func (s *System) Status(ctx context.Context) []loadgen.NodeStatus {
	nodes := make([]loadgen.NodeStatus, len(s.addrs))
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() { nodes[i] = s.status(ctx, i+1) })
	}
	wg.Wait()
	return nodes
}

func (s *System) status(ctx context.Context, node int) loadgen.NodeStatus {
	n := loadgen.NodeStatus{Node: node, Addr: s.addrs[node-1].String()}
	n.Err = s.call(node, func(g gatewaypb.GatewayClient) error {
		r, err := g.Status(ctx, &gatewaypb.StatusRequest{})
		if err != nil {
			return err
		}
		if int(r.Node) != node {
			return status.Errorf(codes.FailedPrecondition,
				"it says it is node %d: name the hosts in the order of their nodes, and the port of this cluster", r.Node)
		}
		n.Leads = r.Role == gatewaypb.Role_ROLE_LEADER
		n.Leader, n.Term = int(r.Leader), r.Term
		n.Applied, n.Count, n.Digest = r.Applied, r.Count, r.Digest
		n.Version, n.Log = r.Version, r.Log
		return nil
	})
	if n.Err != nil {
		n.Err = fmt.Errorf("node %d at %s: %w", node, n.Addr, n.Err)
	}
	return n
}

// TransferLeader implements loadgen.System: it asks the leader. It does
// nothing when node leads already.
func (s *System) TransferLeader(ctx context.Context, node int) error {
	leader, err := loadgen.HandsOver(s.Status(ctx), node)
	if leader == 0 {
		return err
	}
	err = s.call(leader, func(g gatewaypb.GatewayClient) error {
		_, err := g.TransferLeader(ctx, &gatewaypb.TransferLeaderRequest{To: uint32(node)})
		return err
	})
	if err != nil {
		return fmt.Errorf("transfer from node %d to node %d: %w", leader, node, err)
	}
	return nil
}
