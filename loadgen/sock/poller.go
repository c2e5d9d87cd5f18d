//go:build linux

package sock

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batch is how many ready connections one Wait takes from the kernel; more
// come with the next. It covers the largest lane (400 connections) in two.
const batch = 256

// Poller waits for a lane's connections: one epoll instance, level-triggered.
type Poller struct {
	fd     int
	events [batch]unix.EpollEvent
	ready  [batch]*Conn
	// conns is indexed by the slot that an event carries; free slots are nil.
	// An event also carries the slot's generation, so that one that was
	// queued for a closed connection is not taken for its successor's.
	conns []*Conn
	gens  []int32
	free  []int32
	// ppoll is set where the kernel lacks epoll_pwait2 (before Linux 5.11).
	ppoll bool
}

// NewPoller makes an epoll instance; Close frees it.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	return &Poller{fd: fd}, nil
}

// Wait returns the connections that have something to say: bytes to read, the
// end of a connect, or their own end. It has already finished connects and
// written what a full socket had left in an out buffer. With timeoutNS <= 0 it
// does not block; else it returns after timeoutNS nanoseconds at the latest,
// give or take the thread's timer slack (see TuneThread), and may return early
// with nothing when a signal arrives. The slice is valid until the next Wait.
func (p *Poller) Wait(timeoutNS int64) []*Conn {
	n := p.wait(timeoutNS)
	ready := p.ready[:0]
	for i := range n {
		e := &p.events[i]
		slot := e.Fd
		c := p.conns[slot]
		if c == nil || p.gens[slot] != e.Pad {
			continue
		}
		if c.onEvents(e.Events) {
			ready = append(ready, c)
		}
	}
	return ready
}

// wait fills p.events and returns how many.
func (p *Poller) wait(timeoutNS int64) int {
	if timeoutNS > 0 {
		if !p.ppoll {
			ts := unix.NsecToTimespec(timeoutNS)
			// Syscall, not RawSyscall: a parked lane gives its P to others.
			n, _, errno := syscall.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events)), batch,
				uintptr(unsafe.Pointer(&ts)), 0, 0)
			if errno != syscall.ENOSYS {
				return count(n, errno)
			}
			p.ppoll = true
		}
		// An epoll instance can itself be polled, and ppoll has nanoseconds
		// where epoll_wait has milliseconds.
		ts := unix.NsecToTimespec(timeoutNS)
		pfd := unix.PollFd{Fd: int32(p.fd), Events: unix.POLLIN}
		n, _, errno := syscall.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&pfd)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
		if count(n, errno) == 0 {
			return 0
		}
	}
	// This call cannot block, so the scheduler need not know of it.
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events)), batch, 0, 0, 0)
	return count(n, errno)
}

func count(n uintptr, errno syscall.Errno) int {
	switch errno {
	case 0:
		return int(n)
	case syscall.EINTR:
		return 0
	}
	// EBADF, EFAULT, EINVAL: used after Close, or a bug here.
	panic(fmt.Sprintf("sock: polling: %v", errno))
}

func (p *Poller) add(c *Conn, events uint32) error {
	var slot int32
	if n := len(p.free); n > 0 {
		slot = p.free[n-1]
		p.free = p.free[:n-1]
	} else {
		slot = int32(len(p.conns))
		p.conns = append(p.conns, nil)
		p.gens = append(p.gens, 0)
	}
	p.gens[slot]++
	p.conns[slot] = c
	c.slot, c.poller = slot, p
	if err := p.control(unix.EPOLL_CTL_ADD, c, events); err != nil {
		p.remove(c)
		return err
	}
	return nil
}

// remove forgets c; closing its descriptor takes it out of the epoll set.
func (p *Poller) remove(c *Conn) {
	p.conns[c.slot] = nil
	p.free = append(p.free, c.slot)
	c.poller = nil
}

func (p *Poller) control(op int, c *Conn, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: c.slot, Pad: p.gens[c.slot]}
	if err := unix.EpollCtl(p.fd, op, c.fd, &e); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	return nil
}

// Close closes every connection and the epoll instance.
func (p *Poller) Close() error {
	for _, c := range p.conns {
		if c != nil {
			c.Close()
		}
	}
	if p.fd < 0 {
		return nil
	}
	fd := p.fd
	p.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}
