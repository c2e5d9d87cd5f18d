package etcdraft

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"raftrig/gateway/kv"
)

func message(t pb.MessageType, set func(*pb.Message)) *pb.Message {
	m := &pb.Message{Type: t.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(3))}
	if set != nil {
		set(m)
	}
	return m
}

func entry(index, term uint64, data string) *pb.Entry {
	e := &pb.Entry{Type: pb.EntryNormal.Enum(), Index: new(index), Term: new(term)}
	if data != "" {
		e.Data = []byte(data)
	}
	return e
}

func appendRequest(set func(*pb.Message)) *pb.Message {
	return message(pb.MsgApp, func(m *pb.Message) {
		m.LogTerm, m.Index, m.Commit = new(uint64(2)), new(uint64(7)), new(uint64(6))
		m.Entries = []*pb.Entry{entry(8, 2, "eight bytes and more"), entry(9, 3, "")}
		if set != nil {
			set(m)
		}
	})
}

// state is the data of a snapshot.
func state(t testing.TB) []byte {
	t.Helper()
	m := kv.New()
	m.Apply(5, kv.Append(nil, 1, []byte("value")))
	var b bytes.Buffer
	if _, err := m.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func snapshotMessage(t testing.TB, set func(*pb.Message)) *pb.Message {
	return message(pb.MsgSnap, func(m *pb.Message) {
		m.Snapshot = newSnapshot(20, 2, []uint64{1, 2, 3}, state(t))
		if set != nil {
			set(m)
		}
	})
}

// frames is what a sender writes for the messages.
func frames(t testing.TB, messages ...*pb.Message) (b []byte) {
	t.Helper()
	for _, m := range messages {
		if m.GetSnapshot() != nil {
			for _, part := range [][]byte{m.Snapshot.Data[:10], m.Snapshot.Data[10:]} {
				b = appendChunk(b, part)
			}
			m = proto.Clone(m).(*pb.Message)
			m.Snapshot.Data = nil
		}
		var err error
		if b, err = appendMessage(b, m); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func newDecoder(b []byte) *decoder {
	return &decoder{r: bytes.NewReader(b), from: 2, to: 1, voters: []uint64{1, 2, 3}}
}

func TestFrames(t *testing.T) {
	want := []*pb.Message{
		appendRequest(nil),
		message(pb.MsgHeartbeat, func(m *pb.Message) { m.Commit = new(uint64(4)) }),
		snapshotMessage(t, nil),
		message(pb.MsgAppResp, func(m *pb.Message) { m.Index, m.Reject, m.RejectHint = new(uint64(9)), new(true), new(uint64(8)) }),
		snapshotMessage(t, func(m *pb.Message) { m.Snapshot.Metadata.Index = new(uint64(21)) }),
	}
	b := frames(t, want...)
	d := newDecoder(b)
	total := 0
	for _, w := range want {
		m, n, err := d.next()
		if err != nil || !proto.Equal(m, w) {
			t.Fatalf("%v, %v, want %v", m, err, w)
		}
		total += n
	}
	if _, _, err := d.next(); err != io.EOF {
		t.Error(err)
	}
	if total < len(b)/2 || total > len(b) {
		t.Errorf("accounts for %d of %d bytes", total, len(b))
	}
	for cut := 1; cut < len(b); cut += 7 {
		d := newDecoder(b[:cut])
		var err error
		for err == nil {
			_, _, err = d.next()
		}
		if !isDisconnect(err) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
}

// What no honest peer sends ends the connection.
func TestHostileFrames(t *testing.T) {
	raw := func(size uint32, kind byte, body string) []byte {
		b := binary.LittleEndian.AppendUint32(nil, size)
		return append(append(b, kind), body...)
	}
	for name, tc := range map[string]struct {
		bytes []byte
		want  string
	}{
		"oversized":        {raw(maxFrame+1, frameMessage, ""), "at most"},
		"oversized, chunk": {raw(math.MaxUint32, frameChunk, ""), "at most"},
		"kind":             {raw(0, 9, ""), "kind 9"},
		"garbage":          {raw(3, frameMessage, "\xff\xff\xff"), "not a message"},
		"empty":            {raw(0, frameMessage, ""), "not a message between nodes"},
		"proposal":         {frames(t, message(pb.MsgProp, func(m *pb.Message) { m.Entries = []*pb.Entry{{Data: []byte("x")}} })), "not a message between nodes"},
		"local":            {frames(t, message(pb.MsgHup, nil)), "not a message between nodes"},
		"storage":          {frames(t, message(pb.MsgStorageAppendResp, nil)), "not a message between nodes"},
		"from another":     {frames(t, message(pb.MsgVote, func(m *pb.Message) { m.From = new(uint64(3)) })), "from node 3"},
		"to another":       {frames(t, message(pb.MsgVote, func(m *pb.Message) { m.To = new(uint64(3)) })), "to node 3"},
		"no term":          {frames(t, message(pb.MsgVote, func(m *pb.Message) { m.Term = nil })), "without a term"},
		"last term":        {frames(t, message(pb.MsgVote, func(m *pb.Message) { m.Term = new(uint64(math.MaxUint64)) })), "counter"},
		"last index":       {frames(t, message(pb.MsgAppResp, func(m *pb.Message) { m.Index = new(uint64(math.MaxUint64)) })), "counter"},
		"responses":        {frames(t, message(pb.MsgVote, func(m *pb.Message) { m.Responses = []*pb.Message{message(pb.MsgHup, nil)} })), "messages in it"},
		"entries":          {frames(t, message(pb.MsgVote, func(m *pb.Message) { m.Entries = []*pb.Entry{entry(1, 1, "")} })), "with entries"},
		"gap":              {frames(t, appendRequest(func(m *pb.Message) { m.Entries[1].Index = new(uint64(10)) })), "entry 10 where entry 9 is due"},
		"term falls":       {frames(t, appendRequest(func(m *pb.Message) { m.Entries[0].Term = new(uint64(1)) })), "term 1"},
		"future term":      {frames(t, appendRequest(func(m *pb.Message) { m.Entries[1].Term = new(uint64(4)) })), "term 4"},
		"members change":   {frames(t, appendRequest(func(m *pb.Message) { m.Entries[0].Type = pb.EntryConfChange.Enum() })), "members do not change"},
		"no snapshot":      {frames(t, message(pb.MsgSnap, nil)), "of index 0"},
		"other members":    {frames(t, snapshotMessage(t, func(m *pb.Message) { m.Snapshot.Metadata.ConfState.Voters = []uint64{2, 3} })), "other members"},
		"learners":         {frames(t, snapshotMessage(t, func(m *pb.Message) { m.Snapshot.Metadata.ConfState.Learners = []uint64{3} })), "other members"},
		"damaged":          {frames(t, snapshotMessage(t, func(m *pb.Message) { m.Snapshot.Data[20] ^= 1 })), "key-value map"},
		"snapshot's term":  {frames(t, snapshotMessage(t, func(m *pb.Message) { m.Snapshot.Metadata.Term = new(uint64(4)) })), "term 4"},
	} {
		m, _, err := newDecoder(tc.bytes).next()
		if err == nil || m != nil || !strings.Contains(err.Error(), tc.want) || isDisconnect(err) {
			t.Errorf("%s: %v, %v, want %q", name, m, err, tc.want)
		}
	}
}

func TestHandshake(t *testing.T) {
	h := hello{from: 2, to: 1, incarnation: 77, cluster: "1=a:1,2=b:1"}
	if got, err := readHello(bytes.NewReader(h.append(nil))); err != nil || got != h {
		t.Errorf("%+v, %v", got, err)
	}
	a := reply{incarnation: 78, refusal: strings.Repeat("x", 1<<17)}
	got, err := readReply(bytes.NewReader(a.append(nil)))
	if err != nil || got.incarnation != 78 || len(got.refusal) != maxText {
		t.Errorf("%d bytes of %d, %v", len(got.refusal), got.incarnation, err)
	}
	if _, err := readHello(strings.NewReader("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Error(err)
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add(hello{from: 2, to: 1, incarnation: 77, cluster: "1=a:1,2=b:1"}.append(nil))
	f.Add(reply{incarnation: 1, refusal: "no"}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := readHello(bytes.NewReader(b)); err == nil && !bytes.HasPrefix(b, h.append(nil)) {
			t.Errorf("%+v", h)
		}
		if a, err := readReply(bytes.NewReader(b)); err == nil && !bytes.HasPrefix(b, a.append(nil)) {
			t.Errorf("%+v", a)
		}
	})
}

// FuzzFrames gives what the decoder lets pass to the library, in each of its
// states: it must not panic.
func FuzzFrames(f *testing.F) {
	f.Add(uint8(0), frames(f, appendRequest(nil), message(pb.MsgTimeoutNow, nil)))
	f.Add(uint8(1), frames(f, snapshotMessage(f, nil), message(pb.MsgVoteResp, nil), message(pb.MsgPreVoteResp, nil)))
	f.Add(uint8(2), frames(f, message(pb.MsgHeartbeat, func(m *pb.Message) { m.Commit = new(uint64(100)) }),
		message(pb.MsgVote, func(m *pb.Message) { m.Term = new(uint64(maxCounter)) })))
	f.Add(uint8(3), frames(f, message(pb.MsgAppResp, func(m *pb.Message) { m.Index = new(uint64(100)) }), message(pb.MsgHeartbeatResp, nil),
		message(pb.MsgAppResp, func(m *pb.Message) {
			m.Index, m.Reject, m.RejectHint, m.LogTerm = new(uint64(5)), new(true), new(uint64(maxCounter)), new(uint64(3))
		})))
	f.Add(uint8(4), frames(f, message(pb.MsgPreVote, nil), message(pb.MsgApp, func(m *pb.Message) { m.Entries = []*pb.Entry{entry(1, 3, "x")} })))
	f.Fuzz(func(t *testing.T, state uint8, b []byte) {
		n := bareNode(t, state)
		d := newDecoder(b)
		for {
			m, _, err := d.next()
			if err != nil {
				return
			}
			n.in.deliver([]event{{kind: received, msg: m, peer: 2, incarnation: 7}}, 1)
			if err := n.turn(); err != nil {
				t.Fatal(err)
			}
			for range 25 { // elections, heartbeats
				n.raft.Tick()
			}
		}
	})
}

// bareNode is a node without a network, with a log, as follower, candidate or
// leader, its log compacted or not.
func bareNode(t *testing.T, state uint8) *Node {
	t.Helper()
	n := &Node{in: newMailbox(), log: &logger{out: io.Discard}}
	n.cfg = Config{}.withDefaults()
	n.cfg.ID, n.cfg.State = 1, kv.New()
	n.transport = newTransport(1, map[int]string{1: "a:1", 2: "b:1", 3: "c:1"}, nil, n.in, n.log)
	n.loop = newLoop(n.transport.voters)
	n.known[2], n.known[3] = 7, 8
	n.storage.ApplySnapshot(newSnapshot(0, 0, n.voters, nil))
	var entries []*pb.Entry
	for i := range uint64(9) {
		entries = append(entries, entry(1+i, 1+i/6, string(kv.Append(nil, i, nil))))
	}
	n.storage.Append(entries)
	n.storage.SetHardState(&pb.HardState{Term: new(uint64(2)), Vote: new(uint64(0)), Commit: new(uint64(5))})
	if state&4 != 0 {
		n.storage.CreateSnapshot(5, nil, nil)
		n.storage.Compact(4)
		n.applied = 5
	}
	var err error
	n.raft, err = raft.NewRawNode(n.raftConfig())
	if err != nil {
		t.Fatal(err)
	}
	n.publish()
	if state&3 > 0 {
		n.raft.Campaign()
	}
	if state&3 > 1 {
		n.raft.Step(message(pb.MsgPreVoteResp, nil))
		n.process()
	}
	if state&3 > 2 {
		n.raft.Step(message(pb.MsgVoteResp, nil))
	}
	if err := n.process(); err != nil {
		t.Fatal(err)
	}
	want := []raft.StateType{raft.StateFollower, raft.StatePreCandidate, raft.StateCandidate, raft.StateLeader}[state&3]
	if got := n.raft.BasicStatus().RaftState; got != want {
		t.Fatalf("is %v, want %v", got, want)
	}
	return n
}

func TestWaiters(t *testing.T) {
	w := newWaiters()
	r := rand.New(rand.NewPCG(1, 2))
	next, first := uint32(0), uint32(0)
	for range 20000 {
		if r.IntN(5) < 3 {
			w.push(waiter{id: next, term: 1 + uint64(next)/3000})
			next++
			continue
		}
		if _, ok := w.pop(1 + uint64(first)/3000 + 1); ok {
			t.Fatal("popped a waiter of another term")
		}
		if p, ok := w.pop(1 + uint64(first)/3000); ok != (first < next) || ok && p.id != first {
			t.Fatalf("popped %d, want %d of %d", p.id, first, next)
		} else if ok {
			first++
		}
	}
	for !w.empty() {
		if p := w.shift(); p.id != first {
			t.Fatalf("shifted %d, want %d", p.id, first)
		}
		first++
	}
	if first != next {
		t.Errorf("%d of %d", first, next)
	}
}
