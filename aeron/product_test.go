package aeron

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"raftrig/fleet"
	"raftrig/loadgen"
	"raftrig/loadgen/clustertest"
	"raftrig/loadgen/conformance"
	"raftrig/record"
)

// Settings of a JVM as the Makefile has them.
var java = []string{"java", "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-jar"}

// shm is a folder in memory for a test's drivers and logs.
func shm(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "raftrig-aeron-test-")
	if err != nil {
		tb.Skip("no memory for Aeron's buffers: ", err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// mediaDriver is one beside the client, as make starts it.
type mediaDriver struct {
	dir   string
	local fleet.Local
}

func startDriver(tb testing.TB, jar string) *mediaDriver {
	tb.Helper()
	d := &mediaDriver{dir: filepath.Join(shm(tb), "client")}
	d.local = fleet.Local{Dir: tb.TempDir(), Hosts: []string{"127.0.0.1"}, Argv: append(append([]string{}, java...), jar, "driver", "--dir", d.dir)}
	tb.Cleanup(func() {
		if err := d.local.StopAll(); err != nil {
			tb.Error(err)
		}
	})
	d.start(tb)
	return d
}

func (d *mediaDriver) start(tb testing.TB) {
	tb.Helper()
	if err := d.local.Start(1); err != nil {
		tb.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		log, err := d.local.Log(1, -1)
		if err != nil || strings.Contains(string(log), "aeron driver ready") {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("the driver does not get ready: %s", log)
		}
	}
}

func (d *mediaDriver) kill(tb testing.TB) {
	tb.Helper()
	if err := d.local.Kill(1); err != nil {
		tb.Error(err)
	}
}

// cluster is what the tests have to know of the product. It has a driver.
func cluster(tb testing.TB) (clustertest.Product, *mediaDriver) {
	tb.Helper()
	clustertest.Build(tb, "aeron")
	jar := clustertest.Bin(tb, "aeron-server.jar")
	d := startDriver(tb, jar)
	return clustertest.Product{
		Client: Product,
		Argv: append(append([]string{}, java...), jar, "--id", "{id}", "--addr", "{addr}", "--peers", "{peers}",
			"--dir", shm(tb)+"/node{id}"),
		// A busy machine may need longer than the default.
		Flags: []string{"-aeron-dir", d.dir, "-connect-timeout", "20s"},
		Conformance: conformance.Target{
			StallSize: 1344, // what a datagram takes
		},
	}, d
}

func TestProduct(t *testing.T) {
	p, _ := cluster(t)
	clustertest.Run(t, p)
}

// The media driver killed under a run: the run ends by itself, soon, with an
// error that says so and the record of what it had.
func TestDriverKilledInMidRun(t *testing.T) {
	p, d := cluster(t)
	c := clustertest.Start(t, p)
	out := t.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	before := c.Agreed().Count
	over, killed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(killed)
		for c.Status()[0].Count < before+100 {
			select {
			case <-over:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
		d.kill(t)
	}()
	status, stdout, stderr := c.Client("", "-out", out, "-leader", "0", "-pace", "park", "-warmup", "0", "-measure", "60s", "-threads", "10")
	close(over)
	<-killed
	if status != 1 || !strings.Contains(stderr, "the media driver in "+d.dir+" is gone") {
		t.Errorf("exit status %d: %s", status, stderr)
	}
	records, _ := filepath.Glob(filepath.Join(out, "*.json"))
	if len(records) != 1 {
		t.Fatalf("records %v: %s%s", records, stdout, stderr)
	}
	r, err := record.Read(records[0])
	if err != nil {
		t.Fatal(err)
	}
	if r.Measured.OK == 0 || !r.Measured.Balanced() || !strings.Contains(r.Rig.Fault, "is gone") || r.MeasuredS > 30 {
		t.Errorf("measured %v s: %+v, fault %q", r.MeasuredS, r.Measured, r.Rig.Fault)
	}

	// What the dead one has left behind is told from a driver.
	status, _, stderr = c.Client("", "-out", out, "-leader", "0")
	if status != 1 || !strings.Contains(stderr, "is gone") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("stale folder: exit status %d: %s", status, stderr)
	}
	d.start(t)
	status, _, stderr = c.Client("", "-out", out, "-leader", "0", "-warmup", "0", "-measure", "100ms")
	if status != 0 && status != 3 {
		t.Errorf("new driver: exit status %d: %s", status, stderr)
	}
}

func dial(tb testing.TB, sys loadgen.System) (loadgen.Client, error) {
	tb.Helper()
	c, err := sys.Dial(loadgen.Wiring{Slots: 1, Size: 64, Lanes: 1, Clock: loadgen.NewSystemClock(),
		Event: func(text string) { tb.Log(text) }, Fail: func(err error) { tb.Error(err) }})
	if err == nil {
		tb.Cleanup(func() { c.Close() })
	}
	return c, err
}

// More sessions than the cluster takes.
func TestSessionLimit(t *testing.T) {
	p, _ := cluster(t)
	p.Argv = append(p.Argv, "--max-sessions", "1")
	sys := clustertest.Start(t, p).Sys
	first, err := dial(t, sys)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, sys); err == nil || !strings.Contains(err.Error(), `refused a session (error): "concurrent session limit"`) {
		t.Errorf("a second session: %v", err)
	}
	// One that is closed is given back at once.
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if _, err := dial(t, sys); err != nil {
		t.Errorf("after the first was closed: %v", err)
	}
}

// Ports where no node is.
func TestUnreachable(t *testing.T) {
	clustertest.Build(t, "aeron")
	d := startDriver(t, clustertest.Bin(t, "aeron-server.jar"))
	sys, err := opened([]string{"127.0.0.1", "127.0.0.2"}, "-aeron-dir", d.dir, "-base-port", "19000")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, sys); err == nil || !strings.Contains(err.Error(),
		"no session within 5s: node 1 at 127.0.0.1:19002 does not receive, node 2 at 127.0.0.2:19102 does not receive") {
		t.Error(err)
	}
}
