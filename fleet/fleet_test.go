package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func mustStart(t *testing.T, l *Local) {
	t.Helper()
	if err := l.StartAll(); err != nil {
		t.Fatal(err)
	}
}

func wantState(t *testing.T, l *Local, node int, want State) Status {
	t.Helper()
	st, err := l.Status(node)
	if err != nil || st.State != want {
		t.Fatalf("node %d is %s, %v; want %s", node, st.State, err, want)
	}
	return st
}

func stopOne(t *testing.T, l *Local, node int, grace time.Duration) StopResult {
	t.Helper()
	f, err := l.open(node)
	if err != nil {
		t.Fatal(err)
	}
	r, err := f.Stop(t.Context(), grace)
	if err != nil {
		t.Fatal(err)
	}
	return r[0]
}

// hold takes hold of the node's process, to see its end later.
func hold(t *testing.T, l *Local, node int) *process {
	t.Helper()
	pf, err := readPIDFile(filepath.Join(l.Dir, fmt.Sprintf("node%d.pid", node)))
	if err != nil {
		t.Fatal(err)
	}
	p, err := pf.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

func TestLifeOfACluster(t *testing.T) {
	t.Parallel()
	hosts := Default().Hosts()
	ports, err := FreePorts(1, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	l := cluster(t, "serve", fmt.Sprintf("{addr:%d}", ports[0]))
	for i := 1; i <= 3; i++ {
		wantState(t, l, i, Down)
	}
	mustStart(t, l)
	await(t, l, "ready")
	for i, h := range hosts {
		st := wantState(t, l, i+1, Running)
		if st.Host != h || st.RSSBytes <= 0 || st.UptimeS < 0 || st.UptimeS > 300 || st.CPUS > 300 {
			t.Errorf("status %+v", st)
		}
		s, err := readStat(st.PID)
		if err != nil || s.Session != st.PID {
			t.Errorf("node %d is in session %d, not its own (%d): %v", i+1, s.Session, st.PID, err)
		}
		conn, err := net.Dial("tcp", HostPort(h, ports[0]))
		if err != nil {
			t.Fatalf("node %d does not serve: %v", i+1, err)
		}
		conn.Close()
	}

	// A second start says that it runs, and changes nothing.
	before := hold(t, l, 2)
	err = l.StartAll()
	list := NodeErrors(err)
	if len(list) != 3 {
		t.Fatalf("second start: %v", err)
	}
	var re *RunningError
	if !errors.As(list[1], &re) || re.PID != before.PID {
		t.Fatalf("second start: %v, want node 2 running as %d", list[1], before.PID)
	}
	if before.exited() {
		t.Fatal("a second start ended the first")
	}

	// Killed, it is dead; started, it runs again on its port.
	if err := l.Kill(2); err != nil {
		t.Fatal(err)
	}
	wantState(t, l, 2, Dead)
	if err := l.Signal(2, unix.SIGCONT); err == nil || !strings.Contains(err.Error(), "node 2: dead") {
		t.Fatalf("signal to a dead node: %v", err)
	}
	if err := l.Exited(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if err := l.Start(2); err != nil {
		t.Fatal(err)
	}
	await(t, l, "ready", 2)
	wantState(t, l, 2, Running)

	last := hold(t, l, 3)
	if err := l.StopAll(); err != nil {
		t.Fatal(err)
	}
	if !last.exited() {
		t.Fatal("stop returned before the end of node 3")
	}
	for i := 1; i <= 3; i++ {
		wantState(t, l, i, Down)
	}
	if r := stopOne(t, l, 1, 0); r.WasRunning {
		t.Fatal("stopped what did not run")
	}
}

func TestStopOfNothing(t *testing.T) {
	t.Parallel()
	l := &Local{Dir: filepath.Join(t.TempDir(), "never")}
	if err := l.StopAll(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(l.Dir); err == nil {
		t.Fatal("stop left a directory")
	}
}

func TestStartTellsOfAnEarlyEnd(t *testing.T) {
	t.Parallel()
	l := cluster(t, "die")
	l.Settle = time.Minute // its end comes first
	err := l.Start(2)
	var end *ExitError
	if !errors.As(err, &end) {
		t.Fatalf("%v, want an ExitError", err)
	}
	if !strings.Contains(end.How, "exit status 7") || strings.Join(end.Log, "|") != "first line|cannot [31mgo on" {
		t.Fatalf("%q, log %q", end.How, end.Log)
	}
	if text := err.Error(); !strings.HasPrefix(text, "node 2: ") || !strings.Contains(text, "node2.log") {
		t.Fatal(text)
	}
	wantState(t, l, 2, Dead)

	l = cluster(t, "quit")
	l.Settle = time.Minute
	if err := l.Start(1); !errors.As(err, &end) || !strings.Contains(end.How, "exit status 0") {
		t.Fatalf("%v, want an ExitError with status 0", err)
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.12:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	l := cluster(t, "serve", fmt.Sprintf("{addr:%d}", taken.Addr().(*net.TCPAddr).Port))
	l.Settle = 3 * time.Second
	list := NodeErrors(l.StartAll())
	if len(list) != 1 || list[0].Node != 2 || !strings.Contains(list[0].Error(), "address already in use") {
		t.Fatalf("%v, want node 2 alone, with its log", list)
	}
	wantState(t, l, 1, Running)
	wantState(t, l, 2, Dead)
	wantState(t, l, 3, Running)
}

func TestNoSuchProgram(t *testing.T) {
	t.Parallel()
	l := &Local{Dir: t.TempDir(), Argv: []string{"./no-such-program"}}
	if err := l.Start(1); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Fatal(err)
	}
	// Not executable.
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	l.Argv = []string{plain}
	if err := l.Start(1); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Fatal(err)
	}
	// Executable, but not for this machine: the kernel refuses it.
	if err := os.Chmod(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.Start(1); err == nil || !strings.Contains(err.Error(), "exec format error") {
		t.Fatal(err)
	}
	wantState(t, l, 1, Down)
}

func TestPlaceholders(t *testing.T) {
	t.Parallel()
	l := cluster(t, "echo", "{id}", "{addr}", "{addr:80}", "{peers}", "{peers:81}", "{hosts:82}", "{dir}/x", "{shared}", "$HOME;{}", `{"a":1}`)
	if err := l.Start(3); err != nil {
		t.Fatal(err)
	}
	await(t, l, "ready", 3)
	log, err := l.Log(3, -1)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(l.Dir, "node3")
	want := "3 127.0.0.13 127.0.0.13:80 127.0.0.11,127.0.0.12,127.0.0.13 127.0.0.11:81,127.0.0.12:81,127.0.0.13:81 " +
		"127.0.0.11:82,127.0.0.12:82,127.0.0.13:82 " + dir + `/x true $HOME;{} {"a":1}` +
		"\nin " + dir + "\nenv x=y z\nready\n"
	if string(log) != want {
		t.Fatalf("got  %s\nwant %s", log, want)
	}
	for _, bad := range []string{"{node}", "{id:1}", "{dir:1}", "{addr:0}", "{peers:65536}", "{addr:99999999999999999999}"} {
		l := cluster(t, bad)
		if err := l.Start(1); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
		wantState(t, l, 1, Down)
	}
	six := Node{ID: 1, Host: Host{Addr: "h", Private: "fd00::1"}}
	x := expander{inv: Inventory{Nodes: []Node{six}}, node: six}
	if got, err := x.expand([]string{"{peers:5} {addr} {hosts:6}"}); err != nil || got[0] != "[fd00::1]:5 fd00::1 h:6" {
		t.Errorf("IPv6: %q, %v", got, err)
	}
}

func TestShared(t *testing.T) {
	t.Parallel()
	on := func(transport string, hosts ...string) (shared string) {
		inv := Inventory{Transport: transport}
		for i, h := range hosts {
			inv.Nodes = append(inv.Nodes, Node{ID: i + 1, Host: Host{Addr: h}})
		}
		for _, n := range inv.Nodes {
			got, err := expander{inv: inv, node: n}.expand([]string{"{shared}"})
			if err != nil {
				t.Fatal(err)
			}
			shared += got[0] + " "
		}
		return shared
	}
	for _, tc := range []struct{ got, want string }{
		{on(TransportLocal, "127.0.0.11", "127.0.0.12"), "true true "},
		{on(TransportLocal, "127.0.0.11"), "false "},
		{on(TransportSSH, "a", "b", "a"), "true false true "},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}

func TestConcurrentStartsGiveOneProcess(t *testing.T) {
	t.Parallel()
	l := cluster(t, "serve")
	const starters = 8
	errs := make([]error, starters)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			mine := &Local{Dir: l.Dir, Argv: l.Argv, Env: l.Env, Settle: l.Settle}
			errs[i] = mine.Start(1)
		})
	}
	wg.Wait()
	started := 0
	for _, err := range errs {
		var re *RunningError
		if err == nil {
			started++
		} else if !errors.As(err, &re) {
			t.Error(err)
		}
	}
	if started != 1 {
		t.Fatalf("%d starts succeeded, want 1", started)
	}
}

func TestLockGivesUp(t *testing.T) {
	t.Parallel()
	l, err := newLocal(".", t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	n := Node{ID: 1}
	unlock, err := l.lock(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.lock(ctx, n); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("second lock: %v", err)
	}
	unlock()
	// The one that gave up does not keep it.
	unlock, err = l.lock(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestStopOfAStoppedProcess(t *testing.T) {
	t.Parallel()
	l := cluster(t, "serve")
	if err := l.Start(1); err != nil {
		t.Fatal(err)
	}
	await(t, l, "ready", 1)
	if err := l.Signal(1, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	st := wantState(t, l, 1, Stopped)
	if !st.Alive() {
		t.Error("a stopped process is not alive")
	}
	if err := l.Signal(1, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := l.Signal(1, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if r := stopOne(t, l, 1, time.Minute); !r.WasRunning || r.Killed {
		t.Fatalf("%+v, want an end by SIGTERM", r)
	}
}

func TestStopKillsTheStubborn(t *testing.T) {
	t.Parallel()
	l := cluster(t, "stubborn")
	if err := l.Start(1); err != nil {
		t.Fatal(err)
	}
	await(t, l, "ready", 1)
	p := hold(t, l, 1)
	if r := stopOne(t, l, 1, 20*time.Millisecond); !r.Killed {
		t.Fatalf("%+v, want Killed", r)
	}
	if !p.exited() {
		t.Fatal("it lives")
	}
}

func TestStopEndsChildren(t *testing.T) {
	t.Parallel()
	l := cluster(t, "fork")
	child := func() *process {
		await(t, l, "ready", 1)
		leader := hold(t, l, 1)
		members, err := leader.session()
		if err != nil {
			t.Fatal(err)
		}
		var child *process
		for _, p := range members {
			t.Cleanup(p.close)
			if p.PID != leader.PID {
				child = p
			}
		}
		if child == nil {
			t.Fatal("no child in the session")
		}
		return child
	}
	if err := l.Start(1); err != nil {
		t.Fatal(err)
	}
	p := child()
	if r := stopOne(t, l, 1, 20*time.Millisecond); !r.Killed || !p.exited() {
		t.Fatalf("%+v, child ended: %v", r, p.exited())
	}

	// Its parent dead, the child is still found.
	if err := l.Start(1); err != nil {
		t.Fatal(err)
	}
	p = child()
	leader := hold(t, l, 1)
	if err := leader.signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := leader.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.exited() {
		t.Fatal("the child went too: this shows nothing")
	}
	wantState(t, l, 1, Dead)
	if err := l.Start(1); err == nil || !strings.Contains(err.Error(), fmt.Sprint("pid ", p.PID)) {
		t.Fatalf("start beside a left child: %v", err)
	}
	if r := stopOne(t, l, 1, 20*time.Millisecond); !r.Killed || !p.exited() {
		t.Fatalf("%+v, child ended: %v", r, p.exited())
	}
	wantState(t, l, 1, Down)
}

// A pid file may name a pid that now belongs to a stranger.
func TestRecycledPidIsNeverTouched(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*identity){
		"start": func(id *identity) { id.StartTicks-- },
		"boot":  func(id *identity) { id.Boot = "00000000-0000-0000-0000-000000000000" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := stranger(t)
			l := cluster(t, "serve")
			write := func() {
				id := p.identity
				change(&id)
				if err := (pidFile{id, []string{"x"}}).write(filepath.Join(l.Dir, "node1.pid")); err != nil {
					t.Fatal(err)
				}
			}
			write()
			wantState(t, l, 1, Dead)
			for _, sig := range signals {
				if err := l.Signal(1, sig); err == nil {
					t.Errorf("%v was sent", sig)
				}
			}
			if r := stopOne(t, l, 1, 10*time.Millisecond); r.WasRunning {
				t.Errorf("stop: %+v", r)
			}
			wantState(t, l, 1, Down)
			write()
			if err := l.Start(1); err != nil {
				t.Errorf("start: %v", err)
			}
			if err := l.StopAll(); err != nil {
				t.Error(err)
			}
			if p.exited() {
				t.Fatal("the stranger was ended")
			}
		})
	}
}

func TestPIDFileThatIsNone(t *testing.T) {
	t.Parallel()
	l := cluster(t, "serve")
	for _, text := range []string{"", "123\n", `{"pid":-1,"start_ticks":1,"boot_id":"b","argv":["x"]}`, `{"pid":1,"start_ticks":1,"boot_id":"b","argv":["x"]}`} {
		file := filepath.Join(l.Dir, "node1.pid")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, statErr := l.Status(1)
		for _, err := range []error{l.Start(1), l.Stop(1), l.Signal(1, unix.SIGTERM), statErr} {
			if err == nil || !strings.Contains(err.Error(), "node1.pid") {
				t.Errorf("%q: %v", text, err)
			}
		}
		os.Remove(file)
	}
}

func TestStartGivenUpLeavesNothing(t *testing.T) {
	t.Parallel()
	l := cluster(t, "serve")
	f, err := l.open(1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		await(t, l, "ready", 1)
		cancel()
	}()
	_, err = f.Start(ctx, Command{Argv: l.Argv, Env: l.Env, Settle: time.Hour})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	wantState(t, l, 1, Down)
}

func TestClusterDiesWithItsProgram(t *testing.T) {
	t.Parallel()
	l := cluster(t) // to clean up, should it not
	cmd := exec.Command(os.Args[0], "parent", l.Dir)
	cmd.Env = append(os.Environ(), helperEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 3)
	_, err = io.ReadFull(out, line)
	if err != nil || string(line) != "up\n" {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatalf("%q, %v", line, err)
	}
	var nodes []*process
	for i := 1; i <= 3; i++ {
		nodes = append(nodes, hold(t, l, i))
	}
	cmd.Process.Kill()
	cmd.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, p := range nodes {
		if err := p.wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	l := cluster(t, "serve")
	f, err := l.open()
	if err != nil {
		t.Fatal(err)
	}
	probe := func(args ...string) []string {
		return append([]string{"/usr/bin/env", helperEnv + "=1", os.Args[0]}, args...)
	}
	if _, err := f.Wait(t.Context(), probe("no")); err == nil || !strings.Contains(err.Error(), "not started") {
		t.Fatalf("nothing runs: %v", err)
	}
	mustStart(t, l)
	await(t, l, "ready")

	out, err := f.Wait(t.Context(), []string{"/bin/echo", "{peers:7}"})
	if err != nil || string(out) != "127.0.0.11:7,127.0.0.12:7,127.0.0.13:7\n" {
		t.Fatalf("%q, %v", out, err)
	}
	if _, err := f.Wait(t.Context(), []string{"/bin/echo", "{id}"}); err == nil {
		t.Fatal("{id} in a probe for all nodes")
	}
	for _, argv := range [][]string{{"no-such-program-at-all"}, {"./no/such/program"}} {
		if _, err := f.Wait(t.Context(), argv); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v: %v", argv, err)
		}
	}

	// It tries again: the probe succeeds on its third run.
	count := filepath.Join(t.TempDir(), "count")
	third := []string{"/bin/sh", "-c", `echo x >>"$0"; test $(wc -l <"$0") -ge 3`, count}
	if _, err := f.Wait(t.Context(), third); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := f.Wait(ctx, probe("no")); err == nil || !strings.Contains(err.Error(), "no leader yet") {
		t.Fatalf("time-out: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.Wait(ctx, probe("hang")); err == nil || !strings.Contains(err.Error(), "did not return") {
		t.Fatalf("probe that hangs: %v", err)
	}

	// A node's end cuts the wait short, also in the middle of a probe.
	begun := filepath.Join(t.TempDir(), "begun")
	if err := unix.Mkfifo(begun, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := f.Wait(t.Context(), []string{"/bin/sh", "-c", `echo x >"$0"; sleep 1000`, begun})
		ended <- err
	}()
	if _, err := os.ReadFile(begun); err != nil { // returns once the probe runs
		t.Fatal(err)
	}
	if err := l.Kill(2); err != nil {
		t.Fatal(err)
	}
	err = <-ended
	if list := NodeErrors(err); len(list) != 1 || list[0].Node != 2 || !strings.Contains(err.Error(), "ready") {
		t.Fatalf("%v, want node 2 and its log", err)
	}
}

func TestLogs(t *testing.T) {
	t.Parallel()
	l := cluster(t, "echo", "node", "{id}")
	f, err := l.open()
	if err != nil {
		t.Fatal(err)
	}
	err = f.Logs(t.Context(), 1, false, io.Discard)
	if list := NodeErrors(err); len(list) != 3 {
		t.Fatalf("logs of nothing: %v", err)
	}
	mustStart(t, l)
	await(t, l, "ready")
	var b bytes.Buffer
	if err := f.Logs(t.Context(), 1, false, &b); err != nil {
		t.Fatal(err)
	}
	if b.String() != "node1 | ready\nnode2 | ready\nnode3 | ready\n" {
		t.Fatalf("%q", b.String())
	}

	// A new start keeps one old log, and who follows goes on with the new one.
	two, err := f.Only(2)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first := make(chan bool, 1)
	var text strings.Builder
	followed := make(chan error, 1)
	go func() {
		followed <- two.Logs(ctx, 1, true, writerFunc(func(b []byte) {
			text.Write(b)
			if strings.Count(text.String(), "ready") == 1 {
				select {
				case first <- true:
				default:
				}
			}
			if strings.Count(text.String(), "ready") == 2 {
				cancel()
			}
		}))
	}()
	<-first
	if err := l.Stop(2); err != nil {
		t.Fatal(err)
	}
	l.Argv = append(l.Argv, "again")
	if err := l.Start(2); err != nil {
		t.Fatal(err)
	}
	if err := <-followed; err != nil {
		t.Fatal(err)
	}
	if got := text.String(); !strings.HasPrefix(got, "node2 | ready\nnode2 | node 2 again\n") || !strings.HasSuffix(got, "node2 | ready\n") {
		t.Fatalf("followed %q", got)
	}
	old, err := os.ReadFile(filepath.Join(l.Dir, "node2.log.1"))
	if err != nil || !strings.HasPrefix(string(old), "node 2\n") {
		t.Fatalf("old log %q, %v", old, err)
	}
}

func TestOnly(t *testing.T) {
	t.Parallel()
	l := cluster(t, "serve")
	f, err := l.open()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []int{4, -1} {
		if _, err := f.Only(id); err == nil {
			t.Errorf("node %d", id)
		}
	}
}

func TestParseSignal(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]unix.Signal{"STOP": unix.SIGSTOP, "sigkill": unix.SIGKILL, "Cont": unix.SIGCONT} {
		if got, err := ParseSignal(name); err != nil || got != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "9", "SEGV", "SIG", "KILL "} {
		if got, err := ParseSignal(name); err == nil {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestFreePorts(t *testing.T) {
	t.Parallel()
	hosts := Default().Hosts()
	ports, err := FreePorts(20, hosts...)
	if err != nil || len(ports) != 20 {
		t.Fatal(ports, err)
	}
	seen := make(map[int]bool)
	for _, p := range ports {
		if seen[p] {
			t.Fatalf("port %d twice", p)
		}
		seen[p] = true
		for _, h := range hosts {
			l, err := net.Listen("tcp", HostPort(h, p))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
	}
	if _, err := FreePorts(1, "127.0.0.11", "192.0.2.1"); err == nil {
		t.Fatal("an address of another host")
	}
	if _, err := FreePorts(1); err == nil {
		t.Fatal("no hosts")
	}
}
