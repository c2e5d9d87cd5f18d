package hashiraft

import (
	"io"

	"github.com/hashicorp/raft"

	"raftrig/gateway/kv"
)

// fsm feeds the machine from the library and ends proposals. All methods but
// snapshots' are called from one goroutine.
type fsm struct {
	machine kv.Machine
	queue   *queue

	indexes   []uint64
	cmds      [][]byte
	responses []any
}

var _ raft.BatchingFSM = (*fsm)(nil)

// ApplyBatch implements raft.BatchingFSM. Nobody reads the responses: they are
// nil.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	f.indexes, f.cmds = f.indexes[:0], f.cmds[:0]
	for _, log := range logs {
		if log.Type == raft.LogCommand {
			f.indexes = append(f.indexes, log.Index)
			f.cmds = append(f.cmds, log.Data)
		}
	}
	f.machine.ApplyBatch(f.indexes, f.cmds)
	clear(f.cmds)
	f.queue.applied(logs)
	if len(f.responses) < len(logs) {
		f.responses = make([]any, len(logs))
	}
	return f.responses[:len(logs)]
}

// Apply implements raft.FSM.
func (f *fsm) Apply(log *raft.Log) any {
	f.ApplyBatch([]*raft.Log{log})
	return nil
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) { return fsmSnapshot{f.machine.Snapshot()}, nil }

// Restore implements raft.FSM.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	return f.machine.Restore(r)
}

type fsmSnapshot struct{ snap *kv.Snapshot }

// Persist implements raft.FSMSnapshot.
func (s fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.snap.WriteTo(sink); err != nil {
		sink.Cancel()
		return err
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (fsmSnapshot) Release() {}
