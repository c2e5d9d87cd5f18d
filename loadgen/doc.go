// Package loadgen is the rig: it loads a system in open or closed loop and
// says how far the result can be trusted. It knows no product.
//
// A [Rig] runs a [Config] against clients that a product makes. Its work is
// done by lanes. A lane is one goroutine on a thread of its own, with one
// [Client], its share of the schedule and of the slots, and a recorder; there
// is no lock, channel or allocation on the path of a request.
//
// In open mode the schedule decides when the next burst goes out: instants are
// computed from one origin, and nothing that comes back can move them. A
// request is charged from its instant, not from the moment at which the rig
// came round to sending it. A lane that is late sends all that is due, reads
// replies between the bursts, and records by how much it was late; what the
// in-flight cap or a missing leader keeps it from sending is dropped and
// counted. In closed mode a reply decides, and a request is charged from its
// send.
//
// A run has a warm-up, a measured window and a drain. The scheduled instant
// (closed mode: the send) decides which window a request belongs to, for the
// histograms and for every counter, whenever its reply comes. A request
// without a reply when the drain ends is unanswered and ranks above every
// answered one.
//
// [Judge] holds a result against [Limits] and gives the verdict.
//
// Around the engine: report prints, cli is the command line of every product's
// client, sock has the sockets that a lane polls, sim is a system in virtual
// time with which the rig's behaviour is shown to the byte, and conformance
// holds a product's client against the promises of [Client].
package loadgen
