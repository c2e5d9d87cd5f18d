package product

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestUnsettled(t *testing.T) {
	node := func(n, leader int, applied uint64) Node {
		return Node{Node: n, Leads: n == leader, Leader: leader, Term: 2, Applied: applied}
	}
	down := Node{Node: 3, Err: "node 3 does not answer"}
	old := Node{Node: 2, Leads: true, Leader: 2, Term: 1, Applied: 9}
	for _, c := range []struct {
		nodes    []Node
		degraded bool
		want     string
	}{
		{[]Node{node(1, 1, 9), node(2, 1, 9), node(3, 1, 9)}, false, ""},
		{[]Node{node(1, 1, 9), node(2, 1, 8), node(3, 1, 9)}, false, "node 1 has applied up to 9, node 2 up to 8"},
		{[]Node{node(1, 0, 9), node(2, 0, 9)}, false, "no node leads"},
		{[]Node{node(1, 1, 9), node(2, 0, 9)}, false, "node 2 does not follow node 1, which leads"},
		{[]Node{node(1, 1, 9), old}, false, "node 2 does not follow node 1, which leads"},
		{[]Node{node(1, 1, 9), node(2, 1, 9), down}, false, "node 3 does not answer"},
		{[]Node{node(1, 1, 9), node(2, 1, 9), down}, true, ""},
		{[]Node{down}, true, "no node leads"},
	} {
		if got := unsettled(c.nodes, c.degraded); got != c.want {
			t.Errorf("%+v: %q, want %q", c.nodes, got, c.want)
		}
	}
}

func TestComplaint(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"x-client: no node leads\nmake: *** [common.mk:92: client] Error 1\n":                                      "x-client: no node leads",
		"x-client: node 1 cannot be moved\nx open 1 at qps=1 latency=1 t=1s measure\nmake: *** [client] Error 3\n": "x-client: node 1 cannot be moved",
	} {
		if got := complaint(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestCheckKnobs(t *testing.T) {
	if err := CheckKnobs([]string{"BURST=10", "FLAGS=-max-lag-p99 0.5", "X1_Y="}); err != nil {
		t.Error(err)
	}
	for _, bad := range [][]string{{"BURST"}, {"burst=1"}, {"=1"}, {"MODE=open"}, {"OUT=x"}, {"BURST=1", "BURST=2"}, {"X=a\nb"}, {"-f=x"}, {"--eval=X=1"}} {
		if CheckKnobs(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestSeconds(t *testing.T) {
	p := &Product{Knobs: []string{"WARMUP=500ms", "MEASURE=3", "PACE=park"}}
	for name, want := range map[string]time.Duration{"WARMUP": 500 * time.Millisecond, "MEASURE": 3 * time.Second, "DRAIN": time.Minute, "PACE": time.Minute} {
		if got := p.Seconds(name, time.Minute); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// makefile makes a product of one recipe.
func makefile(t *testing.T, text string) *Product {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "p"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "p/Makefile"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := Open(root, "p")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A client whose record does not come, or lies elsewhere, is an error that
// says why.
func TestClientWithoutRecord(t *testing.T) {
	out := t.TempDir()
	if err := os.Mkdir(filepath.Join(out, "y"), 0o755); err != nil {
		t.Fatal(err)
	}
	for recipe, want := range map[string]string{
		"@echo 'p-client: the disk is full' >&2; exit 1": "p-client: the disk is full",
		"@true":                          "make client ended without a record",
		"@echo 'record:  /no/such.json'": "no such file",
		"@cp " + absolute(t, "../../record/testdata/run.json") + " $(OUT)/../x.json; echo \"record:  $(abspath $(OUT)/../x.json)\"": "is the disk full?",
	} {
		_, _, err := makefile(t, "client:\n\t"+recipe+"\n").Client(context.Background(), filepath.Join(out, "y"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", recipe, err, want)
		}
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// What an outer make was given does not leak into the runs.
func TestClientVariables(t *testing.T) {
	t.Setenv("MAKEFLAGS", " -- RATE=5 THREADS=6 SEED=7 HDR_OUT=h MODE=x BURST=1")
	p := makefile(t, "client:\n\t@echo 'got: $(MODE),$(RATE),$(THREADS),$(SEED),$(HDR_OUT),$(BURST)' >&2; exit 1\n")
	p.Knobs = []string{"BURST=10"}
	_, _, err := p.Client(context.Background(), t.TempDir(), "MODE=closed", "THREADS=28")
	if err == nil || err.Error() != "got: closed,,28,,,10" {
		t.Error(err)
	}
}

// The second Ctrl-C reaches the client too.
func TestInterruptTwice(t *testing.T) {
	p := makefile(t, "client:\n\t@n=0; trap 'n=$$((n+1)); echo \"$$n at qps=\" >&2; [ $$n -lt 2 ] || exit 1' INT; echo '0 at qps=' >&2; while :; do sleep 0.02; done\n")
	again := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	p.Again = again
	var said []string
	p.Live = func(line string) {
		said = append(said, line[:1])
		switch line[0] {
		case '0':
			cancel()
		case '1':
			close(again)
		}
	}
	_, _, err := p.Client(ctx, t.TempDir())
	if !errors.Is(err, context.Canceled) || strings.Join(said, " ") != "0 1 2" {
		t.Errorf("%v, the client said %q", err, said)
	}
}

func TestNodesWithoutJSON(t *testing.T) {
	for recipe, want := range map[string]string{
		"@echo table":                         "make status JSON=1 did not say",
		"@echo '[]'":                          "make status JSON=1 did not say",
		"@echo 'p: no such host' >&2; exit 1": "p: no such host",
	} {
		if _, err := makefile(t, "status:\n\t"+recipe+"\n").Nodes(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", recipe, err)
		}
	}
	// The exit status is 1 when a node is down; its row is there all the same.
	nodes, err := makefile(t, "status:\n\t@echo '[{\"Node\":1,\"Err\":\"down\"}]'; exit 1\n").Nodes(context.Background())
	if err != nil || len(nodes) != 1 || nodes[0].Err != "down" {
		t.Errorf("%+v, %v", nodes, err)
	}
}

func TestOpen(t *testing.T) {
	for _, name := range []string{"", "..", "a/b", "none", "A"} {
		if _, err := Open(t.TempDir(), name); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
}
