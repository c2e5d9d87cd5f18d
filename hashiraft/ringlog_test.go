package hashiraft

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"
)

// logModel drives a memoryLog and the library's InmemStore with the same
// operations and compares all that can be read.
type logModel struct {
	t     *testing.T
	log   memoryLog
	store *raft.InmemStore
	seq   uint64 // makes entries of the same index differ
}

func newLogModel(t *testing.T) *logModel { return &logModel{t: t, store: raft.NewInmemStore()} }

func (m *logModel) append(from uint64, n int) {
	m.t.Helper()
	var logs []*raft.Log
	for i := range uint64(n) {
		m.seq++
		logs = append(logs, &raft.Log{Index: from + i, Term: m.seq, Data: fmt.Append(nil, m.seq)})
	}
	if err := m.log.StoreLogs(logs); err != nil {
		m.t.Fatal(err)
	}
	m.store.StoreLogs(logs)
	for _, l := range logs { // the store must hold a copy of the entry
		if l.Index%2 == 0 {
			*l = *m.get(m.store, l.Index)
		}
	}
	m.compare()
}

func (m *logModel) get(s raft.LogStore, index uint64) *raft.Log {
	l := new(raft.Log)
	if err := s.GetLog(index, l); err != nil {
		return nil
	}
	return l
}

func (m *logModel) delete(from, to uint64) {
	m.t.Helper()
	if err := m.log.DeleteRange(from, to); err != nil {
		m.t.Fatal(err)
	}
	m.store.DeleteRange(from, to)
	m.compare()
}

func (m *logModel) bounds() (first, last uint64) {
	m.t.Helper()
	first, _ = m.log.FirstIndex()
	last, _ = m.log.LastIndex()
	wantFirst, _ := m.store.FirstIndex()
	wantLast, _ := m.store.LastIndex()
	if first != wantFirst || last != wantLast {
		m.t.Fatalf("holds %d to %d, want %d to %d", first, last, wantFirst, wantLast)
	}
	return first, last
}

func (m *logModel) compare() {
	m.t.Helper()
	first, last := m.bounds()
	probe := []uint64{0, first - 1, first, first + 1, (first + last) / 2, last - 1, last, last + 1}
	if last-first < 40 {
		for i := first; i <= last; i++ {
			probe = append(probe, i)
		}
	}
	for _, index := range probe {
		got, want := m.get(&m.log, index), m.get(m.store, index)
		if (got == nil) != (want == nil) || got != nil && (got.Index != want.Index || got.Term != want.Term || string(got.Data) != string(want.Data)) {
			m.t.Fatalf("entry %d of %d to %d is %v, want %v", index, first, last, got, want)
		}
	}
	// Nothing may keep the data of deleted entries alive.
	for s, seg := range m.log.segments {
		for i := range seg {
			index := m.log.base + uint64(s)*segmentLen + uint64(i)
			if (index < first || index > last) && (seg[i].Index != 0 || seg[i].Data != nil) {
				m.t.Fatalf("deleted entry %d is still there in %d to %d", index, first, last)
			}
		}
	}
	if m.log.spare != nil && m.log.spare[0].Data != nil {
		m.t.Fatal("the spare segment is not clear")
	}
}

func TestMemoryLogLikeInmemStore(t *testing.T) {
	m := newLogModel(t)
	m.compare()
	m.append(1, 1)
	m.append(2, 3*segmentLen)
	m.delete(1, 10)
	m.delete(11, segmentLen-1)
	m.delete(1, 2*segmentLen) // reaches before the first
	_, last := m.bounds()
	m.delete(last-5, last)
	m.delete(last-100, last+7) // reaches behind the last
	m.append(last-100, segmentLen)
	first, last := m.bounds()
	m.delete(first, last) // as after a snapshot from the leader
	m.append(last+1000, 5)
	m.delete(last+1004, last+1004)
	m.delete(last+1000, last+1003)
	m.append(segmentLen, 1)
	m.append(segmentLen+1, segmentLen)
	m.delete(segmentLen, 2*segmentLen-1)
	m.delete(2*segmentLen, 2*segmentLen)
	m.append(7, 1)
}

func TestMemoryLogRefusesGaps(t *testing.T) {
	m := newLogModel(t)
	m.append(5, 20)
	for _, indexes := range [][]uint64{{26}, {24}, {5}, {4}, {0}, {25, 27}, {25, 25}} {
		var logs []*raft.Log
		for _, i := range indexes {
			logs = append(logs, &raft.Log{Index: i})
		}
		if err := m.log.StoreLogs(logs); err == nil {
			t.Errorf("stored %d behind 24", indexes)
		}
		m.compare()
	}
	if err := m.log.DeleteRange(6, 23); err == nil {
		t.Error("tore a hole")
	}
	if err := m.log.StoreLogs(nil); err != nil {
		t.Error(err)
	}
	for _, r := range [][2]uint64{{7, 6}, {1, 4}, {25, 30}} { // nothing to delete
		if err := m.log.DeleteRange(r[0], r[1]); err != nil {
			t.Error(err)
		}
	}
	m.compare()
	var empty memoryLog
	if err := empty.StoreLog(&raft.Log{Index: 0}); err == nil {
		t.Error("stored an entry without an index")
	}
	if !empty.IsMonotonic() {
		t.Error("is not monotonic")
	}
}

// TestMemoryLogGivesSegmentsBack runs as a node does: append, compact, append.
func TestMemoryLogGivesSegmentsBack(t *testing.T) {
	m := newLogModel(t)
	for round := range uint64(50) {
		m.append(1+round*1000, 1000)
		if _, last := m.bounds(); last > 3000 {
			m.delete(1, last-3000)
		}
		if n := len(m.log.segments); n > 2 {
			t.Fatalf("%d segments for 3000 entries", n)
		}
	}
}

// FuzzMemoryLog takes pairs of bytes as operations that the library may make.
func FuzzMemoryLog(f *testing.F) {
	f.Add([]byte{0, 200, 1, 3, 2, 4, 3, 9, 0, 1})
	f.Add([]byte{0, 255, 0, 255, 1, 255, 3, 255, 0, 9, 2, 1})
	r := rand.New(rand.NewPCG(1, 2))
	random := make([]byte, 200)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	f.Add(random)
	f.Fuzz(func(t *testing.T, ops []byte) {
		m := newLogModel(t)
		for len(ops) >= 2 && m.seq < 1e5 {
			op, arg := ops[0]%4, uint64(ops[1])
			ops = ops[2:]
			first, last := m.bounds()
			switch {
			case op == 0 && first == 0:
				m.append(1+arg*997, 1+int(arg)*31)
			case op == 0:
				m.append(last+1, 1+int(arg)*31)
			case op == 1 && last > 0: // compact
				m.delete(first, min(last, first+arg*arg))
			case op == 2 && last > 0: // conflict
				m.delete(max(first, last-min(last, arg*arg)), last)
			case op == 3 && last > 0: // snapshot from the leader
				m.delete(first, last)
			}
		}
	})
}

func BenchmarkLogStore(b *testing.B) {
	const batch = 64
	for name, store := range map[string]raft.LogStore{"segments": &memoryLog{}, "InmemStore": raft.NewInmemStore()} {
		b.Run(name, func(b *testing.B) {
			logs := make([]*raft.Log, batch)
			var out raft.Log
			b.ReportAllocs()
			next := uint64(1)
			for range b.N {
				for i := range logs {
					logs[i] = &raft.Log{Index: next + uint64(i)}
				}
				next += batch
				store.StoreLogs(logs)
				for i := range logs {
					store.GetLog(logs[i].Index, &out)
					store.GetLog(logs[i].Index, &out)
				}
				if next%(64*batch) == 1 && next > 100*batch {
					first, _ := store.FirstIndex()
					store.DeleteRange(first, next-100*batch)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/entry")
		})
	}
}
