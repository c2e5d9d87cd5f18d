package model

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Rates are what one thread can send, in calls a second, by datagram size.
type Rates struct {
	SizeBytes int     `json:"size_bytes"`
	Runs      []int64 `json:"calls_per_s"` // in the order they were made
	Median    int64   `json:"median_per_s"`
	Min       int64   `json:"min_per_s"`
	Max       int64   `json:"max_per_s"`
	// Refused is the share of calls that returned an error, as when the peer's
	// host answers that nobody listens; they count as calls, for they cost one.
	Refused float64 `json:"refused"`
}

// clockEvery is how many calls are made between two readings of the clock.
const clockEvery = 64

// SendRate measures S: sendmsg calls a second of one thread, on one connected
// UDP socket, runs runs of the given time each. The address should be one that
// the route to the followers leads to; it receives runs x time x S datagrams. A
// zero address means a socket of this process on loopback that nobody reads.
func SendRate(to netip.AddrPort, size, runs int, each time.Duration) (Rates, error) {
	r := Rates{SizeBytes: size}
	if size < 1 || size > MaxMTU {
		return r, fmt.Errorf("size %d: want 1 to %d bytes", size, MaxMTU)
	}
	if runs < 1 || each <= 0 {
		return r, fmt.Errorf("%d runs of %v: want 1 or more, of more than 0", runs, each)
	}
	if !to.IsValid() {
		sink, addr, err := listen()
		if err != nil {
			return r, err
		}
		defer unix.Close(sink)
		to = addr
	}
	fd, err := connect(to)
	if err != nil {
		return r, fmt.Errorf("UDP %v: %w", to, err)
	}
	defer unix.Close(fd)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	datagram := make([]byte, size)
	var calls, refused int64
	var first error
	for range runs {
		n := int64(0)
		begin := time.Now()
		took := time.Duration(0)
		for took < each {
			for range clockEvery {
				if _, err := unix.SendmsgN(fd, datagram, nil, nil, 0); err != nil {
					refused++
					if first == nil {
						first = err
					}
				}
			}
			n += clockEvery
			took = time.Since(begin)
		}
		calls += n
		r.Runs = append(r.Runs, int64(float64(n)/took.Seconds()))
	}
	if refused == calls {
		return r, fmt.Errorf("UDP %v, %d bytes: no call succeeded: %w", to, size, first)
	}
	sorted := slices.Sorted(slices.Values(r.Runs))
	r.Median, r.Min, r.Max = sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1]
	r.Refused = float64(refused) / float64(calls)
	return r, nil
}

func connect(to netip.AddrPort) (fd int, err error) {
	family := unix.AF_INET6
	var addr unix.Sockaddr = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	if ip := to.Addr().Unmap(); ip.Is4() {
		family = unix.AF_INET
		addr = &unix.SockaddrInet4{Port: int(to.Port()), Addr: ip.As4()}
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, addr); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// listen opens a socket on loopback that fills up and then drops.
func listen() (fd int, at netip.AddrPort, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, at, err
	}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		var bound unix.Sockaddr
		if bound, err = unix.Getsockname(fd); err == nil {
			return fd, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(bound.(*unix.SockaddrInet4).Port)), nil
		}
	}
	unix.Close(fd)
	return -1, at, err
}
