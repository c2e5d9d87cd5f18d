// Package dragonboat puts github.com/lni/dragonboat/v4 behind the gateway.
//
// The library runs as its own users would run it for one group: the tan log,
// proposals without a session and without waiting, a state machine that takes
// batches. What is measured is the library: nothing here answers a client before
// the state machine of this node has applied its command.
//
// # The end of a proposal
//
// The library tells the end of a proposal on a channel of its own. One goroutine
// waits for all of them in the order in which they were made (type queue), so
// that a wake-up is paid for a batch. A leader that loses its office hears
// nothing of proposals that the next one overwrites: they end as uncertain after
// another election's time. The library forwards what is proposed on a follower;
// here a node that does not lead rejects it.
//
// # Memory and disk
//
// The log calls fsync and has no switch against it. A node in memory keeps it on
// a tmpfs, in a directory that it empties when it starts and removes when it
// stops, and so begins from nothing each time. It has forgotten how it voted
// and what it acknowledged, which Raft does not allow for: one node at a time
// may be lost and rejoin, provided it stays away longer than an election takes.
// When a majority is lost at the same time, acknowledged writes are lost.
//
// The library ends a replica that has lost its log: the leader's heartbeats
// speak of commits that the replica does not have. Its remedy is to replace the
// replica by one with a new number, which costs the group two changes of
// membership while it is short of a node. A heartbeat may always tell of fewer
// commits than there are, so the transport of a node in memory does that (clamp):
// the leader then learns from a rejected append where the follower's log ends,
// and sends entries from there or a snapshot. A leader that gets no proposals
// appends nothing and would not learn it, so the follower makes an empty one,
// which takes an index and is not a request.
//
// With a data directory the log is synced before anything is acknowledged, and
// nothing is clamped. A node then survives the kill of its process and of its
// host at any moment.
//
// # Faults that the library does not survive
//
// Where the library cannot go on, as on a full disk, it panics in goroutines of
// its own. It does so through its logger, which here says why in one line and
// ends the process. A failed fsync is the exception: that panics directly, with
// a stack trace.
package dragonboat
