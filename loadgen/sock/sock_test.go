//go:build linux

package sock

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is its own helper process.
func init() {
	if os.Getenv("SOCK_TEST_CHILD") == "spin" {
		go func() {
			// Dies with its parent: the pipe on stdin closes.
			io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
		for n := 0; ; n++ {
			spins = n
		}
	}
}

var spins int

func child(tb testing.TB, what string) *exec.Cmd {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SOCK_TEST_CHILD="+what)
	if _, err := cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	return cmd
}

const patience = 10 * time.Second

func newPoller(tb testing.TB) *Poller {
	tb.Helper()
	p, err := NewPoller()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

func listen(tb testing.TB) *net.TCPListener {
	tb.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}

func addrOf(l *net.TCPListener) netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }

// until waits with p, handing ready connections to f, until done.
func until(tb testing.TB, p *Poller, done func() bool, f func(*Conn)) {
	tb.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v", patience)
		}
		for _, c := range p.Wait(int64(100 * time.Millisecond)) {
			if f != nil {
				f(c)
			}
		}
	}
}

func dialedWith(tb testing.TB, p *Poller, cfg Config) (*Conn, *net.TCPConn) {
	tb.Helper()
	l := listen(tb)
	c := NewConn(cfg)
	if err := p.Dial(c, addrOf(l)); err != nil {
		tb.Fatal(err)
	}
	peer, err := l.AcceptTCP()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { peer.Close() })
	until(tb, p, c.Connected, nil)
	return c, peer
}

func TestEcho(t *testing.T) {
	c, peer := dialed(t)
	if !c.Write([]byte("ping")) {
		t.Fatal("no room")
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(peer, b); err != nil || string(b) != "ping" {
		t.Fatalf("peer read %q, %v", b, err)
	}
	peer.Write([]byte("pong"))
	until(t, c.poller, func() bool { return len(c.In()) == 4 }, func(c *Conn) {
		if !c.Readable() {
			t.Error("reported but not readable")
		}
		if _, err := c.Fill(); err != nil {
			t.Fatal(err)
		}
	})
	if string(c.In()) != "pong" {
		t.Errorf("read %q", c.In())
	}
	if n, err := c.Fill(); n != 0 || err != nil {
		t.Errorf("Fill of an empty socket: %d, %v", n, err)
	}
	c.Discard(1)
	if string(c.In()) != "ong" {
		t.Errorf("after Discard: %q", c.In())
	}
}

// What is written before the connection is up leaves when it is.
func TestWriteBeforeConnected(t *testing.T) {
	l, p := listen(t), newPoller(t)
	c := NewConn(Config{})
	if err := p.Dial(c, addrOf(l)); err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("early"))
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	until(t, p, c.Connected, nil)
	b := make([]byte, 5)
	if _, err := io.ReadFull(peer, b); err != nil || string(b) != "early" {
		t.Fatalf("peer read %q, %v", b, err)
	}
}

// A reader that takes nothing for a while fills the socket, then the out
// buffer; afterwards every byte arrives, in order.
func TestSlowReader(t *testing.T) {
	c, peer := dialedWith(t, newPoller(t), Config{Out: 10_000})
	rng := rand.New(rand.NewPCG(1, 2))
	var sent []byte
	full := false
	for !full {
		b := make([]byte, 1+rng.IntN(3000))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		if c.Write(b) {
			sent = append(sent, b...)
			if err := c.Flush(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		full = true
		if c.Room() >= len(b) {
			t.Errorf("refused %d bytes with room for %d", len(b), c.Room())
		}
	}
	if !c.armed {
		t.Fatal("the socket is full and EPOLLOUT is not armed")
	}
	if c.Pending()+c.Room() != 10_000 {
		t.Errorf("pending %d + room %d is not the capacity", c.Pending(), c.Room())
	}
	got := make(chan []byte)
	b := make([]byte, len(sent)+5000)
	go func() {
		n, _ := io.ReadFull(peer, b)
		got <- b[:n]
	}()
	// More while it drains: the buffer is compacted.
	rest := bytes.Repeat([]byte{7}, 5000)
	until(t, c.poller, func() bool {
		if len(rest) > 0 && c.Write(rest[:500]) {
			sent, rest = append(sent, rest[:500]...), rest[500:]
			if err := c.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		return len(rest) == 0 && c.Pending() == 0
	}, nil)
	if b := <-got; !bytes.Equal(b, sent) {
		t.Errorf("the peer read %d bytes that differ from the %d sent", len(b), len(sent))
	}
	if c.armed {
		t.Error("EPOLLOUT still armed with nothing to send")
	}
}

func TestRefused(t *testing.T) {
	l, p := listen(t), newPoller(t)
	addr := addrOf(l)
	l.Close()
	c := NewConn(Config{})
	if err := p.Dial(c, addr); err != nil {
		if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), addr.String()) {
			t.Fatal(err)
		}
		return
	}
	until(t, p, func() bool { return c.Err() != nil }, nil)
	if !errors.Is(c.Err(), syscall.ECONNREFUSED) {
		t.Errorf("%v", c.Err())
	}
	if c.Connected() {
		t.Error("connected")
	}
	if err := c.Flush(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Flush: %v", err)
	}
}

// A peer that writes and closes: its bytes first, then io.EOF.
func TestPeerClosesWithPendingData(t *testing.T) {
	c, peer := dialedWith(t, newPoller(t), Config{In: 1000})
	want := bytes.Repeat([]byte("last words "), 500)
	go func() {
		peer.Write(want)
		peer.Close()
	}()
	var got []byte
	until(t, c.poller, func() bool { return c.Err() != nil }, func(c *Conn) {
		c.Fill()
		got = append(got, c.In()...)
		c.Discard(len(c.In()))
	})
	if c.Err() != io.EOF {
		t.Errorf("ended with %v", c.Err())
	}
	if !bytes.Equal(got, want) {
		t.Errorf("read %d bytes, want %d", len(got), len(want))
	}
}

func TestReset(t *testing.T) {
	c, peer := dialed(t)
	peer.SetLinger(0)
	peer.Close()
	until(t, c.poller, func() bool { return c.Err() != nil }, func(c *Conn) { c.Fill() })
	if !errors.Is(c.Err(), syscall.ECONNRESET) {
		t.Errorf("%v", c.Err())
	}
	// Writing on is an error, not a signal.
	c.Write([]byte("x"))
	if err := c.Flush(); err == nil {
		t.Error("Flush after a reset: no error")
	}
}

// A write to a connection that the peer has reset, before it was read.
func TestWriteAfterReset(t *testing.T) {
	c, peer := dialed(t)
	peer.SetLinger(0)
	peer.Close()
	until(t, c.poller, func() bool {
		c.Write([]byte("x"))
		return c.Flush() != nil
	}, nil)
	if !errors.Is(c.Err(), syscall.ECONNRESET) && !errors.Is(c.Err(), syscall.EPIPE) {
		t.Errorf("%v", c.Err())
	}
}

func TestInBufferFull(t *testing.T) {
	c, peer := dialedWith(t, newPoller(t), Config{In: 16})
	peer.Write(make([]byte, 20))
	until(t, c.poller, func() bool { return len(c.In()) == 16 }, func(c *Conn) { c.Fill() })
	if n, err := c.Fill(); n != 0 || err != ErrFull {
		t.Fatalf("Fill of a full buffer: %d, %v", n, err)
	}
	if c.Err() != nil {
		t.Errorf("a full buffer ended the connection: %v", c.Err())
	}
	c.Discard(16)
	until(t, c.poller, func() bool { return len(c.In()) == 4 }, func(c *Conn) { c.Fill() })
}

// A connection is dialed again after Close: nothing is left of the first.
func TestRedial(t *testing.T) {
	p := newPoller(t)
	c, peer := dialedWith(t, p, Config{})
	peer.Write([]byte("old"))
	until(t, p, func() bool { return len(c.In()) == 3 }, func(c *Conn) { c.Fill() })
	c.Write([]byte("never sent"))
	c.Close()
	if string(c.In()) != "old" {
		t.Errorf("Close lost what was read: %q", c.In())
	}
	if !c.Closed() {
		t.Error("not closed")
	}
	l := listen(t)
	if err := p.Dial(c, addrOf(l)); err != nil {
		t.Fatal(err)
	}
	if len(c.In()) != 0 || c.Pending() != 0 {
		t.Errorf("left over: %d in, %d out", len(c.In()), c.Pending())
	}
	until(t, p, c.Connected, nil)
}

// An event that was queued for a connection closed meanwhile is not taken for
// the one that has its slot now.
func TestStaleEvent(t *testing.T) {
	p := newPoller(t)
	a, peer := dialedWith(t, p, Config{})
	slot, gen := a.slot, p.gens[a.slot]
	peer.Write([]byte("x"))
	until(t, p, a.Readable, nil)
	a.Close()
	b, _ := dialedWith(t, p, Config{})
	if b.slot != slot {
		t.Fatalf("slot %d not used again, got %d", slot, b.slot)
	}
	if p.gens[slot] == gen {
		t.Error("same generation")
	}
	if r := p.Wait(0); len(r) != 0 {
		t.Errorf("%d ready", len(r))
	}
}

func TestLocalAddress(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.5")
	_, peer := dialedWith(t, newPoller(t), Config{Local: local})
	if got := peer.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); got != local {
		t.Errorf("connected from %v, want %v", got, local)
	}
}

func TestLocalAddressErrors(t *testing.T) {
	l, p := listen(t), newPoller(t)
	for _, local := range []string{"::1", "192.0.2.1"} {
		c := NewConn(Config{Local: netip.MustParseAddr(local)})
		err := p.Dial(c, addrOf(l))
		if err == nil || !strings.Contains(err.Error(), "bind "+local) {
			t.Errorf("bind %s: %v", local, err)
		}
		if !c.Closed() || c.fd >= 0 {
			t.Errorf("bind %s: not closed after the error", local)
		}
	}
}

// More connections than one Wait reports, each echoing.
func TestManyConns(t *testing.T) {
	const conns, size = 400, 2000
	l, p := listen(t), newPoller(t)
	go func() {
		for {
			peer, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer peer.Close()
				io.Copy(peer, peer)
			}()
		}
	}()
	got := make([][]byte, conns)
	want := make([][]byte, conns)
	all := make([]*Conn, conns)
	for i := range all {
		all[i] = NewConn(Config{In: 4096, Out: 4096})
		all[i].Tag = i
		want[i] = bytes.Repeat([]byte{byte(i), byte(i >> 8)}, size/2)
		if err := p.Dial(all[i], addrOf(l)); err != nil {
			t.Fatal(err)
		}
		all[i].Write(want[i])
	}
	left := conns
	until(t, p, func() bool { return left == 0 }, func(c *Conn) {
		if c.Err() != nil {
			t.Fatal(c.Err())
		}
		if !c.Readable() {
			return
		}
		if _, err := c.Fill(); err != nil {
			t.Fatal(err)
		}
		got[c.Tag] = append(got[c.Tag], c.In()...)
		c.Discard(len(c.In()))
		if len(got[c.Tag]) == size {
			left--
		}
	})
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("connection %d read another's bytes", i)
		}
	}
}

// Wait ends by itself when nothing happens, and by I/O long before its time.
func TestWaitWakes(t *testing.T) {
	for _, ppoll := range []bool{false, true} {
		t.Run(fmt.Sprintf("ppoll=%v", ppoll), func(t *testing.T) {
			p := newPoller(t)
			p.ppoll = ppoll
			c, peer := dialedWith(t, p, Config{})
			if r := p.Wait(int64(time.Millisecond)); len(r) != 0 {
				t.Errorf("%d ready on a quiet connection", len(r))
			}
			peer.Write([]byte("x"))
			// A signal may end a Wait early with nothing; an hour may not pass.
			var r []*Conn
			for len(r) == 0 {
				r = p.Wait(int64(time.Hour))
			}
			if len(r) != 1 || r[0] != c {
				t.Errorf("ready: %v", r)
			}
		})
	}
}

func TestNoAllocations(t *testing.T) {
	p := newPoller(t)
	c, peer := dialedWith(t, p, Config{})
	buf, msg := make([]byte, 100), make([]byte, 100)
	fd, err := peer.File() // blocking, and without the runtime's poller
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	raw := int(fd.Fd())
	if n := testing.AllocsPerRun(1000, func() {
		c.Write(msg)
		c.Flush()
		syscall.Read(raw, buf)
		syscall.Write(raw, buf)
		for _, c := range p.Wait(int64(time.Second)) {
			n, _ := c.Fill()
			c.Discard(n)
		}
		p.Wait(0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTuneThread(t *testing.T) {
	done := make(chan error)
	go func() {
		done <- tuneAndRead()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestPollerClose(t *testing.T) {
	p := newPoller(t)
	c, peer := dialedWith(t, p, Config{})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if !c.Closed() {
		t.Error("connection left open")
	}
	if _, err := peer.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the peer reads %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
