package gatewaytest

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/gateway"
	"raftrig/gateway/kv"
	"raftrig/gateway/serve"
	"raftrig/loadgen"
	"raftrig/loadgen/clienttest"
	"raftrig/loadgen/cpuidle"
)

const (
	benchOutstanding = 100
	benchSize        = 64 // bytes of a value
)

// BenchmarkInProcess is the library by itself: three nodes in this process over
// loopback TCP, each of 100 goroutines waiting for its command to be applied.
func BenchmarkInProcess(b *testing.B, p Product) {
	nodes, leader := InProcess(b, p)
	cpu := clienttest.CPU(unix.RUSAGE_SELF)
	b.ResetTimer()
	applyClosedLoop(b, p, nodes[leader-1], b.N)
	reportRate(b, clienttest.CPU(unix.RUSAGE_SELF)-cpu)
}

// BenchmarkGateway is the same through the gateway: three server processes, and
// the rig's own client in a closed loop with 100 outstanding. cpu-us/op is of
// all processes, client-cpu-us/op of the client's thread in it.
func BenchmarkGateway(b *testing.B, p Product) {
	c := NewCluster(b, p)
	c.StartAll()
	lane := c.newLane(benchOutstanding)
	pids := c.PIDs()
	servers, client := cpuOf(b, pids), clienttest.CPU(unix.RUSAGE_THREAD)
	b.ResetTimer()
	lane.mustApply(b.N)
	servers, client = cpuOf(b, pids)-servers, clienttest.CPU(unix.RUSAGE_THREAD)-client
	b.StopTimer()
	for _, id := range Everyone { // profiles are written by those that may tidy up
		c.Signal(id, syscall.SIGTERM)
		c.Exited(id)
	}
	reportRate(b, servers+client)
	b.ReportMetric(micros(client)/float64(b.N), "client-cpu-us/op")
}

// BenchmarkGatewayShare runs both in turn, so that other work on the machine
// falls on either, and reports the gateway's rate as a share of the rate in
// process: the median of the rounds, with both medians beside it. cpu-% is the
// same of the operations for a second of CPU, client included; unlike the rate
// it does not gain from having more processes than others on a busy machine.
func BenchmarkGatewayShare(b *testing.B, p Product) {
	const rounds, ops = 7, 30000
	nodes, leader := InProcess(b, p)
	c := NewCluster(b, p)
	c.StartAll()
	lane := c.newLane(benchOutstanding)
	pids := c.PIDs()
	var inProcess, through, share, cpuShare, clientCPU []float64
	for b.Loop() {
		for range rounds {
			cpu := func() time.Duration { return clienttest.CPU(unix.RUSAGE_SELF) + cpuOf(b, pids) }
			measure := func(f func()) (rate, cpuRate float64) {
				start, used := time.Now(), cpu()
				f()
				wall := time.Since(start)
				return ops / wall.Seconds(), ops / (cpu() - used).Seconds()
			}
			p, pCPU := measure(func() { applyClosedLoop(b, p, nodes[leader-1], ops) })
			client := clienttest.CPU(unix.RUSAGE_THREAD)
			g, gCPU := measure(func() { lane.mustApply(ops) })
			clientCPU = append(clientCPU, micros(clienttest.CPU(unix.RUSAGE_THREAD)-client)/ops)
			inProcess, through = append(inProcess, p), append(through, g)
			share, cpuShare = append(share, 100*g/p), append(cpuShare, 100*gCPU/pCPU)
		}
	}
	b.ReportMetric(median(inProcess), "in-process-ops/s")
	b.ReportMetric(median(through), "gateway-ops/s")
	b.ReportMetric(median(share), "%")
	b.ReportMetric(median(cpuShare), "cpu-%")
	b.ReportMetric(median(clientCPU), "client-cpu-us/op")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkGatewayLatency is the median latency with one outstanding, through
// the gateway and in process, measured in turn, and how often the one goes into
// the other: medians of the rounds. floor-p50-us is what the four
// wake-ups of a request cost alone, between processes that do nothing.
//
// Most of a floor is the host's: a CPU without work sleeps, and is woken for
// each message, as it never is with all nodes in one process. So it is measured
// with idle CPUs that stay awake too (idle=poll), where the user may have that.
func BenchmarkGatewayLatency(b *testing.B, p Product) {
	b.Run("idle=kernel", func(b *testing.B) { benchmarkLatency(b, p) })
	b.Run("idle=poll", func(b *testing.B) {
		release, err := cpuidle.Poll()
		if err != nil {
			b.Skip(err)
		}
		defer release()
		benchmarkLatency(b, p)
	})
}

func benchmarkLatency(b *testing.B, p Product) {
	const rounds, ops = 7, 3000
	nodes, leader := InProcess(b, p)
	c := NewCluster(b, p)
	c.StartAll()
	lane := c.newLane(1)
	command := kv.Append(nil, 1, make([]byte, benchSize))
	latency := make([]float64, 0, ops)
	lane.ended = func(sent, at int64) { latency = append(latency, float64(at-sent)/1e3) }
	bare := wakeups(b)
	var inProcess, through, ratio, floor []float64
	for b.Loop() {
		for range rounds {
			floor = append(floor, bare(ops))
			latency = latency[:0]
			var wg sync.WaitGroup
			wg.Go(func() { // a goroutine without a thread of its own, as users have them
				for range ops {
					sent := time.Now()
					if err := p.Apply(nodes[leader-1], slices.Clone(command)); err != nil {
						b.Error(err)
						return
					}
					latency = append(latency, micros(time.Since(sent)))
				}
			})
			wg.Wait()
			if b.Failed() {
				return
			}
			in := median(latency)
			latency = latency[:0]
			lane.mustApply(ops)
			g := median(latency)
			inProcess, through, ratio = append(inProcess, in), append(through, g), append(ratio, g/in)
		}
	}
	b.ReportMetric(median(inProcess), "in-process-p50-us")
	b.ReportMetric(median(through), "gateway-p50-us")
	b.ReportMetric(median(ratio), "times")
	b.ReportMetric(median(floor), "floor-p50-us")
	b.ReportMetric(0, "ns/op")
}

func applyClosedLoop(b *testing.B, p Product, leader serve.Node, n int) {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for range benchOutstanding {
		wg.Go(func() {
			for {
				n := left.Add(-1)
				if n < 0 {
					return
				}
				cmd := make([]byte, 0, kv.KeySize+benchSize)
				cmd = kv.Append(cmd, uint64(n)%gateway.DefaultKeys, make([]byte, benchSize))
				if err := p.Apply(leader, cmd); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// lane is a lane of the rig in closed mode, parked between replies, without
// the rig around it. It is the calling goroutine's, on whose thread it stays.
type lane struct {
	tb     testing.TB
	client loadgen.Client
	start  time.Time
	free   []uint32
	sent   []int64 // by id
	ends   [3]int  // by outcome
	ended  func(sent, at int64)
}

// Now implements loadgen.Clock.
func (l *lane) Now() int64 { return time.Since(l.start).Nanoseconds() }

// newLane opens a lane and waits until the leader is known to it.
func (c *Cluster) newLane(outstanding int) *lane {
	c.tb.Helper()
	runtime.LockOSThread()
	c.tb.Cleanup(runtime.UnlockOSThread)
	c.Leader(Everyone...)
	l := &lane{tb: c.tb, start: time.Now(), sent: make([]int64, outstanding)}
	for id := range outstanding {
		l.free = append(l.free, uint32(id))
	}
	var err error
	l.client, err = c.System().Dial(loadgen.Wiring{Lanes: 1, Slots: outstanding, Size: benchSize, Clock: l, Complete: l.complete, Event: func(string) {}})
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() { l.client.Close() })
	for deadline := time.Now().Add(Patience); !l.client.Ready(); l.client.Wait(l.Now() + 1e9) {
		if err := l.client.Flush(); err != nil {
			c.tb.Fatal(err)
		}
		if time.Now().After(deadline) {
			c.tb.Fatal("the client knows no leader")
		}
	}
	return l
}

func (l *lane) complete(id uint32, outcome loadgen.Outcome, at int64) {
	l.ends[outcome]++
	l.free = append(l.free, id)
	if l.ended != nil {
		l.ended(l.sent[id], at)
	}
}

// mustApply makes n requests, all of which have to end well.
func (l *lane) mustApply(n int) {
	l.tb.Helper()
	l.closedLoop(n)
	if l.ends[loadgen.Failed]+l.ends[loadgen.Unknown] > 0 {
		l.tb.Fatalf("requests ended %d ok, %d failed, %d unknown", l.ends[0], l.ends[1], l.ends[2])
	}
}

// closedLoop makes n requests and returns when the last has ended.
func (l *lane) closedLoop(n int) {
	for all := len(l.free); n > 0 || len(l.free) < all; {
		now := l.Now()
		for n > 0 && len(l.free) > 0 {
			id := l.free[len(l.free)-1]
			if !l.client.Submit(id) {
				break
			}
			l.free = l.free[:len(l.free)-1]
			l.sent[id] = now
			n--
		}
		if err := l.client.Flush(); err != nil {
			l.tb.Fatal(err)
		}
		l.client.Wait(now + 1e9)
	}
}

func reportRate(b *testing.B, cpu time.Duration) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(micros(cpu)/float64(b.N), "cpu-us/op")
	b.ReportMetric(0, "ns/op")
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// cpuOf is the CPU time that other processes have used.
func cpuOf(tb testing.TB, pids []int) (sum time.Duration) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			tb.Fatal(err)
		}
		// Fields 14 and 15, counted behind the name, which may hold anything.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, f := range fields[11:13] {
			ticks, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			sum += time.Duration(ticks) * time.Second / 100 // USER_HZ is 100 on Linux
		}
	}
	return sum
}
