package gateway

import "context"

// Node is one member of a Raft group, as an adapter for a Go Raft library
// offers it to the gateway. All methods are safe for concurrent use.
type Node interface {
	// Propose hands a batch to the library, in order, and returns without
	// waiting for consensus. It may wait for room in the library's queue: that
	// is the only back-pressure on a stream. Sink.Done ends each proposal
	// exactly once, from any goroutine, also during Propose. The adapter may
	// keep the commands, to which nobody writes again, but not the batch: its
	// slice is the gateway's when Propose returns. Every command is one that
	// ServerOptions.Check took.
	Propose(batch []Proposal, sink Sink)

	// Leadership says who leads as far as this node knows. It is cheap: the
	// gateway asks it after each token of LeadershipChanged, every so often, and
	// whenever it sends rejections. A node that rejects because it does not
	// lead, or hands its office over, must not claim by then that it leads: its
	// client takes the rejection of a leader as final, and waits for a leader
	// after any other.
	Leadership() Leadership

	// LeadershipChanged holds a token (see Notify) when the answer of Leadership
	// may have changed since the last one was taken. The gateway alone takes
	// them.
	LeadershipChanged() <-chan struct{}

	// Status describes the node; Applied, Count and Digest are of one moment.
	Status() (Status, error)

	// TransferLeader makes node to lead and returns when that has been done or
	// has failed.
	TransferLeader(ctx context.Context, to int) error
}

// Notify puts a token into c, whose capacity is 1, unless it holds one already.
func Notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Proposal is one command and the id by which its end is told.
type Proposal struct {
	ID      uint32
	Command []byte
}

// Sink takes the ends of proposals.
type Sink interface {
	// Done ends proposal id. err says why it was rejected or is unknown.
	Done(id uint32, end End, err error)
}

// End is how a proposal ended.
type End uint8

const (
	// Applied by this node's state machine, after a quorum stored it.
	Applied End = iota
	// Rejected: certainly not applied, now or later.
	Rejected
	// Uncertain: perhaps applied.
	Uncertain
)

// Leadership is who leads; node numbers count from 1, and 0 is "none known".
type Leadership struct {
	Leader int
	Term   uint64
}

// Status is what a node says of itself.
type Status struct {
	Node    int
	Role    Role
	Leader  int
	Term    uint64
	Applied uint64
	Count   uint64
	Digest  string
	Version string
	Log     string
}

// Role of a node in its group.
type Role uint8

const (
	Follower Role = iota + 1
	Candidate
	Leader
)
