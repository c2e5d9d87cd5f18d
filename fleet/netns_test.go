package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// namespaces gives a fleet of namespaces, not up yet, of which nothing stays,
// or skips the test.
func namespaces(t *testing.T, rtt time.Duration) *Netns {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip on this machine: install iproute2")
	}
	n := &Netns{Prefix: "t" + strconv.Itoa(os.Getpid()) + "x" + strconv.FormatUint(uint64(time.Now().UnixNano())%1e6, 36), RTT: rtt, Dir: t.TempDir()}
	n.Router = []string{"/usr/bin/env", helperEnv + "=1", os.Args[0], "delay"}
	if _, err := ip(t.Context(), "netns", "add", n.net()); err != nil {
		t.Skipf("no network namespaces on this machine: %v", err)
	}
	t.Cleanup(func() {
		if _, err := n.Down(context.Background()); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(filepath.Join(netnsDir, n.Prefix+"-*")); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
	return n
}

func mustUp(t *testing.T, n *Netns) NetnsUp {
	t.Helper()
	up, err := n.Up(t.Context())
	if err != nil && strings.Contains(err.Error(), "the kernel has neither") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return up
}

func states(t *testing.T, n *Netns) string {
	t.Helper()
	hosts, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, h := range hosts {
		s = append(s, h.State)
	}
	return strings.Join(s, " ")
}

func TestNetnsDelay(t *testing.T) {
	t.Parallel()
	const rtt = 60 * time.Millisecond
	n := namespaces(t, rtt)
	up := mustUp(t, n)
	if up.Delay != delayNetem && up.Delay != delayRouter || up.RTTUS < float64(rtt)/1e3 {
		t.Fatalf("%+v", up)
	}
	if !slices.Equal(up.Removed, []string{n.net()}) { // which the test had made
		t.Errorf("removed %q", up.Removed)
	}
	for _, pair := range [][2]int{{1, 2}, {3, 1}, {0, 3}} {
		us, err := n.roundTrips(pair[0], pair[1], 5)
		if err != nil || slices.Min(us) < float64(rtt)/1e3 {
			t.Errorf("%v: %v, %v", pair, us, err)
		}
	}
	// The client is in the zone of node 1.
	if us, err := n.roundTrips(0, 1, 20); err != nil || slices.Min(us) >= float64(rtt)/1e3 {
		t.Errorf("client: %v, %v", us, err)
	}
	if up.Delay != delayRouter {
		return
	}
	// A router that has died is told of, and the next up begins anew.
	l, err := n.router()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.signal(t.Context(), routerNode, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "the delay router has ended") {
		t.Fatal(err)
	}
	if up := mustUp(t, n); len(up.Removed) != 5 {
		t.Errorf("removed %q", up.Removed)
	}
}

func TestNetnsPartition(t *testing.T) {
	t.Parallel()
	n := namespaces(t, 0)
	if up := mustUp(t, n); up.Delay != delayNone {
		t.Fatalf("%+v", up)
	}
	if s := states(t, n); s != "joined joined joined joined" {
		t.Fatal(s)
	}
	// A TCP connection that is open over the partition carries on after it.
	hosts := netHosts()
	l, err := inNetns(n.of(hosts[2]), func() (net.Listener, error) { return net.Listen("tcp", "10.77.0.12:0") })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := inNetns(n.of(hosts[1]), func() (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()

	if err := n.Cut(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if s := states(t, n); s != "joined joined cut joined" {
		t.Fatal(s)
	}
	if _, err := conn.Write([]byte("x")); err != nil { // it is lost without a word
		t.Fatal(err)
	}
	far.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("it came through: %v", err)
	}
	for _, pair := range [][2]int{{1, 3}, {0, 1}} {
		if _, err := n.roundTrips(pair[0], pair[1], 1); err != nil {
			t.Errorf("%v: %v", pair, err)
		}
	}
	if err := n.Join(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	far.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := far.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for _, id := range []int{-1, 4} {
		if err := n.Cut(t.Context(), id); err == nil {
			t.Errorf("cut %d", id)
		}
	}
}

// Nodes and the client run in their namespaces, and down ends what runs there.
func TestNetnsProcesses(t *testing.T) {
	t.Parallel()
	n := namespaces(t, 0)
	mustUp(t, n)
	inv, err := parseInventory("env", []byte(n.Env(delayNone)))
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(inv, t.TempDir(), "run/p")
	if err != nil {
		t.Fatal(err)
	}
	// Each has port 7000 for itself, and serves its address.
	c := Command{Argv: []string{os.Args[0], "serve", "0.0.0.0:7000"}, Env: []string{helperEnv + "=1"}, Settle: time.Millisecond}
	sts, err := f.Start(t.Context(), c)
	t.Cleanup(func() {
		if _, err := f.Stop(context.Background(), 10*time.Millisecond); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, st := range sts {
		var in, want unix.Stat_t
		if err := errors.Join(unix.Stat(fmt.Sprintf("/proc/%d/ns/net", st.PID), &in), unix.Stat(filepath.Join(netnsDir, n.of(netHosts()[i+1])), &want)); err != nil || in.Ino != want.Ino {
			t.Fatalf("node %d is not in its namespace: %v", i+1, err)
		}
	}
	out, err := f.Wait(t.Context(), []string{"ip", "-brief", "-4", "addr", "show", "eth0"})
	if err != nil || !strings.Contains(string(out), "10.77.0.14/24") {
		t.Fatalf("%q, %v", out, err)
	}
	if _, err := n.Up(t.Context()); err == nil || !strings.Contains(err.Error(), "stop the clusters first") {
		t.Fatalf("up over a running cluster: %v", err)
	}
	if s := states(t, n); s != "joined joined joined joined" {
		t.Fatalf("a refused up changed something: %s", s)
	}
	removed, err := n.Down(t.Context())
	if err != nil || len(removed) != 3+5 {
		t.Fatalf("%q, %v", removed, err)
	}
	for _, st := range sts {
		if id, err := identify(st.PID); err == nil {
			if p, err := id.open(); err == nil {
				p.close()
				t.Errorf("pid %d lives", st.PID)
			}
		}
	}
	if removed, err = n.Down(t.Context()); err != nil || len(removed) != 0 {
		t.Fatalf("a second down: %q, %v", removed, err)
	}
	if s := states(t, n); s != "absent absent absent absent" {
		t.Fatal(s)
	}
	if _, err := f.Stop(t.Context(), time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), "there is no network namespace "+n.Prefix+"-1: make env TOPOLOGY=netns") {
		t.Fatal(err)
	}
	if err := n.Cut(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "make env") {
		t.Fatal(err)
	}
}

// fakeTools puts scripts before the real programs.
func fakeTools(t *testing.T, scripts map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range scripts {
		if real, err := exec.LookPath(name); err == nil {
			text = strings.ReplaceAll(text, "REAL", real)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+strings.ReplaceAll(text, "DIR", dir)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

// What the kernel is asked for where it has netem.
func TestNetnsNetem(t *testing.T) {
	n := namespaces(t, 390*time.Microsecond)
	dir := fakeTools(t, map[string]string{"tc": `echo "$*" >>DIR/log`})
	if up := mustUp(t, n); up.Delay != delayNetem {
		t.Fatalf("%+v", up)
	}
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	want := ""
	for z := 1; z <= 3; z++ {
		want += fmt.Sprintf("-n %s qdisc add dev u%d root netem delay 195000ns limit 1000000\n", n.net(), z)
	}
	if err != nil || string(log) != want {
		t.Fatalf("%q, %v", log, err)
	}
}

func TestNetnsNoDelayToBeHad(t *testing.T) {
	n := namespaces(t, time.Millisecond)
	fakeTools(t, map[string]string{
		"tc": `echo "Error: Specified qdisc kind is unknown." >&2; exit 2`,
		"ip": `case "$*" in *tuntap*) echo "open: No such file or directory" >&2; exit 1;; esac; exec REAL "$@"`,
	})
	_, err := n.Up(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "RTT=1ms: the kernel has neither netem (tc -n ") || !strings.HasSuffix(err.Error(), "leave RTT out") {
		t.Fatal(err)
	}
	if s := states(t, n); s != "absent absent absent absent" {
		t.Fatalf("a failed up left something: %s", s)
	}
}

func TestNetnsRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n    Netns
		want string
	}{
		{Netns{Prefix: "A"}, `name "A"`},
		{Netns{Prefix: "a", RTT: time.Minute}, "RTT=1m0s: want 1us to 10s"},
		{Netns{Prefix: "a", RTT: -1}, "want 1us to 10s"},
	} {
		if _, err := c.n.Up(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.n, err)
		}
	}
	if _, err := (&Netns{Prefix: "../x"}).Down(t.Context()); err == nil {
		t.Error("a name with a slash")
	}
}
