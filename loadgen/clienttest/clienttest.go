// Package clienttest is what the tests and benchmarks of the products' clients
// share: a clock, a lane in closed mode without the rig around it, the least
// that such a lane could cost, and processes of their own for servers, so that
// a client's CPU and allocations stand alone.
package clienttest

import (
	"bufio"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/loadgen"
	"raftrig/loadgen/sock"
)

// Clock is the machine's clock, which a test can move forward.
type Clock struct {
	start time.Time
	leapt atomic.Int64
}

// NewClock starts at 0.
func NewClock() *Clock { return &Clock{start: time.Now()} }

// Now implements loadgen.Clock.
func (c *Clock) Now() int64 { return time.Since(c.start).Nanoseconds() + c.leapt.Load() }

// Leap moves the clock forward by ns nanoseconds.
func (c *Clock) Leap(ns int64) { c.leapt.Add(ns) }

// Child starts this test binary anew with more KEY=VALUE variables in its
// environment, and ends it with the test. The process is to end with its
// standard input too. Its standard output is read by what is returned.
func Child(tb testing.TB, env ...string) (*bufio.Reader, *os.Process) {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	return bufio.NewReader(out), cmd.Process
}

// Addr reads the address that a child prints on a line.
func Addr(tb testing.TB, child *bufio.Reader) netip.AddrPort {
	tb.Helper()
	line, err := child.ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	return netip.MustParseAddrPort(strings.TrimSpace(line))
}

// CPU is the user and system time so far: of this thread
// (unix.RUSAGE_THREAD) or this process (unix.RUSAGE_SELF).
func CPU(who int) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ClosedLoop is a lane in closed mode, parked between replies.
type ClosedLoop struct {
	Client loadgen.Client
	// Bad counts the requests that did not end OK.
	Bad int

	clock *Clock
	free  []uint32
}

// NewClosedLoop dials a client for so many outstanding requests of size bytes,
// and waits until it is ready.
func NewClosedLoop(tb testing.TB, outstanding, size int, dial func(loadgen.Wiring) (loadgen.Client, error)) *ClosedLoop {
	tb.Helper()
	l := &ClosedLoop{clock: NewClock()}
	for id := range outstanding {
		l.free = append(l.free, uint32(id))
	}
	var err error
	l.Client, err = dial(loadgen.Wiring{
		Slots: outstanding, Size: size, Clock: l.clock, Event: func(string) {},
		Fail: func(err error) { tb.Errorf("Fail: %v", err) },
		Complete: func(id uint32, o loadgen.Outcome, _ int64) {
			l.free = append(l.free, id)
			if o != loadgen.OK {
				l.Bad++
			}
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	for !l.Client.Ready() {
		l.Client.Wait(l.clock.Now() + 1e9)
		if err := l.Client.Flush(); err != nil {
			tb.Fatal(err)
		}
	}
	return l
}

// Run makes n requests, burst at a time, and waits for the last.
func (l *ClosedLoop) Run(n, burst int) {
	all := len(l.free)
	for n > 0 || len(l.free) < all {
		for n > 0 && len(l.free) >= min(burst, n) {
			for range min(burst, n) {
				id := l.free[len(l.free)-1]
				if !l.Client.Submit(id) {
					break
				}
				l.free = l.free[:len(l.free)-1]
				n--
			}
			l.Client.Flush()
		}
		l.Client.Wait(l.clock.Now() + 1e9)
	}
}

// Floor is the CPU that a bare socket costs the lane's thread to send so many
// bytes, the requests of one burst, to an echo at addr and to read them again, as
// a request of the burst, with 100 requests outstanding.
func Floor(b *testing.B, addr netip.AddrPort, size, burst int) {
	p, err := sock.NewPoller()
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := sock.NewConn(sock.Config{})
	if err := p.Dial(c, addr); err != nil {
		b.Fatal(err)
	}
	msg := make([]byte, size)
	run := func(n int) {
		sent, echoed := 0, 0 // bytes
		for n *= size / burst; echoed < n; {
			for sent < n && sent-echoed+size <= 100*size/burst {
				m := msg[:min(size, n-sent)]
				c.Write(m)
				if err := c.Flush(); err != nil {
					b.Fatal(err)
				}
				sent += len(m)
			}
			for range p.Wait(1e9) {
				got, err := c.Fill()
				if err != nil {
					b.Fatal(err)
				}
				c.Discard(got)
				echoed += got
			}
		}
	}
	run(10_000)
	b.ReportAllocs()
	b.ResetTimer()
	thread := CPU(unix.RUSAGE_THREAD)
	run(b.N)
	b.ReportMetric(float64(CPU(unix.RUSAGE_THREAD)-thread)/1e3/float64(b.N), "thread_cpu_us/op")
}
