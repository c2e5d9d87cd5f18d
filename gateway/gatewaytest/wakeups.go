package gatewaytest

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/loadgen/clienttest"
)

// relayEnv makes the test binary a process that passes bytes on: to the address
// that it holds and back again, or with "-" back at once.
const relayEnv = "RAFTRIG_TEST_RELAY"

const wakeupBytes = 64

// relay serves one connection on an address that it prints, with a thread that
// blocks in its sockets: less cannot wake a process up.
func relay(next string) int {
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	runtime.LockOSThread()
	up := -1
	if next != "-" {
		var err error
		if up, err = dialBlocking(next); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(l.Addr())
	conn, err := l.Accept()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	down, err := blocking(conn)
	b := make([]byte, wakeupBytes)
	for err == nil {
		if err = readFull(down, b); err == nil && up >= 0 {
			if _, err = unix.Write(up, b); err == nil {
				err = readFull(up, b)
			}
		}
		if err == nil {
			_, err = unix.Write(down, b)
		}
	}
	return 0
}

func dialBlocking(addr string) (fd int, err error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return -1, err
	}
	return blocking(conn)
}

// blocking is a socket of its own for the connection, on which system calls
// wait in the kernel and not in the runtime's poller.
func blocking(conn net.Conn) (fd int, err error) {
	f, err := conn.(*net.TCPConn).File()
	if err != nil {
		return -1, err
	}
	conn.Close()
	fd, err = unix.Dup(int(f.Fd()))
	f.Close()
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	return fd, err
}

func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		if n <= 0 {
			return fmt.Errorf("read: %d, %w", n, err)
		}
		b = b[n:]
	}
	return nil
}

// wakeups gives a function that measures the median time, in microseconds, of
// n messages to a process, from that to another, and back: the four wake-ups
// that a request costs at least (leader, follower, leader, client), and nothing
// else. The processes end with the test.
func wakeups(tb testing.TB) func(n int) float64 {
	tb.Helper()
	start := func(next string) string {
		child, _ := clienttest.Child(tb, relayEnv+"="+next)
		return clienttest.Addr(tb, child).String()
	}
	fd, err := dialBlocking(start(start("-")))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Close(fd) })
	b := make([]byte, wakeupBytes)
	return func(n int) float64 {
		latency := make([]float64, n)
		for i := range latency {
			begin := time.Now()
			if _, err := unix.Write(fd, b); err != nil {
				tb.Fatal(err)
			}
			if err := readFull(fd, b); err != nil {
				tb.Fatal(err)
			}
			latency[i] = micros(time.Since(begin))
		}
		return median(latency)
	}
}
