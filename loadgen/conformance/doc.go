// Package conformance is the suite that the client of every product passes:
// it holds a loadgen.Client against what client.go promises, on a running
// cluster. A number that the rig prints is worth no more than the client below
// it, and a client that loses one reply in a thousand, or waits for the system
// in Submit, gives numbers that look fine.
//
// A product's test starts a cluster, says how to reach and to hurt it, and
// runs the suite:
//
//	func TestClient(t *testing.T) {
//		cluster := startCluster(t)
//		conformance.Run(t, conformance.Target{
//			Dial:             cluster.Dial,
//			AllocsPerRequest: 0.5,
//			Stall: func(t testing.TB) (resume func()) {
//				node := cluster.Leader(t)
//				node.Signal(t, syscall.SIGSTOP)
//				return func() { node.Signal(t, syscall.SIGCONT) }
//			},
//			KillLeader: func(t testing.TB) (restore func()) {
//				node := cluster.Leader(t)
//				node.Signal(t, syscall.SIGKILL)
//				return func() { node.Start(t) }
//			},
//			Heal:    func(t testing.TB) { cluster.AwaitAllNodes(t) },
//			Applied: func(t testing.TB) uint64 { return cluster.AwaitEqualCounts(t) },
//		})
//	}
//
// A hook that is missing skips the subtests that need it, by name. The suite
// must not run in parallel with other tests of its process, because it counts
// that process's allocations; for the same reason the servers are processes of
// their own. Run it under the race detector too: that is what finds a client
// which shares state with a goroutine of its library.
//
// # What is checked
//
// Closed and Bursts put many requests through few slots, all slots busy or in
// bursts that take no heed of replies. Each accepted id completes once, on the
// lane's thread, from within a call that may complete, with a valid outcome
// and a time between its submit and now; Poll and Wait return the number of
// completions they delivered. An id whose completion does not come is lost or
// retained; a completion stamped before the submit belongs to an earlier use
// of its slot.
//
// WaitAndPoll: on an idle system Poll returns at once and Wait by its
// deadline; a reply ends Wait early.
//
// Close: it ends every outstanding id, nothing completes after it, a second
// Close neither panics nor hangs nor completes.
//
// Allocations: of the whole process, a request, within the declared budget.
//
// Stall: with the leader stopped, Ready, Submit, Flush, Poll and Wait keep
// returning; once it goes on, every outstanding id resolves. StallClose: Close
// returns while the leader is stopped.
//
// KillLeader: every id resolves, Ready becomes true again, new requests are
// acknowledged.
//
// After each check the state machine's count must have grown by at least what
// was acknowledged and by at most what was acknowledged or unknown: nothing
// acknowledged is lost, nothing that Failed was applied, nothing was applied
// twice. A request of unknown end may hide a lost one, so a check with faults
// sends many more than can be outstanding.
//
// # Time
//
// The suite asserts no performance. Its two limits are about liveness:
// Target.Limit is how long a reply or a leader may take, Target.Bound how long
// one call may take while the system is stalled or idle, where a client that
// waits would wait as long as the stall. A call over Bound may also be the
// machine's doing, so the check is repeated, and counts only if it fails every
// time; so it is with allocations, where the process may make some of its own.
package conformance
