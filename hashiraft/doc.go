// Package hashiraft puts hashicorp/raft behind the gateway.
//
// The library runs as its own users would tune it for throughput: batches
// through its queue, to its log, over the wire and into the state machine; two
// append requests in flight to a follower; a log store without a map. What is
// measured is the library: nothing here answers a client before the state
// machine of the leader has applied its command.
//
// # The end of a proposal
//
// The library tells the end of a proposal through a future, a channel for each
// command. Waiting on every one of them costs a wake-up for each, just where
// commands come in batches. Instead the queue of proposals is kept in the order
// in which they went into the library (type queue). That is the order of the
// log, so the state machine finds the proposal that a command belongs to at the
// head of the queue, known by the address of its first byte, and ends a whole
// batch under one lock. Futures are asked for what the state machine does not
// see, failures: a sweep every few milliseconds looks whether the head of the
// queue stands still and, if so, waits for its future.
//
// # Memory and disk
//
// Without a data directory the log, the vote and the term live in memory and
// die with the process. A node that comes back has forgotten how it voted and
// what it acknowledged, which Raft does not allow for: one node at a time may
// be lost and rejoin, provided it stays away longer than an election takes.
// When a majority is lost at the same time, acknowledged writes are lost.
//
// With a data directory the log and the vote are in raft-wal, synced before
// anything is acknowledged, and snapshots in files. A node then survives the
// kill of its process and of its host at any moment.
package hashiraft
