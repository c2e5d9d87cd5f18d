//go:build linux

package sock

import (
	"net"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BenchmarkRead compares the ways to ask a socket that has nothing to read,
// which is what a spinning lane does most: the cost is that of the call.
func BenchmarkRead(b *testing.B) {
	c, _ := dialed(b)
	buf := make([]byte, 1<<16)
	for _, way := range []struct {
		name string
		read func() (int, error)
	}{
		{"raw-recvfrom", func() (int, error) {
			n, errno := recv(c.fd, buf)
			if errno != 0 {
				return n, errno
			}
			return n, nil
		}},
		{"raw-read", func() (int, error) {
			n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
			if errno != 0 {
				return int(n), errno
			}
			return int(n), nil
		}},
		{"syscall.Read", func() (int, error) { return syscall.Read(c.fd, buf) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := way.read(); err != syscall.EAGAIN {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWaitNothing is a lane's poll while no reply is there.
func BenchmarkWaitNothing(b *testing.B) {
	c, _ := dialed(b)
	p := c.poller
	b.ReportAllocs()
	for b.Loop() {
		if len(p.Wait(0)) != 0 {
			b.Fatal("readable")
		}
	}
}

// BenchmarkRoundTrip sends 64 bytes to an echo in the same process and reads
// them back, spinning and parked.
func BenchmarkRoundTrip(b *testing.B) {
	for _, way := range []struct {
		name string
		wait int64
	}{{"spin", 0}, {"park", int64(time.Second)}} {
		b.Run(way.name, func(b *testing.B) {
			c, peer := dialed(b)
			go func() {
				buf := make([]byte, 64)
				for {
					n, err := peer.Read(buf)
					if err != nil {
						return
					}
					peer.Write(buf[:n])
				}
			}()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			msg := make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				c.Write(msg)
				c.Flush()
				for got := 0; got < len(msg); {
					for range c.poller.Wait(way.wait) {
						n, err := c.Fill()
						if err != nil {
							b.Fatal(err)
						}
						c.Discard(n)
						got += n
					}
				}
			}
		})
	}
}

// BenchmarkTuneThread parks for 100 us over and over while every processor is
// busy, and reports how late the thread wakes: plain, with a timer slack of
// 1 ns, and with a short slice too. Each way runs on a thread of its own.
func BenchmarkTuneThread(b *testing.B) {
	slack := func() error { return unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }
	for _, way := range []struct {
		name string
		tune []func() error
		busy bool
	}{
		{"idle/plain", nil, false},
		{"idle/slack", []func() error{slack}, false},
		{"idle/slack+slice", []func() error{TuneThread}, false},
		{"busy/plain", nil, true},
		{"busy/slack", []func() error{slack}, true},
		{"busy/slack+slice", []func() error{TuneThread}, true},
	} {
		b.Run(way.name, func(b *testing.B) {
			if way.busy {
				busy(b)
			}
			p, err := NewPoller()
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			late := make([]time.Duration, 0, b.N)
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // and never unlocked: the thread ends
				for _, f := range way.tune {
					if err := f(); err != nil {
						done <- err
						return
					}
				}
				for range b.N {
					t0 := time.Now()
					p.Wait(100_000)
					late = append(late, time.Since(t0)-100*time.Microsecond)
				}
				done <- nil
			}()
			if err := <-done; err != nil {
				b.Skip(err)
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)/2])/1e3, "late_p50_us")
			b.ReportMetric(float64(late[len(late)*99/100])/1e3, "late_p99_us")
			b.ReportMetric(float64(late[len(late)*999/1000])/1e3, "late_p99.9_us")
		})
	}
}

// busy keeps a child process spinning on every processor.
func busy(b *testing.B) {
	for range runtime.NumCPU() {
		c := child(b, "spin")
		b.Cleanup(func() { c.Process.Kill(); c.Wait() })
	}
}

// dialed returns a connection and the peer's end of it.
func dialed(tb testing.TB) (*Conn, *net.TCPConn) {
	tb.Helper()
	return dialedWith(tb, newPoller(tb), Config{})
}
