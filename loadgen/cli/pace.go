package cli

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/loadgen"
	"raftrig/loadgen/report"
	"raftrig/loadgen/sock"
)

// placing is where lanes run and how they wait.
type placing struct {
	pace   loadgen.Pace
	reason string
	// cores for the lanes, one each; empty where they are not pinned.
	cores []int
	lanes int
	// schedule says that there is one to keep: open mode.
	schedule bool
	// realTime says that the lanes' threads have real-time priority, once they
	// are set up.
	realTime atomic.Bool
}

// place decides between spin and park. A spinning lane takes a core from
// whatever else runs on this host: it has one to itself only when there is one
// left beside the servers here, what keeps cores busy now, and one more for
// the kernel and the client's other threads.
func place(want string, mode loadgen.Mode, lanes, servers int) *placing {
	cores := allowedCores()
	busy := 0.0
	if want != "park" { // which does not depend on it
		busy = busyCores(100 * time.Millisecond)
	}
	p := decide(want, lanes, cores, servers, busy)
	p.lanes, p.schedule = lanes, mode == loadgen.Open
	return p
}

// localServers is how many of the servers run on this host.
func localServers(hosts []string) (servers int) {
	for _, h := range hosts {
		if isLocal(h) {
			servers++
		}
	}
	return servers
}

func decide(want string, lanes int, cores []int, servers int, busy float64) *placing {
	others := max(servers, int(busy+0.5))
	spare := len(cores) - 1 - others - lanes
	beside := fmt.Sprintf("%s here", report.Plural(servers, "server"))
	if others > servers {
		beside = fmt.Sprintf("%.1f of them busy", busy)
	}
	why := fmt.Sprintf("%s for %s, %s", report.Plural(len(cores), "core"), report.Plural(lanes, "lane"), beside)
	p := new(placing)
	switch {
	case want == "park":
		return &placing{pace: loadgen.Park, reason: "asked for"}
	case want == "spin":
		p.pace, p.reason = loadgen.Spin, "asked for"
	case spare >= 0:
		p.pace, p.reason = loadgen.Spin, why
	default:
		return &placing{pace: loadgen.Park, reason: why + ": none to spare"}
	}
	if spare >= 0 {
		// The last cores: interrupts tend to go to the first.
		p.cores = cores[len(cores)-lanes:]
	}
	return p
}

// apply keeps the process's other threads off the lanes' cores. Lanes go there
// in setup, on their own threads.
func (p *placing) apply() {
	// Lanes hold a P each while they spin; the reporter, signals and a
	// product's own goroutines must not wait for one.
	runtime.GOMAXPROCS(max(runtime.NumCPU(), p.lanes+3))
	if len(p.cores) == 0 {
		return
	}
	var rest unix.CPUSet
	for _, c := range allowedCores() {
		rest.Set(c)
	}
	for _, c := range p.cores {
		rest.Clear(c)
	}
	if rest.Count() == 0 {
		return
	}
	// A thread inherits its creator's set, so those to come are off as well.
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.SchedSetaffinity(tid, &rest)
		}
	}
}

// setup tunes the calling thread for lane i, and pins it where it has a core.
func (p *placing) setup(i int) error {
	if err := sock.TuneThread(); err != nil {
		return err
	}
	// In closed mode there is no instant to be late for, and a lane that breaks
	// into the servers' work for each single reply costs both: 8.8-10.3 us of CPU
	// a request instead of 6.1-6.6, at no better median (braft on 2 cores, 100
	// outstanding, two pairs in turn).
	// A spinning lane would lock everything else out of its core. One that
	// parks may be busy too, when it is behind: some core has to stay without.
	if p.schedule && p.pace == loadgen.Park && p.lanes < runtime.NumCPU() && sock.RealTime() {
		p.realTime.Store(true)
	}
	if i >= len(p.cores) {
		return nil
	}
	var set unix.CPUSet
	set.Set(p.cores[i])
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to core %d: %w", p.cores[i], err)
	}
	return nil
}

func allowedCores() []int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return make([]int, runtime.NumCPU())
	}
	var cores []int
	for i := 0; len(cores) < set.Count(); i++ {
		if set.IsSet(i) {
			cores = append(cores, i)
		}
	}
	return cores
}

// isLocal says whether host is an address of this machine.
func isLocal(host string) bool {
	ips, err := net.LookupIP(host)
	if err != nil {
		return false
	}
	own, _ := net.InterfaceAddrs()
	for _, ip := range ips {
		if ip.IsLoopback() {
			return true
		}
		for _, a := range own {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return true
			}
		}
	}
	return false
}

// busyCores is how many cores the host keeps busy, over a moment.
func busyCores(over time.Duration) float64 {
	read := func() (busy, total float64) {
		text, err := os.ReadFile("/proc/stat")
		if err != nil {
			return 0, 0
		}
		return cpuTicks(string(text))
	}
	b0, t0 := read()
	time.Sleep(over)
	b1, t1 := read()
	if t1 <= t0 {
		return 0
	}
	return (b1 - b0) / (t1 - t0) * float64(runtime.NumCPU())
}

// cpuTicks of all cores together, from /proc/stat: user nice system idle
// iowait irq softirq steal. Stolen time is idle to us, and gone.
func cpuTicks(stat string) (busy, total float64) {
	line, _, _ := strings.Cut(stat, "\n")
	for i, f := range strings.Fields(line) {
		v, err := strconv.ParseFloat(f, 64)
		if i == 0 || i > 8 || err != nil {
			continue
		}
		total += v
		if i != 4 && i != 5 && i != 8 {
			busy += v
		}
	}
	return busy, total
}
