package hashiraft

import (
	"sync"

	"github.com/hashicorp/raft"

	"raftrig/gateway"
)

// queue holds the proposals that the library has, in the order in which it got
// them. See the package comment.
type queue struct {
	filled chan struct{} // a token: push was called

	mu         sync.Mutex
	ring       []pending // length is a power of two
	head, tail uint64    // numbers of the first entry and of the next one
	swept      uint64    // tail at the last sweep
	ends       []ended   // scratch of applied, which the state machine's goroutine alone calls
}

type pending struct {
	first  *byte // of the command
	future raft.ApplyFuture
	sink   gateway.Sink
	id     uint32
}

type ended struct {
	sink gateway.Sink
	id   uint32
}

func newQueue() *queue {
	return &queue{filled: make(chan struct{}, 1), ring: make([]pending, 1024)}
}

func (q *queue) at(n uint64) *pending { return &q.ring[n&uint64(len(q.ring)-1)] }

// push appends proposals that are about to go to the library and returns the
// number of the first. They are here before the library can apply them; their
// futures follow through attach.
func (q *queue) push(batch []gateway.Proposal, sink gateway.Sink) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.tail-q.head+uint64(len(batch)) > uint64(len(q.ring)) {
		larger := make([]pending, 2*len(q.ring))
		for n := q.head; n < q.tail; n++ {
			larger[n&uint64(len(larger)-1)] = *q.at(n)
		}
		q.ring = larger
	}
	first := q.tail
	for _, p := range batch {
		*q.at(q.tail) = pending{first: &p.Command[0], sink: sink, id: p.ID}
		q.tail++
	}
	gateway.Notify(q.filled)
	return first
}

// attach gives the proposals from number first on their futures.
func (q *queue) attach(first uint64, futures []raft.ApplyFuture) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, f := range futures {
		if n := first + uint64(i); n >= q.head {
			q.at(n).future = f
		}
	}
}

// applied ends the proposals that logs, which the state machine has just
// applied, began as. What is not at the head is another node's or stands
// behind a failure, which sweep clears away.
func (q *queue) applied(logs []*raft.Log) {
	q.mu.Lock()
	if q.head == q.tail {
		q.mu.Unlock()
		return
	}
	q.ends = q.ends[:0]
	for _, log := range logs {
		if log.Type != raft.LogCommand || len(log.Data) == 0 || q.head == q.tail {
			continue
		}
		if p := q.at(q.head); p.first == &log.Data[0] {
			q.ends = append(q.ends, ended{p.sink, p.id})
			q.pop()
		}
	}
	q.mu.Unlock()
	for i, e := range q.ends {
		e.sink.Done(e.id, gateway.Applied, nil)
		q.ends[i] = ended{}
	}
}

func (q *queue) pop() {
	*q.at(q.head) = pending{}
	q.head++
}

// sweep ends the proposals that failed. It waits for the future of the head if
// that was there at the last sweep already, and once it has ended one, for that
// of every further head until the state machine is abreast again.
func (q *queue) sweep() {
	q.mu.Lock()
	defer q.mu.Unlock()
	limit, behind := q.swept, false
	q.swept = q.tail
	for q.head < q.tail && (q.head < limit || behind) {
		n, p := q.head, *q.at(q.head)
		if p.future == nil {
			return // Propose is still at it
		}
		q.mu.Unlock()
		err := p.future.Error()
		q.mu.Lock()
		if q.head != n {
			behind = false // the state machine was there first
			continue
		}
		q.pop()
		behind = true
		q.mu.Unlock()
		p.sink.Done(p.id, endOf(err), err)
		q.mu.Lock()
	}
}

// drain takes what is left when the library is no more.
func (q *queue) drain(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.head < q.tail {
		p := *q.at(q.head)
		q.pop()
		q.mu.Unlock()
		p.sink.Done(p.id, gateway.Uncertain, err)
		q.mu.Lock()
	}
}

func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.head == q.tail
}

// endOf says what an error of a future means for the command. Rejected is for
// errors with which the library answers before it appends the command.
func endOf(err error) gateway.End {
	switch err {
	case nil:
		// Sent by the goroutine that runs the state machine, after it applied.
		return gateway.Applied
	case raft.ErrNotLeader:
		// The main loop, as follower, as candidate, or as a leader that has
		// removed itself, answers what it takes out of its queue with it. A
		// command that was appended gets ErrLeadershipLost instead.
		return gateway.Rejected
	case raft.ErrLeadershipTransferInProgress:
		// The leader's loop, on taking the command out of its queue.
		return gateway.Rejected
	case raft.ErrEnqueueTimeout:
		// ApplyLog, when the queue stayed full; we give it no timeout.
		return gateway.Rejected
	default:
		// ErrLeadershipLost: appended here, perhaps elsewhere; the next leader
		// may commit it.
		// ErrRaftShutdown: ApplyLog answers with it before the queue, but so
		// does processLogs for committed commands that the state machine did
		// not get to see.
		// ErrAbortedByRestore: appended; an operator replaced the state.
		// Any error of the log store: the entry may lie in it and be sent to
		// followers after a restart.
		return gateway.Uncertain
	}
}
