package gateway

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"raftrig/gateway/gatewaypb"
)

func TestAppendProposal(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		want := &gatewaypb.ProposeRequest{}
		var got []byte
		for range rng.IntN(5) {
			id := rng.Uint32() >> rng.IntN(33)
			command := make([]byte, rng.IntN(1<<rng.IntN(18)))
			want.Proposals = append(want.Proposals, &gatewaypb.Proposal{Id: id, Command: command})
			before := len(got)
			got = appendProposal(got, id, command)
			if n := len(got) - before; n > proposalMax(len(command)) {
				t.Fatalf("a command of %d bytes takes %d, more than the bound of %d", len(command), n, proposalMax(len(command)))
			}
		}
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, b) {
			t.Fatalf("%d proposals: encoded differently by the generated code", len(want.Proposals))
		}
	}
}

// sameAsGenerated decodes b both ways and fails where they differ.
func sameAsGenerated(t *testing.T, a *answers, b []byte) {
	t.Helper()
	var want gatewaypb.ProposeResponse
	wantErr := proto.Unmarshal(b, &want)
	err := a.decode(b)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%x: %v; the generated code says %v", b, err, wantErr)
	}
	if err != nil {
		return
	}
	l := want.Leadership
	if !slices.Equal(a.applied, want.Applied) || !slices.Equal(a.rejected, want.Rejected) ||
		!slices.Equal(a.unknown, want.Unknown) || string(a.reason) != want.Reason || a.claimed != (l != nil) ||
		a.claim != (leaderClaim{l.GetLeader(), l.GetTerm(), l.GetSelf()}) {
		t.Fatalf("%x: decoded %+v; the generated code says %v", b, a, &want)
	}
}

func TestAnswersDecode(t *testing.T) {
	var a answers
	rng := rand.New(rand.NewPCG(5, 6))
	ids := func() (l []uint32) {
		for range rng.IntN(6) {
			l = append(l, rng.Uint32()>>rng.IntN(32))
		}
		return l
	}
	for range 200 {
		r := &gatewaypb.ProposeResponse{Applied: ids(), Rejected: ids(), Unknown: ids()}
		if rng.IntN(2) == 0 {
			r.Leadership = &gatewaypb.Leadership{Leader: rng.Uint32N(4), Term: rng.Uint64(), Self: rng.Uint32N(4)}
		}
		if rng.IntN(2) == 0 {
			r.Reason = "not the leader"
		}
		b, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		sameAsGenerated(t, &a, b)
		sameAsGenerated(t, &a, append(b, b...)) // messages concatenated are merged
	}
}

func FuzzAnswersDecode(f *testing.F) {
	for _, r := range []*gatewaypb.ProposeResponse{
		{},
		{Applied: []uint32{1, 2, 300, 1<<32 - 1}, Rejected: []uint32{0}, Unknown: []uint32{7}},
		{Leadership: &gatewaypb.Leadership{Leader: 1, Term: 1 << 60, Self: 3}, Reason: "näh"},
	} {
		b, _ := proto.Marshal(r)
		f.Add(b)
	}
	f.Add([]byte("\x08\x05\x08\x06"))                     // not packed
	f.Add([]byte("\x2a\x01\xff"))                         // not UTF-8
	f.Add([]byte("\x22\x02\x08\x01\x22\x02\x10\x02"))     // leadership in two parts
	f.Add([]byte("\x3b\x08\x01\x3c"))                     // a group
	f.Add([]byte("\x0a\xff\xff\xff\xff\xff\xff\xff\x7f")) // a length without bytes
	f.Fuzz(func(t *testing.T, b []byte) {
		var a answers
		sameAsGenerated(t, &a, b)
	})
}
