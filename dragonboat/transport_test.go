package dragonboat

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"

	"raftrig/gateway/serve"
)

// endpoint is a transport with what it has received.
type endpoint struct {
	*transport
	addr    string
	batches chan raftpb.MessageBatch
	pieces  chan raftpb.Chunk
}

func newEndpoint(t *testing.T, peers map[int]string) *endpoint {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &endpoint{
		transport: newTransport(Config{Config: serve.Config{Peers: peers, DataDir: "x"}}, l),
		addr:      l.Addr().String(),
		batches:   make(chan raftpb.MessageBatch, 100),
		pieces:    make(chan raftpb.Chunk, 100),
	}
	e.host.Store(new(dragonboat.NodeHost))
	e.Create(config.NodeHostConfig{}, func(b raftpb.MessageBatch) { e.batches <- b },
		func(c raftpb.Chunk) bool { e.pieces <- c; return c.ChunkId < 9 })
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func receive[T any](t *testing.T, c chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
	}
	return v
}

var testPeers = map[int]string{1: "a:1", 2: "b:1"}

func (e *endpoint) connect(t *testing.T, to *endpoint) raftio.IConnection {
	t.Helper()
	c, err := e.GetConnection(context.Background(), to.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func batchOf(sizes ...int) raftpb.MessageBatch {
	m := raftpb.Message{Type: raftpb.Replicate, To: 1, From: 2, ShardID: shardID, Term: 7, Commit: 5}
	for i, n := range sizes {
		m.Entries = append(m.Entries, raftpb.Entry{Term: 7, Index: uint64(i + 1), Type: raftpb.EncodedEntry,
			Key: rand.Uint64(), Cmd: bytes.Repeat([]byte{byte(i + 1)}, n)})
	}
	return raftpb.MessageBatch{DeploymentId: 4, SourceAddress: "b:1", BinVer: raftio.TransportBinVersion, Requests: []raftpb.Message{m}}
}

func TestTransportCarriesMessagesAndChunks(t *testing.T) {
	a, b := newEndpoint(t, testPeers), newEndpoint(t, testPeers)
	c := a.connect(t, b)
	for _, sizes := range [][]int{{1}, {64, 64, 64}, {keptBufferBytes + 1, 3}, {5}, {1 << 16, 1 << 16}} {
		sent := batchOf(sizes...)
		if err := c.SendMessageBatch(sent); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, b.batches); !reflect.DeepEqual(got, sent) {
			t.Errorf("entries of %v bytes arrive different", sizes)
		}
	}
	s, err := a.GetSnapshotConnection(context.Background(), b.addr)
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(10) {
		if err := s.SendChunk(raftpb.Chunk{ShardID: shardID, ChunkId: id, Data: make([]byte, 1<<20)}); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, b.pieces); got.ChunkId != id || len(got.Data) != 1<<20 {
			t.Errorf("chunk %d: got %d with %d bytes", id, got.ChunkId, len(got.Data))
		}
	}
	// The receiver has refused the last one and is gone.
	s.(*frameWriter).conn.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := s.(*frameWriter).conn.Read(make([]byte, 1)); n != 0 || err == nil || isTimeout(err) {
		t.Errorf("the connection goes on: %v", err)
	}
	s.Close()
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// What was received belongs to the receiver: the map keeps it.
func TestTransportDoesNotReuseWhatItHandsOver(t *testing.T) {
	a, b := newEndpoint(t, testPeers), newEndpoint(t, testPeers)
	c := a.connect(t, b)
	var got []raftpb.MessageBatch
	for i := range 20 {
		m := batchOf(100)
		m.Requests[0].Entries[0].Cmd = bytes.Repeat([]byte{byte(i)}, 100)
		if err := c.SendMessageBatch(m); err != nil {
			t.Fatal(err)
		}
		got = append(got, receive(t, b.batches))
	}
	for i, m := range got {
		if cmd := m.Requests[0].Entries[0].Cmd; !bytes.Equal(cmd, bytes.Repeat([]byte{byte(i)}, 100)) {
			t.Errorf("command %d became %x", i, cmd)
		}
	}
}

func TestTransportRefusesOtherPeers(t *testing.T) {
	a, b := newEndpoint(t, testPeers), newEndpoint(t, map[int]string{1: "a:1", 2: "b:1", 3: "c:1"})
	for _, pair := range [][2]*endpoint{{a, b}, {b, a}} {
		if _, err := pair[0].GetConnection(context.Background(), pair[1].addr); err != errOtherPeers {
			t.Errorf("%v", err)
		}
		if _, err := pair[0].GetSnapshotConnection(context.Background(), pair[1].addr); err != errOtherPeers {
			t.Errorf("%v", err)
		}
	}
}

func frame(body []byte) []byte {
	f := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	f = binary.LittleEndian.AppendUint32(f, crc32.Checksum(body, castagnoli))
	return append(f, body...)
}

// What is not right ends its connection, and nothing else.
func TestTransportBadInput(t *testing.T) {
	a, b := newEndpoint(t, testPeers), newEndpoint(t, testPeers)
	good := a.connect(t, b)
	hello := func(kind byte) string {
		return helloMagic + string(kind) + string(binary.LittleEndian.AppendUint64(nil, b.deployment))
	}
	wrongSum := frame([]byte("0123"))
	wrongSum[4]++
	for name, sent := range map[string]string{
		"http":            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"kind":            hello('x'),
		"deployment":      hello(kindMessages)[:helloSize-1] + "!",
		"empty frame":     hello(kindMessages) + string(frame(nil)),
		"oversized frame": hello(kindMessages) + "\xff\xff\xff\xff\x00\x00\x00\x00",
		"checksum":        hello(kindMessages) + string(wrongSum),
		"no batch":        hello(kindMessages) + string(frame([]byte("not a batch"))),
		"no chunk":        hello(kindChunks) + string(frame(bytes.Repeat([]byte{0xff}, 99))),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", b.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, sent); err != nil {
				t.Fatal(err)
			}
			c.SetReadDeadline(time.Now().Add(time.Minute))
			answer, err := io.ReadAll(c)
			if isTimeout(err) || len(answer) > answerSize {
				t.Errorf("answers %x, %v: want the connection closed", answer, err)
			}
		})
	}
	sent := batchOf(10)
	if err := good.SendMessageBatch(sent); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, b.batches); !reflect.DeepEqual(got, sent) {
		t.Error("another connection has suffered")
	}
}

func TestTransportBoundsConnections(t *testing.T) {
	b := newEndpoint(t, testPeers)
	for i := range maxAccepted + 1 {
		c, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "%s%c%s", helloMagic, kindMessages, binary.LittleEndian.AppendUint64(nil, b.deployment))
		c.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = io.ReadFull(c, make([]byte, answerSize))
		if i < maxAccepted && err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if i == maxAccepted && (err == nil || isTimeout(err)) {
			t.Errorf("connection %d is taken: %v", i, err)
		}
	}
}

// A header alone costs no memory.
func TestFrameReaderGrowsWithContent(t *testing.T) {
	in := binary.LittleEndian.AppendUint32(nil, maxFrameBytes)
	in = append(in, make([]byte, 4+1000)...)
	f := frameReader{r: bytes.NewReader(in)}
	if _, err := f.next(); err != io.ErrUnexpectedEOF {
		t.Errorf("%v", err)
	}
	if f.body.Cap() > 1<<20 {
		t.Errorf("%d bytes for 1000", f.body.Cap())
	}
}

func FuzzFrames(f *testing.F) {
	b := batchOf(1, 64)
	body := make([]byte, b.SizeUpperLimit())
	n, _ := b.MarshalTo(body)
	f.Add(frame(body[:n]))
	chunk := raftpb.Chunk{ShardID: 1, ReplicaID: 2, Data: []byte("data"), Filepath: "x"}
	body, _ = chunk.Marshal()
	f.Add(append(frame(body), frame(body)...))
	f.Add(frame([]byte("x")))
	f.Add([]byte("\x00\x00\x00\x05"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := frameReader{r: bytes.NewReader(in)}
		rest := in
		for {
			body, err := r.next()
			if err != nil {
				break
			}
			again := frame(body)
			if !bytes.HasPrefix(rest, again) {
				t.Fatalf("%x is read from %x", body, rest)
			}
			rest = rest[len(again):]
			var b raftpb.MessageBatch
			if err := decode(&b, body); err != nil && !strings.HasPrefix(err.Error(), "a malformed message: ") {
				t.Error(err)
			}
			decode(new(raftpb.Chunk), body)
		}
	})
}

// FuzzDecode has no checksum in its way.
func FuzzDecode(f *testing.F) {
	b := batchOf(1, 64)
	body := make([]byte, b.SizeUpperLimit())
	n, _ := b.MarshalTo(body)
	f.Add(body[:n])
	chunk := raftpb.Chunk{ShardID: 1, ReplicaID: 2, Data: []byte("data"), Filepath: "x"}
	body, _ = chunk.Marshal()
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		decode(new(raftpb.MessageBatch), body)
		decode(new(raftpb.Chunk), body)
	})
}
