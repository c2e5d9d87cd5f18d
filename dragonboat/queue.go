package dragonboat

import (
	"sync"
	"time"

	"github.com/lni/dragonboat/v4"

	"raftrig/gateway"
)

// request is what the library knows a proposal by. It is the library's own type
// but in tests.
type request interface {
	ResultC() chan dragonboat.RequestResult
	Release()
}

// pending is a proposal that the library has.
type pending struct {
	request request
	sink    gateway.Sink
	id      uint32
	term    uint64 // in which this node led when it proposed
	command []byte
}

// queue holds the proposals that the library has, in the order in which it got
// them, which is the order in which it ends them unless it loses some. One
// goroutine, run, waits for the first; those behind it mostly have their
// results by then, so that a wake-up is paid for a batch and not for each.
//
// The library does not tell the end of a proposal that a later leader has
// overwritten, nor of one that was lost on its way to another leader: such a
// proposal sits there until its deadline. So when this node's office is over
// run gives the proposals of that term a while longer, which lets a next leader
// finish what it has taken over, and then ends them as uncertain.
type queue struct {
	// leads says in which term this node leads, if it does. When that changes,
	// leadershipChanged is called after it.
	leads func() (term uint64, ok bool)
	// again proposes what the library has dropped once more, or says why that
	// is not to be.
	again func(p *pending) error
	grace time.Duration

	mu      sync.Mutex
	waiting []pending
	open    int       // proposals without an end, those in run's hands too
	quiet   time.Time // since when nothing was applied
	closed  bool

	filled  chan struct{} // a token: waiting has something, or closed is set
	changed chan struct{} // a token: the leadership has changed
	ended   chan struct{} // closed when run has returned
}

func newQueue(leads func() (uint64, bool), again func(*pending) error, grace time.Duration) *queue {
	return &queue{
		leads:   leads,
		again:   again,
		grace:   grace,
		filled:  make(chan struct{}, 1),
		changed: make(chan struct{}, 1),
		ended:   make(chan struct{}),
	}
}

// add appends proposals that the library has just got.
func (q *queue) add(batch []pending) {
	if len(batch) == 0 {
		return
	}
	q.mu.Lock()
	q.waiting = append(q.waiting, batch...)
	q.open += len(batch)
	q.mu.Unlock()
	gateway.Notify(q.filled)
}

func (q *queue) empty() bool { return q.quietFor(0) }

// leadershipChanged wakes run. A new leader also begins with an entry of its own.
func (q *queue) leadershipChanged() {
	q.mu.Lock()
	q.quiet = time.Now()
	q.mu.Unlock()
	gateway.Notify(q.changed)
}

// quietFor says whether no proposal is on its way and nothing was applied for d.
func (q *queue) quietFor(d time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open == 0 && time.Since(q.quiet) >= d
}

// close lets run return once the queue is empty. Nothing is added any more.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	gateway.Notify(q.filled)
}

// run ends proposals until close.
func (q *queue) run() {
	defer close(q.ended)
	w := waiter{queue: q}
	var batch []pending
	for {
		q.mu.Lock()
		if len(batch) > 0 {
			q.open -= len(batch)
			q.quiet = time.Now()
			clear(batch)
		}
		batch, q.waiting = q.waiting, batch[:0]
		closed := q.closed
		q.mu.Unlock()
		if len(batch) == 0 {
			if closed {
				return
			}
			<-q.filled
			continue
		}
		for i := range batch {
			w.finish(&batch[i])
		}
	}
}

// waiter is run's state.
type waiter struct {
	*queue
	term  uint64    // the last term found to be over
	until time.Time // when its proposals have waited long enough
}

func (w *waiter) finish(p *pending) {
	for {
		r, ok := w.await(p)
		if !ok {
			// The library may still write to the request: it is not released.
			p.sink.Done(p.id, gateway.Uncertain, errLeadershipLost)
			return
		}
		p.request.Release()
		end, err := endOf(r)
		if end == gateway.Rejected {
			if err = w.again(p); err == nil {
				continue
			}
		}
		p.sink.Done(p.id, end, err)
		return
	}
}

// await returns the result of a proposal, or false when that cannot be expected
// any more.
func (w *waiter) await(p *pending) (dragonboat.RequestResult, bool) {
	result := p.request.ResultC()
	select {
	case r := <-result:
		return r, true
	default:
	}
	for {
		var late <-chan time.Time
		if term, ok := w.leads(); !ok || term != p.term {
			if w.until.IsZero() || p.term != w.term {
				w.term, w.until = p.term, time.Now().Add(w.grace)
			}
			late = time.After(time.Until(w.until))
		} else {
			w.until = time.Time{}
		}
		select {
		case r := <-result:
			return r, true
		case <-w.changed:
		case <-late:
			return dragonboat.RequestResult{}, false
		}
	}
}

// endOf says what a result means for the command. Rejected is for the one with
// which the library ends commands that it has not appended.
func endOf(r dragonboat.RequestResult) (gateway.End, error) {
	switch {
	case r.Completed():
		// Sent by the goroutine that runs the state machine, after it applied.
		return gateway.Applied, nil
	case r.Dropped():
		// A follower or candidate that knows no leader, or a leader that hands
		// its office over, drops what it takes out of its queue.
		return gateway.Rejected, dragonboat.ErrShardNotReady
	case r.Timeout():
		// The deadline has passed: the command may be anywhere.
		return gateway.Uncertain, dragonboat.ErrTimeout
	case r.Terminated():
		// Closed, wherever the command was.
		return gateway.Uncertain, dragonboat.ErrShardClosed
	default:
		// Rejected is about sessions, Aborted about snapshots: neither is for
		// proposals without a session.
		return gateway.Uncertain, dragonboat.ErrAborted
	}
}
