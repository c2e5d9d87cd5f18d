// Package etcdraft puts etcd's Raft library behind the gateway.
//
// The library decides, and does nothing else: its RawNode takes messages,
// proposals and ticks, and says what is to be stored, sent and applied. What is
// around it is here: an event loop (loop.go), what arrives for it (mailbox.go),
// a transport (transport.go, wire.go), and a log on disk (disk.go).
//
// # The loop
//
// One goroutine has the library. It takes together what has arrived while it was
// busy: all proposals go into the log in one message, all messages are stepped,
// and then the library is asked once. What it wants stored is stored, then its
// messages are sent, then what is committed is applied. A leader that has few
// append requests in flight gathers larger ones meanwhile: four of them beat a
// deep pipeline on one host.
//
// # The end of a proposal
//
// A proposal is Rejected when the library has dropped it, which it does before
// it appends, or when it never got to the library. Appended ones wait in the
// order of the log and are Applied with their entry (type waiters). When the node
// loses its office, those that are left are Uncertain: whoever leads next may
// have them and commit them, or not.
//
// # Memory and disk
//
// Without a data directory log, vote and term live in memory and die with the
// process. A node that comes back has forgotten how it voted and what it
// acknowledged, which Raft does not allow for: one node at a time may be lost
// and rejoin, provided it stays away longer than an election takes. When a
// majority is lost at the same time, acknowledged writes are lost.
//
// The library is made for nodes that remember. A leader which believes that a
// follower has an entry sends it claims about that entry, on which a follower
// that has lost it panics. So nodes tell each other which process they are when
// they connect, messages for one process are not given to the next, and a
// leader forgets what it knew about a peer that has become another process: see
// Node.relink.
//
// With a data directory everything is in raft-wal, synced before anything is
// sent or acknowledged, and the last snapshot in a file. A node then survives
// the kill of its process and of its host at any moment. One that cannot write
// any more, because the disk is full, stops: it leads nobody, answers nobody,
// says why in one line and in its status, and rejects what it is given.
package etcdraft
