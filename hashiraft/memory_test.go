package hashiraft

import (
	"bytes"
	"io"
	"testing"

	"github.com/hashicorp/raft"
)

func TestMemorySnapshotsShowWhatIsComplete(t *testing.T) {
	s := &memorySnapshots{}
	create := func(index uint64, text string) raft.SnapshotSink {
		t.Helper()
		sink, err := s.Create(1, index, 3, raft.Configuration{Servers: []raft.Server{{ID: "1"}}}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(sink, text)
		return sink
	}
	want := func(index uint64, text string) {
		t.Helper()
		list, err := s.List()
		if err != nil || len(list) != 1 || list[0].Index != index || list[0].Size != int64(len(text)) {
			t.Fatalf("list %v, %v", list, err)
		}
		meta, r, err := s.Open(list[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		got, _ := io.ReadAll(r)
		if string(got) != text || meta.Size != int64(len(text)) || meta.Term != 3 || len(meta.Configuration.Servers) != 1 {
			t.Fatalf("%q, %+v, want %q", got, meta, text)
		}
	}
	first := create(10, "first")
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Fatalf("shows one that is still written: %v, %v", list, err)
	}
	first.Close()
	want(10, "first")
	create(20, "given up").Cancel()
	broken := create(21, "given up")
	broken.Cancel()
	broken.Close()
	create(22, "not finished")
	want(10, "first")
	_, open, err := s.Open(first.ID())
	if err != nil {
		t.Fatal(err)
	}
	second := create(30, "the second one")
	second.Close()
	want(30, "the second one")
	if got, _ := io.ReadAll(open); string(got) != "first" {
		t.Errorf("an open snapshot became %q", got)
	}
	if _, _, err := s.Open(first.ID()); err == nil {
		t.Error("opened one that was replaced")
	}
	if _, err := s.Create(0, 1, 1, raft.Configuration{}, 1, nil); err == nil {
		t.Error("created version 0")
	}
}

func TestMemoryStable(t *testing.T) {
	s := newMemoryStable()
	key := []byte("key")
	if _, err := s.Get(key); err == nil || err.Error() != "not found" {
		t.Errorf("error %v", err)
	}
	if _, err := s.GetUint64(key); err == nil || err.Error() != "not found" {
		t.Errorf("error %v", err)
	}
	val := []byte("value")
	s.Set(key, val)
	val[0] = 'X'
	s.SetUint64(key, 7)
	if got, err := s.Get(key); err != nil || !bytes.Equal(got, []byte("value")) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := s.GetUint64(key); err != nil || got != 7 {
		t.Errorf("%d, %v", got, err)
	}
}
