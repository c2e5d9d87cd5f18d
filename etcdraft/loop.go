package etcdraft

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"raftrig/gateway"
)

// loop is the part of a Node that its loop alone uses, one goroutine: the
// library, its log, the state machine and the proposals in the log.
type loop struct {
	raft    *raft.RawNode
	storage *raft.MemoryStorage
	voters  []uint64
	stored  term // on disk
	waiters *waiters
	// known is the process of each peer that this node deals with, by its
	// incarnation; 0, none yet.
	known map[int]uint64

	// held are append requests that wait for release, by peer; see send.
	held      map[int]*pb.Message
	release   *time.Timer
	releasing bool // the timer runs

	applied      uint64 // index of the last entry that was applied
	snapshot     uint64 // index of the last snapshot
	snapshotting bool

	// Used again and again.
	events    []event
	proposals []proposal
	entries   []*pb.Entry
	indexes   []uint64
	commands  [][]byte
	ended     []waiter
}

// newLoop is a loop without its raft.
func newLoop(voters []uint64) loop {
	l := loop{
		storage: raft.NewMemoryStorage(),
		voters:  voters,
		waiters: newWaiters(),
		known:   make(map[int]uint64),
		held:    make(map[int]*pb.Message),
		release: time.NewTimer(0),
	}
	l.release.Stop()
	return l
}

// term is what a node must not forget.
type term struct{ term, vote uint64 }

// run is the loop. It takes together what has arrived, hands it to the library,
// and does what the library says.
func (n *Node) run() {
	defer close(n.stopped)
	err := n.runUntilStopped()
	if err != errStopped {
		err = fmt.Errorf("node %d has stopped: %w", n.cfg.ID, err)
		n.log.line(err.Error())
	}
	// First of all nobody shall believe that this node leads.
	n.view.Store(&view{role: gateway.Follower, term: n.view.Load().term, err: err})
	gateway.Notify(n.changed)
	for _, p := range n.in.close() {
		p.sink.Done(p.id, gateway.Rejected, err)
	}
	for !n.waiters.empty() {
		p := n.waiters.shift()
		p.sink.Done(p.id, gateway.Uncertain, err)
	}
	n.transport.close()
}

func (n *Node) runUntilStopped() (err error) {
	defer func() {
		if r := recover(); r != nil {
			gaveUp, ok := r.(giveUp)
			if !ok {
				panic(r)
			}
			err = errors.New(string(gaveUp))
		}
	}()
	tick := time.NewTicker(n.cfg.HeartbeatInterval)
	defer tick.Stop()
	defer n.release.Stop()
	for {
		select {
		case <-n.in.wake:
		case <-tick.C:
			n.raft.Tick()
		case <-n.release.C:
			n.sendHeld()
		case <-n.stop:
			return errStopped
		}
		if err := n.turn(); err != nil {
			return err
		}
	}
}

// turn deals with all that has arrived.
func (n *Node) turn() error {
	n.events, n.proposals = n.in.take(n.events, n.proposals)
	for _, e := range n.events {
		if err := n.handle(e); err != nil {
			return err
		}
	}
	clear(n.events)
	for left := n.proposals; len(left) > 0; {
		k := n.batch(left)
		n.propose(left[:k])
		left = left[k:]
		if err := n.process(); err != nil {
			return err
		}
	}
	clear(n.proposals)
	return n.process()
}

func (n *Node) handle(e event) error {
	peer := uint64(e.peer)
	switch e.kind {
	case called:
		return e.call()
	case received:
		return n.receive(e)
	case linked:
		return n.relink(e.peer, e.incarnation)
	case unreachable:
		n.raft.ReportUnreachable(peer)
	case snapshotSent:
		n.raft.ReportSnapshot(peer, raft.SnapshotFinish)
	case snapshotLost:
		n.raft.ReportSnapshot(peer, raft.SnapshotFailure)
	}
	return nil
}

// receive gives a message to the library, unless it comes from a process of the
// peer that is not the one this node deals with.
func (n *Node) receive(e event) error {
	switch n.known[e.peer] {
	case e.incarnation:
	case 0:
		n.known[e.peer] = e.incarnation
	default:
		return nil
	}
	ok, err := n.admissible(e.msg)
	if err != nil || !ok {
		return err
	}
	// What the library refuses it can do without.
	_ = n.raft.Step(e.msg)
	return nil
}

// admissible holds against the log what the library takes on trust: claims that
// this node has entries which it does not have. It panics on them. No honest
// peer makes any, as long as it knows which process it talks to.
func (n *Node) admissible(m *pb.Message) (bool, error) {
	var claim uint64
	switch {
	case m.GetType() == pb.MsgHeartbeat:
		claim = m.GetCommit()
	case m.GetType() == pb.MsgAppResp && !m.GetReject():
		claim = m.GetIndex()
	}
	if claim == 0 {
		return true, nil
	}
	if m.GetType() == pb.MsgHeartbeat {
		// The end of the log is known when nothing waits to be stored.
		if err := n.process(); err != nil {
			return false, err
		}
	}
	last, err := n.storage.LastIndex()
	if claim > last {
		n.transport.complain("%v from node %d speaks of entry %d, the log ends at %d: dropped", m.GetType(), m.GetFrom(), claim, last)
	}
	return claim <= last, err
}

// relink has messages to a peer go to another process of it from now on.
//
// Nodes in memory come back empty. The leader knows how far the log of a peer
// reaches by what it acknowledged, takes that back for no message, and goes
// mad about a log that has become shorter: it sends it nothing but claims. So a
// leader forgets what it knows about a peer when that has become another
// process, and begins to probe its log. There is no call for that, but there is
// one to change the members, which is local to a node: it removes the peer and
// adds it again. No entry goes into the log, because the members are the same
// as before.
//
// Removing a member lowers the quorum where the number of members is even. A
// stand-in who acknowledges nothing keeps it from counting for a moment what
// has not reached a majority: with him in it, no step commits what the members
// as they are would not.
func (n *Node) relink(peer int, incarnation uint64) error {
	known := n.known[peer]
	if known == incarnation {
		return nil
	}
	// What was made for the former process goes out under its number.
	if err := n.process(); err != nil {
		return err
	}
	delete(n.held, peer)
	n.known[peer] = incarnation
	if known == 0 || n.raft.BasicStatus().RaftState != raft.StateLeader {
		return nil // nothing is known yet, or all is forgotten by a new leader
	}
	for _, c := range []struct {
		change pb.ConfChangeType
		id     uint64
	}{
		{pb.ConfChangeAddNode, standIn},
		{pb.ConfChangeRemoveNode, uint64(peer)},
		{pb.ConfChangeAddNode, uint64(peer)},
		{pb.ConfChangeRemoveNode, standIn},
	} {
		n.raft.ApplyConfChange(&pb.ConfChange{Type: c.change.Enum(), NodeId: new(c.id)})
	}
	return nil
}

// standIn is no node's number. The transport drops what is sent to it.
const standIn = 1 << 32

// batch is how many of the proposals go into the log at once.
func (n *Node) batch(proposals []proposal) int {
	bytes := 0
	for i, p := range proposals {
		bytes += len(p.command)
		if i == n.cfg.MaxBatch || bytes > maxMessageBytes && i > 0 {
			return i
		}
	}
	return len(proposals)
}

// propose appends proposals to the log of the library, in one message. The
// library drops all or none: then nothing was appended.
func (n *Node) propose(proposals []proposal) {
	st := n.raft.BasicStatus()
	err := errNotLeader
	if st.RaftState == raft.StateLeader {
		for len(n.entries) < len(proposals) {
			n.entries = append(n.entries, new(pb.Entry))
		}
		entries := n.entries[:len(proposals)]
		for i, p := range proposals {
			entries[i].Data = p.command
		}
		// The library copies the entries.
		err = n.raft.Step(&pb.Message{Type: pb.MsgProp.Enum(), From: new(uint64(n.cfg.ID)), Entries: entries})
		for _, e := range entries {
			e.Data = nil
		}
	}
	if err != nil {
		n.publish() // before the ends: see gateway.Node
		refusal := n.view.Load().refusal()
		if refusal == nil {
			refusal = err
		}
		for _, p := range proposals {
			n.ended = append(n.ended, waiter{sink: p.sink, id: p.id, size: len(p.command)})
		}
		n.end(gateway.Rejected, refusal)
		return
	}
	for _, p := range proposals {
		n.waiters.push(waiter{sink: p.sink, id: p.id, size: len(p.command), term: st.GetTerm()})
	}
}

// end ends the proposals in n.ended.
func (n *Node) end(end gateway.End, err error) {
	if len(n.ended) == 0 {
		return
	}
	bytes := 0
	for _, w := range n.ended {
		bytes += w.size
		w.sink.Done(w.id, end, err)
	}
	n.in.ended(len(n.ended), bytes)
	clear(n.ended)
	n.ended = n.ended[:0]
}

// process does what the library wants done: it stores, sends and applies, in
// this order.
func (n *Node) process() error {
	for n.raft.HasReady() {
		rd := n.raft.Ready()
		if err := n.store(&rd); err != nil {
			return err
		}
		for _, m := range rd.Messages {
			n.send(m)
		}
		n.apply(rd.CommittedEntries)
		n.raft.Advance(rd)
		n.publish()
		n.endIfOutOfOffice()
	}
	return nil
}

// send sends a message, or holds it back: an append request without entries,
// which the library makes for every peer as soon as it has committed something.
// The next entries tell the commit index as well, and this message is not sent
// if they follow within CommitDelay. It would be half of all messages when few
// requests are outstanding. To lose one is what Raft is made for; the next to
// the same peer says no less.
func (n *Node) send(m *pb.Message) {
	peer := int(m.GetTo())
	if m.GetType() == pb.MsgApp && n.cfg.CommitDelay > 0 {
		if len(m.GetEntries()) == 0 {
			if !n.releasing {
				n.releasing = true
				n.release.Reset(n.cfg.CommitDelay)
			}
			n.held[peer] = m
			return
		}
		delete(n.held, peer)
	}
	n.transport.send(m, n.known[peer])
}

// sendHeld sends what no entries have followed.
func (n *Node) sendHeld() {
	n.releasing = false
	for peer, m := range n.held {
		n.transport.send(m, n.known[peer])
	}
	clear(n.held)
}

func (n *Node) store(rd *raft.Ready) error {
	if n.disk != nil && !raft.IsEmptyHardState(rd.HardState) {
		if now := (term{rd.GetTerm(), rd.GetVote()}); now != n.stored {
			if err := n.disk.setHardState(now.term, now.vote); err != nil {
				return err
			}
			n.stored = now
		}
	}
	if !raft.IsEmptySnap(rd.Snapshot) {
		if err := n.install(rd.Snapshot); err != nil {
			return err
		}
	}
	if len(rd.Entries) == 0 {
		return nil
	}
	if n.disk != nil {
		if err := n.disk.append(rd.Entries); err != nil {
			return err
		}
	}
	return n.storage.Append(rd.Entries)
}

// install replaces log and state by a snapshot that the leader has sent. The
// decoder has found it undamaged.
func (n *Node) install(snap *pb.Snapshot) error {
	index := snap.GetMetadata().GetIndex()
	if n.disk != nil {
		if err := n.disk.saveSnapshot(index, snap.GetMetadata().GetTerm(), snap.GetData()); err != nil {
			return err
		}
		if err := n.disk.dropLog(); err != nil {
			return err
		}
	}
	if err := n.cfg.State.Restore(bytes.NewReader(snap.GetData())); err != nil {
		return err
	}
	n.applied, n.snapshot = index, index
	return n.storage.ApplySnapshot(snap)
}

// apply feeds the state machine and ends the proposals of what it has applied.
func (n *Node) apply(entries []*pb.Entry) {
	if len(entries) == 0 {
		return
	}
	n.indexes, n.commands = n.indexes[:0], n.commands[:0]
	for _, e := range entries {
		if len(e.GetData()) == 0 {
			continue // a leader's first entry
		}
		n.indexes = append(n.indexes, e.GetIndex())
		n.commands = append(n.commands, e.GetData())
		if w, ok := n.waiters.pop(e.GetTerm()); ok {
			n.ended = append(n.ended, w)
		}
	}
	n.cfg.State.ApplyBatch(n.indexes, n.commands)
	clear(n.commands)
	n.end(gateway.Applied, nil)
	n.applied = entries[len(entries)-1].GetIndex()
	n.snapshotWhenDue()
}

// endIfOutOfOffice ends the proposals of a term that this node does not lead
// any more: whoever leads next commits them or replaces them.
func (n *Node) endIfOutOfOffice() {
	if n.waiters.empty() {
		return
	}
	if v := n.view.Load(); v.role == gateway.Leader && v.term == n.waiters.at(n.waiters.head).term {
		return
	}
	for !n.waiters.empty() {
		n.ended = append(n.ended, n.waiters.shift())
	}
	n.end(gateway.Uncertain, errLostOffice)
}

// publish lets others see the state of the node, if it has changed.
func (n *Node) publish() {
	st := n.raft.BasicStatus()
	now := view{role: gateway.Follower, leader: int(st.Lead), term: st.GetTerm(), transferee: int(st.LeadTransferee)}
	switch st.RaftState {
	case raft.StateLeader:
		now.role = gateway.Leader
	case raft.StateCandidate, raft.StatePreCandidate:
		now.role = gateway.Candidate
	}
	if now.transferee != 0 && now.leader == n.cfg.ID {
		now.leader = 0
	}
	if old := n.view.Load(); old == nil || *old != now {
		n.view.Store(&now)
		gateway.Notify(n.changed)
	}
}

// snapshotWhenDue has a snapshot made in the background, one at a time.
func (n *Node) snapshotWhenDue() {
	if n.snapshotting || n.applied < n.snapshot+n.cfg.SnapshotThreshold {
		return
	}
	index := n.applied
	term, err := n.storage.Term(index)
	if err != nil {
		return // cannot be: it was applied, and nothing has cut the log since
	}
	n.snapshotting = true
	state := n.cfg.State.Snapshot()
	n.background.Go(func() {
		var data bytes.Buffer
		_, err := state.WriteTo(&data)
		if err == nil && n.disk != nil {
			err = n.disk.saveSnapshot(index, term, data.Bytes())
		}
		n.in.post(event{kind: called, call: func() error { return n.snapshotMade(index, data.Bytes(), err) }})
	})
}

// snapshotMade lets the library send the snapshot, and cuts the log behind it.
func (n *Node) snapshotMade(index uint64, data []byte, err error) error {
	n.snapshotting = false
	if err != nil {
		return err
	}
	_, err = n.storage.CreateSnapshot(index, nil, data)
	if errors.Is(err, raft.ErrSnapOutOfDate) {
		return nil // the leader has sent a newer one in the meantime
	} else if err != nil {
		return err
	}
	n.snapshot = index
	if index <= n.cfg.TrailingLogs {
		return nil
	}
	cut := index - n.cfg.TrailingLogs
	if first, err := n.storage.FirstIndex(); err != nil || cut < first {
		return err
	}
	if n.disk != nil {
		if err := n.disk.compact(cut); err != nil {
			return err
		}
	}
	return n.storage.Compact(cut)
}
