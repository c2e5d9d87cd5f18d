package fleet

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/fleet/fleettest"
)

// sshFleet is a fleet on an sshd of the test's own. All its hosts are this
// machine, so they share one remote folder.
type sshFleet struct {
	*Fleet
	*fleettest.SSHD
	root string
}

// openSSH gives such a fleet; change may spoil its inventory.
func openSSH(t *testing.T, change func(*Inventory)) *sshFleet {
	t.Helper()
	ports, err := FreePorts(1, fleettest.Hosts...)
	if err != nil {
		t.Fatal(err)
	}
	s := fleettest.StartSSHD(t, ports[0])
	inv, err := parseInventory("env", []byte(s.Env()))
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&inv)
	}
	root := t.TempDir()
	f, err := Open(inv, root, "run/p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &sshFleet{f, s, root}
}

// pushed has bin/fleet on its hosts: the test binary.
func pushed(t *testing.T) *sshFleet {
	t.Helper()
	f := openSSH(t, nil)
	f.place(t)
	return f
}

// place does what a push would, in no time.
func (f *sshFleet) place(t *testing.T) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(f.RemoteDir, "bin")
	if err := errors.Join(os.MkdirAll(bin, 0o755), os.Symlink(exe, filepath.Join(bin, "fleet"))); err != nil {
		t.Fatal(err)
	}
}

func mustPush(t *testing.T, f *sshFleet, host int, files ...string) []string {
	t.Helper()
	hosts, err := f.On(host)
	if err != nil {
		t.Fatal(err)
	}
	sent, err := f.Push(t.Context(), hosts, files)
	if err != nil {
		t.Fatal(err)
	}
	return sent[0]
}

// helperArgv runs a helper where no environment can be given.
func helperArgv(args ...string) []string {
	return append([]string{"/usr/bin/env", helperEnv + "=1", "GORACE=atexit_sleep_ms=0", "{root}/bin/fleet"}, args...)
}

func TestSSHLife(t *testing.T) {
	t.Parallel()
	f := pushed(t)
	env := []string{helperEnv + "=1", "GORACE=atexit_sleep_ms=0"}
	sts, err := f.Start(t.Context(), Command{Argv: []string{f.root + "/bin/fleet", "echo", "it's {id} $HOME", "{addr:7}", "{peers}", "{dir}"}, Env: env, Settle: time.Millisecond})
	t.Cleanup(func() {
		if _, err := f.Stop(context.Background(), 10*time.Millisecond); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*process
	for _, st := range sts {
		id, err := identify(st.PID)
		if err != nil {
			t.Fatal(err)
		}
		p, err := id.open()
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		nodes = append(nodes, p)
	}

	// A second start is told apart by its type, as on this host.
	_, err = f.Start(t.Context(), Command{Argv: []string{"{root}/bin/fleet", "hang"}, Env: env})
	var re *RunningError
	if list := NodeErrors(err); len(list) != 3 || !errors.As(list[2], &re) || re.PID != nodes[2].PID {
		t.Fatalf("second start: %v", err)
	}

	// Logs, followed until each node has said it all.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := make(map[string]string)
	ready := 0
	err = f.Logs(ctx, -1, true, writerFunc(func(b []byte) {
		node, line, _ := strings.Cut(strings.TrimSuffix(string(b), "\n"), " | ")
		seen[node] += line + "\n"
		if line == "ready" {
			if ready++; ready == 3 {
				cancel()
			}
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(f.RemoteDir, "run/p/node2")
	want := "it's 2 $HOME " + fleettest.Hosts[1] + ":7 " + strings.Join(fleettest.Hosts[:3], ",") + " " + dir + "\nin " + dir + "\nenv \nready\n"
	if seen["node2"] != want {
		t.Fatalf("got  %q\nwant %q", seen["node2"], want)
	}

	// Wait probes from the client's host.
	out, err := f.Wait(t.Context(), []string{"/bin/sh", "-c", "pwd; echo $0", "{peers:9}"})
	if err != nil || string(out) != f.RemoteDir+"\n"+fleettest.Hosts[0]+":9,"+fleettest.Hosts[1]+":9,"+fleettest.Hosts[2]+":9\n" {
		t.Fatalf("%q, %v", out, err)
	}
	if _, err := f.Wait(t.Context(), []string{"no-such-program-at-all"}); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Fatal(err)
	}

	// A node's end cuts a wait short, and its log comes along.
	two, err := f.Only(2)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	begun := filepath.Join(t.TempDir(), "begun")
	if err := unix.Mkfifo(begun, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := f.Wait(t.Context(), []string{"/bin/sh", "-c", `echo x >"$0"; sleep 1000`, begun})
		ended <- err
	}()
	if _, err := os.ReadFile(begun); err != nil { // returns once the probe runs
		t.Fatal(err)
	}
	if err := two.Signal(t.Context(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err = <-ended
	var end *ExitError
	if list := NodeErrors(err); len(list) != 1 || list[0].Node != 2 || !errors.As(err, &end) || strings.Join(end.Log, "|") == "" {
		t.Fatalf("%v, want node 2 and its log", err)
	}
	st, err := f.Status(t.Context())
	if err != nil || st[0].State != Running || st[1].State != Dead || st[2].State != Running || st[1].Host != fleettest.Hosts[1] {
		t.Fatalf("%+v, %v", st, err)
	}
	rs, err := f.Stop(t.Context(), time.Minute)
	if err != nil || !rs[0].WasRunning || rs[1].WasRunning || rs[2].Killed {
		t.Fatalf("%+v, %v", rs, err)
	}
	for _, p := range nodes {
		if !p.exited() {
			t.Errorf("pid %d lives", p.PID)
		}
	}
}

func TestSSHEarlyEnd(t *testing.T) {
	t.Parallel()
	f := pushed(t)
	_, err := f.Start(t.Context(), Command{Argv: []string{"{root}/bin/fleet", "die"}, Env: []string{helperEnv + "=1"}, Settle: time.Minute})
	var end *ExitError
	if !errors.As(err, &end) || !strings.Contains(end.How, "exit status 7") || end.LogFile != filepath.Join(f.RemoteDir, "run/p/node1.log") || len(end.Log) != 2 {
		t.Fatalf("%v", err)
	}
}

// One host that does not answer is named, and what the others gave is kept.
func TestSSHHostDown(t *testing.T) {
	t.Parallel()
	f := openSSH(t, func(inv *Inventory) { inv.Nodes[1].Addr = "127.0.31.99" })
	f.place(t)
	st, err := f.Status(t.Context())
	if list := NodeErrors(err); len(list) != 1 || list[0].Node != 2 || !strings.Contains(err.Error(), "node 2: ssh: connect to host 127.0.31.99 port") || !strings.Contains(err.Error(), "refused") {
		t.Fatal(err)
	}
	if st[0].State != Down || st[2].State != Down || st[2].Host != fleettest.Hosts[2] {
		t.Fatalf("%+v", st)
	}
}

// A host that takes the connection and says nothing is given up.
func TestSSHHostHangs(t *testing.T) {
	t.Parallel()
	f := openSSH(t, func(inv *Inventory) {
		inv.Nodes[2].Addr = "127.0.31.98"
		inv.SSHOpts = append(inv.SSHOpts, "-o", "ConnectTimeout=1")
	})
	l, err := net.Listen("tcp", HostPort("127.0.31.98", f.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f.place(t)
	_, err = f.Status(t.Context())
	if list := NodeErrors(err); len(list) != 1 || list[0].Node != 3 || !strings.Contains(err.Error(), "ssh: ") || strings.Contains(err.Error(), "\n") {
		t.Fatal(err)
	}
	// So is one that the caller has no more time for.
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	three, err := f.Only(3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = three.Status(ctx); err == nil {
		t.Fatal("an answer from nobody")
	}
}

func TestSSHNothingPushed(t *testing.T) {
	t.Parallel()
	f := openSSH(t, nil)
	_, err := f.Status(t.Context())
	if list := NodeErrors(err); len(list) != 3 || list[0].Err.Error() != "there is no "+f.RemoteDir+"/bin/fleet on it: make push (fleet push)" {
		t.Fatal(err)
	}
	// Something else of that name.
	if err := os.MkdirAll(filepath.Join(f.RemoteDir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.RemoteDir, "bin/fleet"), []byte("\x7fELF no"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = f.Status(t.Context())
	if err == nil || !strings.Contains(err.Error(), "make push") || strings.Contains(err.Error(), "\n    ") {
		t.Fatal(err)
	}
}

func TestSSHRefusedLogin(t *testing.T) {
	t.Parallel()
	other := filepath.Join(t.TempDir(), "other")
	f := openSSH(t, func(inv *Inventory) {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		inv.SSHKey = other
	})
	_, err := f.Status(t.Context())
	if list := NodeErrors(err); len(list) != 3 || !strings.Contains(list[0].Error(), "it refuses the login: see SSH_USER="+f.User+" and SSH_KEY="+other) {
		t.Fatal(err)
	}
}

func TestSSHChangedHostKey(t *testing.T) {
	t.Parallel()
	f := pushed(t)
	one, err := f.Only(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.NewHostKey(t)
	known := filepath.Join(f.root, "run/ssh_known_hosts")
	_, err = one.Status(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "node 1: its host key has changed: if the host was made anew, remove line ") || !strings.Contains(err.Error(), " of "+known+"; if not, ") {
		t.Fatal(err)
	}
	// Doing what it says helps.
	if err := os.Truncate(known, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestSSHKeyFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const private = "-----BEGIN OPENSSH PRIVATE KEY-----\n"
	for _, c := range []struct{ file, want string }{
		{write("open", private, 0o644), "its mode 0644 lets others read it, and ssh then refuses it: chmod 600 '" + dir + "/open'"},
		{write("key.pub", "ssh-ed25519 AAAA", 0o600), "not a private key: name the file that has no .pub"},
		{dir, "not a file: name the private key"},
		{filepath.Join(dir, "none"), "no such file: name the private key"},
	} {
		inv := Default()
		inv.Transport, inv.SSHKey = TransportSSH, c.file
		_, err := Open(inv, dir, "run/p")
		if err == nil || !strings.HasPrefix(err.Error(), "SSH_KEY="+c.file+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.file, err, c.want)
		}
	}
	if got, err := checkKey(write("good", private, 0o600)); err != nil || got != filepath.Join(dir, "good") {
		t.Error(got, err)
	}
}

// awaitLine gives the first line of a stream that begins with want.
type awaitLine struct {
	want string
	got  chan string
	text []byte
}

func newAwaitLine(want string) *awaitLine { return &awaitLine{want: want, got: make(chan string, 1)} }

func (a *awaitLine) Write(b []byte) (int, error) {
	a.text = append(a.text, b...)
	for line := range strings.Lines(string(a.text)) {
		if strings.HasPrefix(line, a.want) && strings.HasSuffix(line, "\n") {
			select {
			case a.got <- strings.TrimSpace(line):
			default:
			}
		}
	}
	return len(b), nil
}

// clientRun starts the helper client and gives the hold on it.
func clientRun(t *testing.T, ctx context.Context, f *sshFleet, signals <-chan unix.Signal) (*process, <-chan error, *bytes.Buffer) {
	t.Helper()
	stdout, stderr := &bytes.Buffer{}, newAwaitLine("live line ")
	done := make(chan error, 1)
	go func() {
		exit, err := f.RunClient(ctx, ClientRun{
			Argv: helperArgv("client", "{root}/results/p/new.json", "3"), Pull: []string{"results/p"},
			Stdout: stdout, Stderr: stderr, Signals: signals,
		})
		if err == nil {
			err = fmt.Errorf("exit status %d", exit)
		}
		done <- err
	}()
	var line string
	select {
	case line = <-stderr.got:
	case err := <-done:
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimPrefix(line, "live line "))
	if err != nil {
		t.Fatal(err)
	}
	id, err := identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	p, err := id.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p, done, stdout
}

// Ctrl-C reaches the client on its host, whose summary, exit status and files
// come back.
func TestSSHClientInterrupted(t *testing.T) {
	t.Parallel()
	f := pushed(t)
	old := filepath.Join(f.RemoteDir, "results/p/old.json")
	if err := os.MkdirAll(filepath.Dir(old), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, []byte("old\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	signals := make(chan unix.Signal, 1)
	p, done, stdout := clientRun(t, t.Context(), f, signals)
	signals <- unix.SIGINT
	if err := <-done; err == nil || err.Error() != "exit status 3" {
		t.Fatal(err)
	}
	if !p.exited() || stdout.String() != "summary after interrupt\n" {
		t.Fatalf("%v, %q", p.exited(), stdout)
	}
	if b, err := os.ReadFile(filepath.Join(f.root, "results/p/new.json")); err != nil || string(b) != "record\n" {
		t.Fatalf("%q, %v", b, err)
	}
	// What the run did not write stays there until it is asked for.
	if _, err := os.Stat(filepath.Join(f.root, "results/p/old.json")); err == nil {
		t.Fatal("a run brought what it did not write")
	}
	for _, want := range []string{"results/p/old.json", ""} { // the second time there is nothing
		got, err := f.Pull(t.Context(), []string{"results/p/o"})
		if err != nil || strings.Join(got, " ") != want {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
	}
	if names, _ := filepath.Glob(filepath.Join(f.root, "results/p/.*")); len(names) > 0 {
		t.Fatalf("left: %q", names)
	}
}

// A client whose connection is lost stops its load and writes its record there.
func TestSSHClientConnectionLost(t *testing.T) {
	t.Parallel()
	f := pushed(t)
	p, done, _ := clientRun(t, t.Context(), f, nil)
	if err := f.t.close(t.Context(), f.Client()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.HasPrefix(err.Error(), "client: ") {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.wait(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Pull(t.Context(), []string{"results/p"}); err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
}

func TestSSHExec(t *testing.T) {
	t.Parallel()
	f := pushed(t)
	hosts, err := f.On(1, 3, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out, complaint bytes.Buffer
	err = f.Exec(t.Context(), hosts, []string{"/bin/sh", "-c", `printf 'a b\n%s' "$0"; echo no >&2; exit $1`, "{addr}", "4"}, &out, &complaint)
	list := NodeErrors(err)
	if len(list) != 3 || list[2].Error() != "client: /bin/sh: exit status 4" {
		t.Fatal(err)
	}
	for i, name := range []string{"node1", "node3", "client"} {
		for _, line := range []string{"a b", []string{fleettest.Hosts[0], fleettest.Hosts[2], fleettest.Hosts[3]}[i]} {
			if !strings.Contains(out.String(), name+" | "+line+"\n") {
				t.Errorf("no %q of %s in %q", line, name, out.String())
			}
		}
		if !strings.Contains(complaint.String(), name+" | no\n") {
			t.Errorf("%q", complaint.String())
		}
	}
	if hosts, err = f.On(); err != nil || len(hosts) != 4 || hosts[3].ID != 0 {
		t.Fatal(hosts, err)
	}
	if _, err = f.On(4); err == nil {
		t.Fatal("node 4")
	}
}

// What runs beyond its time is ended there, with what it started.
func TestSSHExecTimeout(t *testing.T) {
	t.Parallel()
	f := pushed(t)
	hosts, err := f.On(2)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	out := newAwaitLine("node2 | ready")
	done := make(chan error, 1)
	ids := filepath.Join(t.TempDir(), "ids")
	go func() {
		done <- f.Exec(ctx, hosts, []string{"/bin/sh", "-c", `echo $$ >"$0"; FLEET_TEST_HELPER=1 {root}/bin/fleet stubborn & echo $! >>"$0"; wait`, ids}, out, io.Discard)
	}()
	select {
	case <-out.got:
	case err := <-done:
		t.Fatal(err)
	}
	text, err := os.ReadFile(ids)
	if err != nil {
		t.Fatal(err)
	}
	var running []*process
	for _, pid := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		id, err := identify(n)
		if err != nil {
			t.Fatal(err)
		}
		p, err := id.open()
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		running = append(running, p)
	}
	cancel()
	if err := <-done; err == nil {
		t.Fatal("no error")
	}
	for _, p := range running {
		if err := p.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(running) != 2 {
		t.Fatal(len(running))
	}
}

func TestSSHPush(t *testing.T) {
	t.Parallel()
	f := openSSH(t, nil)
	if got := mustPush(t, f, 1); len(got) != 1 || got[0] != "bin/fleet" {
		t.Fatalf("sent %q", got)
	}
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		file := filepath.Join(f.root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("bin/it's a server", "#!/bin/sh\n", 0o755)
	write("lib/a.jar", "jar", 0o600)
	write("lib/sub/b.jar", "", 0o644)
	want := "bin/it's a server lib/a.jar lib/sub/b.jar"
	if got := strings.Join(mustPush(t, f, 2, filepath.Join(f.root, "bin/it's a server"), "lib"), " "); got != want {
		t.Fatalf("sent %q, want %q", got, want)
	}
	for name, mode := range map[string]os.FileMode{"bin/it's a server": 0o755, "lib/a.jar": 0o644, "bin/fleet": 0o755} {
		info, err := os.Stat(filepath.Join(f.RemoteDir, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	// Only what changed, though it is the same length.
	write("lib/a.jar", "raj", 0o600)
	if got := mustPush(t, f, 0, "bin/it's a server", "lib/a.jar", "lib/sub"); len(got) != 1 || got[0] != "lib/a.jar" {
		t.Fatalf("sent %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(f.RemoteDir, "lib/a.jar")); err != nil || string(b) != "raj" {
		t.Fatalf("%q, %v", b, err)
	}
	if left, _ := filepath.Glob(filepath.Join(f.RemoteDir, "*/*.[0-9]*")); len(left) > 0 {
		t.Fatalf("left: %q", left)
	}

	hosts, err := f.On(1)
	if err != nil {
		t.Fatal(err)
	}
	elfFor := func(m elf.Machine) string {
		var b bytes.Buffer
		h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(m), Version: 1, Ehsize: 64}
		copy(h.Ident[:], "\x7fELF\x02\x01\x01")
		if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	this, _ := exec.Command("uname", "-m").Output()
	foreign := elf.EM_AARCH64
	if strings.TrimSpace(string(this)) == "aarch64" {
		foreign = elf.EM_X86_64
	}
	write("bin/foreign", elfFor(foreign), 0o755)
	for _, c := range []struct{ name, want string }{
		{"bin/foreign", "and bin/foreign is built for " + machines[foreign]},
		{"bin/none", "push bin/none: no such file: make build"},
		{"/etc/passwd", "push /etc/passwd: not below " + f.root},
		{"../x", "push ../x: not below"},
		{".", "push .: not below"},
	} {
		if _, err := f.Push(t.Context(), hosts, []string{c.name}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A full disk there, or a folder that cannot be written, is that host's error.
func TestSSHPushFails(t *testing.T) {
	t.Parallel()
	f := openSSH(t, nil)
	if err := os.WriteFile(f.RemoteDir, nil, 0o644); err != nil { // where the folder should be
		t.Fatal(err)
	}
	hosts, err := f.On(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Push(t.Context(), hosts, nil); err == nil || !strings.HasPrefix(err.Error(), "node 1: mkdir: ") || strings.Contains(err.Error(), "\n") {
		t.Fatal(err)
	}
}

func TestSSHRTT(t *testing.T) {
	t.Parallel()
	needPing(t)
	f := pushed(t)
	two, err := f.Only(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	m, err := two.MeasureRTT(t.Context(), 5, io.Discard)
	if err != nil || len(m.Pairs) != 2 || m.Pairs[0].N != 5 || m.Pairs[1].From != 2 || m.Pairs[1].P50US <= 0 {
		t.Fatalf("%+v, %v", m, err)
	}
}
