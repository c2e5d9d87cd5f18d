package fleet

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReadFrames(t *testing.T) {
	t.Parallel()
	var out, complaint bytes.Buffer
	rep, err := readFrames(strings.NewReader("Welcome!\n{\"not\":1}\n"+`{"agent":1}
{"stdout":"YQ=="}
{"stderr":"Yg=="}
{"reply":{"err":"already running (pid 7): stop it first","running":{"PID":7}}}
{"stdout":"c29t"}
`), &out, &complaint)
	if err != nil || out.String() != "a" || complaint.String() != "b" {
		t.Fatalf("%q %q %v", out.String(), complaint.String(), err)
	}
	var re *RunningError
	if !errors.As(rep.err(), &re) || re.PID != 7 {
		t.Fatal(rep.err())
	}
	for _, c := range []struct{ text, want string }{
		{"", "connection lost"},
		{"{\"agent\":1}\n{\"stdout\":\"YQ==\"}\n", "connection lost"},
		{"{\"agent\":2}\n", "its bin/fleet is of another version: make push (fleet push)"},
		{"{\"agent\":1}\nSegmentation fault\n", `not what bin/fleet says: "Segmentation fault"`},
		{strings.Repeat("x\n", maxNoiseBytes), "its login prints without end, and no answer"},
		{"{\"agent\":1}\n" + strings.Repeat("x", maxFrameBytes+1), "token too long"},
	} {
		if rep, err := readFrames(strings.NewReader(c.text), io.Discard, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, %v; want %q", c.text, rep, err, c.want)
		}
	}
}

func TestReplyKeepsErrors(t *testing.T) {
	t.Parallel()
	through := func(err error) error {
		var b bytes.Buffer
		w := &frameWriter{w: &b}
		var rep reply
		rep.setErr(err)
		if err := errors.Join(w.write(frame{Agent: protocol}), w.write(frame{Reply: &rep})); err != nil {
			t.Fatal(err)
		}
		got, err := readFrames(&b, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.err()
	}
	if err := through(nil); err != nil {
		t.Error(err)
	}
	if err := through(&ExitError{How: "died", LogFile: "/f", Log: []string{"x"}}); err.Error() != "died; /f ends with:\n    x" {
		t.Error(err)
	}
	if err := through(notStarted(errors.New("gone"))); !errors.Is(err, errNotStarted) || err.Error() != "gone" {
		t.Error(err)
	}
	if err := through(errors.New("plain")); errors.Is(err, errNotStarted) || err.Error() != "plain" {
		t.Error(err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("hello\n{\"agent\":1}\n{\"stdout\":\"YQ==\"}\n{\"reply\":{\"status\":{\"node\":1}}}\n"))
	f.Add([]byte("{\"agent\":1}\n{\"reply\":{\"exit\":{\"How\":\"x\"},\"files\":[{\"path\":\"../x\"}]}}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rep, err := readFrames(bytes.NewReader(b), io.Discard, io.Discard)
		if (rep == nil) == (err == nil) {
			t.Fatal(rep, err)
		}
		if rep != nil {
			_ = rep.err()
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"protocol":1,"verb":"run","task":{"argv":["x"],"end":2}}`), []byte(`{"signal":2}`))
	f.Add([]byte(`{"protocol":2}`), []byte(`{"signal":0}`))
	f.Fuzz(func(t *testing.T, req, ctl []byte) {
		if r, err := parseRequest(req); err == nil && r.Protocol != protocol {
			t.Fatal(r)
		}
		if c, err := parseControl(ctl); err == nil && (c.Signal < 1 || c.Signal > 31) {
			t.Fatal(c)
		}
	})
}

func TestAgentRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"", "agent: no request"},
		{"x\n", "agent: not a request"},
		{"{\"protocol\":0}\n", "agent: request of version 0, want 1"},
	} {
		if err := Agent(strings.NewReader(c.text), io.Discard, t.TempDir()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	var b bytes.Buffer
	if err := Agent(strings.NewReader("{\"protocol\":1,\"verb\":\"no\"}\n"), &b, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if rep, err := readFrames(&b, nil, nil); err != nil || rep.Err != `agent: no verb "no"` {
		t.Fatal(rep, err)
	}
}

// shellWords is what stands between an argument and a shell: whatever it holds,
// a shell gives it back.
func checkWords(t *testing.T, words ...string) {
	t.Helper()
	line := `printf '%s\0' ` + shellWords(words...)
	out, err := exec.Command("/bin/sh", "-c", line).Output()
	if err != nil || string(out) != strings.Join(words, "\x00")+"\x00" {
		t.Fatalf("%q became %q, %v", words, out, err)
	}
}

func TestShellWords(t *testing.T) {
	t.Parallel()
	checkWords(t, "a", "", "it's", "$(reboot)", "`x`", "a;b|c&d", "-n", "\n\t \\", "'''", `"`, "*", "~", "é\x01", "!!", "#")
}

func FuzzShellWords(f *testing.F) {
	f.Add("a b", "it's $HOME")
	f.Add("'\\''", "\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.Contains(a+b, "\x00") {
			return // no argument can hold it
		}
		checkWords(t, a, b)
	})
}

func TestExplain(t *testing.T) {
	t.Parallel()
	r := &remote{inv: Inventory{RemoteDir: "raftrig", SSHUser: "ubuntu"}, knownHosts: "/k"}
	for _, c := range []struct {
		exit      int
		complaint string
		want      string
	}{
		{255, "ssh: connect to host 10.0.0.1 port 22: Connection timed out\r\n", "ssh: connect to host 10.0.0.1 port 22: Connection timed out"},
		{255, "ubuntu@h: Permission denied (publickey).\r\n", "it refuses the login: see SSH_USER=ubuntu and SSH_KEY=(not set) (ubuntu@h: Permission denied (publickey).)"},
		{255, "@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nOffending ECDSA key in /k:3\nHost key verification failed.\n", "its host key has changed: if the host was made anew, remove line 3 of /k; if not, somebody else answers there"},
		{255, "No ED25519 host key is known for h and you have requested strict checking.\nHost key verification failed.\n", "its host key was not accepted: Host key verification failed."},
		{127, "bash: line 1: raftrig/bin/fleet: No such file or directory\n", "there is no raftrig/bin/fleet on it: make push (fleet push)"},
		{126, "bash: line 1: raftrig/bin/fleet: cannot execute: required file not found\n", "raftrig/bin/fleet does not run on it (bash: line 1: raftrig/bin/fleet: cannot execute: required file not found): make push (fleet push)"},
		{1, "mkdir: cannot create directory\n", "mkdir: cannot create directory"},
		{255, "", "ssh: ssh ended without a word"},
	} {
		if got := r.explain(c.exit, c.complaint).Error(); got != c.want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.complaint, got, c.want)
		}
	}
}

func TestSSHArgv(t *testing.T) {
	t.Parallel()
	r := &remote{inv: Inventory{SSHUser: "u", SSHOpts: []string{"-p", "7"}}, ssh: "/ssh", key: "/key", knownHosts: "/k", sockets: "/s"}
	n := Node{ID: 1, Host: Host{Addr: "h"}}
	got := strings.Join(r.argv(n), " ")
	for _, want := range []string{"/ssh -T -p 7 ", " -o BatchMode=yes", " -o StrictHostKeyChecking=accept-new", " -o UserKnownHostsFile=/k", " -o ControlPath=/s/", " -o IdentitiesOnly=yes -i /key -l u -- h"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	// A connection is shared only by those that reach the host in the same way.
	seen := map[string]bool{r.socket(n): true, r.socket(Node{ID: 2, Host: Host{Addr: "g"}}): true}
	for _, change := range []func(*remote){
		func(r *remote) { r.key = "/other" },
		func(r *remote) { r.inv.SSHUser = "v" },
		func(r *remote) { r.inv.SSHOpts = []string{"-p7"} },
	} {
		other := *r
		change(&other)
		seen[other.socket(n)] = true
	}
	if len(seen) != 5 {
		t.Error(seen)
	}
}

func TestSocketDirIsPrivate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "d")
	for range 2 { // made, and found
		if err := private(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := private(dir); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Fatal(err)
	}
	link := dir + "-link"
	if err := errors.Join(os.Chmod(dir, 0o700), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
	if err := private(link); err == nil {
		t.Fatal("a link")
	}
	if a, b := socketDir("/a"), socketDir("/b"); a == b || len(a) > maxSocketDirBytes {
		t.Fatal(a, b)
	}
}

func TestAsked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want string
		path string
		ok   bool
	}{
		{"results/p", "results/p/x.json", true},
		{"results/p/", "results/p/sub/x.hlog", true},
		{"results/p/run", "results/p/run.hgrm", true},
		{"results/p/run", "results/p/run", true},
		{"results/p", "results/px/evil", false}, // another folder whose name begins so
		{"results/p", "results/p/../../.env", false},
		{"results/p", "/etc/passwd", false},
		{"results/p", ".env", false},
		{"results/p", "", false},
		{"/abs/r", "/abs/r/x", true},
		{"../out", "../out/x", false},
		{"..", "../x", false},
	} {
		if got := asked([]string{c.want}, c.path); got != c.ok {
			t.Errorf("asked for %q, offered %q: %v", c.want, c.path, got)
		}
	}
}

func FuzzAsked(f *testing.F) {
	f.Add("results/p", "results/p/../x")
	f.Fuzz(func(t *testing.T, want, got string) {
		if asked([]string{want}, got) && (strings.Contains("/"+got+"/", "/../") || !strings.HasPrefix(got, strings.TrimSuffix(strings.TrimPrefix(want, "./"), "/"))) && !strings.Contains(want, "..") && !strings.Contains(want, "./") && !strings.Contains(want, "//") {
			t.Fatalf("asked for %q, took %q", want, got)
		}
	})
}

func TestParseSums(t *testing.T) {
	t.Parallel()
	sum := strings.Repeat("a", 64)
	machine, sums := parseSums("motd\nx86_64\n" + sum + "  bin/it's\n" + sum + "  lib/a b\n")
	if machine != "x86_64" || len(sums) != 2 || sums["bin/it's"] != sum || sums["lib/a b"] != sum {
		t.Fatal(machine, sums)
	}
}

func FuzzSums(f *testing.F) {
	f.Add("x86_64\n" + strings.Repeat("0", 64) + "  a\n")
	f.Fuzz(func(t *testing.T, text string) {
		for file, sum := range func() map[string]string { _, s := parseSums(text); return s }() {
			if len(sum) != 64 || strings.Contains(file, "\n") {
				t.Fatal(file, sum)
			}
		}
	})
}

func TestTaskIsEndedBySignalFirst(t *testing.T) {
	t.Parallel()
	l, err := newLocal(t.TempDir(), "run", "")
	if err != nil {
		t.Fatal(err)
	}
	signals := make(chan unix.Signal, 1)
	out := newAwaitLine("up")
	var o outcome
	done := make(chan error, 1)
	go func() {
		var err error
		o, err = l.run(t.Context(), Node{}, task{Argv: []string{"/bin/sh", "-c", `trap 'exit 5' INT; echo up; while :; do sleep 1000 & wait; done`}, stdout: out, signals: signals}, expander{})
		done <- err
	}()
	<-out.got
	signals <- unix.SIGINT
	if err := <-done; err != nil || o.Exit != 5 || time.Since(o.Started) > time.Hour {
		t.Fatalf("%+v, %v", o, err)
	}
	// An end by a signal has a status of its own.
	o, err = l.run(t.Context(), Node{}, task{Argv: []string{"/bin/sh", "-c", "kill -9 $$"}}, expander{})
	if err != nil || o.Exit != 128+9 {
		t.Fatalf("%+v, %v", o, err)
	}
}
