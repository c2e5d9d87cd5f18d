package braft

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"raftrig/loadgen"
	"raftrig/loadgen/clienttest"
)

// The test binary is its own helper: a server that answers at once, in a
// process of its own, so that the client's CPU and allocations stand alone.
const childVariable = "BRAFT_CLIENT_TEST_CHILD"

func init() {
	var serve func(net.Conn) error
	switch os.Getenv(childVariable) {
	case "":
		return
	case "instant":
		serve = serveInstantly
	case "echo":
		serve = func(c net.Conn) error {
			_, err := io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, 64<<10))
			return err
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	fmt.Println(l.Addr())
	io.Copy(io.Discard, os.Stdin) // ends with the parent
	os.Exit(0)
}

// serveInstantly leads, and carries out all that comes; replies to what one
// read has brought leave in one write, as brpc does it under load.
func serveInstantly(c net.Conn) error {
	leads := protowire.AppendString([]byte{1<<3 | 2}, peerID(c.LocalAddr().(*net.TCPAddr).AddrPort()))
	in, out := make([]byte, 0, 256<<10), []byte(nil)
	for {
		n, err := c.Read(in[len(in):cap(in)])
		if err != nil {
			return err
		}
		in, out = in[:len(in)+n], out[:0]
		b := in
		for len(b) >= headerLen && len(b) >= headerLen+int(binary.BigEndian.Uint32(b[4:])) {
			end, meta := headerLen+int(binary.BigEndian.Uint32(b[4:])), headerLen+int(binary.BigEndian.Uint32(b[8:]))
			_, _, n := protowire.ConsumeField(b[headerLen:meta])
			correlation := b[headerLen+n+1 : meta]
			body := leads
			if len(b[:meta])-len(correlation) == len(callExchange) {
				var v [4]uint64
				for at := meta; at < end; {
					num := b[at] >> 3
					x, k := protowire.ConsumeVarint(b[at+1 : end])
					v[num] = x
					at += 1 + k
				}
				body = values(true, int64(v[1]), int64(v[3]), int64(v[2]))
			}
			reply := append([]byte{0x12, 2, 8, 0, 0x18, 0, 0x20}, correlation...)
			out = append(out, frame(reply, body)...)
			b = b[end:]
		}
		in = in[:copy(in, b)]
		if _, err := c.Write(out); err != nil {
			return err
		}
	}
}

// startChild starts a child process with a server, and ends it with the test.
func startChild(tb testing.TB, what string) netip.AddrPort {
	tb.Helper()
	child, _ := clienttest.Child(tb, childVariable+"="+what)
	return clienttest.Addr(tb, child)
}

func newClosedLoop(tb testing.TB, addr netip.AddrPort, outstanding int) *clienttest.ClosedLoop {
	tb.Helper()
	return clienttest.NewClosedLoop(tb, outstanding, 0, func(w loadgen.Wiring) (loadgen.Client, error) {
		return NewClient(w, []netip.AddrPort{addr}, defaultGroup)
	})
}

// The path of a request allocates nothing, replies included. The server is in
// another process, so all allocations counted are the client's.
func TestClientNoAllocations(t *testing.T) {
	l := newClosedLoop(t, startChild(t, "instant"), 100)
	defer l.Client.Close()
	l.Run(10_000, 10)
	if n := testing.AllocsPerRun(20, func() { l.Run(1000, 1); l.Run(1000, 10); l.Run(1000, 100) }); n != 0 {
		t.Errorf("%v allocations for 3000 requests", n)
	}
	if l.Bad != 0 {
		t.Errorf("%d requests not OK", l.Bad)
	}
}

func threadCPU() time.Duration { return clienttest.CPU(unix.RUSAGE_THREAD) }

// BenchmarkClient is the CPU that a request costs the lane's thread, closed
// loop with 100 outstanding, against a server in another process that answers
// at once. The floor is a bare socket that sends as many bytes as often to an
// echo.
func BenchmarkClient(b *testing.B) {
	for _, burst := range []int{1, 10} {
		b.Run(fmt.Sprintf("lane/burst=%d", burst), func(b *testing.B) {
			addr := startChild(b, "instant")
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			l := newClosedLoop(b, addr, 100)
			defer l.Client.Close()
			l.Run(10_000, burst)
			b.ReportAllocs()
			b.ResetTimer()
			thread := threadCPU()
			l.Run(b.N, burst)
			b.ReportMetric(float64(threadCPU()-thread)/1e3/float64(b.N), "thread_cpu_us/op")
			if l.Bad != 0 {
				b.Fatalf("%d requests not OK", l.Bad)
			}
		})
		b.Run(fmt.Sprintf("floor/burst=%d", burst), func(b *testing.B) {
			size := burst * len(appendExchange(nil, 1e6<<slotBits, 1<<62, 1e4, 1e4))
			clienttest.Floor(b, startChild(b, "echo"), size, burst)
		})
	}
}

// BenchmarkClientPoll is a spinning lane's poll while no reply is there.
func BenchmarkClientPoll(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := newClosedLoop(b, startChild(b, "instant"), 1)
	defer l.Client.Close()
	b.ReportAllocs()
	thread, n := threadCPU(), 0
	for b.Loop() {
		l.Client.Poll()
		n++
	}
	b.ReportMetric(float64(threadCPU()-thread)/float64(n), "thread_cpu_ns/op")
}

// BenchmarkClientEncode is a Submit without a network.
func BenchmarkClientEncode(b *testing.B) {
	frame := make([]byte, 0, maxRequest)
	b.ReportAllocs()
	for i := int64(0); b.Loop(); i++ {
		frame = appendExchange(frame[:0], uint64(i)<<slotBits, 1<<62, i, i+1)
	}
}

// BenchmarkClientDecode is a reply without a network.
func BenchmarkClientDecode(b *testing.B) {
	meta := protowire.AppendVarint([]byte{0x12, 2, 8, 0, 0x18, 0, 0x20}, 1e6<<slotBits)
	in := frame(meta, values(true, 1<<62, 1e4, 1e4-1))
	var r reply
	var e exchanged
	b.ReportAllocs()
	for b.Loop() {
		if n, err := r.decode(in); n != len(in) || err != nil {
			b.Fatal(n, err)
		}
		if err := e.decode(r.body); err != nil {
			b.Fatal(err)
		}
	}
}
