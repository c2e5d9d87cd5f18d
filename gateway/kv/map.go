package kv

import (
	"encoding/binary"
	"encoding/hex"
	"maps"
	"math/bits"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// shards is how many parts the map is split into. A snapshot shares all of
// them and the first write to a shared one copies it, so the price of a
// snapshot is paid in pieces of keys/shards instead of one pause.
const shards = 1 << shardBits

const shardBits = 12

// Map is the state machine. Its methods are safe for concurrent use.
type Map struct {
	mu        sync.Mutex
	shards    [shards]shard
	status    Status
	sum       uint64
	chain     uint64
	lastShare uint64 // number of the last snapshot
}

type shard struct {
	cmds map[uint64][]byte // key to the command that set it
	// owned says that no snapshot before this number, counted from 1, holds
	// cmds: the map is ours to write to while it is above lastShare.
	owned uint64
}

// Status is the state machine at one moment.
type Status struct {
	// Applied is the index of the last command in the log, malformed ones
	// included.
	Applied uint64
	// Count is how many commands were applied since the cluster began.
	Count uint64
	// Malformed counts commands that did not pass Check. They change nothing
	// but this counter and Applied.
	Malformed uint64
	// Digest of map and history: equal states at equal Applied have equal
	// digests.
	Digest string
	// Keys is how many keys the map holds.
	Keys uint64
}

// New returns an empty map, the state before the first command.
func New() *Map { return &Map{} }

// Apply applies the command at index of the log. It keeps cmd.
func (m *Map) Apply(index uint64, cmd []byte) {
	m.mu.Lock()
	m.apply(index, cmd)
	m.mu.Unlock()
}

// ApplyBatch applies commands in order, cmds[i] at indexes[i], so that no
// Status or Snapshot falls in between. It keeps the commands.
func (m *Map) ApplyBatch(indexes []uint64, cmds [][]byte) {
	m.mu.Lock()
	for i, cmd := range cmds {
		m.apply(indexes[i], cmd)
	}
	m.mu.Unlock()
}

func (m *Map) apply(index uint64, cmd []byte) {
	m.status.Applied = index
	if Check(cmd) != nil {
		m.status.Malformed++
		return
	}
	key, hash := Key(cmd), xxhash.Sum64(cmd)
	s := &m.shards[shardOf(key)]
	if s.cmds == nil {
		s.cmds = make(map[uint64][]byte)
		s.owned = m.lastShare + 1
	} else if s.owned <= m.lastShare {
		s.cmds = maps.Clone(s.cmds)
		s.owned = m.lastShare + 1
	}
	if old, ok := s.cmds[key]; ok {
		m.sum -= xxhash.Sum64(old)
	} else {
		m.status.Keys++
	}
	s.cmds[key] = cmd
	m.sum += hash
	m.chain = link(m.chain, index, hash)
	m.status.Count++
}

// link folds a command into the history. The step is one-to-one in each of its
// arguments when the others are fixed. The multipliers are odd constants of
// xxHash64.
func link(chain, index, hash uint64) uint64 {
	c := (chain ^ hash) * 0x9E3779B185EBCA87
	c = bits.RotateLeft64(c, 31) + index*0xC2B2AE3D27D4EB4F
	return c ^ c>>29
}

func shardOf(key uint64) uint64 { return key * 0x9E3779B97F4A7C15 >> (64 - shardBits) }

// Get returns the value of key. Nobody may write to it.
func (m *Map) Get(key uint64) (value []byte, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cmd, ok := m.shards[shardOf(key)].cmds[key]
	if !ok {
		return nil, false
	}
	return Value(cmd), true
}

// Status returns the state of one moment.
func (m *Map) Status() Status {
	m.mu.Lock()
	st, sum, chain := m.status, m.sum, m.chain
	m.mu.Unlock()
	st.Digest = digest(sum, chain)
	return st
}

func digest(sum, chain uint64) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], sum)
	binary.BigEndian.PutUint64(b[8:], chain)
	return hex.EncodeToString(b[:])
}

// Snapshot returns the state of this moment. It copies no values and no keys.
func (m *Map) Snapshot() *Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastShare++
	s := &Snapshot{status: m.status, sum: m.sum, chain: m.chain}
	for i := range m.shards {
		s.shards[i] = m.shards[i].cmds
	}
	return s
}
