package hashiraft

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hashicorp/raft"

	"raftrig/gateway"
	"raftrig/gateway/kv"
)

// sink collects ends.
type sink struct{ ends chan end }

type end struct {
	id  uint32
	end gateway.End
}

func newSink() *sink { return &sink{make(chan end, 1<<13)} }

func (s *sink) Done(id uint32, e gateway.End, _ error) { s.ends <- end{id, e} }

func proposals(n int) (batch []gateway.Proposal) {
	for i := range n {
		batch = append(batch, gateway.Proposal{ID: uint32(i), Command: kv.Append(nil, uint64(i), []byte("v"))})
	}
	return batch
}

// scriptedFuture ends when the test says so.
type scriptedFuture struct {
	raft.ApplyFuture
	ended chan struct{}
	err   error
}

func (f *scriptedFuture) Error() error {
	<-f.ended
	return f.err
}

func (f *scriptedFuture) end(err error) {
	f.err = err
	close(f.ended)
}

// queueFixture plays the library: proposals go in, and the test applies or
// fails them.
type queueFixture struct {
	t       *testing.T
	q       *queue
	sink    *sink
	batch   []gateway.Proposal
	futures []*scriptedFuture
}

func newQueueFixture(t *testing.T) *queueFixture {
	return &queueFixture{t: t, q: newQueue(), sink: newSink()}
}

func (f *queueFixture) propose(n int) {
	batch := proposals(len(f.batch) + n)[len(f.batch):]
	first := f.q.push(batch, f.sink)
	var futures []raft.ApplyFuture
	for range batch {
		future := &scriptedFuture{ended: make(chan struct{})}
		f.futures = append(f.futures, future)
		futures = append(futures, future)
	}
	f.q.attach(first, futures)
	f.batch = append(f.batch, batch...)
}

// apply is what the state machine's goroutine does for proposals from to to-1.
func (f *queueFixture) apply(from, to int) {
	var logs []*raft.Log
	for _, p := range f.batch[from:to] {
		logs = append(logs, &raft.Log{Type: raft.LogCommand, Data: p.Command})
	}
	f.q.applied(logs)
	for _, future := range f.futures[from:to] {
		future.end(nil)
	}
}

func (f *queueFixture) fail(from, to int, err error) {
	for _, future := range f.futures[from:to] {
		future.end(err)
	}
}

// want takes the ends that have come and holds them against kind for proposals
// from to to-1 in order.
func (f *queueFixture) want(from, to int, kind gateway.End) {
	f.t.Helper()
	for id := from; id < to; id++ {
		select {
		case e := <-f.sink.ends:
			if e.id != uint32(id) || e.end != kind {
				f.t.Fatalf("proposal %d ended %d, want proposal %d and %d", e.id, e.end, id, kind)
			}
		default:
			f.t.Fatalf("proposal %d has no end", id)
		}
	}
}

func (f *queueFixture) wantNoMore() {
	f.t.Helper()
	select {
	case e := <-f.sink.ends:
		f.t.Fatalf("unexpected end %+v", e)
	default:
	}
}

func TestQueueEndsWhatTheStateMachineApplied(t *testing.T) {
	f := newQueueFixture(t)
	f.propose(3000) // more than the ring begins with
	f.apply(0, 1000)
	f.want(0, 1000, gateway.Applied)
	f.propose(2000)
	// Commands of other nodes, configurations and malformed ones in between.
	f.q.applied([]*raft.Log{{Type: raft.LogCommand, Data: []byte("command 0")}, {Type: raft.LogCommand}, {Type: raft.LogConfiguration, Data: []byte("x")}})
	f.apply(1000, 5000)
	f.want(1000, 5000, gateway.Applied)
	f.q.sweep()
	f.q.sweep()
	f.wantNoMore()
	if !f.q.empty() {
		t.Error("not empty")
	}
}

func TestQueueFindsFailures(t *testing.T) {
	f := newQueueFixture(t)
	f.propose(10)
	f.fail(0, 4, raft.ErrLeadershipTransferInProgress)
	f.apply(4, 7) // behind a failure: not seen at the head
	f.wantNoMore()
	f.q.sweep() // they are new
	f.wantNoMore()
	swept := make(chan struct{})
	go func() {
		f.q.sweep() // goes on until the futures of the head are still open
		close(swept)
	}()
	for id := range 7 {
		e := <-f.sink.ends
		want := gateway.Rejected
		if id >= 4 {
			want = gateway.Applied
		}
		if e.id != uint32(id) || e.end != want {
			t.Fatalf("%+v, want proposal %d and %d", e, id, want)
		}
	}
	f.apply(7, 8) // at the head again: ends without a sweep
	f.want(7, 8, gateway.Applied)
	f.fail(8, 10, raft.ErrLeadershipLost) // the sweep may be waiting for it
	<-swept
	f.q.sweep()
	f.want(8, 10, gateway.Uncertain)
	f.wantNoMore()
}

func TestQueueLeavesAloneWhatProposeIsStillAt(t *testing.T) {
	f := newQueueFixture(t)
	first := f.q.push(proposals(2), f.sink)
	f.q.sweep()
	f.q.sweep()
	f.wantNoMore()
	failed := &scriptedFuture{ended: make(chan struct{})}
	failed.end(raft.ErrNotLeader)
	f.q.attach(first, []raft.ApplyFuture{failed, failed})
	f.q.sweep()
	f.want(0, 2, gateway.Rejected)
}

func TestQueueAttachComesAfterTheEnd(t *testing.T) {
	f := newQueueFixture(t)
	batch := proposals(3)
	first := f.q.push(batch, f.sink)
	f.q.applied([]*raft.Log{{Data: batch[0].Command}, {Data: batch[1].Command}})
	open := &scriptedFuture{ended: make(chan struct{})}
	f.q.attach(first, []raft.ApplyFuture{open, open, open})
	f.q.applied([]*raft.Log{{Data: batch[2].Command}})
	f.want(0, 3, gateway.Applied)
	if !f.q.empty() {
		t.Error("not empty")
	}
}

func TestQueueDrain(t *testing.T) {
	f := newQueueFixture(t)
	f.propose(5)
	f.q.drain(raft.ErrRaftShutdown)
	f.want(0, 5, gateway.Uncertain)
	f.q.applied([]*raft.Log{{Data: f.batch[0].Command}})
	f.q.sweep()
	f.wantNoMore()
}

func TestEndOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want gateway.End
	}{
		{nil, gateway.Applied},
		{raft.ErrNotLeader, gateway.Rejected},
		{raft.ErrLeadershipTransferInProgress, gateway.Rejected},
		{raft.ErrEnqueueTimeout, gateway.Rejected},
		{raft.ErrLeadershipLost, gateway.Uncertain},
		{raft.ErrRaftShutdown, gateway.Uncertain},
		{raft.ErrAbortedByRestore, gateway.Uncertain},
		{errors.New("no space left on device"), gateway.Uncertain},
		{fmt.Errorf("wrapped: %w", raft.ErrNotLeader), gateway.Uncertain},
	} {
		if got := endOf(c.err); got != c.want {
			t.Errorf("%v is %d, want %d", c.err, got, c.want)
		}
	}
}
