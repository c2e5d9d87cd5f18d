package hashiraft

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// memoryStable is a raft.StableStore that dies with its process.
type memoryStable struct {
	mu    sync.Mutex
	bytes map[string][]byte
	uints map[string]uint64
}

func newMemoryStable() *memoryStable {
	return &memoryStable{bytes: make(map[string][]byte), uints: make(map[string]uint64)}
}

// errNotFound has the text by which the library knows it.
var errNotFound = errors.New("not found")

func (s *memoryStable) Set(key, val []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes[string(key)] = bytes.Clone(val)
	return nil
}

func (s *memoryStable) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	val, ok := s.bytes[string(key)]
	if !ok {
		return nil, errNotFound
	}
	return bytes.Clone(val), nil
}

func (s *memoryStable) SetUint64(key []byte, val uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uints[string(key)] = val
	return nil
}

func (s *memoryStable) GetUint64(key []byte) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	val, ok := s.uints[string(key)]
	if !ok {
		return 0, errNotFound
	}
	return val, nil
}

// memorySnapshots is a raft.SnapshotStore that holds the last complete
// snapshot. The library's InmemSnapshotStore shows a snapshot while it is still
// being written, so a follower that needs one at that moment is sent a part.
type memorySnapshots struct {
	mu   sync.Mutex
	meta *raft.SnapshotMeta // nil: none yet
	data []byte
}

// Create implements raft.SnapshotStore.
func (s *memorySnapshots) Create(version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("memory snapshots: version %d of the format is not supported", version)
	}
	return &memorySink{store: s, meta: raft.SnapshotMeta{
		Version:            version,
		ID:                 fmt.Sprintf("%d-%d", term, index),
		Index:              index,
		Term:               term,
		Configuration:      configuration,
		ConfigurationIndex: configurationIndex,
	}}, nil
}

// List implements raft.SnapshotStore.
func (s *memorySnapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meta == nil {
		return nil, nil
	}
	meta := *s.meta
	return []*raft.SnapshotMeta{&meta}, nil
}

// Open implements raft.SnapshotStore.
func (s *memorySnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meta == nil || s.meta.ID != id {
		return nil, nil, fmt.Errorf("memory snapshots: %s has been replaced by a newer one", id)
	}
	meta := *s.meta
	return &meta, io.NopCloser(bytes.NewReader(s.data)), nil
}

type memorySink struct {
	store *memorySnapshots
	meta  raft.SnapshotMeta
	buf   bytes.Buffer
	over  bool
}

func (k *memorySink) ID() string { return k.meta.ID }

func (k *memorySink) Write(p []byte) (int, error) { return k.buf.Write(p) }

// Close makes the snapshot the store's last one.
func (k *memorySink) Close() error {
	if k.over {
		return nil
	}
	k.over = true
	k.meta.Size = int64(k.buf.Len())
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	k.store.meta, k.store.data = &k.meta, k.buf.Bytes()
	return nil
}

func (k *memorySink) Cancel() error {
	k.over = true
	return nil
}
