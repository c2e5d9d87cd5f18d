package conformance

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"raftrig/loadgen"
)

// Checks that hurt the system come last.
var checks = []check{
	{name: "Closed", run: closed},
	{name: "Bursts", run: bursts},
	{name: "WaitAndPoll", run: waitAndPoll},
	{name: "Close", run: closes},
	{name: "Allocations", run: allocations, needs: allocationsCountable},
	{name: "Stall", run: stall, needs: needsStall},
	{name: "StallClose", run: stallClose, needs: needsStall},
	{name: "KillLeader", run: killLeader, needs: needsKillLeader},
}

func needsStall(target *Target) string {
	if target.Stall == nil {
		return "Target.Stall is nil"
	}
	return ""
}

func needsKillLeader(target *Target) string {
	if target.KillLeader == nil {
		return "Target.KillLeader is nil"
	}
	return ""
}

// allocationsCountable: under the race detector sync.Pool drops items at
// random, so that a budget other than 0 means nothing.
func allocationsCountable(target *Target) string {
	if raceDetector && target.AllocsPerRequest > 0 {
		return "allocations of a client with a budget above 0 are counted without -race only"
	}
	return ""
}

// tries is how often in a row a check must fail where the machine may be at
// fault. A client that waits fails always; a thread that is starved of its core
// one time in two passes in the end.
const tries = 8

// patiently repeats a check while the machine may have been at fault.
func patiently(tb testing.TB, check func() error) error {
	for range tries - 1 {
		err := check()
		if !errors.Is(err, errNoise) {
			return err
		}
		tb.Logf("trying again: %v", err)
	}
	return check()
}

const (
	whenHealthy = "on a healthy system"
	whenResumed = "after the stalled leader went on"
	whenKilled  = "after the leader was killed"
)

// closed keeps every slot busy; the id that completed longest ago goes first.
func closed(_ testing.TB, target *Target, said *tally) error {
	return run(target, target.Size, said, func(l *lane) {
		l.awaitReady("after Dial")
		l.drive(whenHealthy, l.all, func() bool { return l.accepted >= target.Requests })
		l.drain(whenHealthy)
		l.mostlyOK()
	})
}

// bursts submits without regard to replies; the id that completed last goes
// first, so that some ids are used far more often than others.
func bursts(_ testing.TB, target *Target, said *tally) error {
	return run(target, target.Size, said, func(l *lane) {
		l.lifo = true
		random := rand.New(rand.NewPCG(1, 2))
		l.awaitReady("after Dial")
		l.drive(whenHealthy,
			func() int { return random.IntN(1 + target.Slots/2) },
			func() bool { return l.accepted >= target.Requests })
		l.drain(whenHealthy)
		l.mostlyOK()
	})
}

// mostlyOK: a client that calls everything a failure breaks no other rule. An
// election by chance must not fail the check, hence not "all".
func (l *lane) mostlyOK() {
	if ok := l.said[loadgen.OK]; !l.stop() && 2*ok <= uint64(l.accepted) {
		l.fault("%d of %d requests acknowledged on a healthy system (%d failed, %d unknown), expected more than half",
			ok, l.accepted, l.said[loadgen.Failed], l.said[loadgen.Unknown])
	}
}

func waitAndPoll(tb testing.TB, target *Target, said *tally) error {
	return patiently(tb, func() error {
		return run(target, target.Size, said, func(l *lane) {
			l.awaitReady("after Dial")
			// A first request, so that the connection is surely made.
			l.single()
			l.drain(whenHealthy)

			l.calmFrom.Store(l.clock.Now())
			for i := 0; i < 100 && !l.noisy && !l.stop(); i++ {
				l.poll()
			}
			for i := 0; i < 5 && !l.noisy && !l.stop(); i++ {
				l.wait(l.clock.Now() + int64(10*time.Millisecond))
				l.wait(l.clock.Now() - 1)
			}
			l.calmTo.Store(l.clock.Now())

			// The deadline is far enough that only a Wait which does not
			// listen to the socket reaches it.
			span := min(2*time.Second, target.Limit/2)
			for i := 0; i < 3 && !l.stop(); i++ {
				until := l.clock.Now() + int64(span)
				l.single()
				for l.outstanding() > 0 && !l.stop() && l.clock.Now() < until {
					l.wait(until)
				}
				if l.clock.Now() >= until {
					l.noise("Wait did not return within %s while a reply was due, expected a reply to end it early: with PACE=park latencies would be the wait's, not the system's", span)
					break
				}
			}
		})
	})
}

// single sends one request.
func (l *lane) single() {
	began := l.clock.Now()
	for !l.stop() && !l.submit() {
		if l.reap(); l.age(began) > l.target.Limit {
			l.fault("Submit has refused for %s on an idle system: back-pressure must end when nothing is outstanding%s", l.age(began), l.flushNote())
		}
	}
	l.flush()
}

func closes(_ testing.TB, target *Target, said *tally) error {
	again := func(l *lane) {
		if l.stop() {
			return
		}
		l.close()
		// A completion after Close comes from a goroutine; it needs a chance.
		time.Sleep(100 * time.Millisecond)
		if !l.stop() {
			l.closeClient()
		}
	}
	loaded := func(flush bool) func(*lane) {
		return func(l *lane) {
			l.awaitReady("after Dial")
			l.drive(whenHealthy, l.all, func() bool { return l.accepted >= 2*target.Slots })
			l.fill(target.Slots)
			if flush && !l.stop() {
				l.flush()
			}
			again(l)
		}
	}
	for _, script := range []func(*lane){
		again, // right after Dial
		loaded(true),
		loaded(false),
	} {
		if err := run(target, target.Size, said, script); err != nil {
			return err
		}
	}
	return nil
}

func allocations(tb testing.TB, target *Target, said *tally) error {
	// The process allocates a little by itself.
	const slack = 0.02
	return patiently(tb, func() error {
		return run(target, target.Size, said, func(l *lane) {
			goal := target.Requests / 4
			done := func() bool { return l.accepted >= goal }
			burst := l.all
			l.awaitReady("after Dial")
			l.drive(whenHealthy, burst, done) // buffers grow to their size
			l.drain(whenHealthy)

			var before, after runtime.MemStats
			accepted := l.accepted
			goal += target.Requests / 2
			runtime.ReadMemStats(&before)
			l.drive(whenHealthy, burst, done)
			l.drain(whenHealthy)
			runtime.ReadMemStats(&after)
			if l.stop() {
				return
			}
			n := l.accepted - accepted
			if each := float64(after.Mallocs-before.Mallocs) / float64(n); each > target.AllocsPerRequest+slack {
				l.noise("%.3f allocations per request over %d requests, declared are %.3f (Target.AllocsPerRequest): garbage is collected in the measured window, and its pauses look like the system's",
					each, n, target.AllocsPerRequest)
			}
		})
	})
}

// Stages of the checks that hurt the system.
const (
	hurt   = 1 // stalled or killed
	healed = 2 // nothing more comes from the test's side
)

// doneWithin waits for the lane's end.
func (l *lane) doneWithin(limit time.Duration) bool {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-l.done:
		return true
	case <-timeout.C:
		return false
	}
}

// warmed waits for the script's load, however it ends: a client that hangs
// there is found by join.
func (l *lane) warmed() bool {
	timeout := time.NewTimer(2 * l.target.Limit)
	defer timeout.Stop()
	select {
	case <-l.warm:
		return true
	case <-l.done:
	case <-timeout.C:
	}
	return false
}

// hurting runs a check's script and, once that is warm, its fault. What the
// fault returns mends it when the script has ended, or hangs, or a hook has
// ended the test.
func hurting(tb testing.TB, target *Target, size int, said *tally, script func(*lane), fault func(*lane) (mend func())) error {
	l, err := start(target, size, script)
	if err != nil {
		return err
	}
	// A hook may end the test's goroutine; the lane must not go on for ever.
	joined := false
	defer func() {
		if !joined {
			l.abandoned.Store(true)
		}
	}()
	mend := func() {}
	defer func() { mend() }()
	if l.warmed() {
		mend = sync.OnceFunc(fault(l))
	}
	l.stage.Store(healed)
	err = l.join(said)
	joined = true
	mend()
	if target.Heal != nil {
		target.Heal(tb)
	}
	return err
}

// warmUp loads the client until the fault has struck.
func (l *lane) warmUp(requests int) {
	l.awaitReady("after Dial")
	l.drive(whenHealthy, l.all, func() bool { return l.completed >= requests })
	if !l.stop() {
		close(l.warm)
	}
}

// press makes every call that a lane makes, whatever the answers.
func (l *lane) press() {
	l.ready()
	l.fill(len(l.slots))
	l.flush()
	l.poll()
	l.wait(l.clock.Now() + int64(time.Millisecond))
}

func stall(tb testing.TB, target *Target, said *tally) error {
	return patiently(tb, func() error {
		return hurting(tb, target, target.StallSize, said, func(l *lane) {
			l.warmUp(2 * target.Slots)
			for !l.stop() && l.stage.Load() < healed {
				l.press()
			}
			l.drain(whenResumed)
			l.awaitReady(whenResumed)
			goal := l.accepted + target.Slots
			l.drive(whenResumed, l.all, func() bool { return l.accepted >= goal })
			l.drain(whenResumed)
		}, func(l *lane) func() {
			resume := target.Stall(tb)
			l.calmFrom.Store(l.clock.Now())
			l.doneWithin(target.StallFor)
			l.calmTo.Store(l.clock.Now())
			resume()
			return func() {}
		})
	})
}

func stallClose(tb testing.TB, target *Target, said *tally) error {
	return hurting(tb, target, target.StallSize, said, func(l *lane) {
		l.warmUp(target.Slots)
		for !l.stop() && l.stage.Load() < hurt {
			l.press()
		}
		if l.stop() {
			return
		}
		l.press()
		l.close()
	}, func(l *lane) func() {
		resume := target.Stall(tb)
		l.stage.Store(hurt)
		if !l.doneWithin(target.Limit) {
			l.fault("%s has not returned within %s on a stalled system, expected Close to end every id without waiting for the cluster: a run against a dead one must end too",
				method(l.in.Load()), target.Limit)
		}
		resume()
		return func() {}
	})
}

func killLeader(tb testing.TB, target *Target, said *tally) error {
	return hurting(tb, target, target.Size, said, func(l *lane) {
		l.warmUp(8 * target.Slots)
		l.drive(whenKilled, l.all, func() bool { return l.stage.Load() >= hurt })
		l.mark = l.clock.Now()
		l.drive(whenKilled, l.all, func() bool { return l.okMarked >= 2*target.Slots })
		l.drain(whenKilled)
		l.awaitReady(whenKilled)
	}, func(l *lane) func() {
		restore := target.KillLeader(tb)
		l.stage.Store(hurt)
		// Restored only after the load: the rest of the cluster has to do.
		return restore
	})
}
