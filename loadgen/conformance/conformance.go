package conformance

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"raftrig/loadgen"
)

// Target is a system under test: how to reach it, what its client promises and
// how to hurt it. Only Dial is required. Hooks run on the test's goroutine, so
// they may call t.Fatal.
type Target struct {
	// Dial makes the client of one lane. The suite calls it several times, one
	// client after the other.
	Dial func(loadgen.Wiring) (loadgen.Client, error)

	// Slots is how many requests may be outstanding; 0 means 256.
	Slots int
	// Size is the payload in bytes; 0 means 64.
	Size int
	// StallSize is the payload in the checks that stall the system; 0 means
	// 4096. Slots x StallSize should be more than the sockets between client
	// and server hold, or a client that blocks in a write goes undetected.
	StallSize int
	// Requests is how many requests each of Closed and Bursts sends; 0 means
	// 20,000.
	Requests int

	// AllocsPerRequest is the client's budget: heap objects allocated by the
	// client's process for each request.
	AllocsPerRequest float64

	// Bound is how long one call may take on a stalled or idle system; 0 means
	// 100 ms. It tells a call that waits for the system from one that does not,
	// and says nothing about speed.
	Bound time.Duration
	// StallFor is how long the system stays stalled; 0 means 1 s. It is much
	// more than Bound.
	StallFor time.Duration
	// Limit is how long an outcome, or a leader, may take before it is called
	// missing, also after a fault; 0 means 20 s. It is well above the time that
	// an election and the client's reconnection need.
	Limit time.Duration

	// Stall stops the leader (SIGSTOP) and returns what lets it go on.
	Stall func(testing.TB) (resume func())
	// KillLeader kills the leader (SIGKILL) and returns what starts that node
	// again. The rest must still be able to commit.
	KillLeader func(testing.TB) (restore func())
	// Heal returns when all nodes are up and have a leader. It is called after
	// each check that hurt the system.
	Heal func(testing.TB)
	// Applied is how many requests the leader's state machine has applied in
	// all, read once the nodes agree.
	Applied func(testing.TB) uint64
}

// withDefaults fills in what was left 0 and rejects what cannot be.
func (target Target) withDefaults() (*Target, error) {
	orElse := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	orElse(&target.Slots, 256)
	orElse(&target.Size, 64)
	orElse(&target.StallSize, 4096)
	orElse(&target.Requests, 20_000)
	if target.Bound == 0 {
		target.Bound = 100 * time.Millisecond
	}
	if target.StallFor == 0 {
		target.StallFor = time.Second
	}
	if target.Limit == 0 {
		target.Limit = 20 * time.Second
	}
	switch {
	case target.Dial == nil:
		return nil, errors.New("conformance: Target.Dial is nil; it is how the suite gets a client")
	case target.Slots < 2 || target.Size < 1 || target.StallSize < 1 || target.Requests < target.Slots:
		return nil, fmt.Errorf("conformance: Target has Slots %d, Size %d, StallSize %d, Requests %d; want at least 2 slots, 1 byte and as many requests as slots",
			target.Slots, target.Size, target.StallSize, target.Requests)
	case target.Bound < 0 || target.StallFor < 4*target.Bound || target.Limit <= target.Bound:
		return nil, fmt.Errorf("conformance: Target has Bound %s, StallFor %s, Limit %s; want StallFor at least 4 x Bound, and Limit above Bound",
			target.Bound, target.StallFor, target.Limit)
	}
	return &target, nil
}

// Run holds the target's client against the contract, one subtest a check.
func Run(t *testing.T, target Target) {
	t.Helper()
	full, err := target.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			if why := c.skip(full); why != "" {
				t.Skip(why)
			}
			if err := c.verify(t, full); err != nil {
				t.Error(err)
			}
			if full.Applied == nil {
				t.Run("Applied", func(t *testing.T) { t.Skip("Target.Applied is nil") })
			}
		})
	}
}

// A check returns what the client did wrong instead of failing a test, so that
// the suite's own tests can see it fail.
type check struct {
	name string
	// needs returns the name of a hook that is missing.
	needs func(*Target) string
	run   func(testing.TB, *Target, *tally) error
}

func (c check) skip(target *Target) string {
	if c.needs == nil {
		return ""
	}
	return c.needs(target)
}

// verify runs the check and holds what the client said against what the state
// machine did.
func (c check) verify(tb testing.TB, target *Target) error {
	var before uint64
	var err error
	if target.Applied != nil {
		if before, err = settled(tb, target); err != nil {
			return err
		}
	}
	var said tally
	// After an error the tally is incomplete, and one cause is enough to read.
	if err := c.run(tb, target, &said); err != nil || target.Applied == nil {
		return err
	}
	after, err := settled(tb, target)
	if err != nil {
		return err
	}
	return said.audit(before, after)
}

// tally is what a client said of the requests it accepted, by outcome.
type tally [3]uint64

func (said *tally) add(more tally) {
	for o, n := range more {
		said[o] += n
	}
}

func (said tally) audit(before, after uint64) error {
	ok, failed, unknown := said[loadgen.OK], said[loadgen.Failed], said[loadgen.Unknown]
	applied := after - before
	switch {
	case after < before:
		return fmt.Errorf("the applied count went back from %d to %d: the cluster lost requests it had applied", before, after)
	case applied < ok:
		return fmt.Errorf("%d requests applied, expected at least the %d acknowledged (%d unknown): %d acknowledged requests are lost or were never applied",
			applied, ok, unknown, ok-applied)
	case applied > ok+unknown:
		return fmt.Errorf("%d requests applied, expected at most %d (%d acknowledged + %d unknown): %d were applied twice or are among the %d reported as failed",
			applied, ok+unknown, ok, unknown, applied-ok-unknown, failed)
	}
	return nil
}

// settled is Applied once it rests: a request whose client has closed may
// still be on its way through a server.
func settled(tb testing.TB, target *Target) (uint64, error) {
	const rest = 200 * time.Millisecond
	deadline := time.Now().Add(target.Limit)
	last := target.Applied(tb)
	for time.Now().Before(deadline) {
		time.Sleep(rest)
		now := target.Applied(tb)
		if now == last {
			return now, nil
		}
		last = now
	}
	return 0, fmt.Errorf("the applied count still changes after %s without load: is something else using the cluster?", target.Limit)
}
