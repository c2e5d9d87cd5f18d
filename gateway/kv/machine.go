package kv

import "io"

// Machine is what an adapter needs of the state machine. It is a *Map but in
// tests, which put a faulty one in its place.
type Machine interface {
	ApplyBatch(indexes []uint64, cmds [][]byte)
	Status() Status
	Snapshot() *Snapshot
	Restore(io.Reader) error
}

var _ Machine = (*Map)(nil)
