package dragonboat

import (
	"io"

	"github.com/lni/dragonboat/v4/statemachine"

	"raftrig/gateway/kv"
)

// machine feeds the key-value map from the library. It is concurrent in the
// library's sense: entries come in batches, and a snapshot is written while
// later ones are applied. The library calls Update from one goroutine.
type machine struct {
	kv kv.Machine

	indexes []uint64
	cmds    [][]byte
}

var _ statemachine.IConcurrentStateMachine = (*machine)(nil)

// Update implements statemachine.IConcurrentStateMachine. Nobody reads the
// results: they are zero. The map keeps the commands; the library does not
// write to them again. An empty command is one of askForEntries.
func (m *machine) Update(entries []statemachine.Entry) ([]statemachine.Entry, error) {
	m.indexes, m.cmds = m.indexes[:0], m.cmds[:0]
	for _, e := range entries {
		if len(e.Cmd) == 0 {
			continue
		}
		m.indexes = append(m.indexes, e.Index)
		m.cmds = append(m.cmds, e.Cmd)
	}
	m.kv.ApplyBatch(m.indexes, m.cmds)
	clear(m.cmds)
	return entries, nil
}

// Lookup implements statemachine.IConcurrentStateMachine. Status reads the map
// directly.
func (m *machine) Lookup(any) (any, error) { return m.kv.Status(), nil }

// PrepareSnapshot implements statemachine.IConcurrentStateMachine.
func (m *machine) PrepareSnapshot() (any, error) { return m.kv.Snapshot(), nil }

// SaveSnapshot implements statemachine.IConcurrentStateMachine.
func (m *machine) SaveSnapshot(prepared any, w io.Writer, _ statemachine.ISnapshotFileCollection, stopped <-chan struct{}) error {
	_, err := prepared.(*kv.Snapshot).WriteTo(stoppable{w, stopped})
	return err
}

// stoppable is a writer that gives up when the library wants to stop.
type stoppable struct {
	w       io.Writer
	stopped <-chan struct{}
}

func (s stoppable) Write(p []byte) (int, error) {
	select {
	case <-s.stopped:
		return 0, statemachine.ErrSnapshotStopped
	default:
		return s.w.Write(p)
	}
}

// RecoverFromSnapshot implements statemachine.IConcurrentStateMachine.
func (m *machine) RecoverFromSnapshot(r io.Reader, _ []statemachine.SnapshotFile, _ <-chan struct{}) error {
	return m.kv.Restore(r)
}

// Close implements statemachine.IConcurrentStateMachine.
func (m *machine) Close() error { return nil }
