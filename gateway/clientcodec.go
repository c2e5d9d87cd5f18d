package gateway

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// The two messages of the Propose stream, by hand: the generated code
// allocates for each proposal, and this is the client's path of a request.

// proposalMax bounds the encoded size of a proposal whose command has n bytes.
func proposalMax(n int) int {
	inner := 1 + protowire.SizeVarint(1<<32-1) + 1 + protowire.SizeBytes(n)
	return 1 + protowire.SizeBytes(inner)
}

// appendProposal appends one element of ProposeRequest.proposals; a request
// is any number of them.
func appendProposal(b []byte, id uint32, command []byte) []byte {
	n := 0
	if id != 0 {
		n += 1 + protowire.SizeVarint(uint64(id))
	}
	if len(command) > 0 {
		n += 1 + protowire.SizeBytes(len(command))
	}
	b = append(b, 1<<3|byte(protowire.BytesType))
	b = protowire.AppendVarint(b, uint64(n))
	if id != 0 {
		b = append(b, 1<<3|byte(protowire.VarintType))
		b = protowire.AppendVarint(b, uint64(id))
	}
	if len(command) > 0 {
		b = append(b, 2<<3|byte(protowire.BytesType))
		b = protowire.AppendBytes(b, command)
	}
	return b
}

// answers is a decoded ProposeResponse. Its slices are used again by the next
// decode; reason points into the bytes decoded.
type answers struct {
	applied, rejected, unknown []uint32
	claim                      leaderClaim
	claimed                    bool
	reason                     []byte
}

// leaderClaim is who leads according to one node.
type leaderClaim struct {
	leader uint32
	term   uint64
	self   uint32
}

var errAnswers = errors.New("malformed ProposeResponse")

// decode reads b by the rules of proto3: unknown fields and fields of another
// wire type are skipped, lists may be packed or not, and of a scalar told
// twice the last one counts.
func (r *answers) decode(b []byte) error {
	r.applied, r.rejected, r.unknown = r.applied[:0], r.rejected[:0], r.unknown[:0]
	r.claim, r.claimed, r.reason = leaderClaim{}, false, nil
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return errAnswers
		}
		b = b[n:]
		ok := true
		switch {
		case num == 1 && (typ == protowire.BytesType || typ == protowire.VarintType):
			r.applied, n = consumeIDs(r.applied, typ, b)
		case num == 2 && (typ == protowire.BytesType || typ == protowire.VarintType):
			r.rejected, n = consumeIDs(r.rejected, typ, b)
		case num == 3 && (typ == protowire.BytesType || typ == protowire.VarintType):
			r.unknown, n = consumeIDs(r.unknown, typ, b)
		case num == 4 && typ == protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				r.claimed = true
				ok = r.claim.decode(v)
			}
		case num == 5 && typ == protowire.BytesType:
			if r.reason, n = protowire.ConsumeBytes(b); n >= 0 {
				ok = utf8.Valid(r.reason)
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 || !ok {
			return errAnswers
		}
		b = b[n:]
	}
	return nil
}

func (c *leaderClaim) decode(b []byte) bool {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return false
		}
		b = b[n:]
		if typ != protowire.VarintType || num > 3 {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return false
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		switch num {
		case 1:
			c.leader = uint32(v)
		case 2:
			c.term = v
		case 3:
			c.self = uint32(v)
		}
	}
	return true
}

// consumeIDs appends one element of a repeated uint32, or a packed list of
// them, and returns how many bytes it took; less than 0 when malformed.
func consumeIDs(ids []uint32, typ protowire.Type, b []byte) ([]uint32, int) {
	if typ == protowire.VarintType {
		v, n := protowire.ConsumeVarint(b)
		return append(ids, uint32(v)), n
	}
	list, n := protowire.ConsumeBytes(b)
	if n < 0 {
		return ids, n
	}
	for len(list) > 0 {
		// Nearly all ids are below 2^14: two bytes.
		if list[0] < 0x80 {
			ids = append(ids, uint32(list[0]))
			list = list[1:]
			continue
		}
		if len(list) > 1 && list[1] < 0x80 {
			ids = append(ids, uint32(list[0]&0x7f)|uint32(list[1])<<7)
			list = list[2:]
			continue
		}
		v, m := protowire.ConsumeVarint(list)
		if m < 0 {
			return ids, m
		}
		ids = append(ids, uint32(v))
		list = list[m:]
	}
	return ids, n
}
