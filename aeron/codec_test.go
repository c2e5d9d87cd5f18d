package aeron

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// block is a message with a block of n zero bytes, n more than the schema that
// this package knows says, so that what follows it is found by its length only.
func block(template uint16, n int) []byte {
	b := make([]byte, headerLen+n)
	putHeader(b, template, uint16(n))
	return b
}

func eventFrame(e event, blockLen int) []byte {
	b := block(templateEvent, blockLen)
	le := binary.LittleEndian
	le.PutUint64(b[8:], uint64(e.session))
	le.PutUint64(b[16:], uint64(e.correlation))
	le.PutUint64(b[24:], uint64(e.term))
	le.PutUint32(b[32:], uint32(e.leader))
	le.PutUint32(b[36:], uint32(e.code))
	if blockLen >= eventTimeoutBlock {
		le.PutUint64(b[44:], uint64(e.heartbeatTimeout))
	}
	b = le.AppendUint32(b, uint32(len(e.detail)))
	return append(b, e.detail...)
}

func newLeaderFrame(l newLeader, blockLen int) []byte {
	b := block(templateNewLeader, blockLen)
	binary.LittleEndian.PutUint64(b[8:], uint64(l.term))
	binary.LittleEndian.PutUint64(b[16:], uint64(l.session))
	binary.LittleEndian.PutUint32(b[24:], uint32(l.leader))
	return append(b, "\x05\x00\x00\x000=h:1"...)
}

func messageFrame(term, session int64, payload string) []byte {
	b := make([]byte, messageHeaderLen, messageHeaderLen+len(payload))
	putMessageHeader(b, term, session)
	return append(b, payload...)
}

// A block that a newer schema has made longer hides nothing.
func TestDecodeBlocks(t *testing.T) {
	for _, longer := range []int{0, 8, 100} {
		want := event{session: 7, correlation: -3, term: 5, leader: 2, code: eventRedirect, detail: "0=a:1,1=b:2"}
		for _, known := range []int{eventBlock, eventTimeoutBlock} {
			if known == eventTimeoutBlock {
				want.heartbeatTimeout = 1e9
			} else if longer > 0 {
				continue
			}
			h, err := decodeHeader(eventFrame(want, known+longer))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := h.event(); err != nil || got != want {
				t.Errorf("block %d: %+v, %v", known+longer, got, err)
			}
		}
		l := newLeader{term: 9, session: 7, leader: 1}
		h, _ := decodeHeader(newLeaderFrame(l, newLeaderBlock+longer))
		if got, err := h.newLeader(); err != nil || got != l {
			t.Errorf("new leader, %d longer: %+v, %v", longer, got, err)
		}
		b := append(block(templateMessage, messageBlock+longer), "payload"...)
		binary.LittleEndian.PutUint64(b[16:], 7)
		h, _ = decodeHeader(b)
		if m, err := h.message(); err != nil || string(m.payload) != "payload" || m.session != 7 {
			t.Errorf("message, %d longer: %+v, %v", longer, m, err)
		}
	}
}

// A leader heartbeat timeout that is not set is the smallest number.
func TestNoHeartbeatTimeout(t *testing.T) {
	h, err := decodeHeader(eventFrame(event{heartbeatTimeout: -1 << 63}, eventTimeoutBlock))
	if err != nil {
		t.Fatal(err)
	}
	if e, err := h.event(); err != nil || e.heartbeatTimeout != 0 {
		t.Errorf("%+v, %v", e, err)
	}
}

// Each message, cut short anywhere, is an error and nothing else.
func TestDecodeCutShort(t *testing.T) {
	frames := [][]byte{
		eventFrame(event{detail: "text"}, eventTimeoutBlock),
		block(templateNewLeader, newLeaderBlock),
		block(templateMessage, messageBlock),
		block(templateChallenge, challengeBlock),
	}
	for _, frame := range frames {
		for n := range len(frame) {
			if err := decode(frame[:n]); !errors.Is(err, errShort) {
				t.Errorf("template %d cut to %d of %d bytes: %v", frame[2], n, len(frame), err)
			}
		}
		if err := decode(frame); err != nil {
			t.Errorf("template %d: %v", frame[2], err)
		}
		frame[4]++
		if err := decode(frame); !errors.Is(err, errSchema) {
			t.Errorf("template %d of another schema: %v", frame[2], err)
		}
	}
	// A block shorter than the fields in it.
	for _, frame := range frames {
		n := binary.LittleEndian.Uint16(frame)
		binary.LittleEndian.PutUint16(frame, n/2)
		frame[4] = schemaID
		if err := decode(frame); !errors.Is(err, errShort) {
			t.Errorf("template %d with half a block: %v", frame[2], err)
		}
	}
}

// decode whatever b is.
func decode(b []byte) error {
	h, err := decodeHeader(b)
	if err != nil {
		return err
	}
	switch h.template {
	case templateMessage:
		_, err = h.message()
	case templateEvent:
		_, err = h.event()
	case templateNewLeader:
		_, err = h.newLeader()
	case templateChallenge:
		_, err = h.challenge()
	}
	return err
}

func TestEncode(t *testing.T) {
	const channel = "aeron:udp?endpoint=127.0.0.1:4711"
	b := make([]byte, connectLen(channel))
	putConnect(b, 42, egressStream, channel)
	h, err := decodeHeader(b)
	if err != nil || h.template != templateConnect || len(h.block) != connectBlock {
		t.Fatalf("%+v, %v", h, err)
	}
	le := binary.LittleEndian
	if le.Uint64(h.block) != 42 || le.Uint32(h.block[8:]) != egressStream || le.Uint32(h.block[12:]) != 0x000200 {
		t.Errorf("block % x", h.block)
	}
	if got, err := text(h.variable); err != nil || got != channel {
		t.Errorf("channel %q, %v", got, err)
	}
	if rest := h.variable[lengthLen+len(channel):]; string(rest) != "\x00\x00\x00\x00" {
		t.Errorf("credentials % x", rest)
	}
	b = make([]byte, shortLen)
	putShort(b, templateKeepAlive, 3, 4)
	want := "\x10\x00\x05\x00\x6f\x00\x08\x00" + "\x03\x00\x00\x00\x00\x00\x00\x00" + "\x04\x00\x00\x00\x00\x00\x00\x00"
	if string(b) != want {
		t.Errorf("keep-alive % x", b)
	}
	b = make([]byte, messageHeaderLen)
	for i := range b {
		b[i] = 0xff // a log buffer holds what was there a term ago
	}
	putMessageHeader(b, 3, 4)
	want = "\x18\x00\x01\x00\x6f\x00\x08\x00" + want[8:] + "\x00\x00\x00\x00\x00\x00\x00\x00"
	if string(b) != want {
		t.Errorf("message header % x", b)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(eventFrame(event{session: 1, detail: "concurrent session limit"}, eventTimeoutBlock))
	f.Add(newLeaderFrame(newLeader{1, 2, 3}, newLeaderBlock))
	f.Add(messageFrame(1, 2, "12345678"))
	f.Add(block(templateChallenge, challengeBlock))
	f.Add([]byte(strings.Repeat("\xff", 64)))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeader(b)
		if err != nil {
			return
		}
		if len(h.block)+len(h.variable)+headerLen != len(b) {
			t.Errorf("%d + %d bytes of %d", len(h.block), len(h.variable), len(b))
		}
		if m, err := h.message(); err == nil && len(m.payload) > len(b) {
			t.Error("a payload larger than the message")
		}
		if e, err := h.event(); err == nil && (len(e.detail) > len(b) || e.heartbeatTimeout < 0) {
			t.Errorf("%+v", e)
		}
		h.newLeader()
		h.challenge()
	})
}
