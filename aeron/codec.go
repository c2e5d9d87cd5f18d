package aeron

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The messages of a cluster session are SBE-encoded (Simple Binary Encoding),
// little-endian: a header of four uint16 (block length, template, schema,
// version), a block of fixed fields, and fields of variable length, each behind
// its length as a uint32. A newer schema may only append to the block, so the
// variable fields are found behind the length that the header gives. (Source:
// aeron-cluster-codecs.xml of Aeron.)
const (
	schemaID = 111
	// schemaVersion is what this package writes: the first with all that it
	// needs, which newer clusters read.
	schemaVersion = 8
	// protocolVersion of the session is a semantic version, major<<16 |
	// minor<<8 | patch; a cluster refuses another major.
	protocolVersion = 2 << 8 // 0.2.0

	headerLen = 8 // bytes before every block
	lengthLen = 4 // bytes before a field of variable length

	// messageHeaderLen is what precedes the payload of a request.
	messageHeaderLen = headerLen + messageBlock
)

// Templates, and the lengths of their blocks in schemaVersion.
const (
	templateMessage   = 1 // SessionMessageHeader
	templateEvent     = 2 // SessionEvent
	templateConnect   = 3 // SessionConnectRequest
	templateClose     = 4 // SessionCloseRequest
	templateKeepAlive = 5 // SessionKeepAlive
	templateNewLeader = 6 // NewLeaderEvent
	templateChallenge = 7 // Challenge

	messageBlock   = 24
	eventBlock     = 36
	connectBlock   = 16
	shortBlock     = 16 // SessionCloseRequest, SessionKeepAlive
	newLeaderBlock = 20
	challengeBlock = 16

	// eventTimeoutBlock is how long the block of a SessionEvent is that has a
	// leader heartbeat timeout.
	eventTimeoutBlock = 44
)

// eventCode says what a SessionEvent is about.
type eventCode int32

const (
	eventOK       eventCode = 0
	eventError    eventCode = 1
	eventRedirect eventCode = 2
	eventRejected eventCode = 3 // authentication
	eventClosed   eventCode = 4
)

var (
	errShort  = errors.New("message is cut short")
	errSchema = errors.New("not a message of a cluster session")
)

// header of a message, and what follows it.
type header struct {
	template uint16
	block    []byte
	variable []byte
}

// decodeHeader splits a message. Its parts point into b.
func decodeHeader(b []byte) (header, error) {
	if len(b) < headerLen {
		return header{}, errShort
	}
	if binary.LittleEndian.Uint16(b[4:]) != schemaID {
		return header{}, errSchema
	}
	block := int(binary.LittleEndian.Uint16(b))
	if len(b) < headerLen+block {
		return header{}, errShort
	}
	return header{
		template: binary.LittleEndian.Uint16(b[2:]),
		block:    b[headerLen : headerLen+block],
		variable: b[headerLen+block:],
	}, nil
}

// message is a SessionMessageHeader and the payload behind it.
type message struct {
	term, session int64
	payload       []byte
}

func (h header) message() (message, error) {
	if len(h.block) < messageBlock {
		return message{}, errShort
	}
	return message{
		term:    int64(binary.LittleEndian.Uint64(h.block)),
		session: int64(binary.LittleEndian.Uint64(h.block[8:])),
		payload: h.variable,
	}, nil
}

// event is a SessionEvent: the answer to a request for a session, or the news
// of its end.
type event struct {
	session, correlation, term int64
	leader                     int32 // a member's number, from 0
	code                       eventCode
	// heartbeatTimeout of the leader in nanoseconds; 0 when not said.
	heartbeatTimeout int64
	detail           string
}

func (h header) event() (event, error) {
	if len(h.block) < eventBlock {
		return event{}, errShort
	}
	detail, err := text(h.variable)
	e := event{
		session:     int64(binary.LittleEndian.Uint64(h.block)),
		correlation: int64(binary.LittleEndian.Uint64(h.block[8:])),
		term:        int64(binary.LittleEndian.Uint64(h.block[16:])),
		leader:      int32(binary.LittleEndian.Uint32(h.block[24:])),
		code:        eventCode(binary.LittleEndian.Uint32(h.block[28:])),
		detail:      detail,
	}
	if len(h.block) >= eventTimeoutBlock {
		e.heartbeatTimeout = max(0, int64(binary.LittleEndian.Uint64(h.block[36:]))) // null is the smallest
	}
	return e, err
}

// newLeader is a NewLeaderEvent. Its list of endpoints is left out: the hosts
// are the client's to know, and where requests go is not for a datagram to say.
type newLeader struct {
	term, session int64
	leader        int32
}

func (h header) newLeader() (newLeader, error) {
	if len(h.block) < newLeaderBlock {
		return newLeader{}, errShort
	}
	return newLeader{
		term:    int64(binary.LittleEndian.Uint64(h.block)),
		session: int64(binary.LittleEndian.Uint64(h.block[8:])),
		leader:  int32(binary.LittleEndian.Uint32(h.block[16:])),
	}, nil
}

// challenge returns the correlation id of a Challenge.
func (h header) challenge() (correlation int64, err error) {
	if len(h.block) < challengeBlock {
		return 0, errShort
	}
	return int64(binary.LittleEndian.Uint64(h.block)), nil
}

// text is a field of variable length.
func text(b []byte) (string, error) {
	if len(b) < lengthLen {
		return "", errShort
	}
	n := binary.LittleEndian.Uint32(b)
	if n > math.MaxInt32 || int(n) > len(b)-lengthLen {
		return "", errShort
	}
	return string(b[lengthLen : lengthLen+int(n)]), nil
}

func putHeader(b []byte, template, block uint16) {
	// One store: the header is eight bytes.
	binary.LittleEndian.PutUint64(b, uint64(block)|uint64(template)<<16|schemaID<<32|schemaVersion<<48)
}

// putMessageHeader writes what precedes a request's payload, messageHeaderLen
// bytes.
func putMessageHeader(b []byte, term, session int64) {
	_ = b[messageHeaderLen-1]
	putHeader(b, templateMessage, messageBlock)
	binary.LittleEndian.PutUint64(b[8:], uint64(term))
	binary.LittleEndian.PutUint64(b[16:], uint64(session))
	binary.LittleEndian.PutUint64(b[24:], 0) // the leader fills in its time
}

// shortLen is the length of a SessionKeepAlive and of a SessionCloseRequest.
const shortLen = headerLen + shortBlock

func putShort(b []byte, template uint16, term, session int64) {
	putHeader(b, template, shortBlock)
	binary.LittleEndian.PutUint64(b[8:], uint64(term))
	binary.LittleEndian.PutUint64(b[16:], uint64(session))
}

// connectLen is the length of a SessionConnectRequest without credentials.
func connectLen(channel string) int {
	return headerLen + connectBlock + lengthLen + len(channel) + lengthLen
}

// putConnect writes a request for a session whose replies go to channel.
func putConnect(b []byte, correlation int64, stream int32, channel string) {
	putHeader(b, templateConnect, connectBlock)
	binary.LittleEndian.PutUint64(b[8:], uint64(correlation))
	binary.LittleEndian.PutUint32(b[16:], uint32(stream))
	binary.LittleEndian.PutUint32(b[20:], protocolVersion)
	binary.LittleEndian.PutUint32(b[24:], uint32(len(channel)))
	n := copy(b[28:], channel)
	binary.LittleEndian.PutUint32(b[28+n:], 0)
}

func (c eventCode) String() string {
	switch c {
	case eventOK:
		return "ok"
	case eventError:
		return "error"
	case eventRedirect:
		return "redirect"
	case eventRejected:
		return "authentication rejected"
	case eventClosed:
		return "closed"
	}
	return fmt.Sprintf("event code %d", int32(c))
}
