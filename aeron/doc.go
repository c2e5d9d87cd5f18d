// Package aeron is the client of an Aeron cluster: a session layer of our own on
// the log buffers that aeron-go maps.
//
// # Who does what
//
// An Aeron client sends nothing itself. It writes into a log buffer in shared
// memory, from which a media driver, a process beside it, makes datagrams; what
// comes in, the driver puts into another. A lane claims room in the one and
// polls the other, on its own thread, without a system call. A session with the
// cluster is a protocol on top: messages of a few fixed fields (codec.go) and a
// machine of few states (session.go) that finds the leader, follows it, keeps
// the session alive, and makes it anew. driver.go is the narrow way to aeron-go,
// cnc.go the watch over the driver's life.
//
// aeron-go has a cluster client too. It allocates with each poll, gives up its
// session when the leader changes, waits for fixed times of 5 s and 30 s before
// it tries again, and copies payloads byte by byte.
//
// # What an accepted request means
//
// It is in a log on this host, no more. A publication to a leader that was
// killed counts as connected for 5 s, and what is written until then is gone. A
// leader drops what carries an older term, and says nothing. So whatever is
// outstanding when the cluster names a new leader ends as Unknown: perhaps it
// was committed.
//
// # Waiting
//
// Nothing can be waited for in shared memory, so a lane that parks looks every
// 100 us. That adds 50 us to a latency on average, which is little where
// requests take a millisecond, and PACE=spin adds nothing. When nothing is
// outstanding it looks every millisecond, for the cluster's own news.
package aeron
