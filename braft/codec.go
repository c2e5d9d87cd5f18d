package braft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// The frames of baidu_std, by hand: a client sends two kinds and reads two.
//
//	"PRPC", length of meta and body (4 bytes, big-endian), length of meta (the
//	same), meta, body
const (
	headerLen = 12
	// maxFrame bounds a frame that comes in. A reply to what the client asks
	// has some 40 bytes, or a line of text when it is an error.
	maxFrame = 32 << 10
	// maxGroup bounds the name of a group.
	maxGroup = 255
	// maxRequest bounds a compare_exchange on the wire: fixed part,
	// correlation id, three numbers with their tags.
	maxRequest = 128
)

const (
	tagVarint1 = 1<<3 | byte(protowire.VarintType)
	tagVarint2 = 2<<3 | byte(protowire.VarintType)
	tagVarint3 = 3<<3 | byte(protowire.VarintType)
	tagVarint4 = 4<<3 | byte(protowire.VarintType)
	tagBytes1  = 1<<3 | byte(protowire.BytesType)
	tagBytes2  = 2<<3 | byte(protowire.BytesType)
)

// The calls up to the correlation id's value.
var (
	callExchange = beginCall("example.AtomicService", "compare_exchange")
	callLeader   = beginCall("braft.CliService", "get_leader")
)

// beginCall makes what precedes the correlation id in every request for a method.
// The lengths are still to be set.
func beginCall(service, method string) []byte {
	var request []byte
	request = append(request, tagBytes1)
	request = protowire.AppendString(request, service)
	request = append(request, tagBytes2)
	request = protowire.AppendString(request, method)
	b := []byte("PRPC\x00\x00\x00\x00\x00\x00\x00\x00")
	b = append(b, tagBytes1)
	b = protowire.AppendBytes(b, request)
	return append(b, tagVarint4)
}

// appendExchange appends a compare_exchange to an empty b.
func appendExchange(b []byte, correlation uint64, key, expected, value int64) []byte {
	b = append(b, callExchange...)
	b = protowire.AppendVarint(b, correlation)
	meta := len(b) - headerLen
	b = append(b, tagVarint1)
	b = protowire.AppendVarint(b, uint64(key))
	b = append(b, tagVarint2)
	b = protowire.AppendVarint(b, uint64(expected))
	b = append(b, tagVarint3)
	b = protowire.AppendVarint(b, uint64(value))
	setLengths(b, meta)
	return b
}

// appendLeader appends a get_leader to an empty b.
func appendLeader(b []byte, correlation uint64, group string) []byte {
	b = append(b, callLeader...)
	b = protowire.AppendVarint(b, correlation)
	meta := len(b) - headerLen
	b = append(b, tagBytes1)
	b = protowire.AppendString(b, group)
	setLengths(b, meta)
	return b
}

func setLengths(b []byte, meta int) {
	binary.BigEndian.PutUint32(b[4:], uint32(len(b)-headerLen))
	binary.BigEndian.PutUint32(b[8:], uint32(meta))
}

// reply is one frame that came in. Its slices point into what was read.
type reply struct {
	correlation uint64
	code        int32 // 0 unless the call failed
	text        []byte
	body        []byte
}

var errMeta = errors.New("a reply whose meta is malformed")

// decode reads the first frame of b and returns how long it is; 0 when not all
// of it has come.
func (r *reply) decode(b []byte) (int, error) {
	if n := min(4, len(b)); string(b[:n]) != "PRPC"[:n] {
		return 0, fmt.Errorf("it does not speak baidu_std, but says %.20q", b)
	}
	if len(b) < headerLen {
		return 0, nil
	}
	size, meta := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	if size > maxFrame-headerLen {
		return 0, fmt.Errorf("a reply of %d bytes: at most %d are possible", size, maxFrame-headerLen)
	}
	if meta > size {
		return 0, fmt.Errorf("a reply of %d bytes with a meta of %d", size, meta)
	}
	end := headerLen + int(size)
	if len(b) < end {
		return 0, nil
	}
	body := b[headerLen+int(meta) : end]
	if err := r.decodeMeta(b[headerLen : headerLen+int(meta)]); err != nil {
		return 0, err
	}
	r.body = body
	return end, nil
}

// decodeMeta reads an RpcMeta. A reply that the client did not ask for in this
// form, compressed or with an attachment, is an error.
func (r *reply) decodeMeta(b []byte) error {
	*r = reply{}
	var answers, correlated bool
	var compressed, attached uint64
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return errMeta
		}
		b = b[n:]
		switch {
		case num == 2 && typ == protowire.BytesType:
			var response []byte
			if response, n = protowire.ConsumeBytes(b); n >= 0 && !r.decodeResponse(response) {
				n = -1
			}
			answers = true
		case num == 3 && typ == protowire.VarintType:
			compressed, n = protowire.ConsumeVarint(b)
		case num == 4 && typ == protowire.VarintType:
			r.correlation, n = protowire.ConsumeVarint(b)
			correlated = true
		case num == 5 && typ == protowire.VarintType:
			attached, n = protowire.ConsumeVarint(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return errMeta
		}
		b = b[n:]
	}
	switch {
	case !answers || !correlated:
		return errors.New("a frame that is no reply")
	case uint32(compressed) != 0 || uint32(attached) != 0:
		return errors.New("a reply that is compressed or has an attachment")
	}
	return nil
}

// decodeResponse reads an RpcResponseMeta; false when it is malformed.
func (r *reply) decodeResponse(b []byte) bool {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return false
		}
		b = b[n:]
		switch {
		case num == 1 && typ == protowire.VarintType:
			var code uint64
			code, n = protowire.ConsumeVarint(b)
			r.code = int32(code)
		case num == 2 && typ == protowire.BytesType:
			r.text, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	return true
}

// exchanged is the body of a reply to a compare_exchange. One that has no old
// value was not carried out: it is a redirect.
type exchanged struct {
	success       bool
	key, new, old int64
	has           uint8  // bit n for field n
	redirect      []byte // points into what was read
}

const hasValues = 1<<2 | 1<<3 | 1<<4 // key, new, old

var errExchanged = errors.New("a malformed reply to compare_exchange")

func (e *exchanged) decode(b []byte) error {
	*e = exchanged{}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return errExchanged
		}
		b = b[n:]
		switch {
		case num <= 4 && typ == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(b)
			e.has |= 1 << num
			switch num {
			case 1:
				e.success = v != 0
			case 2:
				e.key = int64(v)
			case 3:
				e.new = int64(v)
			case 4:
				e.old = int64(v)
			}
		case num == 5 && typ == protowire.BytesType:
			e.redirect, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return errExchanged
		}
		b = b[n:]
	}
	switch values := e.has & hasValues; {
	case e.has&(1<<1) == 0:
		return errExchanged
	case values == hasValues:
		return nil
	case values == 0 && !e.success:
		return nil
	}
	return errExchanged
}

// decodeLeader reads the reply to a get_leader.
func decodeLeader(b []byte) (peerID string, err error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return "", errLeader
		}
		b = b[n:]
		if num == 1 && typ == protowire.BytesType {
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				peerID = string(v)
			}
		} else {
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return "", errLeader
		}
		b = b[n:]
	}
	if peerID == "" {
		return "", errLeader
	}
	return peerID, nil
}

var errLeader = errors.New("a malformed reply to get_leader")

// parsePeerID reads the address in a peer id: ip:port:index, where newer
// versions of braft append a role.
func parsePeerID(s string) (netip.AddrPort, error) {
	host, rest, ok := strings.Cut(s, ":")
	if strings.HasPrefix(s, "[") {
		host, rest, ok = strings.Cut(s[1:], "]:")
	}
	port, _, _ := strings.Cut(rest, ":")
	addr, err := netip.ParseAddr(host)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("%.60q is no peer id with an IP address", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return netip.AddrPort{}, fmt.Errorf("%.60q is no peer id with a port", s)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}

// peerID is the node at addr as braft names it.
func peerID(addr netip.AddrPort) string { return addr.String() + ":0" }
