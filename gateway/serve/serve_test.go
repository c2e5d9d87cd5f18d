package serve

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// product has a flag of its own and starts nothing: it says what it was given.
func product() (p Product, started *Config) {
	started = new(Config)
	limit := 0
	return Product{
		Name: "example", Port: 9400, RaftPort: 9401,
		Version: func() string { return "library v1" },
		Flags:   func(fs *flag.FlagSet) { fs.IntVar(&limit, "limit", 1, "") },
		Check: func() error {
			if limit < 1 {
				return fmt.Errorf("-limit %d: at least 1", limit)
			}
			return nil
		},
		Start: func(c Config) (Node, error) {
			*started = c
			return nil, errors.New("it does not start")
		},
	}, started
}

func TestUsage(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"unknown flag":      {[]string{"-id", "1", "-addr", "h", "-peers", "1=h", "-fsync"}, "-fsync"},
		"argument":          {[]string{"-id", "1", "-addr", "h", "-peers", "1=h", "start"}, `unexpected argument "start"`},
		"no address":        {[]string{"-id", "1", "-peers", "1=127.0.0.1"}, "-addr is missing"},
		"all addresses":     {[]string{"-id", "1", "-addr", "0.0.0.0", "-peers", "1=0.0.0.0"}, "its own address"},
		"all, version 6":    {[]string{"-id", "1", "-addr", "::", "-peers", "1=::"}, "its own address"},
		"no peers":          {[]string{"-id", "1", "-addr", "127.0.0.1"}, "-peers is missing"},
		"bad peer":          {[]string{"-id", "1", "-addr", "127.0.0.1", "-peers", "1=127.0.0.1,127.0.0.2"}, `-peers "127.0.0.2"`},
		"bad peer port":     {[]string{"-id", "1", "-addr", "h", "-peers", "1=h:0"}, `-peers "1=h:0"`},
		"peer 100":          {[]string{"-id", "1", "-addr", "h", "-peers", "100=h"}, `-peers "100=h"`},
		"peer twice":        {[]string{"-id", "1", "-addr", "h", "-peers", "1=h,1=i"}, "node 1 is there twice"},
		"address twice":     {[]string{"-id", "1", "-addr", "h", "-peers", "1=h,2=h:9401"}, "the same address h:9401"},
		"not a peer":        {[]string{"-id", "4", "-addr", "h", "-peers", "1=h"}, "-id 4"},
		"another's address": {[]string{"-id", "1", "-addr", "i", "-peers", "1=h"}, "-peers has node 1 on h"},
		"port":              {[]string{"-id", "1", "-addr", "h", "-peers", "1=h", "-port", "70000"}, "-port 70000"},
		"raft port":         {[]string{"-id", "1", "-addr", "h", "-peers", "1=h", "-raft-port", "0"}, "-raft-port 0"},
		"the product's own": {[]string{"-id", "1", "-addr", "h", "-peers", "1=h", "-limit", "0"}, "-limit 0: at least 1"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			p, started := product()
			if status := Main(p, tc.args, &stdout, &stderr); status != 2 {
				t.Errorf("exit status %d, want 2", status)
			}
			text := stderr.String()
			if !strings.HasPrefix(text, "example-server: ") || strings.Count(text, "\n") != 1 || !strings.Contains(text, tc.want) || stdout.Len() > 0 {
				t.Errorf("said %q and %q, want one line with %q", &stdout, text, tc.want)
			}
			if started.ID != 0 {
				t.Error("has started a node")
			}
		})
	}
}

func TestAnsweredFlags(t *testing.T) {
	for flag, want := range map[string]string{"-version": "library v1\n", "-help": "\n  -limit"} {
		var stdout, stderr bytes.Buffer
		p, _ := product()
		if status := Main(p, []string{flag}, &stdout, &stderr); status != 0 || stderr.Len() > 0 || !strings.Contains(stdout.String(), want) {
			t.Errorf("%s: exit status %d, %q and %q", flag, status, &stdout, &stderr)
		}
	}
}

// sharedEnv makes the test binary a server that says what it runs with.
const sharedEnv = "RAFTRIG_TEST_SHARED"

func TestMain(m *testing.M) {
	if os.Getenv(sharedEnv) == "" {
		os.Exit(m.Run())
	}
	p, _ := product()
	p.Start = func(Config) (Node, error) {
		slack := make(chan int)
		go func() { // on whatever thread
			now, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
			slack <- now
		}()
		return nil, fmt.Errorf("%d ns, %d threads", <-slack, runtime.GOMAXPROCS(0))
	}
	os.Exit(Main(p, os.Args[1:], os.Stdout, os.Stderr))
}

// The process is the same one when it has begun again.
func TestShared(t *testing.T) {
	run := func(env string, more ...string) string {
		t.Helper()
		args := append([]string{"-id", "1", "-addr", "127.0.0.1", "-port", freePort(t), "-peers", "127.0.0.1"}, more...)
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), sharedEnv+"=1", env)
		text, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%v: %v, %s", more, err, text)
		}
		return string(text)
	}
	const unset = "GOMAXPROCS=" // as if it were not there
	alone, cores := run(unset), 0
	if _, err := fmt.Sscanf(alone, "example-server: 50000 ns, %d threads\n", &cores); err != nil {
		t.Skipf("the timer slack of a shared server: it is not the usual one here: %s", alone)
	}
	half := fmt.Sprintf("example-server: 1000000 ns, %d threads\n", max(1, cores/2))
	for _, tc := range []struct{ got, want string }{
		{run(unset, "-shared"), half},
		{run(unset, "-shared=false"), alone},
		{run("GOMAXPROCS=3", "-shared"), "example-server: 1000000 ns, 3 threads\n"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

// A node that cannot start: what it was given, and what becomes of its error.
func TestStart(t *testing.T) {
	var stdout, stderr bytes.Buffer
	p, started := product()
	args := []string{"-id", "2", "-addr", "127.0.0.1", "-port", freePort(t), "-peers", "127.0.0.2,127.0.0.1,127.0.0.3:7", "-data", "d"}
	if status := Main(p, args, &stdout, &stderr); status != 1 || stdout.Len() > 0 || stderr.String() != "example-server: it does not start\n" {
		t.Errorf("exit status %d, %q and %q", status, &stdout, &stderr)
	}
	want := map[int]string{1: "127.0.0.2:9401", 2: "127.0.0.1:9401", 3: "127.0.0.3:7"}
	if started.ID != 2 || fmt.Sprint(started.Peers) != fmt.Sprint(want) || started.DataDir != "d" || started.State == nil || started.LogOutput != &stderr {
		t.Errorf("started with %+v", started)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := listen("127.0.0.1:0", "-port")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	return port
}

func TestParsePeers(t *testing.T) {
	got, err := parsePeers("1=a,2=b:99,3=[::1]:7,4=::2", 8401)
	want := map[int]string{1: "a:8401", 2: "b:99", 3: "[::1]:7", 4: "[::2]:8401"}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

func TestListenRaft(t *testing.T) {
	l, err := listen("127.0.0.1:0", "-port")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	for at, want := range map[string]string{
		addr:             "listen " + addr + ": address already in use: stop what uses it, or choose another -raft-port",
		"192.0.2.1:9401": "listen 192.0.2.1:9401: not an address of this host",
	} {
		if _, err := (Config{ID: 1, Peers: map[int]string{1: at}}).ListenRaft(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestDataDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	peers := map[int]string{1: "h:1", 2: "i:1"}
	refused := func(c Config, want string) {
		t.Helper()
		d, err := c.OpenDataDir()
		if err == nil || d != nil || !strings.HasPrefix(err.Error(), "data directory "+c.DataDir+": ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v, want %q", d, err, want)
		}
	}
	own := Config{ID: 1, Peers: peers, DataDir: dir}
	d, err := own.OpenDataDir()
	if err != nil {
		t.Fatal(err)
	}
	if d.Path != dir {
		t.Errorf("path %q", d.Path)
	}
	refused(own, "in use by another process")
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	refused(Config{ID: 2, Peers: peers, DataDir: dir}, "belongs to node 1 of 1=h:1,2=i:1, this is node 2 of 1=h:1,2=i:1: ")
	refused(Config{ID: 1, Peers: map[int]string{1: "h:1", 2: "i:2"}, DataDir: dir}, "this is node 1 of 1=h:1,2=i:2: ")
	refused(Config{ID: 1, Peers: map[int]string{1: "h:1"}, DataDir: dir}, "this is node 1 of 1=h:1: ")
	if d, err = own.OpenDataDir(); err != nil { // a refused one holds no lock
		t.Fatal(err)
	}
	d.Close()
	for _, text := range []string{"{", "", `{"node":1,"peers":{"1":"h:1","2":"i:1"},"more":0}`} {
		if err := os.WriteFile(filepath.Join(dir, "identity.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		refused(own, "identity.json is damaged")
	}
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o600)
	refused(Config{ID: 1, Peers: peers, DataDir: file}, "not a directory")
}
