package sock

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// Resolve looks up each host, once, and puts the port behind its first
// address. Node i is hosts[i-1]; an error names it.
func Resolve(ctx context.Context, hosts []string, port int) ([]netip.AddrPort, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("-port %d: 1 to 65535 are possible", port)
	}
	addrs := make([]netip.AddrPort, len(hosts))
	for i, host := range hosts {
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil, fmt.Errorf("node %d: %w", i+1, err)
		}
		addrs[i] = netip.AddrPortFrom(found[0].Unmap(), uint16(port))
	}
	return addrs, nil
}
