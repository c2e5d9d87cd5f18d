package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"raftrig/record"
	"raftrig/sweep/ladder"
)

// cluster is a folder that the repository's Makefiles take for their root, with
// an inventory of its own: a hashiraft cluster on addresses that nobody else
// has.
type cluster struct {
	t    *testing.T
	root string
}

func startCluster(t *testing.T) *cluster {
	if testing.Short() {
		t.Skip("a real cluster is not for a short test")
	}
	for _, tool := range []string{"make", "go", "awk"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing", tool)
		}
	}
	c := &cluster{t, t.TempDir()}
	for _, name := range []string{"common.mk", "go.mod", "gateway/gateway.mk", "hashiraft/Makefile"} {
		data, err := os.ReadFile(filepath.Join("../../..", name))
		if err != nil {
			t.Fatal(err)
		}
		c.write(name, string(data))
	}
	// The programs are built once, not by make.
	c.write("Makefile", "%: ;\n")
	net := fmt.Sprintf("127.%d.%d", 100+rand.IntN(100), rand.IntN(256))
	c.write(".env", fmt.Sprintf("NODE1=%s.1\nNODE2=%s.2\nNODE3=%s.3\nCLIENT=%s.4\n", net, net, net, net))
	for program, pkg := range map[string]string{
		"fleet": "fleet/cmd/fleet", "sweep": "sweep/cmd/sweep", "hashiraft-server": "hashiraft/server", "hashiraft-client": "hashiraft/client",
	} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(c.root, "bin", program), "./"+pkg)
		cmd.Dir = "../../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	// The lock of a run lies in the temporary folder.
	t.Setenv("TMPDIR", c.root)
	t.Cleanup(func() {
		if out, err := c.make("stop"); err != nil {
			t.Errorf("the cluster was not stopped: %v: %s", err, out)
		}
	})
	if out, err := c.make("start"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return c
}

func (c *cluster) write(name, text string) {
	c.t.Helper()
	path := filepath.Join(c.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) make(args ...string) (string, error) {
	cmd := exec.Command("make", append([]string{"--no-print-directory", "-C", filepath.Join(c.root, "hashiraft")}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) records(pattern string) []*record.Run {
	c.t.Helper()
	paths, err := filepath.Glob(filepath.Join(c.root, "results/hashiraft", pattern))
	if err != nil {
		c.t.Fatal(err)
	}
	var runs []*record.Run
	for _, p := range paths {
		r, err := record.Read(p)
		if err != nil {
			c.t.Fatal(err)
		}
		runs = append(runs, r)
	}
	return runs
}

// The whole way on a real cluster: a ladder that is interrupted and taken up
// again, the zone of what came out, the edge, the two modes held against each
// other, and a leader that stands still.
func TestRealCluster(t *testing.T) {
	c := startCluster(t)
	windows := []string{"WARMUP=200ms", "MEASURE=1s", "DRAIN_TIMEOUT=1s", "PACE=park"}

	plan := append([]string{"sweep", "RATES=200,400", "REPEATS=2", "BURST=10", "NAME=real", "SEED=5", "PAUSE=0s"}, windows...)
	c.interrupt(plan)
	rows := 0
	if l, err := ladder.ReadCSV(filepath.Join(c.root, "results/hashiraft/real.csv")); err == nil {
		rows = len(l.Rows)
	}
	if rows < 1 || rows > 3 {
		t.Fatalf("%d rows after the interruption", rows)
	}
	out, err := c.make(plan...)
	if err != nil || !strings.Contains(out, fmt.Sprintf("4 runs, %d done, seed 5", rows)) {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := ladder.ReadCSV(filepath.Join(c.root, "results/hashiraft/real.csv"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range l.Rows {
		seen[fmt.Sprint(r.Offered, r.Repeat)] = true
		run, err := record.Read(filepath.Join(c.root, "results/hashiraft", r.Record))
		if err != nil {
			t.Fatal(err)
		}
		if run.Knobs.Rate != r.Offered || run.Knobs.Burst != 10 || r.Settings["version"] == "" || r.MeasureS != 1 {
			t.Errorf("%+v is not the row of %+v", r, run.Knobs)
		}
	}
	if len(l.Rows) != 4 || len(seen) != 4 {
		t.Errorf("rows %v", seen)
	}
	if out, err := exec.Command(filepath.Join(c.root, "bin/sweep"), "zone", l.Name).CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "hashiraft: ") {
		t.Errorf("%v: %s", err, out)
	}

	if out, err := c.make(append([]string{"edge", "START=200", "MAX_RATE=400", "REPEATS=1", "PAUSE=0s"}, windows...)...); err != nil || !strings.Contains(out, "\nedge: passing ") {
		t.Errorf("%v: %s", err, out)
	}

	// Whether the modes agree is the machine's matter; that both were run, and
	// that the answer is one of the two, is not.
	out, err = c.make(append([]string{"agree", "THREADS=1", "PAUSE=0s"}, windows...)...)
	if !strings.Contains(out, "closed p50 ") || !strings.Contains(out, "lag p50") || err != nil && !strings.Contains(out, "p50 differs by") {
		t.Errorf("%v: %s", err, out)
	}
	closed := c.records("*-closed-1.json")
	if len(closed) != 1 {
		t.Fatalf("%d closed runs", len(closed))
	}

	// A host that is busy with other things may hold up the rig in the very
	// second that is looked at; it will not do so three times.
	for attempt := 1; ; attempt++ {
		out, err = c.make("stall", "MS=1000", "RATE=200", "PAUSE=0s", "WARMUP=200ms", "MEASURE=9s", "PACE=park")
		if err == nil && strings.Contains(out, "\npasses: ") {
			break
		}
		t.Logf("attempt %d: %v: %s", attempt, err, out)
		if attempt == 3 {
			t.Fatal("the stall was not seen as it has to be")
		}
	}
	open := c.records("*-open-200.json")
	if last := open[len(open)-1]; last.Latency.MaxUS < 1e6 || last.Measured.Dropped() > 0 {
		t.Errorf("open: max %.0f us, dropped %d", last.Latency.MaxUS, last.Measured.Dropped())
	}
	if out, err := c.make("status", "JSON=1"); err != nil {
		t.Errorf("after the stall: %v: %s", err, out)
	}

	// A node that does not answer is not measured.
	if out, err := c.make("signal", "SIG=KILL", "NODES=3"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err = c.make(append([]string{"sweep", "RATES=200,400", "NAME=down", "SETTLE=0s"}, windows...)...)
	if err == nil || !strings.Contains(out, "the hashiraft cluster is not fit to be measured") {
		t.Errorf("%v: %s", err, out)
	}
}

// interrupt a sweep when its first run is done.
func (c *cluster) interrupt(args []string) {
	c.t.Helper()
	cmd := exec.Command("make", append([]string{"--no-print-directory", "-C", filepath.Join(c.root, "hashiraft")}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	sent := false
	for lines.Scan() {
		if !sent && strings.HasPrefix(lines.Text(), "1 done") {
			sent = true
			// As a terminal does: everybody in the foreground gets it.
			if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
				c.t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || !sent || !strings.Contains(stderr.String(), "interrupted, ") {
		c.t.Fatalf("the sweep was not interrupted: %v: %s", err, stderr.String())
	}
}
