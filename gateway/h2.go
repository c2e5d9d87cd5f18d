package gateway

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
)

// The part of HTTP/2 (RFC 9113) and of gRPC's framing over it that one client
// stream needs, as a state machine without I/O: bytes read go in through
// receive, bytes to send come out through an output. Stream 1 is opened with
// the connection and lives as long; when it ends, so does the connection.

const (
	frameHeaderLen = 9
	// frameMax is the largest frame we accept: the protocol's initial value,
	// which we do not raise.
	frameMax = 16384
	// recvWindow is what a server may send before we acknowledge any of it.
	// Answers are small; the window never limits a run.
	recvWindow = 4 << 20
	// responseMax bounds one gRPC message from the server.
	responseMax = 1 << 20
	// headerMax bounds a header block, compressed and not.
	headerMax = 64 << 10
	// messageMax is the size at which a message is closed and the next begun.
	messageMax = 64 << 10
	// windowMax is the largest flow-control window of the protocol.
	windowMax = 1<<31 - 1

	messagePrefixLen = 5
	streamID         = 1
)

// Frame types.
const (
	frameData = iota
	frameHeaders
	framePriority
	frameRSTStream
	frameSettings
	framePushPromise
	framePing
	frameGoAway
	frameWindowUpdate
	frameContinuation
)

// Frame flags.
const (
	flagEndStream  = 0x1 // DATA, HEADERS
	flagAck        = 0x1 // SETTINGS, PING
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// Settings.
const (
	settingEnablePush    = 0x2
	settingInitialWindow = 0x4
	settingMaxFrame      = 0x5
	settingMaxHeaderList = 0x6
)

type errCode uint32

const (
	errProtocol    errCode = 0x1
	errFlowControl errCode = 0x3
	errFrameSize   errCode = 0x6
	errCompression errCode = 0x9
	errCalm        errCode = 0xb // ENHANCE_YOUR_CALM
)

var errCodeNames = [...]string{"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR",
	"SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR",
	"CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"}

func (c errCode) String() string {
	if int(c) < len(errCodeNames) {
		return errCodeNames[c]
	}
	return "error code " + strconv.FormatUint(uint64(c), 10)
}

// violation is what a peer did against the protocol. The peer is told the
// code in a GOAWAY.
type violation struct {
	code errCode
	text string
}

func (v *violation) Error() string { return v.text }

func violated(code errCode, format string, args ...any) error {
	return &violation{code, fmt.Sprintf(format, args...)}
}

// output takes the bytes to send; *sock.Conn is one.
type output interface {
	Room() int
	// Write takes all of b or, returning false, nothing.
	Write(b []byte) bool
}

// h2Conn is the client's end of a connection with its one stream.
type h2Conn struct {
	out output
	// onMessage takes each gRPC message; it must not keep the bytes.
	onMessage func([]byte) error

	// Sending. msg is the message being built or, once ended, on its way:
	// msg[:sent] has been framed.
	msg        []byte
	sent       int
	ended      bool
	connSend   int64 // flow-control windows; the stream's may be negative
	streamSend int64
	initial    int64 // the peer's SETTINGS_INITIAL_WINDOW_SIZE
	maxFrame   int   // the peer's SETTINGS_MAX_FRAME_SIZE
	scratch    []byte

	// Receiving.
	settled    bool // the peer's SETTINGS have come
	draining   bool // GOAWAY: the stream may end well, but takes nothing new
	answered   bool // the response's HEADERS have come
	block      []byte
	blockFlags byte
	inBlock    bool
	hpack      *hpack.Decoder
	fields     fields
	partial    []byte // the beginning of a message whose rest has not come
	unacked    int64  // bytes received since the last WINDOW_UPDATE
}

// fields are what we use of a header list.
type fields struct {
	size                    int
	httpStatus, contentType string
	grpcStatus, grpcMessage string
}

// start begins a new connection: the preface, our settings, and the request
// that opens the stream. It needs about 300 bytes of room.
func (h *h2Conn) start(authority string) error {
	h.msg, h.sent, h.ended = h.msg[:0], 0, false
	h.connSend, h.streamSend, h.initial, h.maxFrame = 65535, 65535, 65535, frameMax
	h.settled, h.draining, h.answered, h.inBlock = false, false, false, false
	h.block, h.partial, h.unacked = h.block[:0], h.partial[:0], 0
	h.hpack = hpack.NewDecoder(4096, h.field)
	h.hpack.SetMaxStringLength(headerMax)

	b := append(h.scratch[:0], "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"...)
	b = appendFrame(b, 3*6, frameSettings, 0, 0)
	b = appendSetting(b, settingEnablePush, 0)
	b = appendSetting(b, settingInitialWindow, recvWindow)
	b = appendSetting(b, settingMaxHeaderList, headerMax)
	b = appendFrame(b, 4, frameWindowUpdate, 0, 0)
	b = binary.BigEndian.AppendUint32(b, recvWindow-65535)

	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: "/raftrig.gateway.v1.Gateway/Propose"},
		{Name: ":authority", Value: authority},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "user-agent", Value: "raftrig"},
		{Name: "te", Value: "trailers"},
	} {
		if err := enc.WriteField(f); err != nil {
			return err
		}
	}
	b = appendFrame(b, block.Len(), frameHeaders, flagEndHeaders, streamID)
	b = append(b, block.Bytes()...)
	h.scratch = b[:0]
	if !h.out.Write(b) {
		return fmt.Errorf("no room for the connection preface of %d bytes", len(b))
	}
	return nil
}

func appendFrame(b []byte, length int, typ, flags byte, stream uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), typ, flags)
	return binary.BigEndian.AppendUint32(b, stream)
}

func appendSetting(b []byte, id uint16, v uint32) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	return binary.BigEndian.AppendUint32(b, v)
}

// room is how many bytes of messages could be framed at once. With none of
// them waiting, it is what the next message can have without waiting.
func (h *h2Conn) room() int {
	// Reserve for the frame headers of a message and for control frames.
	const reserve = 256
	return int(min(h.connSend, h.streamSend, int64(h.out.Room()-reserve)))
}

// begin starts a message if none is begun; append to msg afterwards.
func (h *h2Conn) begin() {
	if len(h.msg) == 0 {
		h.msg = append(h.msg, 0, 0, 0, 0, 0)
	}
}

// end closes the message in msg, if there is one, and pushes.
func (h *h2Conn) end() {
	if len(h.msg) > 0 && !h.ended {
		binary.BigEndian.PutUint32(h.msg[1:], uint32(len(h.msg)-messagePrefixLen))
		h.ended = true
	}
	h.push()
}

// push frames what the windows and the output have room for of the message
// that was ended; until all of it is framed, ended stays true and no other
// can be begun.
func (h *h2Conn) push() {
	if !h.ended {
		return
	}
	for h.sent < len(h.msg) {
		n := int(min(int64(len(h.msg)-h.sent), int64(h.maxFrame), h.connSend, h.streamSend,
			int64(h.out.Room()-frameHeaderLen)))
		if n <= 0 {
			return
		}
		h.scratch = appendFrame(h.scratch[:0], n, frameData, 0, streamID)
		h.out.Write(h.scratch)
		h.out.Write(h.msg[h.sent : h.sent+n])
		h.sent += n
		h.connSend -= int64(n)
		h.streamSend -= int64(n)
	}
	h.msg, h.sent, h.ended = h.msg[:0], 0, false
}

// goAway tells the peer why the connection is about to be closed.
func (h *h2Conn) goAway(code errCode) {
	b := appendFrame(h.scratch[:0], 8, frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, 0) // no stream of the peer's was taken
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	h.scratch = b[:0]
	h.out.Write(b)
}

// receive takes the frames that are complete in b and returns how many bytes
// they had. After an error the connection is of no use: a *violation by the
// peer, an error of onMessage, or the end of the stream.
func (h *h2Conn) receive(b []byte) (int, error) {
	used := 0
	for len(b)-used >= frameHeaderLen {
		f := b[used:]
		length := int(f[0])<<16 | int(f[1])<<8 | int(f[2])
		typ, flags := f[3], f[4]
		stream := binary.BigEndian.Uint32(f[5:]) & (1<<31 - 1)
		if !h.settled && (typ != frameSettings || flags&flagAck != 0) {
			return used, violated(errProtocol, "not HTTP/2: the connection does not begin with SETTINGS")
		}
		if length > frameMax {
			return used, violated(errFrameSize, "a frame of %d bytes, more than %d", length, frameMax)
		}
		if len(f) < frameHeaderLen+length {
			break
		}
		if err := h.frame(typ, flags, stream, f[frameHeaderLen:frameHeaderLen+length]); err != nil {
			return used, err
		}
		used += frameHeaderLen + length
	}
	return used, nil
}

func (h *h2Conn) frame(typ, flags byte, stream uint32, p []byte) error {
	if h.inBlock && typ != frameContinuation {
		return violated(errProtocol, "frame type %d within a header block", typ)
	}
	switch typ {
	case frameData, frameHeaders, frameRSTStream, frameContinuation:
		if stream != streamID {
			return violated(errProtocol, "frame type %d on stream %d, which was never opened", typ, stream)
		}
	case frameSettings, framePing, frameGoAway:
		if stream != 0 {
			return violated(errProtocol, "frame type %d on stream %d", typ, stream)
		}
	}
	switch typ {
	case frameData:
		return h.onData(flags, p)
	case frameHeaders:
		body, err := unpadded(flags, p)
		if err != nil {
			return err
		}
		if flags&flagPriority != 0 {
			if len(body) < 5 {
				return violated(errFrameSize, "HEADERS too short for their priority")
			}
			body = body[5:]
		}
		h.block, h.blockFlags, h.inBlock = h.block[:0], flags, true
		return h.onBlock(flags, body)
	case frameContinuation:
		if !h.inBlock {
			return violated(errProtocol, "CONTINUATION without HEADERS")
		}
		return h.onBlock(flags, p)
	case framePriority:
		if len(p) != 5 {
			return violated(errFrameSize, "PRIORITY of %d bytes", len(p))
		}
	case frameRSTStream:
		if len(p) != 4 {
			return violated(errFrameSize, "RST_STREAM of %d bytes", len(p))
		}
		return fmt.Errorf("the node reset the stream: %v", errCode(binary.BigEndian.Uint32(p)))
	case frameSettings:
		return h.onSettings(flags, p)
	case framePushPromise:
		return violated(errProtocol, "PUSH_PROMISE, which we disabled")
	case framePing:
		if len(p) != 8 {
			return violated(errFrameSize, "PING of %d bytes", len(p))
		}
		if flags&flagAck != 0 {
			return nil
		}
		b := appendFrame(h.scratch[:0], 8, framePing, flagAck, 0)
		return h.control(append(b, p...))
	case frameGoAway:
		if len(p) < 8 {
			return violated(errFrameSize, "GOAWAY of %d bytes", len(p))
		}
		last, code := binary.BigEndian.Uint32(p)&(1<<31-1), errCode(binary.BigEndian.Uint32(p[4:]))
		if code != 0 || last < streamID {
			text := p[8:]
			return fmt.Errorf("the node closes the connection: %v %q", code, text[:min(len(text), 200)])
		}
		h.draining = true
	case frameWindowUpdate:
		return h.onWindowUpdate(stream, p)
	}
	return nil // types we do not know are skipped
}

// control sends a control frame, made in scratch. A peer that provokes more
// of them than it reads fills the out buffer, and is cut off.
func (h *h2Conn) control(b []byte) error {
	h.scratch = b[:0]
	if !h.out.Write(b) {
		return violated(errCalm, "the node asks for more acknowledgements than it reads")
	}
	return nil
}

func unpadded(flags byte, p []byte) ([]byte, error) {
	if flags&flagPadded == 0 {
		return p, nil
	}
	if len(p) == 0 || int(p[0]) >= len(p) {
		return nil, violated(errProtocol, "padding longer than its frame")
	}
	return p[1 : len(p)-int(p[0])], nil
}

func (h *h2Conn) onSettings(flags byte, p []byte) error {
	if flags&flagAck != 0 {
		if len(p) != 0 {
			return violated(errFrameSize, "SETTINGS acknowledged with %d bytes", len(p))
		}
		return nil
	}
	if len(p)%6 != 0 {
		return violated(errFrameSize, "SETTINGS of %d bytes", len(p))
	}
	for ; len(p) > 0; p = p[6:] {
		id, v := binary.BigEndian.Uint16(p), binary.BigEndian.Uint32(p[2:])
		switch id {
		case settingEnablePush:
			if v != 0 {
				return violated(errProtocol, "SETTINGS_ENABLE_PUSH %d from a server", v)
			}
		case settingInitialWindow:
			if v > windowMax {
				return violated(errFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE %d", v)
			}
			h.streamSend += int64(v) - h.initial
			h.initial = int64(v)
			if h.streamSend > windowMax {
				return violated(errFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE %d makes the window %d", v, h.streamSend)
			}
		case settingMaxFrame:
			if v < 16384 || v > 1<<24-1 {
				return violated(errProtocol, "SETTINGS_MAX_FRAME_SIZE %d", v)
			}
			h.maxFrame = int(v)
		}
		// The rest limits what we do not do: our one header block was sent
		// before, we open no further stream.
	}
	h.settled = true
	return h.control(appendFrame(h.scratch[:0], 0, frameSettings, flagAck, 0))
}

func (h *h2Conn) onWindowUpdate(stream uint32, p []byte) error {
	if len(p) != 4 {
		return violated(errFrameSize, "WINDOW_UPDATE of %d bytes", len(p))
	}
	n := int64(binary.BigEndian.Uint32(p) & (1<<31 - 1))
	if n == 0 {
		return violated(errProtocol, "WINDOW_UPDATE by 0")
	}
	window := &h.connSend
	if stream == streamID {
		window = &h.streamSend
	} else if stream != 0 {
		return violated(errProtocol, "WINDOW_UPDATE on stream %d, which was never opened", stream)
	}
	if *window += n; *window > windowMax {
		return violated(errFlowControl, "WINDOW_UPDATE makes the window %d", *window)
	}
	return nil
}

func (h *h2Conn) onBlock(flags byte, fragment []byte) error {
	if len(h.block)+len(fragment) > headerMax {
		return violated(errCalm, "a header block of more than %d bytes", headerMax)
	}
	h.block = append(h.block, fragment...)
	if flags&flagEndHeaders == 0 {
		return nil
	}
	h.inBlock = false
	h.fields = fields{}
	h.hpack.SetEmitEnabled(true)
	_, err := h.hpack.Write(h.block)
	if err == nil {
		err = h.hpack.Close()
	}
	if err != nil {
		return violated(errCompression, "header block: %v", err)
	}
	if h.fields.size > headerMax {
		return violated(errCalm, "headers of more than %d bytes", headerMax)
	}
	return h.onHeaders(h.blockFlags&flagEndStream != 0)
}

func (h *h2Conn) field(f hpack.HeaderField) {
	if h.fields.size += int(f.Size()); h.fields.size > headerMax {
		h.hpack.SetEmitEnabled(false)
		return
	}
	switch f.Name {
	case ":status":
		h.fields.httpStatus = f.Value
	case "content-type":
		h.fields.contentType = f.Value
	case "grpc-status":
		h.fields.grpcStatus = f.Value
	case "grpc-message":
		h.fields.grpcMessage = f.Value
	}
}

func (h *h2Conn) onHeaders(endStream bool) error {
	f := &h.fields
	if !h.answered {
		if len(f.httpStatus) == 3 && f.httpStatus[0] == '1' && !endStream {
			return nil // informational
		}
		if f.httpStatus != "200" || !strings.HasPrefix(f.contentType, "application/grpc") {
			return fmt.Errorf("not a gRPC server: HTTP status %.20q, content type %.40q", f.httpStatus, f.contentType)
		}
		h.answered = true
		if !endStream {
			return nil
		}
	}
	if !endStream {
		return violated(errProtocol, "HEADERS within the stream")
	}
	code, err := strconv.ParseUint(f.grpcStatus, 10, 32)
	if err != nil {
		return violated(errProtocol, "the stream ended with grpc-status %.20q", f.grpcStatus)
	}
	text, err := url.PathUnescape(f.grpcMessage)
	if err != nil {
		text = f.grpcMessage
	}
	return fmt.Errorf("the node ended the stream: %v %.200q", codes.Code(code), text)
}

func (h *h2Conn) onData(flags byte, p []byte) error {
	if !h.answered {
		return violated(errProtocol, "DATA before HEADERS")
	}
	// Connection and stream have equal windows and carry the same frames.
	if h.unacked += int64(len(p)); h.unacked > recvWindow {
		return violated(errFlowControl, "more DATA than the window of %d bytes", recvWindow)
	}
	body, err := unpadded(flags, p)
	if err != nil {
		return err
	}
	if err := h.onBytes(body); err != nil {
		return err
	}
	if flags&flagEndStream != 0 {
		return violated(errProtocol, "the stream ended without grpc-status")
	}
	if h.unacked >= recvWindow/2 {
		b := h.scratch[:0]
		for _, stream := range [...]uint32{0, streamID} {
			b = appendFrame(b, 4, frameWindowUpdate, 0, stream)
			b = binary.BigEndian.AppendUint32(b, uint32(h.unacked))
		}
		h.unacked = 0
		return h.control(b)
	}
	return nil
}

// onBytes cuts messages out of the stream's bytes. A message within one frame
// is passed on where it lies; only one that spans frames is copied.
func (h *h2Conn) onBytes(b []byte) error {
	for len(b) > 0 {
		if len(h.partial) == 0 && len(b) >= messagePrefixLen {
			n, err := messageLen(b)
			if err != nil {
				return err
			}
			if end := messagePrefixLen + n; end <= len(b) {
				if err := h.onMessage(b[messagePrefixLen:end]); err != nil {
					return err
				}
				b = b[end:]
				continue
			}
		}
		// The buffer grows with what has come, not with what is announced.
		want := messagePrefixLen
		if len(h.partial) >= messagePrefixLen {
			n, err := messageLen(h.partial)
			if err != nil {
				return err
			}
			want += n
		}
		take := min(len(b), want-len(h.partial))
		h.partial = append(h.partial, b[:take]...)
		b = b[take:]
		if len(h.partial) < messagePrefixLen {
			continue
		}
		n, err := messageLen(h.partial)
		if err != nil {
			return err
		}
		if len(h.partial) == messagePrefixLen+n {
			if err := h.onMessage(h.partial[messagePrefixLen:]); err != nil {
				return err
			}
			h.partial = h.partial[:0]
		}
	}
	return nil
}

func messageLen(b []byte) (int, error) {
	if b[0] != 0 {
		return 0, violated(errProtocol, "a message with compression flag %d, which we did not offer", b[0])
	}
	n := binary.BigEndian.Uint32(b[1:])
	if n > responseMax {
		return 0, violated(errCalm, "a message of %d bytes, more than %d", n, responseMax)
	}
	return int(n), nil
}
