package braft

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// recorded calls of a real group.
type recorded struct {
	Case              string
	Request, Response hexBytes
}

type hexBytes []byte

func (h *hexBytes) UnmarshalJSON(b []byte) (err error) {
	var s string
	if err = json.Unmarshal(b, &s); err == nil {
		*h, err = hex.DecodeString(s)
	}
	return err
}

func readRecorded(tb testing.TB) map[string]recorded {
	tb.Helper()
	b, err := os.ReadFile("testdata/calls.json")
	if err != nil {
		tb.Fatal(err)
	}
	var list []recorded
	if err := json.Unmarshal(b, &list); err != nil {
		tb.Fatal(err)
	}
	calls := map[string]recorded{}
	for _, c := range list {
		calls[c.Case] = c
	}
	return calls
}

const recordedKey = 987654321

func TestAppendRequests(t *testing.T) {
	calls := readRecorded(t)
	for name, got := range map[string][]byte{
		"compare_exchange success on an absent key":    appendExchange(nil, 7, recordedKey, 0, 1),
		"compare_exchange success":                     appendExchange(nil, 8, recordedKey, 1, 2),
		"compare_exchange mismatch":                    appendExchange(nil, 9, recordedKey, 77, 78),
		"compare_exchange to a follower is redirected": appendExchange(nil, 12, recordedKey, 40, 41),
		"CliService get_leader":                        appendLeader(nil, 15, "Atomic"),
		"CliService get_leader, unknown group":         appendLeader(nil, 16, "Nope"),
	} {
		want, ok := calls[name]
		if !ok {
			t.Fatalf("no recorded call %q", name)
		}
		if !bytes.Equal(got, want.Request) {
			t.Errorf("%s:\n%x, recorded\n%x", name, got, []byte(want.Request))
		}
	}
	longest := appendExchange(nil, math.MaxUint64, math.MinInt64, math.MinInt64, math.MinInt64)
	if len(longest) > maxRequest {
		t.Errorf("a compare_exchange of %d bytes, %d are allowed for", len(longest), maxRequest)
	}
}

func TestDecodeRecordedReplies(t *testing.T) {
	values := func(success bool, old, new int64) exchanged {
		return exchanged{success: success, key: recordedKey, old: old, new: new, has: hasValues | 1<<1}
	}
	calls := readRecorded(t)
	for name, want := range map[string]struct {
		correlation uint64
		code        int32
		text        string
		body        exchanged
		leader      string
	}{
		"compare_exchange success on an absent key": {correlation: 7, body: values(true, 0, 1)},
		"compare_exchange success":                  {correlation: 8, body: values(true, 1, 2)},
		"compare_exchange mismatch":                 {correlation: 9, body: values(false, 2, 2)},
		"exchange":                                  {correlation: 10, body: values(true, 2, 40)},
		"get":                                       {correlation: 11, body: values(true, 40, 40)},
		"compare_exchange to a follower is redirected": {correlation: 12, body: exchanged{has: 1 << 1, redirect: []byte("127.0.0.1:8301:0:0")}},
		"unknown method":                       {correlation: 13, code: codeNoMethod, text: "Fail to find method=example.AtomicService/nope"},
		"malformed body":                       {correlation: 14, code: codeBadRequest, text: "Fail to parse request message"},
		"CliService get_leader":                {correlation: 15, leader: "127.0.0.1:8301:0:0"},
		"CliService get_leader, unknown group": {correlation: 16, code: codeNoGroup, text: "No nodes in group Nope"},
	} {
		var r reply
		b := []byte(calls[name].Response)
		for n := range b {
			if used, err := r.decode(b[:n]); used != 0 || err != nil {
				t.Fatalf("%s: %d of %d bytes: used %d, %v", name, n, len(b), used, err)
			}
		}
		used, err := r.decode(append(b, "PR"...))
		if err != nil || used != len(b) {
			t.Fatalf("%s: used %d of %d, %v", name, used, len(b), err)
		}
		if r.correlation != want.correlation || r.code != want.code || !strings.Contains(string(r.text), want.text) {
			t.Errorf("%s: %+v", name, r)
		}
		if want.code != 0 {
			continue
		}
		if want.leader != "" {
			if got, err := decodeLeader(r.body); got != want.leader || err != nil {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			continue
		}
		var e exchanged
		if err := e.decode(r.body); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if e.success != want.body.success || e.key != want.body.key || e.old != want.body.old || e.new != want.body.new ||
			e.has != want.body.has || !bytes.Equal(e.redirect, want.body.redirect) {
			t.Errorf("%s: %+v, want %+v", name, e, want.body)
		}
	}
}

// frame makes a frame of any meta and body.
func frame(meta, body []byte) []byte {
	b := []byte("PRPC")
	b = binary.BigEndian.AppendUint32(b, uint32(len(meta)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(meta)))
	return append(append(b, meta...), body...)
}

// header makes the first 12 bytes of a frame.
func header(size, meta uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte("PRPC"), size)
	return binary.BigEndian.AppendUint32(b, meta)
}

func TestDecodeHostileReplies(t *testing.T) {
	for _, test := range []struct {
		b    []byte
		want string
	}{
		{[]byte("HTTP/1.1 404 Not Found\r\n"), "does not speak baidu_std"},
		{[]byte("H"), "does not speak baidu_std"},
		{[]byte("PRPD"), "does not speak baidu_std"},
		{header(maxFrame, 10), "a reply of 32768 bytes"},
		{header(math.MaxUint32, math.MaxUint32), "a reply of 4294967295 bytes"},
		{header(10, 11), "a reply of 10 bytes with a meta of 11"},
		{header(10, math.MaxUint32), "with a meta of 4294967295"},
		{frame(nil, nil), "no reply"},
		{frame([]byte{0x12, 0}, nil), "no reply"},              // without a correlation id
		{frame([]byte{0x20, 1}, nil), "no reply"},              // without an answer
		{frame([]byte{0x12, 5, 0x20, 1}, nil), "malformed"},    // a length beyond the meta
		{frame([]byte{0x12, 0, 0x20}, nil), "malformed"},       // cut off
		{frame([]byte{0x12, 1, 8, 0x20, 1}, nil), "malformed"}, // the answer cut off
		{frame([]byte{0x12, 0, 0x20, 1, 0x18, 1}, nil), "compressed"},
		{frame([]byte{0x12, 0, 0x20, 1, 0x28, 1}, nil), "attachment"},
		{frame(bytes.Repeat([]byte{0xff}, 11), nil), "malformed"},
	} {
		var r reply
		if n, err := r.decode(test.b); n != 0 || err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.40q: used %d, %v, want %q", test.b, n, err, test.want)
		}
	}
	var r reply
	largest := frame(append([]byte{0x12, 0, 0x20, 1}, 0x3a, 0), make([]byte, maxFrame-headerLen-6))
	if n, err := r.decode(largest); n != len(largest) || err != nil {
		t.Errorf("the largest reply: %d of %d, %v", n, len(largest), err)
	}
	for _, b := range [][]byte{
		nil, {8, 1}, {0x10, 1}, {8, 1, 0x10, 1, 0x18, 1}, {8, 0, 0x20, 1}, {8}, {8, 0, 0x2a, 5}, {0},
	} {
		var e exchanged
		if err := e.decode(b); err == nil {
			t.Errorf("%x: decoded as %+v", b, e)
		}
	}
	for _, b := range [][]byte{nil, {0x0a, 0}, {0x0a, 1}, {8, 1}, {0xff}} {
		if id, err := decodeLeader(b); err == nil {
			t.Errorf("%x: decoded as %q", b, id)
		}
	}
}

func TestPeerID(t *testing.T) {
	for s, want := range map[string]string{
		"127.0.0.1:8301:0:0":     "127.0.0.1:8301",
		"127.0.0.1:8301:0":       "127.0.0.1:8301",
		"10.1.2.3:65535":         "10.1.2.3:65535",
		"[::1]:80:0":             "[::1]:80",
		"[::ffff:10.0.0.1]:80:0": "10.0.0.1:80",
		"":                       "",
		"127.0.0.1":              "",
		"127.0.0.1:":             "",
		"127.0.0.1:0:0":          "",
		"127.0.0.1:65536:0":      "",
		"127.0.0.1:+80:0":        "",
		"127.0.0.1:8 1:0":        "",
		"host:80:0":              "",
		"[::1":                   "",
		"::1:80:0":               "",
	} {
		got, err := parsePeerID(s)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%q: %v, %v, want %q", s, got, err, want)
		}
	}
	if got := peerID(netip.MustParseAddrPort("10.0.0.1:8300")); got != "10.0.0.1:8300:0" {
		t.Error(got)
	}
}

// The messages as protobuf's own library reads them.
var (
	metaType     = message("Meta", "response:2:bytes", "compress_type:3:int32", "correlation_id:4:int64", "attachment_size:5:int32")
	responseType = message("Response", "error_code:1:int32", "error_text:2:bytes")
	atomicType   = message("Atomic", "success:1:bool", "id:2:int64", "new_value:3:int64", "old_value:4:int64", "redirect:5:bytes")
	leaderType   = message("Leader", "leader_id:1:bytes")
)

// message makes a type of name:number:type fields, all optional.
func message(name string, fields ...string) protoreflect.MessageDescriptor {
	types := map[string]descriptorpb.FieldDescriptorProto_Type{
		"bool": descriptorpb.FieldDescriptorProto_TYPE_BOOL, "int32": descriptorpb.FieldDescriptorProto_TYPE_INT32,
		"int64": descriptorpb.FieldDescriptorProto_TYPE_INT64, "bytes": descriptorpb.FieldDescriptorProto_TYPE_BYTES,
	}
	m := &descriptorpb.DescriptorProto{Name: &name}
	for _, f := range fields {
		part := strings.Split(f, ":")
		m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{
			Name: &part[0], Number: proto.Int32(int32(part[1][0] - '0')), Type: types[part[2]].Enum(),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		})
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String(name + ".proto"), Syntax: proto.String("proto2"), MessageType: []*descriptorpb.DescriptorProto{m},
	}, nil)
	if err != nil {
		panic(err)
	}
	return file.Messages().Get(0)
}

// parsed reads b as a message of the type.
func parsed(t protoreflect.MessageDescriptor, b []byte) (*dynamicpb.Message, error) {
	m := dynamicpb.NewMessage(t)
	return m, proto.Unmarshal(b, m)
}

func field(m *dynamicpb.Message, name string) (v protoreflect.Value, has bool) {
	f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	return m.Get(f), m.Has(f)
}

func intField(m *dynamicpb.Message, name string) int64 {
	v, _ := field(m, name)
	return v.Int()
}

func bytesField(m *dynamicpb.Message, name string) []byte {
	v, _ := field(m, name)
	return v.Bytes()
}

// FuzzReply holds the decoder of frames and metas against protobuf's.
func FuzzReply(f *testing.F) {
	for _, c := range readRecorded(f) {
		f.Add([]byte(c.Response))
		f.Add([]byte(c.Request))
		f.Add([]byte(c.Response[:len(c.Response)-1]))
	}
	f.Add(header(math.MaxUint32, 1))
	f.Add(header(20, math.MaxUint32))
	f.Add(frame(bytes.Repeat([]byte{0x3a, 0x7f}, 200), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r reply
		n, err := r.decode(b)
		if n > len(b) || n > maxFrame || n != 0 && err != nil {
			t.Fatalf("used %d of %d, %v", n, len(b), err)
		}
		if n == 0 && err == nil && len(b) >= maxFrame {
			t.Fatalf("%d bytes are not enough", len(b))
		}
		if len(b) < headerLen || string(b[:4]) != "PRPC" {
			return
		}
		size, meta := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
		if size > maxFrame-headerLen || meta > size || len(b) < headerLen+int(size) {
			if n != 0 {
				t.Fatalf("used %d", n)
			}
			return
		}
		m, wantErr := parsed(metaType, b[headerLen:headerLen+meta])
		if wantErr != nil {
			if err == nil {
				t.Fatalf("%x: %+v, want %v", b, r, wantErr)
			}
			return
		}
		_, answers := field(m, "response")
		_, correlated := field(m, "correlation_id")
		good := answers && correlated && intField(m, "compress_type") == 0 && intField(m, "attachment_size") == 0
		if err != nil {
			// A response told twice is merged by protobuf; here each has to be
			// well-formed, and the library sees but the last.
			if good && err != errMeta {
				t.Fatalf("%x: %v", b, err)
			}
			return
		}
		if !good || r.correlation != uint64(intField(m, "correlation_id")) || !bytes.Equal(r.body, b[headerLen+meta:headerLen+size]) {
			t.Fatalf("%x: %+v, want %v", b, r, m)
		}
		if bytes.Count(b, []byte{0x12}) > 1 {
			return
		}
		e, err := parsed(responseType, bytesField(m, "response"))
		if err != nil || int64(r.code) != intField(e, "error_code") || !bytes.Equal(r.text, bytesField(e, "error_text")) {
			t.Fatalf("%x: %+v, want %v %v", b, r, e, err)
		}
	})
}

// FuzzBody holds the decoders of bodies against protobuf's.
func FuzzBody(f *testing.F) {
	for _, c := range readRecorded(f) {
		var r reply
		if _, err := r.decode(c.Response); err != nil {
			f.Fatal(err)
		}
		f.Add(r.body)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		b := []byte{8, byte(rng.IntN(2))}
		for _, tag := range []byte{0x10, 0x18, 0x20} {
			b = protowire.AppendVarint(append(b, tag), rng.Uint64()>>rng.IntN(64))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var e exchanged
		err := e.decode(b)
		m, wantErr := parsed(atomicType, b)
		if wantErr != nil && err == nil {
			t.Fatalf("%x: %+v, want %v", b, e, wantErr)
		}
		if wantErr == nil {
			has := func(name string) bool { _, ok := field(m, name); return ok }
			success, _ := field(m, "success")
			all := has("id") && has("new_value") && has("old_value")
			none := !has("id") && !has("new_value") && !has("old_value") && !success.Bool()
			if good := has("success") && (all || none); good != (err == nil) {
				t.Fatalf("%x: %v, %v", b, err, m)
			}
			if err == nil && (e.success != success.Bool() || e.key != intField(m, "id") || e.new != intField(m, "new_value") ||
				e.old != intField(m, "old_value") || !bytes.Equal(e.redirect, bytesField(m, "redirect"))) {
				t.Fatalf("%x: %+v, want %v", b, e, m)
			}
		}
		id, err := decodeLeader(b)
		m, wantErr = parsed(leaderType, b)
		if good := wantErr == nil && len(bytesField(m, "leader_id")) > 0; good != (err == nil) {
			t.Fatalf("%x: %q, %v", b, id, err)
		}
		if err == nil && id != string(bytesField(m, "leader_id")) {
			t.Fatalf("%x: %q", b, id)
		}
		_, _ = parsePeerID(string(b))
	})
}
