package aeron

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"raftrig/loadgen"
	"raftrig/loadgen/clustertest"
	"raftrig/loadgen/sock"
)

const (
	benchOutstanding = 100
	benchSize        = 64 // bytes
)

// closedLoop is a lane with all its slots outstanding all the time.
type closedLoop struct {
	tb      testing.TB
	client  loadgen.Client
	clock   loadgen.SystemClock
	free    []uint32
	sent    []int64
	done    int
	latency *hdrhistogram.Histogram
}

// newLoop returns when the client is ready. It locks and tunes the thread.
func newLoop(tb testing.TB, sys loadgen.System) *closedLoop {
	tb.Helper()
	runtime.LockOSThread()
	tb.Cleanup(runtime.UnlockOSThread)
	if err := sock.TuneThread(); err != nil {
		tb.Fatal(err)
	}
	l := &closedLoop{
		tb: tb, clock: loadgen.NewSystemClock(), sent: make([]int64, benchOutstanding),
		latency: hdrhistogram.New(1000, 60_000_000_000, 3),
	}
	for id := range benchOutstanding {
		l.free = append(l.free, uint32(id))
	}
	client, err := sys.Dial(loadgen.Wiring{
		Slots: benchOutstanding, Size: benchSize, Lanes: 1, Clock: l.clock,
		Complete: func(id uint32, outcome loadgen.Outcome, at int64) {
			l.done++
			l.free = append(l.free, id)
			l.latency.RecordValue(at - l.sent[id])
			if outcome != loadgen.OK {
				l.tb.Errorf("request %d ended as %v", id, outcome)
			}
		},
		Event: func(text string) { tb.Log(text) },
		Fail:  func(err error) { tb.Error(err) },
	})
	if err != nil {
		tb.Fatal(err)
	}
	l.client = client
	tb.Cleanup(func() { client.Close() })
	for !client.Ready() && !tb.Failed() {
		client.Wait(l.clock.Now() + int64(time.Millisecond))
	}
	return l
}

// turn sends what is free and takes what has come.
func (l *closedLoop) turn() {
	for n := len(l.free); n > 0; n-- {
		id := l.free[n-1]
		l.sent[id] = l.clock.Now()
		if !l.client.Submit(id) {
			break
		}
		l.free = l.free[:n-1]
	}
	l.client.Wait(l.clock.Now() + int64(time.Millisecond))
}

func (l *closedLoop) requests(n int) {
	for until := l.done + n; l.done < until && !l.tb.Failed(); {
		l.turn()
	}
}

func (l *closedLoop) during(d time.Duration) {
	for until := l.clock.Now() + int64(d); l.clock.Now() < until && !l.tb.Failed(); {
		l.turn()
	}
}

func processCPU(tb testing.TB) time.Duration {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// BenchmarkClosed has 100 requests of 64 bytes outstanding on a cluster on this
// host. cpu-us/op is of the client's process, without its media driver.
func BenchmarkClosed(b *testing.B) {
	p, _ := cluster(b)
	l := newLoop(b, clustertest.Start(b, p).Sys)
	l.requests(20_000)
	l.latency.Reset()
	b.ReportAllocs()
	cpu := processCPU(b)
	b.ResetTimer()
	l.requests(b.N)
	b.StopTimer()
	b.ReportMetric(float64((processCPU(b)-cpu).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
	b.ReportMetric(float64(l.latency.ValueAtQuantile(50))/1e3, "p50-us")
	b.ReportMetric(float64(l.latency.ValueAtQuantile(99))/1e3, "p99-us")
}

// BenchmarkBesideJava runs this client and a Java client of the same shape in
// turn against one cluster and one media driver, and reports the medians of the
// rounds.
func BenchmarkBesideJava(b *testing.B) {
	const rounds, seconds = 3, 5
	p, d := cluster(b)
	c := clustertest.Start(b, p)
	l := newLoop(b, c.Sys)
	var ours, theirs [4][]float64 // rate, p50, p99, CPU
	for b.Loop() {
		for range rounds {
			l.during(time.Second)
			l.latency.Reset()
			done, cpu, start := l.done, processCPU(b), time.Now()
			l.during(seconds * time.Second)
			n := float64(l.done - done)
			ours[0] = append(ours[0], n/time.Since(start).Seconds())
			ours[1] = append(ours[1], float64(l.latency.ValueAtQuantile(50))/1e3)
			ours[2] = append(ours[2], float64(l.latency.ValueAtQuantile(99))/1e3)
			ours[3] = append(ours[3], float64((processCPU(b)-cpu).Nanoseconds())/1e3/n)
			l.drain()
			for i, v := range javaClient(b, l, clustertest.Bin(b, "aeron-server.jar"), d.dir, c.Hosts, seconds) {
				theirs[i] = append(theirs[i], v)
			}
		}
	}
	for i, unit := range []string{"ops/s", "p50-us", "p99-us", "cpu-us/op"} {
		b.ReportMetric(median(ours[i]), "go-"+unit)
		b.ReportMetric(median(theirs[i]), "java-"+unit)
	}
	b.ReportMetric(0, "ns/op")
}

func (l *closedLoop) drain() {
	for len(l.free) < benchOutstanding && !l.tb.Failed() {
		l.client.Wait(l.clock.Now() + int64(time.Millisecond))
	}
}

// javaClient runs bench/ClosedLoop.java and returns its rate, p50, p99 and CPU.
// Meanwhile l keeps its session.
func javaClient(b *testing.B, l *closedLoop, jar, dir string, hosts []string, seconds int) (values [4]float64) {
	ctx, cancel := context.WithTimeout(b.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "java", "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData",
		"--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED", "--add-opens", "java.base/java.util.zip=ALL-UNNAMED",
		"-cp", jar, "bench/ClosedLoop.java", "--aeron-dir", dir, "--hosts", strings.Join(hosts, ","), "--addr", "127.0.0.1",
		"--outstanding", fmt.Sprint(benchOutstanding), "--size", fmt.Sprint(benchSize), "--measure", fmt.Sprint(seconds))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // the thread is locked
	cmd.Stderr = os.Stderr
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case err := <-done:
			if err != nil {
				b.Fatalf("the Java client: %v: %s", err, out.String())
			}
			for _, field := range strings.Fields(out.String()) {
				name, v, _ := strings.Cut(field, "=")
				if i := slices.Index([]string{"rate", "p50_us", "p99_us", "process_cpu_us"}, name); i >= 0 {
					fmt.Sscan(v, &values[i])
				}
			}
			return values
		case <-time.After(100 * time.Millisecond):
			for range tickPolls {
				l.client.Poll()
			}
		}
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
