package etcdraft

import "raftrig/gateway"

// waiter is a proposal that is in this node's log.
type waiter struct {
	sink gateway.Sink
	id   uint32
	size int // bytes of the command
	term uint64
}

// waiters are the proposals that this node has appended as leader, in the order
// of the log. The loop alone uses them.
//
// A term has one leader, and none forwards proposals: the entries of a term that
// carry a command are, in the order of the log, the proposals that its leader
// appended. So the first of them to be applied is the head of the queue, if the
// head's term is the entry's, and no index needs to be looked up.
type waiters struct {
	ring       []waiter // length is a power of two
	head, tail uint64   // numbers of the first one and of the next one
}

func newWaiters() *waiters { return &waiters{ring: make([]waiter, 1024)} }

func (w *waiters) at(n uint64) *waiter { return &w.ring[n&uint64(len(w.ring)-1)] }

func (w *waiters) empty() bool { return w.head == w.tail }

func (w *waiters) push(p waiter) {
	if w.tail-w.head == uint64(len(w.ring)) {
		larger := make([]waiter, 2*len(w.ring))
		for n := w.head; n < w.tail; n++ {
			larger[n&uint64(len(larger)-1)] = *w.at(n)
		}
		w.ring = larger
	}
	*w.at(w.tail) = p
	w.tail++
}

// pop returns the waiter of a command that was applied in an entry of term.
func (w *waiters) pop(term uint64) (p waiter, ok bool) {
	if w.empty() || w.at(w.head).term != term {
		return waiter{}, false
	}
	return w.shift(), true
}

func (w *waiters) shift() waiter {
	p := *w.at(w.head)
	*w.at(w.head) = waiter{}
	w.head++
	return p
}
