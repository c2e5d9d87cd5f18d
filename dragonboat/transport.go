package dragonboat

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/raftpb"

	"raftrig/gateway"
)

// A connection goes one way. It begins with a hello:
//
//	magic       7 bytes, ends in the version of the format
//	kind        1 byte: messages or chunks of a snapshot
//	deployment  8 bytes, the same on all nodes of a cluster
//
// The other side answers with its own deployment and closes the connection if
// the two differ. Then come frames:
//
//	length      4 bytes, of the body
//	checksum    4 bytes, CRC-32C of the body
//	body        a raftpb.MessageBatch or raftpb.Chunk
//
// Numbers are little-endian.
const (
	helloMagic = "rrigdb\x01"
	helloSize  = len(helloMagic) + 1 + 8
	answerSize = 8
	frameSize  = 8

	kindMessages = 'm'
	kindChunks   = 's'

	// The library makes batches of up to 64 MiB, and one entry may go beyond.
	maxFrameBytes = 80 << 20
	// Buffers that have grown beyond this for a frame are not kept.
	keptBufferBytes = 4 << 20
	// Peers hold a connection for messages and some for snapshots.
	maxAccepted = 64

	dialTimeout  = 5 * time.Second
	helloTimeout = 5 * time.Second
	// A peer that takes nothing for so long is given up, and dialled again.
	writeTimeout = 10 * time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// transport carries the library's messages over TCP. The library has one of its
// own, which makes room for whatever length a frame's header says, dials from
// any address of the host, and writes a message in three pieces; and it has no
// place for what clamp does.
type transport struct {
	listener   net.Listener
	deployment uint64
	inMemory   bool
	host       atomic.Pointer[dragonboat.NodeHost] // set when it can be asked
	behind     chan struct{}                       // a token: a heartbeat was clamped

	messages raftio.MessageHandler
	chunks   raftio.ChunkHandler

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // accepted
	closed bool
	serves sync.WaitGroup
}

var (
	_ config.TransportFactory = (*transport)(nil)
	_ raftio.ITransport       = (*transport)(nil)
)

func newTransport(cfg Config, l net.Listener) *transport {
	return &transport{
		listener:   l,
		deployment: cfg.deployment(),
		inMemory:   cfg.DataDir == "",
		behind:     make(chan struct{}, 1),
		conns:      make(map[net.Conn]struct{}),
	}
}

// Create implements config.TransportFactory. There is one transport for the
// node: the listener is open already.
func (t *transport) Create(_ config.NodeHostConfig, messages raftio.MessageHandler, chunks raftio.ChunkHandler) raftio.ITransport {
	t.messages, t.chunks = messages, chunks
	return t
}

// Validate implements config.TransportFactory.
func (t *transport) Validate(addr string) bool {
	_, _, err := net.SplitHostPort(addr)
	return err == nil
}

// Name implements raftio.ITransport.
func (t *transport) Name() string { return "raftrig-tcp" }

// Start implements raftio.ITransport.
func (t *transport) Start() error {
	t.serves.Go(t.accept)
	return nil
}

// Close implements raftio.ITransport. Connections that were dialled are the
// library's to close.
func (t *transport) Close() error {
	t.mu.Lock()
	t.closed = true
	for c := range t.conns {
		c.Close()
	}
	t.mu.Unlock()
	err := t.listener.Close()
	t.serves.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (t *transport) accept() {
	for {
		c, err := t.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			logs.error("accept on %v: %v", t.listener.Addr(), err)
			time.Sleep(busyPoll) // out of files, mostly
			continue
		}
		t.mu.Lock()
		switch {
		case t.closed, len(t.conns) == maxAccepted:
			c.Close()
		default:
			t.conns[c] = struct{}{}
			t.serves.Go(func() {
				if err := t.serve(c); err != nil {
					logs.error("raft connection from %v: %v", c.RemoteAddr(), err)
				}
				c.Close()
				t.mu.Lock()
				delete(t.conns, c)
				t.mu.Unlock()
			})
		}
		t.mu.Unlock()
	}
}

// serve hands over what a connection brings, until it ends.
func (t *transport) serve(c net.Conn) error {
	kind, err := t.greeted(c)
	if err != nil {
		return err
	}
	in := frameReader{r: bufio.NewReaderSize(c, 64<<10)}
	for {
		body, err := in.next()
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(net.Error)) {
				return nil // gone
			}
			return err
		}
		if kind == kindMessages {
			var batch raftpb.MessageBatch
			if err := decode(&batch, body); err != nil {
				return err
			}
			if t.clamp(batch.Requests) {
				t.messages(batch)
			}
			continue
		}
		var chunk raftpb.Chunk
		if err := decode(&chunk, body); err != nil {
			return err
		}
		if !t.chunks(chunk) {
			return nil // the library has said why
		}
	}
}

// clamp lets a node in memory come back. A leader tells with its heartbeats up
// to where a follower's log, as it remembers it, is committed. A follower that
// has lost its log does not have that much, which the library takes for
// corruption. An earlier index is always right to tell, so this node is told of
// no more than it has; the leader finds out where its log ends when it sends
// entries, which askForEntries makes it do. It says false when the library is not
// ready for messages.
func (t *transport) clamp(messages []raftpb.Message) bool {
	host := t.host.Load()
	if host == nil {
		return false
	}
	if !t.inMemory {
		return true
	}
	for i := range messages {
		m := &messages[i]
		if m.Type != raftpb.Heartbeat || m.Commit == 0 {
			continue
		}
		log, err := host.GetLogReader(m.ShardID)
		if err != nil {
			return false
		}
		if _, last := log.GetRange(); m.Commit > last {
			m.Commit = last
			gateway.Notify(t.behind)
		}
	}
	return true
}

// greeted answers the hello of a connection that was accepted.
func (t *transport) greeted(c net.Conn) (kind byte, err error) {
	c.SetDeadline(time.Now().Add(helloTimeout))
	defer c.SetDeadline(time.Time{})
	var hello [helloSize]byte
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return 0, fmt.Errorf("no hello: %w", err)
	}
	kind = hello[len(helloMagic)]
	if string(hello[:len(helloMagic)]) != helloMagic || kind != kindMessages && kind != kindChunks {
		return 0, fmt.Errorf("begins with %x: not a node, or one of another version", hello[:len(helloMagic)+1])
	}
	if _, err := c.Write(binary.LittleEndian.AppendUint64(nil, t.deployment)); err != nil {
		return 0, err
	}
	if d := binary.LittleEndian.Uint64(hello[helloSize-8:]); d != t.deployment {
		return 0, errOtherPeers
	}
	return kind, nil
}

var errOtherPeers = errors.New("its list of peers differs from this node's: give all nodes the same -peers")

func (t *transport) dial(ctx context.Context, target string, kind byte) (net.Conn, error) {
	// From the node's own address too: nodes that share a host are told apart
	// by it, for delays between them.
	d := net.Dialer{Timeout: dialTimeout}
	if own := ownIP(t.listener); own != nil {
		d.LocalAddr = own
	}
	c, err := d.DialContext(ctx, "tcp", target)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(helloTimeout))
	hello := append([]byte(helloMagic), kind)
	hello = binary.LittleEndian.AppendUint64(hello, t.deployment)
	_, err = c.Write(hello)
	var answer [answerSize]byte
	if err == nil {
		_, err = io.ReadFull(c, answer[:])
	}
	if err == nil && binary.LittleEndian.Uint64(answer[:]) != t.deployment {
		err = errOtherPeers
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.SetDeadline(time.Time{})
	return c, nil
}

// GetConnection implements raftio.ITransport.
func (t *transport) GetConnection(ctx context.Context, target string) (raftio.IConnection, error) {
	c, err := t.dial(ctx, target, kindMessages)
	if err != nil {
		return nil, err
	}
	return &frameWriter{conn: c}, nil
}

// GetSnapshotConnection implements raftio.ITransport.
func (t *transport) GetSnapshotConnection(ctx context.Context, target string) (raftio.ISnapshotConnection, error) {
	c, err := t.dial(ctx, target, kindChunks)
	if err != nil {
		return nil, err
	}
	return &frameWriter{conn: c}, nil
}

// frameWriter is a connection that was dialled.
type frameWriter struct {
	conn   net.Conn
	buffer []byte
}

// Close implements raftio.IConnection and raftio.ISnapshotConnection.
func (w *frameWriter) Close() { w.conn.Close() }

// SendMessageBatch implements raftio.IConnection.
func (w *frameWriter) SendMessageBatch(batch raftpb.MessageBatch) error {
	return w.send(&batch, batch.SizeUpperLimit())
}

// SendChunk implements raftio.ISnapshotConnection.
func (w *frameWriter) SendChunk(chunk raftpb.Chunk) error { return w.send(&chunk, chunk.Size()) }

func (w *frameWriter) send(m raftpb.Marshaler, atMost int) error {
	if cap(w.buffer) < frameSize+atMost {
		w.buffer = make([]byte, frameSize+atMost)
	}
	buffer := w.buffer[:frameSize+atMost]
	if cap(w.buffer) > keptBufferBytes {
		w.buffer = nil
	}
	n, err := m.MarshalTo(buffer[frameSize:])
	if err != nil {
		return err
	}
	if n > maxFrameBytes {
		return fmt.Errorf("a message of %d bytes: at most %d are possible", n, maxFrameBytes)
	}
	frame := buffer[:frameSize+n]
	binary.LittleEndian.PutUint32(frame, uint32(n))
	binary.LittleEndian.PutUint32(frame[4:], crc32.Checksum(frame[frameSize:], castagnoli))
	w.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err = w.conn.Write(frame)
	return err
}

// frameReader reads frames. Its memory grows with what has come, not with what
// a header promises.
type frameReader struct {
	r    io.Reader
	body bytes.Buffer
}

// next returns the body of the next frame, which is valid until the next call.
// The error is io.EOF at the end of a frame only.
func (f *frameReader) next() ([]byte, error) {
	var head [frameSize]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > maxFrameBytes {
		return nil, fmt.Errorf("a frame of %d bytes: 1 to %d are possible", n, maxFrameBytes)
	}
	if f.body.Cap() > keptBufferBytes {
		f.body = bytes.Buffer{}
	}
	f.body.Reset()
	if _, err := io.CopyN(&f.body, f.r, int64(n)); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if got, want := crc32.Checksum(f.body.Bytes(), castagnoli), binary.LittleEndian.Uint32(head[4:]); got != want {
		return nil, fmt.Errorf("a frame's checksum is %08x, its content has %08x", want, got)
	}
	return f.body.Bytes(), nil
}

// decode unmarshals a body. The library's decoder indexes past the end of some
// malformed input. What it decodes does not refer to the body.
func decode(m raftpb.Unmarshaler, body []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a malformed message: %v", p)
		}
	}()
	if err := m.Unmarshal(body); err != nil {
		return fmt.Errorf("a malformed message: %w", err)
	}
	return nil
}
