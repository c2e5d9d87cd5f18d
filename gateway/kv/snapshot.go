package kv

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cespare/xxhash/v2"
)

// A snapshot on the wire, little-endian:
//
//	magic     8 bytes, ends in the version of the format
//	applied, count, malformed, keys, sum, chain   8 bytes each
//	keys times: length of the command, 4 bytes; the command
//	checksum  xxHash64 of all before it, 8 bytes
const (
	magic      = "rrigkv\x00\x01"
	headerSize = len(magic) + 6*8
)

// Snapshot is a state that later commands do not change. It is safe for
// concurrent use.
type Snapshot struct {
	status     Status
	sum, chain uint64
	shards     [shards]map[uint64][]byte
}

// WriteTo writes the snapshot to w.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	counter := &countingWriter{w: w}
	hash := xxhash.New()
	buffer := bufio.NewWriterSize(io.MultiWriter(counter, hash), 64<<10)

	head := make([]byte, 0, headerSize)
	head = append(head, magic...)
	for _, v := range []uint64{s.status.Applied, s.status.Count, s.status.Malformed, s.status.Keys, s.sum, s.chain} {
		head = binary.LittleEndian.AppendUint64(head, v)
	}
	if _, err := buffer.Write(head); err != nil {
		return counter.n, err
	}
	var length [4]byte
	for _, cmds := range s.shards {
		for _, cmd := range cmds {
			binary.LittleEndian.PutUint32(length[:], uint32(len(cmd)))
			buffer.Write(length[:]) // bufio keeps the first error
			if _, err := buffer.Write(cmd); err != nil {
				return counter.n, err
			}
		}
	}
	if err := buffer.Flush(); err != nil {
		return counter.n, err
	}
	_, err := counter.Write(binary.LittleEndian.AppendUint64(nil, hash.Sum64()))
	return counter.n, err
}

// Restore replaces the state by the snapshot that r holds up to its end. When
// it returns an error the state is what it was. Memory grows with what was
// read, not with what the header promises.
func (m *Map) Restore(r io.Reader) error {
	fresh, err := read(r)
	if err != nil {
		return fmt.Errorf("snapshot of the key-value map: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status, m.sum, m.chain = fresh.status, fresh.sum, fresh.chain
	for i := range m.shards {
		m.shards[i] = shard{cmds: fresh.shards[i].cmds, owned: m.lastShare + 1}
	}
	return nil
}

func read(r io.Reader) (*Map, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	hash := xxhash.New()
	full := func(b []byte) error {
		if _, err := io.ReadFull(in, b); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return errors.New("truncated")
			}
			return err
		}
		hash.Write(b)
		return nil
	}

	head := make([]byte, headerSize)
	if err := full(head); err != nil {
		return nil, err
	}
	if string(head[:len(magic)]) != magic {
		return nil, fmt.Errorf("begins with %x, not with %x: another format or version", head[:len(magic)], magic)
	}
	field := func(i int) uint64 { return binary.LittleEndian.Uint64(head[len(magic)+8*i:]) }
	m := New()
	m.status = Status{Applied: field(0), Count: field(1), Malformed: field(2), Keys: field(3)}
	m.chain = field(5)

	var length [4]byte
	for k := uint64(0); k < m.status.Keys; k++ {
		if err := full(length[:]); err != nil {
			return nil, err
		}
		n := binary.LittleEndian.Uint32(length[:])
		if n < KeySize || n > MaxCommand {
			return nil, fmt.Errorf("entry %d is %d bytes long: %d to %d are possible", k, n, KeySize, MaxCommand)
		}
		cmd := make([]byte, n)
		if err := full(cmd); err != nil {
			return nil, err
		}
		s := &m.shards[shardOf(Key(cmd))]
		if s.cmds == nil {
			s.cmds = make(map[uint64][]byte)
		}
		if _, twice := s.cmds[Key(cmd)]; twice {
			return nil, fmt.Errorf("key %d is there twice", Key(cmd))
		}
		s.cmds[Key(cmd)] = cmd
		m.sum += xxhash.Sum64(cmd)
	}
	want := hash.Sum64()
	var trailer [8]byte
	if err := full(trailer[:]); err != nil {
		return nil, err
	}
	if got := binary.LittleEndian.Uint64(trailer[:]); got != want {
		return nil, fmt.Errorf("checksum is %016x, its content has %016x", got, want)
	}
	if m.sum != field(4) {
		return nil, fmt.Errorf("pairs sum to %016x, the header says %016x", m.sum, field(4))
	}
	if m.status.Count < m.status.Keys {
		return nil, fmt.Errorf("%d keys from %d commands", m.status.Keys, m.status.Count)
	}
	if _, err := in.ReadByte(); err != io.EOF {
		if err == nil {
			err = errors.New("goes on after its checksum")
		}
		return nil, err
	}
	return m, nil
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
