package fleet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wires gives a router on socket pairs instead of TAP devices, and the far ends
// of its ports.
func wires(t *testing.T, oneWay time.Duration) (*delayer, []int) {
	t.Helper()
	d := &delayer{oneWay: oneWay, stop: -1}
	var far []int
	for range Nodes {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
		if err := unix.SetNonblock(fds[0], true); err != nil {
			t.Fatal(err)
		}
		d.ports, far = append(d.ports, fds[0]), append(far, fds[1])
	}
	for _, h := range netHosts() {
		d.zones[h.lastByte()] = byte(h.zone)
	}
	return d, far
}

// serveUntil runs the router until the returned function is called.
func serveUntil(t *testing.T, d *delayer) func() {
	t.Helper()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	d.stop = pipe[0]
	done := make(chan error, 1)
	go func() { done <- d.serve() }()
	return func() {
		unix.Close(pipe[1])
		if err := <-done; err != nil {
			t.Error(err)
		}
		unix.Close(pipe[0])
	}
}

func frameTo(last byte, payload uint64) []byte {
	m := macOf(last)
	f := append(m[:], make([]byte, 8)...)
	return binary.BigEndian.AppendUint64(f, payload)
}

func mustWrite(t *testing.T, fd int, frame []byte) {
	t.Helper()
	if _, err := unix.Write(fd, frame); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, fd int) []byte {
	t.Helper()
	b := make([]byte, maxEthernetBytes)
	for {
		n, err := unix.Read(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return b[:n]
	}
}

// No frame arrives before its instant, however the router waits for it.
func TestDelayIsNeverShort(t *testing.T) {
	t.Parallel()
	const oneWay = 195 * time.Microsecond
	d, far := wires(t, oneWay)
	if early, err := d.calibrate(); err != nil || early < 0 || early > maxEarly {
		t.Fatal(early, err)
	}
	stop := serveUntil(t, d)
	defer stop()
	for i := range uint64(300) {
		begun := time.Now()
		mustWrite(t, far[0], frameTo(12, i))
		if f := mustRead(t, far[1]); !bytes.Equal(f, frameTo(12, i)) {
			t.Fatalf("frame %d became %x", i, f)
		}
		mustWrite(t, far[1], frameTo(14, i)) // the client, in the zone of node 1
		mustRead(t, far[0])
		if took := time.Since(begun); took < 2*oneWay {
			t.Fatalf("round trip %d took %v, less than %v", i, took, 2*oneWay)
		}
	}
}

// Frames of all ports keep their order, and each goes where it belongs.
func TestDelayOrderAndPorts(t *testing.T) {
	t.Parallel()
	d, far := wires(t, time.Millisecond)
	stop := serveUntil(t, d)
	defer stop()
	mustWrite(t, far[0], []byte("short"))
	mustWrite(t, far[0], frameTo(99, 0))                           // no host
	mustWrite(t, far[0], frameTo(14, 0))                           // on its own side
	mustWrite(t, far[0], append([]byte{2}, frameTo(12, 0)[1:]...)) // becomes a host below
	const frames = 50
	for i := range uint64(frames) {
		mustWrite(t, far[0], frameTo(12, i))
		mustWrite(t, far[0], frameTo(13, i))
	}
	group := append(bytes.Repeat([]byte{0xff}, 6), frameTo(0, 7)[6:]...)
	mustWrite(t, far[0], group)
	mustRead(t, far[1]) // that of host 12 above
	for i := range uint64(frames) {
		for _, fd := range far[1:] {
			if f := mustRead(t, fd); binary.BigEndian.Uint64(f[14:]) != i {
				t.Fatalf("got %x, want frame %d", f, i)
			}
		}
	}
	for _, fd := range far[1:] {
		if f := mustRead(t, fd); !bytes.Equal(f, group) {
			t.Fatalf("got %x, want the one to all", f)
		}
	}
	if _, _, err := unix.Recvfrom(far[0], make([]byte, 9), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("something came back to its sender: %v", err)
	}
}

// A full router stops reading; what waits is kept by the port.
func TestDelayFull(t *testing.T) {
	t.Parallel()
	d, far := wires(t, time.Hour)
	d.used = delaySlots
	mustWrite(t, far[0], frameTo(12, 1))
	if err := d.read(0, d.ports[0]); err != nil || d.used != delaySlots {
		t.Fatal(err, d.used)
	}
	d.used--
	if err := d.read(0, d.ports[0]); err != nil || d.used != delaySlots {
		t.Fatal(err, d.used)
	}
	// A port that takes nothing loses frames and holds up nobody.
	unix.Close(far[1])
	d.sendDue(int64(2 * time.Hour))
	if d.queue[delaySlots-1].due > monotonic()+int64(time.Hour) || d.used > 1 {
		t.Fatal(d.used)
	}
}

func TestDelayPortGone(t *testing.T) {
	t.Parallel()
	d, far := wires(t, time.Millisecond)
	unix.Shutdown(far[2], unix.SHUT_RDWR)
	if err := d.serve(); err == nil {
		t.Fatal("it serves on without a port")
	}
}

func FuzzDelayRoute(f *testing.F) {
	f.Add(frameTo(12, 0), 0)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 1)
	d := &delayer{ports: []int{0, 1, 2}}
	for _, h := range netHosts() {
		d.zones[h.lastByte()] = byte(h.zone)
	}
	f.Fuzz(func(t *testing.T, frame []byte, from int) {
		from = ((from % 3) + 3) % 3
		to := d.route(frame, from)
		if to&(1<<from) != 0 || to >= 1<<3 || len(frame) < 14 && to != 0 {
			t.Fatalf("%x from port %d goes to %b", frame, from, to)
		}
	})
}

func TestDelayRouterRefuses(t *testing.T) {
	t.Parallel()
	if err := DelayRouter("x", 0, os.Stdout); err == nil {
		t.Error("no delay")
	}
}
