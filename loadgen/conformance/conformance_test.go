package conformance

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"raftrig/loadgen"
)

// TestMain looks for lanes left behind: those of clients that hung end once the
// client does.
func TestMain(m *testing.M) {
	// The tests wait far more than they work.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before && code == 0 {
		stacks := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "%d goroutines left behind:\n%s\n", n-before, stacks[:runtime.Stack(stacks, true)])
		code = 1
	}
	os.Exit(code)
}

func TestHonestClientPasses(t *testing.T) {
	sys := &system{}
	Run(t, sys.target(sys.dial(bugs{})))
}

func TestMissingHooksSkipByName(t *testing.T) {
	sys := &system{}
	target, err := (Target{Dial: sys.dial(bugs{})}).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	var skipped []string
	for _, c := range checks {
		if why := c.skip(target); why != "" {
			skipped = append(skipped, c.name+": "+why)
		}
	}
	want := "Stall: Target.Stall is nil, StallClose: Target.Stall is nil, KillLeader: Target.KillLeader is nil"
	if got := strings.Join(skipped, ", "); got != want {
		t.Errorf("skipped %q, want %q", got, want)
	}
}

func TestTargetIsChecked(t *testing.T) {
	sys := &system{}
	for want, target := range map[string]Target{
		"Dial is nil":      {},
		"at least 2 slots": {Dial: sys.dial(bugs{}), Slots: 1},
		"as many requests": {Dial: sys.dial(bugs{}), Slots: 10, Requests: 9},
		"at least 4 x":     {Dial: sys.dial(bugs{}), StallFor: time.Millisecond},
		"Limit above":      {Dial: sys.dial(bugs{}), Limit: time.Millisecond},
	} {
		if _, err := target.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("withDefaults(%+v) = %v, want an error with %q", target, err, want)
		}
	}
}

func TestAudit(t *testing.T) {
	said := tally{loadgen.OK: 100, loadgen.Failed: 10, loadgen.Unknown: 5}
	for _, c := range []struct {
		applied uint64
		want    string
	}{
		{99, "1 acknowledged requests are lost"},
		{100, ""},
		{105, ""},
		{106, "1 were applied twice"},
	} {
		err := said.audit(7, 7+c.applied)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("audit of %d applied: %v, want %q", c.applied, err, c.want)
		}
	}
	if err := said.audit(7, 6); err == nil || !strings.Contains(err.Error(), "went back") {
		t.Errorf("audit of a count that falls: %v", err)
	}
}

// Each faulty client must fail the check that is for it, with a message that
// says so.
func TestFaultyClientsFail(t *testing.T) {
	type faulty struct {
		name  string
		limit time.Duration
		check string
		want  string
		// bugs gets a channel that closes at the test's end, for those that
		// hang.
		bugs func(sys *system, end <-chan struct{}) bugs
	}
	// Short where the fault shows by the limit's passing.
	const short, long = 3 * time.Second, 20 * time.Second
	// The request that a fault strikes, where it strikes one.
	const unlucky = 100
	deliver := func(f func(*client, request, loadgen.Outcome, int64)) func(*system, <-chan struct{}) bugs {
		return func(*system, <-chan struct{}) bugs { return bugs{deliver: f} }
	}
	answer := func(f func(*client, request) (loadgen.Outcome, uint64)) func(*system, <-chan struct{}) bugs {
		return func(*system, <-chan struct{}) bugs { return bugs{answer: f} }
	}
	whileStalled := func(sys *system) {
		if resumed := sys.stall(); resumed != nil {
			<-resumed
		}
	}
	held := func(c *client, r request, o loadgen.Outcome, at int64) {
		if r.seq == unlucky && !c.closed {
			c.bugs.close = func(c *client) error {
				c.queue = append(c.queue, r)
				return c.honestClose()
			}
			return
		}
		c.tell(r.id, o, at)
	}

	for _, f := range []faulty{
		{"loses a completion", short, "Closed", "lost it, or retains it until Close",
			deliver(func(c *client, r request, o loadgen.Outcome, at int64) {
				if r.seq != unlucky {
					c.tell(r.id, o, at)
				}
			})},
		{"loses every completion", short, "Bursts", "lost it or holds it back",
			deliver(func(*client, request, loadgen.Outcome, int64) {})},
		{"retains an id until Close", short, "Bursts", "lost it, or retains it until Close", deliver(held)},
		{"completes twice", long, "Closed", "it completed twice",
			deliver(func(c *client, r request, o loadgen.Outcome, at int64) {
				c.tell(r.id, o, at)
				if r.seq == unlucky {
					c.tell(r.id, o, at)
				}
			})},
		{"completes again once the slot is in use", long, "Closed", "it completed twice",
			deliver(func(c *client, r request, o loadgen.Outcome, at int64) {
				if r.seq == 2*unlucky {
					c.tell((r.id+uint32(c.w.Slots)/2)%uint32(c.w.Slots), o, at)
				}
				c.tell(r.id, o, at)
			})},
		{"delivers an earlier use's completion", long, "Bursts", "of an earlier use of the slot",
			func(*system, <-chan struct{}) bugs {
				var last int64
				return bugs{deliver: func(c *client, r request, o loadgen.Outcome, at int64) {
					if r.seq > unlucky {
						at = last
					}
					last = at
					c.tell(r.id, o, at-1000)
				}}
			}},
		{"stamps ahead of now", long, "Closed", "ahead of now",
			deliver(func(c *client, r request, o loadgen.Outcome, at int64) {
				c.tell(r.id, o, at+int64(time.Hour))
			})},
		{"stamps by the wall clock", long, "Closed", "ahead of now",
			deliver(func(c *client, r request, o loadgen.Outcome, _ int64) {
				c.tell(r.id, o, time.Now().UnixNano())
			})},
		{"stamps by a clock of its own", long, "Closed", "not stamped by Wiring.Clock",
			deliver(func(c *client, r request, o loadgen.Outcome, _ int64) {
				c.tell(r.id, o, int64(r.seq))
			})},
		{"invents an id", long, "Closed", "ids run from 0 to 31",
			deliver(func(c *client, _ request, o loadgen.Outcome, at int64) {
				c.tell(uint32(c.w.Slots), o, at)
			})},
		{"invents an outcome", long, "Closed", "outcome 3, expected ok, failed or unknown",
			deliver(func(c *client, r request, _ loadgen.Outcome, at int64) { c.tell(r.id, 3, at) })},
		{"completes from another goroutine", long, "Closed", "from another goroutine",
			deliver(func(c *client, r request, o loadgen.Outcome, at int64) {
				var wg sync.WaitGroup
				wg.Go(func() { c.w.Complete(r.id, o, at) })
				wg.Wait()
			})},
		{"completes within Ready", long, "Closed", "within Ready",
			func(*system, <-chan struct{}) bugs {
				return bugs{ready: func(c *client) bool { c.honestPoll(); return c.honestReady() }}
			}},
		{"completes and refuses", long, "Closed", "Submit completed it and returned false",
			func(*system, <-chan struct{}) bugs {
				return bugs{submit: func(c *client, id uint32) bool {
					c.tell(id, loadgen.Failed, c.w.Clock.Now())
					return false
				}}
			}},
		{"lies in Poll's count", long, "Closed", "Poll returned",
			func(*system, <-chan struct{}) bugs {
				return bugs{
					poll: func(c *client) int { return min(1, c.honestPoll()) },
					wait: func(c *client, _ int64) int { return c.honestPoll() },
				}
			}},
		{"lies in Wait's count", long, "Closed", "Wait returned",
			func(*system, <-chan struct{}) bugs {
				return bugs{
					wait: func(c *client, _ int64) int { return 1 + c.honestPoll() },
				}
			}},
		{"is never ready", short, "Closed", "found no leader",
			func(*system, <-chan struct{}) bugs { return bugs{ready: func(*client) bool { return false }} }},
		{"takes nothing", short, "Closed", "Submit refuses true",
			func(*system, <-chan struct{}) bugs {
				return bugs{submit: func(*client, uint32) bool { return false }}
			}},
		{"fails everything", long, "Closed", "expected more than half",
			answer(func(*client, request) (loadgen.Outcome, uint64) { return loadgen.Failed, 0 })},
		{"panics", long, "Closed", "Flush panicked: no connection",
			func(*system, <-chan struct{}) bugs {
				return bugs{flush: func(*client) { panic("no connection") }}
			}},
		{"acknowledges what was not applied", long, "Closed", "lost or were never applied",
			answer(func(_ *client, r request) (loadgen.Outcome, uint64) {
				if r.seq == unlucky {
					return loadgen.OK, 0
				}
				return loadgen.OK, 1
			})},
		{"fails what was applied", long, "Closed", "are among the 1 reported as failed",
			answer(func(_ *client, r request) (loadgen.Outcome, uint64) {
				if r.seq == unlucky {
					return loadgen.Failed, 1
				}
				return loadgen.OK, 1
			})},
		{"sends twice", long, "Bursts", "1 were applied twice",
			answer(func(_ *client, r request) (loadgen.Outcome, uint64) {
				if r.seq == unlucky {
					return loadgen.OK, 2
				}
				return loadgen.OK, 1
			})},

		{"blocks in Poll", short, "WaitAndPoll", "Poll has not returned",
			func(_ *system, end <-chan struct{}) bugs {
				return bugs{
					poll: func(c *client) int {
						if len(c.queue) == 0 {
							<-end
						}
						return c.honestPoll()
					},
				}
			}},
		{"polls with a timeout", long, "WaitAndPoll", "Poll took",
			func(*system, <-chan struct{}) bugs {
				return bugs{
					poll: func(c *client) int {
						if n := c.honestPoll(); n > 0 || c.seq == 0 || len(c.queue) > 0 {
							return n
						}
						time.Sleep(200 * time.Millisecond)
						return 0
					},
					wait: func(c *client, _ int64) int { return c.honestPoll() },
				}
			}},
		{"waits past its deadline", long, "WaitAndPoll", "Wait returned after its deadline",
			func(*system, <-chan struct{}) bugs {
				return bugs{wait: func(c *client, until int64) int {
					if len(c.queue) == 0 && c.seq > 0 {
						until += int64(300 * time.Millisecond)
					}
					return c.honestWait(until)
				}}
			}},
		{"waits until its deadline", short, "WaitAndPoll", "expected a reply to end it early",
			func(*system, <-chan struct{}) bugs {
				return bugs{wait: func(c *client, until int64) int {
					time.Sleep(time.Duration(until - c.w.Clock.Now()))
					return c.honestPoll()
				}}
			}},

		{"leaves ids at Close", long, "Close", "was outstanding when Close had returned",
			func(*system, <-chan struct{}) bugs {
				return bugs{close: func(*client) error { return nil }}
			}},
		{"completes after Close", long, "Close", "after Close had returned",
			func(*system, <-chan struct{}) bugs {
				return bugs{close: func(c *client) error {
					c.honestClose()
					// Sleeps, because Close's return cannot be seen from here.
					time.AfterFunc(10*time.Millisecond, func() { c.w.Complete(0, loadgen.Unknown, c.w.Clock.Now()) })
					return nil
				}}
			}},
		{"completes in the second Close", long, "Close", "after Close had returned",
			func(*system, <-chan struct{}) bugs {
				return bugs{close: func(c *client) error {
					queue := append([]request(nil), c.queue...)
					c.honestClose()
					c.queue = queue
					return nil
				}}
			}},
		{"panics in the second Close", long, "Close", "Close panicked: close of closed channel",
			func(*system, <-chan struct{}) bugs {
				return bugs{close: func(c *client) error {
					if c.closed {
						panic("close of closed channel")
					}
					return c.honestClose()
				}}
			}},
		{"hangs in the second Close", short, "Close", "Close has not returned",
			func(_ *system, end <-chan struct{}) bugs {
				return bugs{close: func(c *client) error {
					if c.closed {
						<-end
					}
					return c.honestClose()
				}}
			}},
		{"fails at Close what was applied", long, "Close", "reported as failed",
			func(sys *system, _ <-chan struct{}) bugs {
				return bugs{close: func(c *client) error {
					for _, r := range c.queue {
						sys.mu.Lock()
						sys.applied++
						sys.mu.Unlock()
						c.tell(r.id, loadgen.Failed, c.w.Clock.Now())
					}
					c.queue = nil
					return nil
				}}
			}},

		{"blocks in Ready", long, "Stall", "Ready took",
			func(sys *system, _ <-chan struct{}) bugs {
				return bugs{ready: func(c *client) bool { whileStalled(sys); return c.honestReady() }}
			}},
		{"blocks in Submit", long, "Stall", "Submit took",
			func(sys *system, _ <-chan struct{}) bugs {
				return bugs{submit: func(c *client, id uint32) bool { whileStalled(sys); return c.honestSubmit(id) }}
			}},
		{"blocks in Flush", long, "Stall", "Flush took",
			func(sys *system, _ <-chan struct{}) bugs {
				return bugs{flush: func(*client) { whileStalled(sys) }}
			}},
		{"blocks in Poll while stalled", long, "Stall", "Poll took",
			func(sys *system, _ <-chan struct{}) bugs {
				return bugs{poll: func(c *client) int { whileStalled(sys); return c.honestPoll() }}
			}},
		{"blocks in Wait while stalled", long, "Stall", "Wait returned after its deadline",
			func(sys *system, _ <-chan struct{}) bugs {
				return bugs{wait: func(c *client, until int64) int { whileStalled(sys); return c.honestPoll() }}
			}},
		{"loses what was outstanding in a stall", short, "Stall", "after the stalled leader went on",
			func(sys *system, _ <-chan struct{}) bugs {
				return bugs{poll: func(c *client) int {
					if sys.stall() != nil {
						c.queue = c.queue[:0]
					}
					return c.honestPoll()
				}}
			}},
		{"waits for the cluster in Close", short, "StallClose", "Close has not returned within",
			func(sys *system, _ <-chan struct{}) bugs {
				return bugs{close: func(c *client) error { whileStalled(sys); return c.honestClose() }}
			}},

		{"never resolves what the dead leader held", short, "KillLeader", "after the leader was killed",
			deliver(func(c *client, r request, o loadgen.Outcome, at int64) {
				if o != loadgen.Unknown || c.closed {
					c.tell(r.id, o, at)
				}
			})},
		{"finds no new leader", short, "KillLeader", "Ready false",
			func(sys *system, _ <-chan struct{}) bugs {
				return bugs{ready: func(*client) bool {
					sys.mu.Lock()
					defer sys.mu.Unlock()
					return sys.epoch == 0
				}}
			}},
		{"belongs to a cluster that forgets", long, "KillLeader", "acknowledged requests are lost",
			func(sys *system, _ <-chan struct{}) bugs { sys.forgets = true; return bugs{} }},
		{"calls the dead leader's requests failed", long, "KillLeader", "reported as failed",
			deliver(func(c *client, r request, o loadgen.Outcome, at int64) {
				if o == loadgen.Unknown {
					o = loadgen.Failed
				}
				c.tell(r.id, o, at)
			})},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			sys := &system{}
			end := make(chan struct{})
			t.Cleanup(func() { close(end) })
			target := sys.target(sys.dial(f.bugs(sys, end)))
			target.Limit = f.limit
			wantFault(t, target, f.check, f.want)
		})
	}
}

// Not parallel to anything: it counts the process's allocations.
func TestAllocationsOverBudgetFail(t *testing.T) {
	sys := &system{}
	var sink []byte
	target := sys.target(sys.dial(bugs{submit: func(c *client, id uint32) bool {
		sink = make([]byte, 64)
		return c.honestSubmit(id)
	}}))
	wantFault(t, target, "Allocations", "declared are 0.000")
	runtime.KeepAlive(sink)
}

func TestDialErrorFails(t *testing.T) {
	sys := &system{}
	target := sys.target(func(loadgen.Wiring) (loadgen.Client, error) { return nil, errors.New("no route") })
	for _, c := range checks {
		wantFault(t, target, c.name, "no client from Dial: no route")
	}
}

// A hook that ends the test must not leave a lane behind.
func TestFatalHookEndsTheLane(t *testing.T) {
	for _, name := range []string{"Stall", "KillLeader"} {
		sys := &system{}
		closed := make(chan struct{})
		target := sys.target(sys.dial(bugs{close: func(c *client) error {
			close(closed)
			return c.honestClose()
		}}))
		target.Stall = func(testing.TB) func() { runtime.Goexit(); return nil }
		target.KillLeader = target.Stall
		go verify(t, target, name)
		select {
		case <-closed:
		case <-time.After(target.Limit):
			t.Errorf("%s: the lane still runs %s after the hook ended the test", name, target.Limit)
		}
	}
}

func verify(t *testing.T, target Target, name string) error {
	full, err := target.withDefaults()
	if err != nil {
		t.Error(err)
		return nil
	}
	for _, c := range checks {
		if c.name == name {
			return c.verify(t, full)
		}
	}
	t.Errorf("no check %q", name)
	return nil
}

func wantFault(t *testing.T, target Target, name, want string) {
	t.Helper()
	err := verify(t, target, name)
	switch {
	case err == nil:
		t.Errorf("%s passed, want it to fail with %q", name, want)
	case !strings.Contains(err.Error(), want):
		t.Errorf("%s failed with\n%v\nwant %q", name, err, want)
	default:
		t.Logf("%s: %v", name, err)
		if n := strings.Count(err.Error(), want); n > 1 {
			t.Errorf("%s says %q %d times, want it once", name, want, n)
		}
	}
}
