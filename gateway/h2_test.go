package gateway

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// boundedOutput collects what a connection sends, up to a capacity.
type boundedOutput struct {
	capacity int
	b        []byte
}

func (o *boundedOutput) Room() int { return o.capacity - len(o.b) }

func (o *boundedOutput) Write(b []byte) bool {
	if len(b) > o.Room() {
		return false
	}
	o.b = append(o.b, b...)
	return true
}

// h2Pair is a connection under test, the frames it sent, and what it received.
type h2Pair struct {
	h        *h2Conn
	out      *boundedOutput
	messages [][]byte
}

func newH2Pair(tb testing.TB) *h2Pair {
	p := &h2Pair{out: &boundedOutput{capacity: 1 << 20}}
	p.h = &h2Conn{out: p.out, onMessage: func(b []byte) error {
		p.messages = append(p.messages, bytes.Clone(b))
		return nil
	}}
	if err := p.h.start("127.0.0.1:1"); err != nil {
		tb.Fatal(err)
	}
	return p
}

// sent returns the frames sent since the last call; none of them DATA, whose
// payload a framer does not keep.
func (p *h2Pair) sent(tb testing.TB) []http2.Frame {
	tb.Helper()
	b := bytes.TrimPrefix(p.out.b, []byte(http2.ClientPreface))
	p.out.b = p.out.b[:0]
	r := http2.NewFramer(nil, bytes.NewReader(bytes.Clone(b)))
	var all []http2.Frame
	for {
		f, err := r.ReadFrame()
		if err == io.EOF {
			return all
		}
		if err != nil {
			tb.Fatalf("sent something that is not frames: %v", err)
		}
		all = append(all, f)
	}
}

// serve writes frames as a server would.
func serve(f func(*http2.Framer)) []byte {
	var b bytes.Buffer
	w := http2.NewFramer(&b, nil)
	w.AllowIllegalWrites = true
	f(w)
	return b.Bytes()
}

func headerBlock(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

var responseHeaders = headerBlock(":status", "200", "content-type", "application/grpc")

// opening is what a server sends before its first message.
func opening(settings ...http2.Setting) []byte {
	return serve(func(w *http2.Framer) {
		w.WriteSettings(settings...)
		w.WriteSettingsAck()
		w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: responseHeaders, EndHeaders: true})
	})
}

func grpcMessage(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

func (p *h2Pair) mustReceive(tb testing.TB, b []byte) {
	tb.Helper()
	n, err := p.h.receive(b)
	if err != nil {
		tb.Fatal(err)
	}
	if n != len(b) {
		tb.Fatalf("took %d of %d bytes", n, len(b))
	}
}

func TestH2Start(t *testing.T) {
	p := newH2Pair(t)
	if !bytes.HasPrefix(p.out.b, []byte(http2.ClientPreface)) {
		t.Fatalf("begins with %q", p.out.b[:24])
	}
	r := http2.NewFramer(nil, bytes.NewReader(p.out.b[len(http2.ClientPreface):]))
	r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f, err := r.ReadFrame()
	if _, ok := f.(*http2.SettingsFrame); !ok {
		t.Fatalf("%v, %v", f, err)
	}
	f, err = r.ReadFrame()
	if w, ok := f.(*http2.WindowUpdateFrame); !ok || w.StreamID != 0 || w.Increment != recvWindow-65535 {
		t.Fatalf("%v, %v", f, err)
	}
	f, err = r.ReadFrame()
	m, ok := f.(*http2.MetaHeadersFrame)
	if !ok || m.StreamID != 1 || m.StreamEnded() {
		t.Fatalf("%v, %v", f, err)
	}
	got := map[string]string{}
	for _, f := range m.Fields {
		got[f.Name] = f.Value
	}
	for name, want := range map[string]string{":method": "POST", ":path": "/raftrig.gateway.v1.Gateway/Propose",
		":authority": "127.0.0.1:1", "content-type": "application/grpc", "te": "trailers"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

// Messages of all sizes arrive whole however frames and reads cut them.
func TestH2Messages(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for round := range 50 {
		var stream []byte
		var want [][]byte
		for range 1 + rng.IntN(20) {
			m := make([]byte, rng.IntN(1<<rng.IntN(17)))
			for i := range m {
				m[i] = byte(rng.Uint32())
			}
			want = append(want, m)
			stream = append(stream, grpcMessage(m)...)
		}
		b := opening()
		for len(stream) > 0 {
			n := min(len(stream), 1+rng.IntN(1<<rng.IntN(14)))
			b = append(b, serve(func(w *http2.Framer) {
				if rng.IntN(4) == 0 {
					w.WriteDataPadded(1, false, stream[:n], make([]byte, rng.IntN(255)))
				} else {
					w.WriteData(1, false, stream[:n])
				}
				if rng.IntN(8) == 0 {
					w.WriteRawFrame(0xbe, 0, 99, []byte("unknown types are skipped"))
				}
			})...)
			stream = stream[n:]
		}
		p := newH2Pair(t)
		var have []byte
		for len(b) > 0 || len(have) > 0 {
			n := min(len(b), rng.IntN(1<<rng.IntN(16)))
			have = append(have, b[:n]...)
			b = b[n:]
			used, err := p.h.receive(have)
			if err != nil {
				t.Fatal(err)
			}
			have = have[used:]
		}
		if len(p.messages) != len(want) {
			t.Fatalf("round %d: %d messages, want %d", round, len(p.messages), len(want))
		}
		for i := range want {
			if !bytes.Equal(p.messages[i], want[i]) {
				t.Fatalf("round %d: message %d differs", round, i)
			}
		}
	}
}

// What a server sends beyond half the window is granted to it again, on the
// stream and on the connection.
func TestH2WindowUpdates(t *testing.T) {
	p := newH2Pair(t)
	p.sent(t)
	p.mustReceive(t, opening())
	p.sent(t)
	granted, received := map[uint32]int{}, 0
	frame := serve(func(w *http2.Framer) { w.WriteData(1, false, grpcMessage(make([]byte, 16000))) })
	for received < 3*recvWindow {
		p.mustReceive(t, frame)
		received += len(frame) - frameHeaderLen
		for _, f := range p.sent(t) {
			w, ok := f.(*http2.WindowUpdateFrame)
			if !ok {
				t.Fatalf("sent %v", f)
			}
			granted[w.StreamID] += int(w.Increment)
		}
	}
	for _, stream := range []uint32{0, 1} {
		if left := granted[stream] + recvWindow - received; left < recvWindow/2 || left > recvWindow {
			t.Errorf("stream %d: the server has a window of %d of %d left", stream, left, recvWindow)
		}
	}
}

// The sender never exceeds a window or a frame's size, whatever the peer's
// settings, uses what it has, and loses no byte.
func TestH2SendFlowControl(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for range 30 {
		p := newH2Pair(t)
		p.sent(t)
		conn, stream := int64(65535), int64(65535)
		initial := int64(65535)
		maxFrame := 16384
		var want, got []byte
		take := func() {
			t.Helper()
			b := p.out.b
			for len(b) > 0 {
				n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
				if b[3] == frameData {
					got = append(got, b[9:9+n]...)
					conn, stream = conn-int64(n), stream-int64(n)
					if n > maxFrame || conn < 0 || stream < 0 {
						t.Fatalf("DATA of %d leaves windows of %d and %d; frames up to %d are allowed", n, conn, stream, maxFrame)
					}
				}
				b = b[9+n:]
			}
			p.out.b = p.out.b[:0]
		}
		p.mustReceive(t, opening())
		p.out.capacity = 300 + rng.IntN(100_000)
		for range 200 {
			switch rng.IntN(6) {
			case 0:
				n := int64(1 + rng.IntN(100_000))
				conn += n
				p.mustReceive(t, serve(func(w *http2.Framer) { w.WriteWindowUpdate(0, uint32(n)) }))
			case 1:
				n := int64(1 + rng.IntN(100_000))
				stream += n
				p.mustReceive(t, serve(func(w *http2.Framer) { w.WriteWindowUpdate(1, uint32(n)) }))
			case 2:
				take() // make room for the acknowledgement
				n := int64(rng.IntN(200_000))
				stream, initial = stream+n-initial, n
				maxFrame = 16384 + rng.IntN(100_000)
				p.mustReceive(t, serve(func(w *http2.Framer) {
					w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n)},
						http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(maxFrame)})
				}))
			case 3:
				take()
			default:
				if !p.h.ended {
					p.h.begin()
					m := make([]byte, rng.IntN(1<<rng.IntN(17)))
					for i := range m {
						m[i] = byte(rng.Uint32())
					}
					p.h.msg = append(p.h.msg, m...)
					want = append(want, grpcMessage(m)...)
					p.h.end()
				}
			}
			p.h.push()
			if p.h.ended && conn > 0 && stream > 0 {
				// Only the output may hold it back.
				take()
				p.h.push()
			}
		}
		take()
		for p.h.ended {
			conn, stream = conn+1<<20, stream+1<<20
			p.mustReceive(t, serve(func(w *http2.Framer) {
				w.WriteWindowUpdate(0, 1<<20)
				w.WriteWindowUpdate(1, 1<<20)
			}))
			p.h.push()
			take()
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes arrived that differ from the %d sent", len(got), len(want))
		}
	}
}

func TestH2Ping(t *testing.T) {
	p := newH2Pair(t)
	p.mustReceive(t, opening())
	p.sent(t)
	data := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	p.mustReceive(t, serve(func(w *http2.Framer) {
		w.WritePing(false, data)
		w.WritePing(true, data) // an answer to what we did not ask: nothing
	}))
	f := p.sent(t)
	if len(f) != 1 {
		t.Fatalf("sent %v", f)
	}
	if ping, ok := f[0].(*http2.PingFrame); !ok || !ping.IsAck() || ping.Data != data {
		t.Errorf("sent %v", f[0])
	}
	p.out.capacity = 1000
	_, err := p.h.receive(bytes.Repeat(serve(func(w *http2.Framer) { w.WritePing(false, data) }), 100))
	if err == nil || !strings.Contains(err.Error(), "more acknowledgements than it reads") {
		t.Errorf("a flood of PINGs: %v", err)
	}
}

func TestH2Continuation(t *testing.T) {
	p := newH2Pair(t)
	p.mustReceive(t, serve(func(w *http2.Framer) {
		w.WriteSettings()
		w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: responseHeaders[:3], PadLength: 7,
			Priority: http2.PriorityParam{Weight: 3}})
		w.WriteContinuation(1, false, responseHeaders[3:3])
		w.WriteContinuation(1, true, responseHeaders[3:])
		w.WriteData(1, false, grpcMessage([]byte("hello")))
	}))
	if len(p.messages) != 1 || string(p.messages[0]) != "hello" {
		t.Errorf("%q", p.messages)
	}
}

func TestH2GoAwayDrains(t *testing.T) {
	p := newH2Pair(t)
	p.mustReceive(t, opening())
	p.mustReceive(t, serve(func(w *http2.Framer) {
		w.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
		w.WriteData(1, false, grpcMessage([]byte("still answered")))
	}))
	if !p.h.draining || len(p.messages) != 1 {
		t.Errorf("draining %v, %d messages", p.h.draining, len(p.messages))
	}
}

// Everything a peer must not do, and every way a stream ends, has an error
// that says what happened.
func TestH2Ends(t *testing.T) {
	raw := func(typ http2.FrameType, flags http2.Flags, stream uint32, b []byte) func(*http2.Framer) {
		return func(w *http2.Framer) { w.WriteRawFrame(typ, flags, stream, b) }
	}
	headers := func(end bool, fields ...string) func(*http2.Framer) {
		return func(w *http2.Framer) {
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlock(fields...), EndHeaders: true, EndStream: end})
		}
	}
	for _, c := range []struct {
		name      string
		unopened  bool // without the server's opening before it
		f         func(*http2.Framer)
		want      string
		violation errCode // 0: no violation
	}{
		{"not HTTP/2", true, raw(frameHeaders, 4, 1, responseHeaders), "does not begin with SETTINGS", errProtocol},
		{"SETTINGS ACK first", true, raw(frameSettings, flagAck, 0, nil), "does not begin with SETTINGS", errProtocol},
		{"frame too large", false, raw(frameData, 0, 1, make([]byte, 16385)), "a frame of 16385 bytes", errFrameSize},
		{"DATA on stream 3", false, raw(frameData, 0, 3, nil), "stream 3, which was never opened", errProtocol},
		{"HEADERS on stream 2", false, raw(frameHeaders, 4, 2, responseHeaders), "stream 2", errProtocol},
		{"SETTINGS on stream 1", false, raw(frameSettings, 0, 1, nil), "on stream 1", errProtocol},
		{"SETTINGS of 5 bytes", false, raw(frameSettings, 0, 0, make([]byte, 5)), "SETTINGS of 5 bytes", errFrameSize},
		{"SETTINGS ACK of 6 bytes", false, raw(frameSettings, flagAck, 0, make([]byte, 6)), "acknowledged with 6 bytes", errFrameSize},
		{"push enabled", false, raw(frameSettings, 0, 0, []byte{0, 2, 0, 0, 0, 1}), "ENABLE_PUSH", errProtocol},
		{"window too large", false, raw(frameSettings, 0, 0, []byte{0, 4, 0x80, 0, 0, 0}), "INITIAL_WINDOW_SIZE", errFlowControl},
		{"frame size too small", false, raw(frameSettings, 0, 0, []byte{0, 5, 0, 0, 1, 0}), "MAX_FRAME_SIZE 256", errProtocol},
		{"PUSH_PROMISE", false, raw(framePushPromise, 4, 1, make([]byte, 8)), "PUSH_PROMISE", errProtocol},
		{"PING of 7 bytes", false, raw(framePing, 0, 0, make([]byte, 7)), "PING of 7", errFrameSize},
		{"WINDOW_UPDATE by 0", false, raw(frameWindowUpdate, 0, 1, make([]byte, 4)), "WINDOW_UPDATE by 0", errProtocol},
		{"WINDOW_UPDATE on stream 3", false, raw(frameWindowUpdate, 0, 3, []byte{0, 0, 0, 1}), "stream 3", errProtocol},
		{"WINDOW_UPDATE of 3 bytes", false, raw(frameWindowUpdate, 0, 0, make([]byte, 3)), "of 3 bytes", errFrameSize},
		{"window overflow", false, raw(frameWindowUpdate, 0, 0, []byte{0x7f, 255, 255, 255}), "makes the window", errFlowControl},
		{"PRIORITY of 4 bytes", false, raw(framePriority, 0, 1, make([]byte, 4)), "PRIORITY of 4", errFrameSize},
		{"padding beyond the frame", false, raw(frameData, flagPadded, 1, []byte{2, 0}), "padding", errProtocol},
		{"padded without a length", false, raw(frameData, flagPadded, 1, nil), "padding", errProtocol},
		{"CONTINUATION alone", false, raw(frameContinuation, 4, 1, nil), "CONTINUATION without HEADERS", errProtocol},
		{"header block interrupted", false, func(w *http2.Framer) {
			w.WriteRawFrame(frameHeaders, 0, 1, nil)
			w.WritePing(false, [8]byte{})
		}, "within a header block", errProtocol},
		{"header block without end", false, func(w *http2.Framer) {
			w.WriteRawFrame(frameHeaders, 0, 1, nil)
			for range 5 {
				w.WriteRawFrame(frameContinuation, 0, 1, make([]byte, 16384))
			}
		}, "a header block of more than 65536", errCalm},
		{"header bomb", false, func(w *http2.Framer) {
			// One entry of 4000 bytes, referred to 16000 times.
			b := headerBlock("x", strings.Repeat("x", 4000))
			w.WriteRawFrame(frameHeaders, 4, 1, append(b, bytes.Repeat([]byte{0x80 | 62}, 12000)...))
		}, "headers of more than 65536", errCalm},
		{"broken header block", false, raw(frameHeaders, 4, 1, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}), "header block:", errCompression},
		{"DATA before HEADERS", true, func(w *http2.Framer) { w.WriteSettings(); w.WriteData(1, false, nil) }, "DATA before HEADERS", errProtocol},
		{"compressed message", false, raw(frameData, 0, 1, []byte{1, 0, 0, 0, 0}), "compression flag 1", errProtocol},
		{"message too large", false, raw(frameData, 0, 1, []byte{0, 255, 255, 255, 255}), "a message of 4294967295 bytes", errCalm},
		{"message too large, in parts", false, func(w *http2.Framer) {
			w.WriteData(1, false, []byte{0, 0, 255})
			w.WriteData(1, false, []byte{255, 255})
		}, "a message of 16777215 bytes", errCalm},
		{"HEADERS within the stream", false, headers(false, "grpc-status", "0"), "HEADERS within the stream", errProtocol},
		{"no grpc-status", false, headers(true, "x", "y"), `grpc-status ""`, errProtocol},
		{"END_STREAM on DATA", false, raw(frameData, flagEndStream, 1, nil), "without grpc-status", errProtocol},

		{"RST_STREAM", false, raw(frameRSTStream, 0, 1, []byte{0, 0, 0, 7}), "reset the stream: REFUSED_STREAM", 0},
		{"GOAWAY with an error", false, func(w *http2.Framer) { w.WriteGoAway(1, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings")) },
			`ENHANCE_YOUR_CALM "too_many_pings"`, 0},
		{"GOAWAY before the stream", false, func(w *http2.Framer) { w.WriteGoAway(0, http2.ErrCodeNo, nil) }, "NO_ERROR", 0},
		{"trailers", false, headers(true, "grpc-status", "14", "grpc-message", "no%20leader %zz"), `Unavailable "no%20leader %zz"`, 0},
		{"trailers, escaped", false, headers(true, "grpc-status", "9", "grpc-message", "full%3A%0Aretry"), `FailedPrecondition "full:\nretry"`, 0},
		{"trailers only", true, func(w *http2.Framer) {
			w.WriteSettings()
			headers(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "12", "grpc-message", "no such method")(w)
		}, `Unimplemented "no such method"`, 0},
		{"HTTP error", true, func(w *http2.Framer) {
			w.WriteSettings()
			headers(false, ":status", "100")(w)
			headers(false, ":status", "502", "content-type", "text/html")(w)
		}, `HTTP status "502", content type "text/html"`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newH2Pair(t)
			if !c.unopened {
				p.mustReceive(t, opening())
			}
			_, err := p.h.receive(serve(c.f))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want ... %s ...", err, c.want)
			}
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("not one line: %q", err)
			}
			var v *violation
			if errors.As(err, &v) != (c.violation != 0) || v != nil && v.code != c.violation {
				t.Errorf("%v: violation %v, want %v", err, v, c.violation)
			}
		})
	}
	t.Run("beyond the window", func(t *testing.T) {
		p := newH2Pair(t)
		p.mustReceive(t, opening())
		p.h.unacked = recvWindow // as if no update had been sent
		_, err := p.h.receive(serve(raw(frameData, 0, 1, make([]byte, 1))))
		if err == nil || !strings.Contains(err.Error(), "more DATA than the window") {
			t.Error(err)
		}
	})
}

func TestH2GoAwayIsSent(t *testing.T) {
	p := newH2Pair(t)
	p.sent(t)
	p.h.goAway(errFrameSize)
	f := p.sent(t)
	if g, ok := f[0].(*http2.GoAwayFrame); !ok || g.ErrCode != http2.ErrCodeFrameSize {
		t.Errorf("%v", f)
	}
}

// FuzzH2Receive feeds any bytes, cut anywhere, to a connection that is new or
// already open. It must not panic, must keep its buffers within their bounds,
// and must come to the same end however the bytes are cut.
func FuzzH2Receive(f *testing.F) {
	open := opening(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	msg := grpcMessage([]byte("\x0a\x02\x01\x02"))
	f.Add(false, open, []byte{1, 2, 3})
	f.Add(true, serve(func(w *http2.Framer) {
		w.WriteData(1, false, append(slices.Clone(msg), msg...))
		w.WriteDataPadded(1, false, msg[:6], []byte{0, 0, 0})
		w.WritePing(false, [8]byte{})
		w.WriteData(1, false, msg[6:])
	}), []byte{9, 1, 30})
	f.Add(true, serve(func(w *http2.Framer) {
		w.WriteWindowUpdate(0, 1)
		w.WriteWindowUpdate(1, 1<<30)
		w.WriteGoAway(1, 0, nil)
		w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headerBlock("grpc-status", "0"), EndHeaders: false, EndStream: true})
		w.WriteContinuation(1, true, headerBlock("grpc-message", "x%20y"))
	}), []byte{100})
	f.Add(true, []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), []byte{0})
	f.Add(true, serve(func(w *http2.Framer) { w.WriteRSTStream(1, 2) }), []byte{})
	f.Fuzz(func(t *testing.T, opened bool, b, cuts []byte) {
		run := func(cuts []byte) (string, []byte) {
			p := newH2Pair(t)
			p.out.capacity = 4096
			p.out.b = p.out.b[:0]
			if opened {
				p.mustReceive(t, open)
			}
			var have []byte
			var end error
			for i, rest := 0, b; end == nil && len(rest) > 0; i++ {
				n := len(rest)
				if len(cuts) > 0 {
					n = min(n, 1+int(cuts[i%len(cuts)]))
				}
				have, rest = append(have, rest[:n]...), rest[n:]
				var used int
				used, end = p.h.receive(have)
				if used < 0 || used > len(have) {
					t.Fatalf("took %d of %d bytes", used, len(have))
				}
				have = have[used:]
				if end == nil && len(have) > frameHeaderLen+frameMax {
					t.Fatalf("waits for more than a frame: %d bytes", len(have))
				}
			}
			if len(p.h.partial) > messagePrefixLen+responseMax || len(p.h.block) > headerMax || len(p.out.b) > 4096 {
				t.Fatalf("buffers: partial %d, block %d, out %d", len(p.h.partial), len(p.h.block), len(p.out.b))
			}
			return fmt.Sprintf("%q %v", p.messages, end), bytes.Clone(p.out.b)
		}
		whole, wholeOut := run(nil)
		cut, cutOut := run(cuts)
		if whole != cut || !bytes.Equal(wholeOut, cutOut) {
			t.Fatalf("whole: %s\ncut:   %s", whole, cut)
		}
	})
}
