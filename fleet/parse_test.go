package fleet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

func load(t *testing.T, text string) (Inventory, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), ".env")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

func TestLoadHome(t *testing.T) {
	t.Parallel()
	want := Inventory{
		Nodes: []Node{
			{1, Host{Addr: "127.0.0.11", Private: "127.0.0.11"}},
			{2, Host{Addr: "127.0.0.12", Private: "127.0.0.12"}},
			{3, Host{Addr: "127.0.0.13", Private: "127.0.0.13"}},
		},
		Client:    Host{Addr: "127.0.0.14", Private: "127.0.0.14"},
		SSHOpts:   []string{},
		RemoteDir: "raftrig",
		Netns:     "raftrig",
		Transport: "local",
		Topology:  "local",
	}
	absent, err := Load(filepath.Join(t.TempDir(), ".env"))
	if err != nil || !reflect.DeepEqual(absent, want) {
		t.Errorf("no file: %+v, %v", absent, err)
	}
	example, err := Load("../.env.example")
	if err != nil || !reflect.DeepEqual(example, want) {
		t.Errorf(".env.example: %+v, %v", example, err)
	}
}

func TestLoadFleet(t *testing.T) {
	t.Parallel()
	inv, err := load(t, `# a fleet
NODE1=3.80.1.2
  NODE2 = node-2.example.com   # a name
NODE3="fd00::3"
NODE1_PRIVATE=10.0.1.11
NODE1_ZONE=use1-az4
NODE3_ZONE=
CLIENT='3.80.1.9'
SSH_USER=ubuntu
SSH_KEY=~/.ssh/id
SSH_OPTS=-o ConnectTimeout=5  -v
TRANSPORT=ssh
TOPOLOGY=multi_az
REMOTE_DIR=/data/raftrig
NODE_RTT={"interval_ms":10,"pairs":[{"from":1,"to":2,"p50_us":390}]}

RTT=390us
EMPTY=`)
	if err != nil {
		t.Fatal(err)
	}
	want := Inventory{
		Nodes: []Node{
			{1, Host{"3.80.1.2", "10.0.1.11", "use1-az4"}},
			{2, Host{"node-2.example.com", "node-2.example.com", ""}},
			{3, Host{"fd00::3", "fd00::3", ""}},
		},
		Client:    Host{Addr: "3.80.1.9", Private: "3.80.1.9"},
		SSHUser:   "ubuntu",
		SSHKey:    "~/.ssh/id",
		SSHOpts:   []string{"-o", "ConnectTimeout=5", "-v"},
		RemoteDir: "/data/raftrig",
		Netns:     "raftrig",
		Transport: "ssh",
		Topology:  "multi_az",
		NodeRTT:   `{"interval_ms":10,"pairs":[{"from":1,"to":2,"p50_us":390}]}`,
		Extra:     map[string]string{"RTT": "390us", "EMPTY": ""},
	}
	if !reflect.DeepEqual(inv, want) {
		t.Errorf("got  %+v\nwant %+v", inv, want)
	}
	if got := strings.Join(inv.PrivateHosts(), " "); got != "10.0.1.11 node-2.example.com fd00::3" {
		t.Error(got)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"\nNODE1", ".env:2: want KEY=VALUE"},
		{"=x", ".env:1: want KEY=VALUE"},
		{"export A=b", ".env:1: want KEY=VALUE"},
		{"A := b", ".env:1: want KEY=VALUE"},
		{"1A=b", ".env:1: want KEY=VALUE"},
		{"A=1\nB=2\nA=3", ".env:3: A is already set in line 1"},
		{"A=$(HOME)", ".env:1: A: '$'"},
		{"A=b\\", `.env:1: A: '\\'`},
		{"\tA=b", ".env:1: starts with a tab"},
		{"A=b\r\n", `.env:1: control character '\r'`},
		{"A=b\x00", ".env:1: control character"},
		{"A=\xff", ".env:1: not UTF-8"},
		{`A="b`, ".env:1: A: unbalanced quote"},
		{`A="b"c"`, ".env:1: A: unbalanced quote"},
		{`A="`, ".env:1: A: unbalanced quote"},
		{`A="b # c"`, ".env:1: A: unbalanced quote"}, // to Make the comment begins there
		{"NODE1=a;reboot", ".env:1: NODE1=a;reboot: want an IP address or a host name"},
		{"NODE2=-oProxyCommand=x", ".env:1: NODE2="},
		{"NODE1=a b", ".env:1: NODE1="},
		{"NODE1=300.1.1.1", ".env:1: NODE1="},
		{"NODE1=a..b", ".env:1: NODE1="},
		{"NODE1=" + strings.Repeat("a", 64), ".env:1: NODE1="},
		{"NODE1=" + strings.Repeat("a.", 130) + "a", ".env:1: NODE1="},
		{"NODE1=0.0.0.0", ".env:1: NODE1="},
		{"NODE1=fe80::1%eth0", ".env:1: NODE1="},
		{"NODE1_PRIVATE=a|b", ".env:1: NODE1_PRIVATE="},
		{"CLIENT=`x`", ".env:1: CLIENT="},
		{"TRANSPORT=telnet", ".env:1: TRANSPORT=telnet: want local or ssh"},
		{"TOPOLOGY=a b", ".env:1: TOPOLOGY="},
		{"SSH_USER=-l", ".env:1: SSH_USER="},
		{"SSH_KEY=k;x", ".env:1: SSH_KEY=k;x: shell metacharacter ';'"},
		{"SSH_OPTS=-o `x`", ".env:1: SSH_OPTS="},
		{"REMOTE_DIR=a/../b", ".env:1: REMOTE_DIR=a/../b: want a path"},
		{"REMOTE_DIR=-x", ".env:1: REMOTE_DIR="},
		{"REMOTE_DIR=a b", ".env:1: REMOTE_DIR="},
		{"NETNS=a-b", ".env:1: NETNS=a-b: want up to 32"},
		{"NODE_RTT={", ".env:1: NODE_RTT={: not what make node-rtt wrote"},
		{"NODE1=a\nNODE3=c", "NODE2 is not set"},
		{"TRANSPORT=ssh", "NODE1 is not set"},
		{"TRANSPORT=ssh\nNODE1=a\nNODE2=b\nNODE3=c", "CLIENT is not set"},
		{"NODE1=a\nNODE2=b\nNODE3=a", "node 1 and node 3 are both a"},
		{"NODE1=a\nNODE2=b\nNODE3=c\nNODE2_PRIVATE=p\nNODE3_PRIVATE=p", "node 2 and node 3 are both p"},
		{strings.Repeat("#", maxEnvBytes+1), "not an inventory"},
	} {
		_, err := load(t, c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", shorten(c.text), err, c.want)
		}
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("a directory")
	}
}

func FuzzInventory(f *testing.F) {
	example, err := os.ReadFile("../.env.example")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	f.Add([]byte("TRANSPORT=ssh\nNODE1=a\nNODE2=b.c\nNODE3=::1\nCLIENT=d # e\nX='y'\n"))
	f.Add([]byte("NODE1=\"a\nB=$\n\tC=\\"))
	f.Fuzz(func(t *testing.T, text []byte) {
		inv, err := parseInventory("f", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("error without the file's name: %v", err)
			}
			return
		}
		hosts := append(inv.Hosts(), inv.PrivateHosts()...)
		hosts = append(hosts, inv.Client.Addr, inv.Client.Private)
		if len(hosts) != 2*Nodes+2 {
			t.Fatalf("hosts %q", hosts)
		}
		for _, h := range hosts {
			if h == "" || h[0] == '-' || strings.ContainsAny(h, " ;&|<>()`'\"$\\\t\r\n*?[]{}!#~,/") {
				t.Fatalf("host %q", h)
			}
		}
		for _, s := range append(inv.SSHOpts, inv.SSHUser, inv.SSHKey, inv.Topology) {
			if strings.ContainsAny(s, ";&|<>()`'\"$\\\r\n#") {
				t.Fatalf("value %q", s)
			}
		}
	})
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	line := "42 (a) S (b) R 1 42 41 0 -1 4194304 1 2 3 4 150 50 7 8 20 0 1 0 987654 1000 77 18446744073709551615 1 1\n"
	got, err := parseStat([]byte(line))
	want := procStat{State: 'R', Session: 41, CPUTicks: 200, StartTicks: 987654, RSSPages: 77}
	if err != nil || got != want {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "1 (x", "1 (x) R 1 2", strings.Replace(line, "987654", "-1", 1), strings.Replace(line, " 41 ", " x ", 1)} {
		if s, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
	self, err := readStat(os.Getpid())
	if err != nil || self.StartTicks == 0 || self.RSSPages == 0 {
		t.Errorf("self: %+v, %v", self, err)
	}
	if _, err := readStat(1 << 30); !errors.Is(err, errGone) {
		t.Errorf("no process: %v", err)
	}
}

func FuzzStat(f *testing.F) {
	self, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(self)
	f.Add([]byte("1 (a) b) R 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"))
	f.Fuzz(func(t *testing.T, b []byte) { parseStat(b) })
}

func FuzzPIDFile(f *testing.F) {
	f.Add([]byte(`{"pid":123,"start_ticks":9,"boot_id":"b","argv":["x"]}`))
	f.Add([]byte(`{"pid":-1}`))
	f.Add([]byte(`123`))
	f.Fuzz(func(t *testing.T, b []byte) {
		pf, err := parsePIDFile(b)
		if err != nil {
			return
		}
		if pf.PID <= 1 || len(pf.Argv) == 0 {
			t.Fatalf("accepted %+v", pf)
		}
		path := filepath.Join(t.TempDir(), "pid")
		if err := pf.write(path); err != nil {
			t.Fatal(err)
		}
		again, err := readPIDFile(path)
		if err != nil || !reflect.DeepEqual(pf, again) {
			t.Fatalf("%+v became %+v, %v", pf, again, err)
		}
	})
}

// naiveTail is what seekTail must leave to read.
func naiveTail(b []byte, n int) []byte {
	lines := bytes.SplitAfter(b, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	if n < 0 || n > len(lines) {
		n = len(lines)
	}
	return bytes.Join(lines[len(lines)-n:], nil)
}

func checkTail(t *testing.T, b []byte, n int) {
	t.Helper()
	r := bytes.NewReader(b)
	if err := seekTail(r, n); err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(r)
	if want := naiveTail(b, n); !bytes.Equal(got, want) {
		t.Fatalf("last %d lines of %d bytes: got %d bytes, want %d", n, len(b), len(got), len(want))
	}
}

func TestSeekTailOverBlocks(t *testing.T) {
	t.Parallel()
	for _, lineBytes := range []int{1, 100, tailBlockBytes - 1, tailBlockBytes, tailBlockBytes + 1} {
		b := bytes.Repeat(append(bytes.Repeat([]byte("x"), lineBytes-1), '\n'), 5)
		b = append(bytes.Repeat([]byte("y\n"), tailBlockBytes), b...)
		for _, n := range []int{-1, 0, 1, 2, 5, 6, 7, tailBlockBytes, 1 << 20} {
			checkTail(t, b, n)
			checkTail(t, b[:len(b)-1], n)
		}
	}
}

func FuzzSeekTail(f *testing.F) {
	f.Add([]byte("a\nb\nc"), 2)
	f.Add([]byte("\n\n"), 1)
	f.Add([]byte(""), 3)
	f.Fuzz(checkTail)
}

func TestPrefixer(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := newPrefixer(&b, nil, Node{ID: 2})
	for _, s := range []string{"a", "b\n\nc", "d\ne", ""} {
		if n, err := p.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	p.flush()
	if b.String() != "node2 | ab\nnode2 | \nnode2 | cd\nnode2 | e\n" {
		t.Fatalf("%q", b.String())
	}

	// An endless line is broken, not kept.
	b.Reset()
	p.Write(bytes.Repeat([]byte("x"), 2*maxLineBytes))
	p.Write([]byte("\n"))
	if got := strings.Count(b.String(), "node2 | "); got < 2 || strings.Count(b.String(), "x") != 2*maxLineBytes {
		t.Fatalf("%d lines", got)
	}

	// Lines of several nodes do not mix.
	b.Reset()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for id := 1; id <= 3; id++ {
		p := newPrefixer(&b, &mu, Node{ID: id})
		wg.Go(func() {
			for range 1000 {
				p.Write([]byte("some"))
				p.Write([]byte("thing\n"))
			}
		})
	}
	wg.Wait()
	for line := range strings.Lines(b.String()) {
		if len(line) != len("node1 | something\n") || !strings.HasSuffix(line, " | something\n") {
			t.Fatalf("%q", line)
		}
	}
}

func FuzzPrefixer(f *testing.F) {
	f.Add([]byte("a\nb"), 1)
	f.Fuzz(func(t *testing.T, text []byte, chunk int) {
		var b bytes.Buffer
		p := newPrefixer(&b, nil, Node{ID: 1})
		for rest := text; len(rest) > 0; {
			n := min(max(chunk, 1), len(rest))
			if w, err := p.Write(rest[:n]); w != n || err != nil {
				t.Fatal(w, err)
			}
			rest = rest[n:]
		}
		p.flush()
		if len(text) >= maxLineBytes {
			return
		}
		want := ""
		for line := range strings.Lines(string(text)) {
			want += "node1 | " + strings.TrimSuffix(line, "\n") + "\n"
		}
		if b.String() != want {
			t.Fatalf("%q, want %q", b.String(), want)
		}
	})
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	got := lastLines([]byte("one\n\n two\tthree \r\n\x1b[31mred\x00\xff\n"+strings.Repeat("é", 400)), 3)
	if len(got) != 3 || got[0] != " two three" || got[1] != "[31mred\ufffd" && got[1] != "[31mred" || len([]rune(got[2])) != 303 {
		t.Fatalf("%q", got)
	}
}

func TestProcessWaitGivesUp(t *testing.T) {
	t.Parallel()
	p := stranger(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.wait(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	// The given-up wait does not spoil the next.
	ended := make(chan error)
	go func() { ended <- p.wait(t.Context()) }()
	if err := p.signal(9); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || !p.exited() {
		t.Fatal(err, p.exited())
	}
	if err := p.signal(9); err != nil && !errors.Is(err, errGone) {
		t.Fatal(err)
	}
}
