package etcdraft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"raftrig/gateway/kv"
)

// What nodes say to each other. The one that dials sends a hello and gets a
// reply; from then on it sends frames and gets nothing more. All integers are
// little-endian.
//
//	hello   magic 8, from 4, to 4, incarnation 8, length 2, the peer list as text
//	reply   magic 8, incarnation 8, length 2, why the hello is refused; empty: taken
//	frame   length of the body 4, kind 1, body
//
// The body of a message frame is a raftpb.Message. A snapshot's data, which may
// be large, goes ahead of its message in chunk frames; other messages may come
// in between.
const (
	wireMagic = "rrigetc\x01"

	helloSize = len(wireMagic) + 4 + 4 + 8 + 2
	replySize = len(wireMagic) + 8 + 2

	frameHeader  = 4 + 1
	frameMessage = 1
	frameChunk   = 2

	// maxFrame bounds a body. The library fills an append request up to
	// maxMessageBytes, or with a single entry; kv.MaxCommand is below both.
	maxFrame        = 2 << 20
	maxMessageBytes = 1 << 20
	chunkBytes      = 256 << 10
	// maxSnapshotBytes bounds what a peer can make a node keep in memory.
	maxSnapshotBytes = 1 << 30

	// The library adds small numbers to terms and indexes; none may wrap.
	maxCounter = 1 << 62
)

// hello is how a connection begins.
type hello struct {
	from, to int
	// incarnation is a random number that a process chooses when it starts.
	incarnation uint64
	// cluster is the peer list.
	cluster string
}

func (h hello) append(b []byte) []byte {
	b = append(b, wireMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.from))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.to))
	b = binary.LittleEndian.AppendUint64(b, h.incarnation)
	return appendText(b, h.cluster)
}

func readHello(r io.Reader) (h hello, err error) {
	var b [helloSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return h, err
	}
	f, err := cutMagic(b[:])
	if err != nil {
		return h, err
	}
	h.from = int(binary.LittleEndian.Uint32(f))
	h.to = int(binary.LittleEndian.Uint32(f[4:]))
	h.incarnation = binary.LittleEndian.Uint64(f[8:])
	h.cluster, err = readText(r, f[16:])
	return h, err
}

// reply answers a hello.
type reply struct {
	incarnation uint64
	refusal     string
}

func (a reply) append(b []byte) []byte {
	b = append(b, wireMagic...)
	b = binary.LittleEndian.AppendUint64(b, a.incarnation)
	return appendText(b, a.refusal)
}

func readReply(r io.Reader) (a reply, err error) {
	var b [replySize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return a, err
	}
	f, err := cutMagic(b[:])
	if err != nil {
		return a, err
	}
	a.incarnation = binary.LittleEndian.Uint64(f)
	a.refusal, err = readText(r, f[8:])
	return a, err
}

func cutMagic(b []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(b, []byte(wireMagic))
	if !ok {
		return nil, fmt.Errorf("begins with %x, not with %x: another program or version", b[:len(wireMagic)], wireMagic)
	}
	return rest, nil
}

const maxText = 1<<16 - 1

func appendText(b []byte, text string) []byte {
	text = text[:min(len(text), maxText)]
	b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	return append(b, text...)
}

func readText(r io.Reader, length []byte) (string, error) {
	text := make([]byte, binary.LittleEndian.Uint16(length))
	_, err := io.ReadFull(r, text)
	return string(text), err
}

// appendMessage appends a message as a frame.
func appendMessage(b []byte, m *pb.Message) ([]byte, error) {
	start := len(b)
	b = append(b, 0, 0, 0, 0, frameMessage)
	b, err := proto.MarshalOptions{}.MarshalAppend(b, m)
	if err != nil {
		return nil, err
	}
	size := len(b) - start - frameHeader
	if size > maxFrame {
		return nil, fmt.Errorf("%v of %d bytes: a frame holds %d", m.GetType(), size, maxFrame)
	}
	binary.LittleEndian.PutUint32(b[start:], uint32(size))
	return b, nil
}

// appendChunk appends a piece of a snapshot's data as a frame.
func appendChunk(b, data []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	b = append(b, frameChunk)
	return append(b, data...)
}

// decoder reads the frames of one connection. What it lets pass is a message
// that an honest peer could have sent at some time: the library takes it
// without a panic, whatever state it is in, once admissible has had its look.
type decoder struct {
	r        io.Reader
	from, to uint64
	voters   []uint64 // in order
	body     []byte
	snapshot []byte // chunks so far
}

// next reads frames up to the end of a message. bytes is the length of what it
// came in, for the account of what waits.
func (d *decoder) next() (m *pb.Message, bytes int, err error) {
	for {
		var head [frameHeader]byte
		if _, err := io.ReadFull(d.r, head[:]); err != nil {
			return nil, 0, err
		}
		size := int(binary.LittleEndian.Uint32(head[:]))
		if size > maxFrame {
			return nil, 0, fmt.Errorf("frame of %d bytes: at most %d are allowed", size, maxFrame)
		}
		switch kind := head[4]; kind {
		case frameMessage:
			d.body = slices.Grow(d.body[:0], size)[:size]
			if _, err := io.ReadFull(d.r, d.body); err != nil {
				return nil, 0, noEOF(err)
			}
			bytes += size
			m = new(pb.Message)
			if err := proto.Unmarshal(d.body, m); err != nil {
				return nil, 0, fmt.Errorf("not a message: %w", err)
			}
			if m.GetType() == pb.MsgSnap && m.GetSnapshot() != nil {
				m.Snapshot.Data, d.snapshot = d.snapshot, nil
				bytes += len(m.Snapshot.Data)
			}
			if err := d.check(m); err != nil {
				return nil, 0, fmt.Errorf("%v: %w", m.GetType(), err)
			}
			return m, bytes, nil
		case frameChunk:
			have := len(d.snapshot)
			if have+size > maxSnapshotBytes {
				return nil, 0, fmt.Errorf("snapshot of more than %d bytes", maxSnapshotBytes)
			}
			d.snapshot = slices.Grow(d.snapshot, size)[:have+size]
			if _, err := io.ReadFull(d.r, d.snapshot[have:]); err != nil {
				return nil, 0, noEOF(err)
			}
		default:
			return nil, 0, fmt.Errorf("frame of kind %d", kind)
		}
	}
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// check says what no honest peer sends.
func (d *decoder) check(m *pb.Message) error {
	switch m.GetType() {
	case pb.MsgApp, pb.MsgAppResp, pb.MsgHeartbeat, pb.MsgHeartbeatResp, pb.MsgSnap,
		pb.MsgVote, pb.MsgVoteResp, pb.MsgPreVote, pb.MsgPreVoteResp, pb.MsgTimeoutNow:
	default:
		// Among them MsgProp: followers do not forward.
		return errors.New("not a message between nodes")
	}
	if m.GetFrom() != d.from || m.GetTo() != d.to {
		return fmt.Errorf("from node %d to node %d, on a connection from node %d to node %d", m.GetFrom(), m.GetTo(), d.from, d.to)
	}
	if m.GetTerm() == 0 {
		return errors.New("without a term")
	}
	for _, n := range []uint64{m.GetTerm(), m.GetLogTerm(), m.GetIndex(), m.GetCommit(), m.GetRejectHint()} {
		if n > maxCounter {
			return fmt.Errorf("counter of %d", n)
		}
	}
	if len(m.GetResponses()) > 0 {
		return errors.New("with messages in it")
	}
	if m.GetType() == pb.MsgApp {
		term := m.GetLogTerm()
		for i, e := range m.GetEntries() {
			switch {
			case e.GetType() != pb.EntryNormal:
				return fmt.Errorf("entry of type %v: the members do not change", e.GetType())
			case e.GetIndex() != m.GetIndex()+1+uint64(i):
				return fmt.Errorf("entry %d where entry %d is due", e.GetIndex(), m.GetIndex()+1+uint64(i))
			case e.GetTerm() < max(term, 1) || e.GetTerm() > m.GetTerm():
				return fmt.Errorf("entry of term %d between terms %d and %d", e.GetTerm(), term, m.GetTerm())
			}
			term = e.GetTerm()
		}
	} else if len(m.GetEntries()) > 0 {
		return errors.New("with entries")
	}
	if m.GetType() == pb.MsgSnap {
		return d.checkSnapshot(m.GetSnapshot(), m.GetTerm())
	} else if m.GetSnapshot() != nil {
		return errors.New("with a snapshot")
	}
	return nil
}

func (d *decoder) checkSnapshot(s *pb.Snapshot, term uint64) error {
	meta := s.GetMetadata()
	if i := meta.GetIndex(); i == 0 || i > maxCounter {
		return fmt.Errorf("of index %d", i)
	}
	if t := meta.GetTerm(); t == 0 || t > term {
		return fmt.Errorf("of term %d in term %d", t, term)
	}
	cs := meta.GetConfState()
	if voters := slices.Sorted(slices.Values(cs.GetVoters())); !slices.Equal(voters, d.voters) ||
		len(cs.GetLearners())+len(cs.GetVotersOutgoing())+len(cs.GetLearnersNext()) > 0 || cs.GetAutoLeave() {
		return fmt.Errorf("of other members: %v", cs)
	}
	// The library would have it installed before anybody could find it damaged.
	return kv.New().Restore(bytes.NewReader(s.GetData()))
}
