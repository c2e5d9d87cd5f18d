package kv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/cespare/xxhash/v2"
)

func commands(seed uint64, n int) [][]byte {
	r := rand.New(rand.NewPCG(seed, 1))
	cmds := make([][]byte, n)
	for i := range cmds {
		value := make([]byte, r.IntN(40))
		for j := range value {
			value[j] = byte(r.Uint32())
		}
		cmds[i] = Append(nil, r.Uint64N(uint64(n)/4+1), value)
	}
	return cmds
}

func applied(cmds [][]byte) *Map {
	m := New()
	for i, cmd := range cmds {
		m.Apply(uint64(i)+1, cmd)
	}
	return m
}

func TestStateAgainstModel(t *testing.T) {
	cmds := commands(1, 3000)
	m, model := New(), map[uint64]string{}
	for i, cmd := range cmds {
		m.Apply(uint64(i)+10, cmd)
		model[Key(cmd)] = string(Value(cmd))
	}
	st := m.Status()
	if st.Applied != 3009 || st.Count != 3000 || st.Malformed != 0 || st.Keys != uint64(len(model)) {
		t.Errorf("status %+v with %d keys in the model", st, len(model))
	}
	for key, want := range model {
		if got, ok := m.Get(key); !ok || string(got) != want {
			t.Fatalf("key %d is %q, %v, want %q", key, got, ok, want)
		}
	}
	if _, ok := m.Get(1 << 60); ok {
		t.Error("an unknown key has a value")
	}
}

func TestDigestShowsEveryFault(t *testing.T) {
	cmds := commands(2, 400)
	good := applied(cmds).Status()
	if again := applied(cmds).Status(); again != good {
		t.Fatalf("same commands, different states: %+v and %+v", good, again)
	}
	faults := map[string]func(m *Map, i int){
		"lost":    func(m *Map, i int) {},
		"doubled": func(m *Map, i int) { m.Apply(uint64(i)+1, cmds[i]); m.Apply(uint64(i)+1, cmds[i]) },
		"altered": func(m *Map, i int) {
			c := bytes.Clone(cmds[i])
			c[len(c)-1] ^= 4
			m.Apply(uint64(i)+1, c)
		},
		"wrong key":   func(m *Map, i int) { m.Apply(uint64(i)+1, Append(nil, 1<<50, Value(cmds[i]))) },
		"wrong index": func(m *Map, i int) { m.Apply(uint64(i)+2, cmds[i]) },
	}
	for name, fault := range faults {
		for _, at := range []int{0, 17, 200, len(cmds) - 2} {
			m := New()
			for i, cmd := range cmds {
				if i == at {
					fault(m, i)
				} else {
					m.Apply(uint64(i)+1, cmd)
				}
			}
			got := m.Status()
			if got.Applied != good.Applied {
				t.Fatalf("%s at %d: applied %d, want %d for the comparison to mean something", name, at, got.Applied, good.Applied)
			}
			if got.Digest == good.Digest {
				t.Errorf("%s at %d does not show", name, at)
			}
		}
	}
	// Two neighbours that set different keys end in the same map either way.
	m := New()
	swapped := append([][]byte{}, cmds...)
	at := 0
	for Key(swapped[at]) == Key(swapped[at+1]) {
		at++
	}
	swapped[at], swapped[at+1] = swapped[at+1], swapped[at]
	for i, cmd := range swapped {
		m.Apply(uint64(i)+1, cmd)
	}
	if m.Status().Digest == good.Digest {
		t.Error("reordered does not show")
	}
	if m.sum != applied(cmds).sum {
		t.Error("the sum depends on the order")
	}
}

func TestDigestShowsValueWrittenToInMemory(t *testing.T) {
	build := func(corrupt bool) Status {
		m := New()
		first := Append(nil, 7, []byte("value"))
		m.Apply(1, first)
		if corrupt {
			first[KeySize] ^= 1
		}
		m.Apply(2, Append(nil, 7, []byte("other")))
		return m.Status()
	}
	if build(false).Digest == build(true).Digest {
		t.Error("a value that was overwritten in memory does not show")
	}
}

func TestMalformedCommandChangesItsCounterAlone(t *testing.T) {
	m := applied(commands(3, 50))
	before := m.Status()
	for i, cmd := range [][]byte{nil, {1, 2, 3, 4, 5, 6, 7}, make([]byte, MaxCommand+1)} {
		if Check(cmd) == nil {
			t.Errorf("a command of %d bytes passes", len(cmd))
		}
		m.Apply(before.Applied+1+uint64(i), cmd)
	}
	after := m.Status()
	want := before
	want.Applied += 3
	want.Malformed = 3
	if after != want {
		t.Errorf("state is %+v, want %+v", after, want)
	}
}

func TestSnapshotIsOfOneMomentAndSharesNothingThatChanges(t *testing.T) {
	cmds := commands(4, 2000)
	m := applied(cmds[:1000])
	at := m.Status()
	snap := m.Snapshot()
	again := m.Snapshot()
	for i, cmd := range cmds[1000:] {
		m.Apply(uint64(i)+1001, cmd)
	}
	for _, s := range []*Snapshot{snap, again} {
		var b bytes.Buffer
		n, err := s.WriteTo(&b)
		if err != nil || n != int64(b.Len()) {
			t.Fatalf("wrote %d of %d: %v", n, b.Len(), err)
		}
		restored := New()
		restored.Apply(1, Append(nil, 99, []byte("goes away")))
		if err := restored.Restore(iotest.OneByteReader(&b)); err != nil {
			t.Fatal(err)
		}
		if restored.Status() != at {
			t.Errorf("restored %+v, want %+v", restored.Status(), at)
		}
		for i, cmd := range cmds[1000:] {
			restored.Apply(uint64(i)+1001, cmd)
		}
		if restored.Status() != m.Status() {
			t.Errorf("went on to %+v, want %+v", restored.Status(), m.Status())
		}
	}
}

func TestRestoreTakesNothingThatWasDamaged(t *testing.T) {
	var b bytes.Buffer
	applied(commands(5, 60)).Snapshot().WriteTo(&b)
	good := b.Bytes()
	m := applied(commands(6, 10))
	before := m.Status()
	for i := range good {
		if err := m.Restore(bytes.NewReader(good[:i])); err == nil {
			t.Errorf("took the first %d of %d bytes", i, len(good))
		}
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if err := m.Restore(bytes.NewReader(bad)); err == nil {
			t.Errorf("took a flipped bit in byte %d", i)
		}
	}
	if err := m.Restore(bytes.NewReader(append(bytes.Clone(good), 0))); err == nil {
		t.Error("took a byte too many")
	}
	if err := m.Restore(iotest.ErrReader(io.ErrClosedPipe)); err == nil {
		t.Error("took a reader that fails")
	}
	if m.Status() != before {
		t.Error("a refused snapshot changed the state")
	}
}

func TestRestoreAllocatesByWhatItReadNotByWhatIsPromised(t *testing.T) {
	head := []byte(magic)
	for range 6 {
		head = binary.LittleEndian.AppendUint64(head, 1<<62)
	}
	allocated := testing.AllocsPerRun(5, func() {
		if New().Restore(bytes.NewReader(head)) == nil {
			t.Fatal("took a header alone")
		}
	})
	if allocated > 50 {
		t.Errorf("%v allocations", allocated)
	}
}

type failingWriter struct{ left int }

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.left < len(b) {
		return 0, io.ErrShortWrite
	}
	w.left -= len(b)
	return len(b), nil
}

func TestWriteToReportsFullDisk(t *testing.T) {
	m := New()
	for i := range uint64(3) {
		m.Apply(i+1, Append(nil, i, make([]byte, 50<<10)))
	}
	for _, left := range []int{0, 70 << 10, 150<<10 + 99} {
		if _, err := m.Snapshot().WriteTo(&failingWriter{left}); err == nil {
			t.Errorf("no error with room for %d bytes", left)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	m := New()
	cmds := commands(7, 5000)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; i < len(cmds); i += 10 {
			indexes := make([]uint64, 10)
			for j := range indexes {
				indexes[j] = uint64(i + j + 1)
			}
			m.ApplyBatch(indexes, cmds[i:i+10])
		}
	})
	for range 2 {
		wg.Go(func() {
			for range 20 {
				var b bytes.Buffer
				m.Snapshot().WriteTo(&b)
				r := New()
				if err := r.Restore(&b); err != nil {
					t.Error(err)
				}
				if st := r.Status(); st.Applied%10 != 0 || st.Digest != applied(cmds[:st.Applied]).Status().Digest {
					t.Errorf("snapshot %+v is of no moment between batches", st)
				}
				m.Get(1)
			}
		})
	}
	wg.Wait()
	if m.Status() != applied(cmds).Status() {
		t.Error("snapshots changed the outcome")
	}
}

// FuzzApply holds the incremental digest against one computed from scratch.
func FuzzApply(f *testing.F) {
	f.Add([]byte("\x09\x01\x00\x00\x00\x00\x00\x00\x00a\x02xx\x09\x01\x00\x00\x00\x00\x00\x00\x00b"), uint8(1))
	f.Add([]byte{8, 0, 0, 0, 0, 0, 0, 0, 0}, uint8(0))
	f.Fuzz(func(t *testing.T, stream []byte, snapAt uint8) {
		m := New()
		model := map[uint64][]byte{}
		var chain, index, count, malformed uint64
		for len(stream) > 0 {
			n := min(int(stream[0]), len(stream)-1)
			cmd := stream[1 : 1+n]
			stream = stream[1+n:]
			index++
			m.Apply(index, cmd)
			if Check(cmd) != nil {
				malformed++
			} else {
				count++
				model[Key(cmd)] = cmd
				if !bytes.Equal(Append(nil, Key(cmd), Value(cmd)), cmd) {
					t.Fatal("key and value do not make the command")
				}
				chain = link(chain, index, xxhash.Sum64(cmd))
			}
			if index == uint64(snapAt) {
				m.Snapshot()
			}
		}
		var sum uint64
		for cmd := range maps.Values(model) {
			sum += xxhash.Sum64(cmd)
		}
		want := Status{index, count, malformed, digest(sum, chain), uint64(len(model))}
		if got := m.Status(); got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func FuzzRestore(f *testing.F) {
	for _, n := range []int{0, 1, 30} {
		var b bytes.Buffer
		applied(commands(uint64(n), n)).Snapshot().WriteTo(&b)
		f.Add(b.Bytes(), true)
		f.Add(b.Bytes()[:b.Len()-8], true)
	}
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		if seal { // let the fuzzer past the checksum
			data = binary.LittleEndian.AppendUint64(bytes.Clone(data), xxhash.Sum64(data))
		}
		m := New()
		if err := m.Restore(bytes.NewReader(data)); err != nil {
			if m.Status() != New().Status() {
				t.Fatal("a refused snapshot changed the state")
			}
			return
		}
		var b bytes.Buffer
		if _, err := m.Snapshot().WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		if b.Len() != len(data) {
			t.Fatalf("took %d bytes, wrote %d", len(data), b.Len())
		}
		again := New()
		if err := again.Restore(&b); err != nil || again.Status() != m.Status() {
			t.Fatalf("%v: %+v, want %+v", err, again.Status(), m.Status())
		}
	})
}

func BenchmarkApply(b *testing.B) {
	for _, keys := range []uint64{1 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			m := New()
			cmds := make([][]byte, keys)
			for i := range cmds {
				cmds[i] = Append(nil, uint64(i), make([]byte, 56))
				m.Apply(uint64(i)+1, cmds[i])
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				m.Apply(keys+uint64(i)+1, cmds[uint64(i)*0x9E3779B1%keys])
			}
		})
	}
}

// BenchmarkSnapshot is how long a snapshot of a million keys holds up commands.
func BenchmarkSnapshot(b *testing.B) {
	m := New()
	for i := range uint64(1 << 20) {
		m.Apply(i+1, Append(nil, i, make([]byte, 56)))
	}
	for b.Loop() {
		m.Snapshot()
	}
}
