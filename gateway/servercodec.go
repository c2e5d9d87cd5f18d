package gateway

import (
	"encoding/binary"
	"fmt"
	"strings"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// serverCodec is gRPC's protobuf codec with the two messages of the stream done
// by hand. The generated decoder allocates twice a proposal; this one copies
// the message once and lets the commands point into the copy.
type serverCodec struct{}

func (serverCodec) Name() string { return proto.Name }

var protobufCodec = encoding.GetCodecV2(proto.Name)

func (serverCodec) Marshal(v any) (mem.BufferSlice, error) {
	out, ok := v.(*response)
	if !ok {
		return protobufCodec.Marshal(v)
	}
	size := out.size()
	if mem.IsBelowBufferPoolingThreshold(size) {
		return mem.BufferSlice{mem.SliceBuffer(out.append(make([]byte, 0, size)))}, nil
	}
	pool := mem.DefaultBufferPool()
	buf := pool.Get(size)
	*buf = out.append((*buf)[:0])
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}, nil
}

func (serverCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if in, ok := v.(*request); ok {
		buf := make([]byte, data.Len())
		data.CopyTo(buf)
		return in.decode(buf)
	}
	return protobufCodec.Unmarshal(data, v)
}

// request is gatewaypb.ProposeRequest.
type request struct {
	maxProposals int
	proposals    []Proposal // reused by the next message
	bytes        int        // length of the message, which the commands keep alive
}

// decode reads a message; the commands are parts of buf. Like the generated
// decoder it skips unknown fields and keeps the last of a repeated scalar.
func (r *request) decode(buf []byte) error {
	r.proposals, r.bytes = r.proposals[:0], len(buf)
	for len(buf) > 0 {
		num, typ, n := consumeTag(buf)
		if n < 0 {
			return malformed("bad tag")
		}
		buf = buf[n:]
		if num != 1 || typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, buf); n < 0 {
				return malformed("bad field %d", num)
			}
			buf = buf[n:]
			continue
		}
		field, n := protowire.ConsumeBytes(buf)
		if n < 0 {
			return malformed("proposal %d is cut off", len(r.proposals))
		}
		buf = buf[n:]
		if len(r.proposals) == r.maxProposals {
			return malformed("more than %d proposals in one message", r.maxProposals)
		}
		p, ok := decodeProposal(field)
		if !ok {
			return malformed("proposal %d does not decode", len(r.proposals))
		}
		r.proposals = append(r.proposals, p)
	}
	return nil
}

// consumeTag is protowire.ConsumeTag with the upper bound on field numbers too.
func consumeTag(buf []byte) (protowire.Number, protowire.Type, int) {
	num, typ, n := protowire.ConsumeTag(buf)
	if num > protowire.MaxValidNumber {
		return 0, 0, -1
	}
	return num, typ, n
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("malformed ProposeRequest: "+format, args...)
}

func decodeProposal(buf []byte) (p Proposal, ok bool) {
	for len(buf) > 0 {
		num, typ, n := consumeTag(buf)
		if n < 0 {
			return p, false
		}
		buf = buf[n:]
		switch {
		case num == 1 && typ == protowire.VarintType:
			v, n := protowire.ConsumeVarint(buf)
			if n < 0 {
				return p, false
			}
			p.ID, buf = uint32(v), buf[n:]
		case num == 2 && typ == protowire.BytesType:
			v, n := protowire.ConsumeBytes(buf)
			if n < 0 {
				return p, false
			}
			// The bound on capacity keeps an append to one command off the next.
			p.Command, buf = v[:len(v):len(v)], buf[n:]
		default:
			n := protowire.ConsumeFieldValue(num, typ, buf)
			if n < 0 {
				return p, false
			}
			buf = buf[n:]
		}
	}
	return p, true
}

// response is gatewaypb.ProposeResponse.
type response struct {
	ends
	withLeadership bool
	leadership     Leadership
	self           int
}

// maxReason bounds the text of a response in bytes.
const maxReason = 512

// size is at least the length that append needs.
func (r *response) size() int {
	return 3*(1+binary.MaxVarintLen32) + r.len()*binary.MaxVarintLen32 +
		2 + 3*(1+binary.MaxVarintLen64) + 3 + min(len(r.reason), maxReason)
}

func (r *response) append(b []byte) []byte {
	b = appendPacked(b, 1, r.applied)
	b = appendPacked(b, 2, r.rejected)
	b = appendPacked(b, 3, r.unknown)
	if r.withLeadership {
		var fields [3 * (1 + binary.MaxVarintLen64)]byte
		f := appendNonzero(fields[:0], 1, uint64(r.leadership.Leader))
		f = appendNonzero(f, 2, r.leadership.Term)
		f = appendNonzero(f, 3, uint64(r.self))
		b = protowire.AppendTag(b, 4, protowire.BytesType)
		b = protowire.AppendBytes(b, f)
	}
	if r.reason != "" {
		b = protowire.AppendTag(b, 5, protowire.BytesType)
		// A protobuf string is valid UTF-8.
		b = protowire.AppendString(b, strings.ToValidUTF8(r.reason[:min(len(r.reason), maxReason)], ""))
	}
	return b
}

func appendNonzero(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendPacked(b []byte, num protowire.Number, ids []uint32) []byte {
	if len(ids) == 0 {
		return b
	}
	size := 0
	for _, id := range ids {
		size += protowire.SizeVarint(uint64(id))
	}
	b = protowire.AppendTag(b, num, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	for _, id := range ids {
		b = protowire.AppendVarint(b, uint64(id))
	}
	return b
}
