package cli

import (
	"flag"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"raftrig/loadgen"
)

// knobs are the flags of a run.
type knobs struct {
	loadgen.Config
	mode, arrival, pace, idle string
	hdrOut, out               string
	leader                    int
	degraded                  bool
	limits                    loadgen.Limits
}

func (k *knobs) register(f *flag.FlagSet, product string) {
	f.StringVar(&k.mode, "mode", "closed", "what triggers the next request: closed (a reply) or open (the clock)")
	f.IntVar(&k.Threads, "threads", 100, "closed: how many chains, each with one request outstanding")
	f.Var((*rate)(&k.Rate), "rate", "open: offered `rate` in requests a second, as in 5000, 150k or 2M")
	f.IntVar(&k.Burst, "burst", 1, "open: how many requests share an instant")
	f.StringVar(&k.arrival, "arrival", "uniform", "open: gaps between instants, uniform or poisson")
	f.IntVar(&k.MaxInflight, "max-inflight", 0, "open: cap of unanswered requests; what comes above it is dropped and counted (default max(1000, rate/10))")
	f.Var(seconds(&k.Warmup, 10*time.Second), "warmup", "`time` before the measured window")
	f.Var(seconds(&k.Measure, 30*time.Second), "measure", "`time` of the measured window")
	f.Var(seconds(&k.DrainTimeout, 5*time.Second), "drain-timeout", "`time` to wait for the last replies; what has none then is unanswered")
	f.StringVar(&k.pace, "pace", "auto", "how a lane waits: spin (wants a core of its own), park, or auto")
	f.StringVar(&k.idle, "idle", idleKernel, "what idle CPUs of this host do meanwhile: kernel (as it likes, mostly sleep) or poll (stay awake; takes root)")
	f.IntVar(&k.Size, "size", 64, "payload of a request in bytes")
	f.IntVar(&k.Lanes, "lanes", 1, "threads that send, each with its connections and its share of the schedule")
	f.Uint64Var(&k.Seed, "seed", 0, "seed of the poisson arrivals; 0 draws one and prints it")
	f.StringVar(&k.hdrOut, "hdr-out", "", "write PREFIX.hgrm and PREFIX.hlog for the HdrHistogram tools (`PREFIX`)")
	f.StringVar(&k.out, "out", "results/"+product, "`folder` of the record")
	f.IntVar(&k.leader, "leader", 1, "`node` that has to lead before the run begins; 0 takes whichever does")
	f.BoolVar(&k.degraded, "degraded", false, "run although a node does not answer")
	k.limits = loadgen.DefaultLimits()
	l := &k.limits
	share := func(p *float64, name, what string) { f.Float64Var(p, name, *p, "limit: "+what) }
	share(&l.Achieved, "max-off", "share by which the answered rate may stay below the offered one")
	share(&l.Dropped, "max-dropped", "share of offered requests dropped by the rig from which a run is INVALID")
	share(&l.Errors, "max-errors", "share of failed and unanswered requests from which a run is INVALID")
	share(&l.LagP50, "max-lag-p50", "lag p50 as a share of latency p50")
	share(&l.LagP99, "max-lag-p99", "lag p99 as a share of latency p99")
	share(&l.Little, "max-little", "how far Little's ratio may lie from 1")
	share(&l.SpinShare, "min-spin-share", "least share of its core that a spinning lane must get")
	f.DurationVar(&l.GCPause, "max-gc-pause", l.GCPause, "limit: longest pause of the client's garbage collector")
}

// Values of -idle.
const (
	idleKernel = "kernel"
	idlePoll   = "poll"
)

// resolve what flags depend on each other, and check.
func (k *knobs) resolve(f *flag.FlagSet, p loadgen.Product) error {
	set := map[string]bool{}
	f.Visit(func(f *flag.Flag) { set[f.Name] = true })
	switch k.mode {
	case "closed":
		k.Mode = loadgen.Closed
		if set["rate"] {
			return loadgen.Usagef("-rate %d: a rate goes with -mode open (MODE=open); a closed run's rate is what comes out", k.Rate)
		}
	case "open":
		k.Mode = loadgen.Open
		if !set["rate"] {
			return loadgen.Usagef("-rate is missing: -mode open needs a rate in requests a second (RATE=5000)")
		}
	default:
		return loadgen.Usagef("-mode %q: want closed or open", k.mode)
	}
	switch k.arrival {
	case "uniform":
		k.Arrival = loadgen.Uniform
	case "poisson":
		k.Arrival = loadgen.Poisson
	default:
		return loadgen.Usagef("-arrival %q: want uniform or poisson", k.arrival)
	}
	switch k.pace {
	case "auto", "spin", "park":
	default:
		return loadgen.Usagef("-pace %q: want spin, park or auto", k.pace)
	}
	if k.idle != idleKernel && k.idle != idlePoll {
		return loadgen.Usagef("-idle %q: want kernel or poll", k.idle)
	}
	if !set["max-inflight"] {
		k.MaxInflight = loadgen.DefaultMaxInflight(k.Rate, k.Burst, p.MaxInflight)
		// Every lane has to hold a burst.
		k.MaxInflight = max(k.MaxInflight, min(k.Burst*max(k.Lanes, 1), loadgen.MaxSlots))
	}
	if p.Size > 0 {
		if set["size"] && k.Size != p.Size {
			return loadgen.Usagef("-size %d: a request of %s has %d bytes, which its protocol fixes", k.Size, p.Name, p.Size)
		}
		k.Size = p.Size
	}
	if k.leader < 0 {
		return loadgen.Usagef("-leader %d: want a node's number, or 0", k.leader)
	}
	for k.Seed == 0 {
		k.Seed = rand.Uint64() >> 32 // short enough to type again
	}
	return k.Validate()
}

// rate is a flag that takes 5000, 150k, 1.5M.
type rate int64

func (r *rate) String() string {
	if r == nil || *r == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*r), 10)
}

func (r *rate) Set(s string) error {
	digits, factor := s, int64(1)
	for suffix, f := range map[string]int64{"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6} {
		if d, ok := strings.CutSuffix(s, suffix); ok {
			digits, factor = d, f
		}
	}
	want := fmt.Errorf("want requests a second from 1 to %d, as in 5000, 150k or 2M", loadgen.MaxRate)
	// Digits and one point only: big.Rat knows further notations.
	if strings.Trim(digits, "0123456789.") != "" || len(digits) > 20 {
		return want
	}
	v, ok := new(big.Rat).SetString(digits)
	if !ok {
		return want
	}
	v.Mul(v, big.NewRat(factor, 1))
	if !v.IsInt() || !v.Num().IsInt64() || v.Num().Int64() < 1 || v.Num().Int64() > loadgen.MaxRate {
		return want
	}
	*r = rate(v.Num().Int64())
	return nil
}

// duration is a flag that takes 10s, 500ms, or a bare number of seconds.
type duration time.Duration

func seconds(p *time.Duration, value time.Duration) *duration {
	*p = value
	return (*duration)(p)
}

func (d *duration) String() string {
	if d == nil {
		return ""
	}
	return time.Duration(*d).String()
}

func (d *duration) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		n, bare := strconv.ParseFloat(s, 64)
		if bare != nil || n != n || n > 1e6 || n < -1e6 {
			return fmt.Errorf("want a time, as in 10s or 500ms")
		}
		v = time.Duration(n * float64(time.Second))
	}
	if v < 0 || v > loadgen.MaxDuration {
		return fmt.Errorf("want 0 to %v", loadgen.MaxDuration)
	}
	*d = duration(v)
	return nil
}
