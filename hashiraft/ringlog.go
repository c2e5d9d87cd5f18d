package hashiraft

import (
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// segmentLen is how many entries one piece of the log holds.
const segmentLen = 4096

// memoryLog is a raft.LogStore in memory for logs without gaps. Entries lie in
// segments of equal length, so that finding one is arithmetic, the log grows
// without a copy, and compaction gives segments back. The library's own
// InmemStore pays a map operation for each entry in each direction.
type memoryLog struct {
	mu       sync.RWMutex
	first    uint64 // index of the first entry; 0 when there is none
	last     uint64
	base     uint64 // index of segments[0][0], a multiple of segmentLen
	segments []*segment
	spare    *segment // one cleared segment, so that a steady state allocates none
}

type segment [segmentLen]raft.Log

var (
	_ raft.LogStore          = (*memoryLog)(nil)
	_ raft.MonotonicLogStore = (*memoryLog)(nil)
)

// IsMonotonic implements raft.MonotonicLogStore: gaps are refused, and the
// library empties the log before it goes on behind a snapshot.
func (l *memoryLog) IsMonotonic() bool { return true }

// FirstIndex implements raft.LogStore.
func (l *memoryLog) FirstIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.first, nil
}

// LastIndex implements raft.LogStore.
func (l *memoryLog) LastIndex() (uint64, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.last, nil
}

// GetLog implements raft.LogStore.
func (l *memoryLog) GetLog(index uint64, log *raft.Log) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if index == 0 || index < l.first || index > l.last {
		return raft.ErrLogNotFound
	}
	*log = *l.at(index)
	return nil
}

func (l *memoryLog) at(index uint64) *raft.Log {
	offset := index - l.base
	return &l.segments[offset/segmentLen][offset%segmentLen]
}

// StoreLog implements raft.LogStore.
func (l *memoryLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. Logs begin anywhere when the store is
// empty, and right behind its last entry otherwise.
func (l *memoryLog) StoreLogs(logs []*raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(logs) == 0 {
		return nil
	}
	next := l.last + 1
	if l.first == 0 {
		next = logs[0].Index
	}
	for i, log := range logs {
		if log.Index == 0 || log.Index != next+uint64(i) {
			return fmt.Errorf("memory log: entry %d stored where entry %d is due", log.Index, next+uint64(i))
		}
	}
	if l.first == 0 {
		l.first = next
		l.base = next / segmentLen * segmentLen
	}
	for _, log := range logs {
		if (log.Index-l.base)/segmentLen == uint64(len(l.segments)) {
			l.segments = append(l.segments, l.newSegment())
		}
		l.last = log.Index
		*l.at(log.Index) = *log
	}
	return nil
}

func (l *memoryLog) newSegment() *segment {
	if s := l.spare; s != nil {
		l.spare = nil
		return s
	}
	return new(segment)
}

// DeleteRange implements raft.LogStore for the two ranges that leave no gap:
// one that reaches the first entry and one that reaches the last.
func (l *memoryLog) DeleteRange(from, to uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from > to || l.first == 0 || to < l.first || from > l.last {
		return nil
	}
	switch {
	case from <= l.first && to >= l.last:
		l.first, l.last, l.base, l.segments = 0, 0, 0, nil
	case from <= l.first:
		for l.base+segmentLen <= to+1 {
			s := l.segments[0]
			*s = segment{}
			l.spare = s
			l.segments[0] = nil
			l.segments = l.segments[1:]
			l.base += segmentLen
		}
		for i := max(l.first, l.base); i <= to; i++ {
			*l.at(i) = raft.Log{}
		}
		l.first = to + 1
	case to >= l.last:
		for i := from; i <= l.last; i++ {
			*l.at(i) = raft.Log{}
		}
		keep := (from-1-l.base)/segmentLen + 1
		clear(l.segments[keep:])
		l.segments = l.segments[:keep]
		l.last = from - 1
	default:
		return fmt.Errorf("memory log: deleting %d to %d would tear a hole into %d to %d", from, to, l.first, l.last)
	}
	return nil
}
