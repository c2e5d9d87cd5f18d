package aeron

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"raftrig/loadgen"
	"raftrig/loadgen/nodehttp"
	"raftrig/loadgen/sock"
)

// A node's ports are basePort + portsPerNode*(node-1) and an offset.
const (
	portsPerNode  = 100
	ingressOffset = 2
	statusOffset  = 9 // TCP
	statusPath    = "/status"
)

const (
	// DefaultBasePort is where the first node's ports begin.
	DefaultBasePort = 9000
	// DefaultDir is where the driver beside the client runs.
	DefaultDir = "/dev/shm/raftrig-aeron/client"
	// defaultMTU is Aeron's: what an Ethernet frame of 1500 bytes takes.
	defaultMTU     = 1408
	defaultTerm    = 4 << 20
	defaultConnect = 5 * time.Second

	maxMTU  = 65504
	minTerm = 64 << 10
	maxTerm = 512 << 20 // larger ones are not mapped in one piece by aeron-go
	// maxNodes bounds what -hosts names.
	maxNodes = 100
)

// settings are the flags of the client's own.
type settings struct {
	basePort int
	dir      string
	address  string
	mtu      int
	term     size
	connect  time.Duration
}

// Product is Aeron Cluster as the rig takes it.
func Product() loadgen.Product {
	set := settings{term: defaultTerm}
	return loadgen.Product{
		Name: "aeron",
		Flags: func(f *flag.FlagSet) {
			f.IntVar(&set.basePort, "base-port", DefaultBasePort, "the first `port` of node 1; node i has the hundred from 100*(i-1) further")
			f.StringVar(&set.dir, "aeron-dir", DefaultDir, "the `folder` of the media driver beside the client")
			f.StringVar(&set.address, "client-addr", "", "the `address` that replies are sent to; by default the one this host reaches node 1 from")
			f.IntVar(&set.mtu, "mtu", defaultMTU, "the largest datagram in `bytes`, of requests and replies; a request has 64 bytes fewer")
			f.DurationVar(&set.connect, "connect-timeout", defaultConnect, "the `time` that the first session may take")
			f.Var(&set.term, "term-length", "`bytes` of a term of the requests' log; half of it may be on its way (64k to 512m)")
		},
		Open: func(ctx context.Context, hosts []string) (loadgen.System, error) {
			return open(ctx, hosts, set)
		},
	}
}

// System is an Aeron cluster, with a media driver on this host for its clients.
type System struct {
	settings
	ingress []string         // endpoints, node i's at i-1
	status  []netip.AddrPort // the same
	egress  netip.Addr
}

func open(ctx context.Context, hosts []string, set settings) (*System, error) {
	last := portsPerNode*(len(hosts)-1) + statusOffset
	switch {
	case len(hosts) == 0 || len(hosts) > maxNodes:
		return nil, loadgen.Usagef("%d hosts: 1 to %d are possible", len(hosts), maxNodes)
	case set.basePort < 1 || set.basePort+last > 65535:
		return nil, loadgen.Usagef("-base-port %d: 1 to %d are possible with %d nodes", set.basePort, 65535-last, len(hosts))
	case set.term < minTerm || set.term > maxTerm || set.term&(set.term-1) != 0:
		return nil, loadgen.Usagef("-term-length %v: want a power of two from 64k to 512m", &set.term)
	case set.mtu < 2*frameHeaderLen+messageHeaderLen || set.mtu > min(maxMTU, int(set.term)/8) || set.mtu%32 != 0:
		return nil, loadgen.Usagef("-mtu %d: want a multiple of 32 from %d to %d (at most an eighth of -term-length)",
			set.mtu, 2*frameHeaderLen+messageHeaderLen, min(maxMTU, int(set.term)/8))
	}
	if set.connect <= 0 {
		return nil, loadgen.Usagef("-connect-timeout %v: want more than 0", set.connect)
	}
	addrs, err := sock.Resolve(ctx, hosts, set.basePort)
	if err != nil {
		return nil, err
	}
	s := &System{settings: set}
	for i, a := range addrs {
		port := a.Port() + uint16(portsPerNode*i)
		s.ingress = append(s.ingress, netip.AddrPortFrom(a.Addr(), port+ingressOffset).String())
		s.status = append(s.status, netip.AddrPortFrom(a.Addr(), port+statusOffset))
	}
	if s.egress, err = ownAddress(ctx, set.address, addrs[0]); err != nil {
		return nil, err
	}
	return s, nil
}

// ownAddress is where replies are sent to: as given, or this host's address on
// the way to a node.
func ownAddress(ctx context.Context, given string, node netip.AddrPort) (netip.Addr, error) {
	if given != "" {
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", given)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("-client-addr: %w", err)
		}
		return found[0].Unmap(), nil
	}
	// Connecting a UDP socket sends nothing; it looks up the route.
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(node))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("node 1: %w", err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// channel is a UDP channel to an endpoint. Both directions have the MTU, or a
// reply might come in parts.
func (s *System) channel(endpoint string) string {
	return fmt.Sprintf("aeron:udp?endpoint=%s|mtu=%d", endpoint, s.mtu)
}

// Dial implements loadgen.System. Each client has its own connection to the
// media driver, which has to run by now. Dial waits for the first session, for
// -connect-timeout at most, so that the reason for none is told in full.
func (s *System) Dial(w loadgen.Wiring) (loadgen.Client, error) {
	if most := s.mtu - frameHeaderLen - messageHeaderLen; w.Size < correlationLen || w.Size > most {
		return nil, fmt.Errorf("SIZE %d: %d to %d bytes are possible with -mtu %d", w.Size, correlationLen, most, s.mtu)
	}
	l, err := openDriver(s.dir, channels{
		egress: s.channel(netip.AddrPortFrom(s.egress, 0).String()),
		ingress: func(endpoint string) string {
			return fmt.Sprintf("%s|term-length=%d", s.channel(endpoint), s.term)
		},
	})
	if err != nil {
		return nil, err
	}
	var failed error
	fail := w.Fail
	w.Fail = func(err error) { failed = err }
	c := newClient(w, l, s.ingress, s.connect)
	for c.session.state != stateOpen && failed == nil {
		c.Wait(w.Clock.Now() + attemptGap)
	}
	if failed != nil {
		_ = c.Close()
		return nil, failed
	}
	c.w.Fail = fail
	return c, nil
}

// Status implements loadgen.System.
func (s *System) Status(ctx context.Context) []loadgen.NodeStatus {
	return nodehttp.Status(ctx, s.status, statusPath)
}

// TransferLeader implements loadgen.System.
func (s *System) TransferLeader(context.Context, int) error {
	return fmt.Errorf("an Aeron cluster cannot hand leadership over: APPOINTED_LEADER=n at start pins it: %w", errors.ErrUnsupported)
}

// Close implements loadgen.System.
func (s *System) Close() error { return nil }

// size is a flag in bytes; k and m stand for KiB and MiB, as in Aeron's own
// settings.
type size int

// Set implements flag.Value.
func (s *size) Set(text string) error {
	number, shift := text, 0
	if n := len(text); n > 0 {
		switch text[n-1] {
		case 'k', 'K':
			number, shift = text[:n-1], 10
		case 'm', 'M':
			number, shift = text[:n-1], 20
		}
	}
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || n > (1<<31-1)>>shift {
		return errors.New("want a number of bytes, as in 65536, 64k or 4m")
	}
	*s = size(n << shift)
	return nil
}

func (s *size) String() string {
	switch n := int(*s); {
	case n >= 1<<20 && n%(1<<20) == 0:
		return strconv.Itoa(n>>20) + "m"
	case n >= 1<<10 && n%(1<<10) == 0:
		return strconv.Itoa(n>>10) + "k"
	default:
		return strconv.Itoa(n)
	}
}
