package etcdraft

import (
	"sync"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"raftrig/gateway"
)

const (
	// maxOutstanding and maxOutstandingBytes bound the proposals that have no
	// end yet, and with them the uncommitted part of the log. A batch is taken
	// whole as long as there is room for its first.
	maxOutstanding      = 1 << 17
	maxOutstandingBytes = 64 << 20
	// maxUnreadBytes bounds the messages that wait for the loop. At the bound
	// connections are not read, and their senders drop what does not fit.
	maxUnreadBytes = 64 << 20
)

// mailbox is how everything reaches the loop. What arrives while the loop is
// busy is taken together: that is where batches come from.
type mailbox struct {
	wake chan struct{} // one token: there is something to take

	mu     sync.Mutex
	cond   sync.Cond // room, or the end
	closed bool      // the loop takes nothing more

	events    []event
	unread    int // bytes of messages among events
	proposals []proposal

	refusing         bool // no new proposals
	outstanding      int  // proposals without an end
	outstandingBytes int
}

// event is something that happened to the node.
type event struct {
	kind eventKind
	peer int
	// incarnation of the peer, for received and linked.
	incarnation uint64
	msg         *pb.Message  // for received
	call        func() error // for called
}

type eventKind uint8

const (
	// called: something is to be done on the loop.
	called eventKind = iota
	// received: a message from peer.
	received
	// linked: messages to peer go to this incarnation from now on.
	linked
	// unreachable: messages to peer were lost, or may have been.
	unreachable
	// snapshotSent, snapshotLost: how the sending of a snapshot to peer ended.
	snapshotSent
	snapshotLost
)

type proposal struct {
	command []byte
	sink    gateway.Sink
	id      uint32
}

func newMailbox() *mailbox {
	m := &mailbox{wake: make(chan struct{}, 1)}
	m.cond.L = &m.mu
	return m
}

// post hands an event to the loop. It is false when that has ended.
func (m *mailbox) post(e event) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.events = append(m.events, e)
	gateway.Notify(m.wake)
	return true
}

// deliver hands messages of so many bytes to the loop, when there is room.
func (m *mailbox) deliver(batch []event, bytes int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.unread > maxUnreadBytes && !m.closed {
		m.cond.Wait()
	}
	if m.closed {
		return false
	}
	m.events = append(m.events, batch...)
	m.unread += bytes
	gateway.Notify(m.wake)
	return true
}

// propose hands proposals to the loop, when there is room. It is false when
// they are not taken.
func (m *mailbox) propose(batch []gateway.Proposal, sink gateway.Sink) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for (m.outstanding >= maxOutstanding || m.outstandingBytes >= maxOutstandingBytes) && !m.refusing {
		m.cond.Wait()
	}
	if m.refusing {
		return false
	}
	for _, p := range batch {
		m.proposals = append(m.proposals, proposal{p.Command, sink, p.ID})
		m.outstandingBytes += len(p.Command)
	}
	m.outstanding += len(batch)
	gateway.Notify(m.wake)
	return true
}

// ended gives back the room of proposals.
func (m *mailbox) ended(n, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.outstanding -= n
	m.outstandingBytes -= bytes
	m.cond.Broadcast()
}

// take returns what has arrived. The slices that it was given are filled next.
func (m *mailbox) take(events []event, proposals []proposal) ([]event, []proposal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	events, m.events = m.events, events[:0]
	proposals, m.proposals = m.proposals, proposals[:0]
	if m.unread > maxUnreadBytes {
		m.cond.Broadcast()
	}
	m.unread = 0
	return events, proposals
}

// drain refuses further proposals and waits until the others have ended, or the
// loop has, or the time is over.
func (m *mailbox) drain(timeout time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refusing = true
	m.cond.Broadcast()
	expired := false
	defer time.AfterFunc(timeout, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		expired = true
		m.cond.Broadcast()
	}).Stop()
	for m.outstanding > 0 && !m.closed && !expired {
		m.cond.Wait()
	}
}

// close refuses everything and returns the proposals that were not taken.
func (m *mailbox) close() []proposal {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed, m.refusing = true, true
	m.cond.Broadcast()
	left := m.proposals
	m.events, m.proposals = nil, nil
	return left
}
