package etcdraft

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"raftrig/gateway"
	"raftrig/gateway/gatewaytest"
	"raftrig/gateway/kv"
	"raftrig/gateway/serve"
)

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(gatewaytest.Patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func peers(nodes int) map[int]string {
	p := make(map[int]string)
	prefix := fmt.Sprintf("127.%d.%d", 1+rand.IntN(250), rand.IntN(256))
	for id := 1; id <= nodes; id++ {
		p[id] = fmt.Sprintf("%s.%d:8411", prefix, id)
	}
	return p
}

func startNode(t *testing.T, id int, peers map[int]string, set func(*Config)) (*Node, *gatewaytest.Output) {
	t.Helper()
	out := new(gatewaytest.Output)
	c := Config{Config: serve.Config{ID: id, Peers: peers, State: kv.New(), LogOutput: out},
		ElectionTimeout: 300 * time.Millisecond, SnapshotThreshold: 300, TrailingLogs: 100}
	if set != nil {
		set(&c)
	}
	n, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n, out
}

func applyMany(t *testing.T, n *Node, count int) {
	t.Helper()
	s := make(endSink, count)
	var batch []gateway.Proposal
	for i := range count {
		batch = append(batch, gateway.Proposal{ID: uint32(i), Command: kv.Append(nil, uint64(i), []byte("value"))})
	}
	n.Propose(batch, s)
	for range count {
		select {
		case e := <-s:
			if e != gateway.Applied {
				t.Fatalf("a proposal ended %v", e)
			}
		case <-time.After(gatewaytest.Patience):
			t.Fatal("a proposal does not end")
		}
	}
}

func count(n *Node) uint64 { return n.cfg.State.Status().Count }

// Two nodes: the one that comes back empty is needed for every commit. It comes
// back fast, in the leader's term, over and over, to a log that is all there
// and to one that needs a snapshot.
func TestComesBackEmptyAtOnce(t *testing.T) {
	p := peers(2)
	one, out := startNode(t, 1, p, func(c *Config) { c.ElectionTimeout = time.Second })
	two, _ := startNode(t, 2, p, func(c *Config) { c.ElectionTimeout = time.Second })
	await(t, "a leader", func() bool { return one.Leadership().Leader != 0 && two.Leadership().Leader != 0 })
	if one.Leadership().Leader != 1 {
		if err := two.TransferLeader(context.Background(), 1); err != nil {
			t.Fatal(err)
		}
	}
	term := one.Leadership().Term
	total := uint64(0)
	for _, n := range []int{50, 20, 1, 1000, 30} {
		applyMany(t, one, n)
		total += uint64(n)
		await(t, "the follower", func() bool { return count(two) == total })
		two.Close()
		two, _ = startNode(t, 2, p, func(c *Config) { c.ElectionTimeout = time.Second })
	}
	applyMany(t, one, 10)
	await(t, "the follower", func() bool { return count(two) == total+10 })
	if a, b := one.cfg.State.Status(), two.cfg.State.Status(); a.Digest != b.Digest {
		t.Errorf("%+v, %+v", a, b)
	}
	if l := one.Leadership(); l.Leader != 1 || l.Term != term {
		t.Errorf("leadership %+v, before in term %d", l, term)
	}
	if s := out.String(); s != "" {
		t.Errorf("said %q", s)
	}
}

// While the leader forgets a peer, nothing is committed that is not with a
// majority of all.
func TestForgettingAPeerCommitsNothing(t *testing.T) {
	for _, nodes := range []int{2, 3, 4, 5} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			n := &Node{in: newMailbox(), log: &logger{out: io.Discard}}
			n.cfg = Config{}.withDefaults()
			n.cfg.ID, n.cfg.State = 1, kv.New()
			n.transport = newTransport(1, peers(nodes), nil, n.in, n.log)
			n.loop = newLoop(n.transport.voters)
			n.storage.ApplySnapshot(newSnapshot(0, 0, n.voters, nil))
			var err error
			if n.raft, err = raft.NewRawNode(n.raftConfig()); err != nil {
				t.Fatal(err)
			}
			turn := func(events ...event) {
				t.Helper()
				for _, e := range events {
					n.in.post(e)
				}
				if err := n.turn(); err != nil {
					t.Fatal(err)
				}
			}
			from := func(peer int, m pb.MessageType, set func(*pb.Message)) event {
				msg := &pb.Message{Type: m.Enum(), From: new(uint64(peer)), To: new(uint64(1)), Term: new(uint64(1))}
				if set != nil {
					set(msg)
				}
				return event{kind: received, peer: peer, incarnation: uint64(100 + peer), msg: msg}
			}
			ack := func(peer int, index uint64) event {
				return from(peer, pb.MsgAppResp, func(m *pb.Message) { m.Index = new(index) })
			}
			n.raft.Campaign()
			for _, vote := range []pb.MessageType{pb.MsgPreVoteResp, pb.MsgVoteResp} {
				for peer := 2; peer <= nodes; peer++ {
					turn(from(peer, vote, nil))
				}
			}
			for peer := 2; peer <= nodes; peer++ {
				turn(ack(peer, 1))
			}
			// Entry 2 is with one node fewer than a majority, the leader included,
			// and not with the last peer.
			s := make(endSink, 1)
			n.in.propose([]gateway.Proposal{{Command: kv.Append(nil, 1, nil)}}, s)
			turn()
			for peer := 2; peer <= nodes/2; peer++ {
				turn(ack(peer, 2))
			}
			turn(event{kind: linked, peer: nodes, incarnation: 999})
			if st := n.raft.BasicStatus(); st.GetCommit() != 1 || st.RaftState != raft.StateLeader {
				t.Fatalf("commit %d as %v, want 1", st.GetCommit(), st.RaftState)
			}
			voters := 0
			n.raft.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
				voters++
				if id == uint64(nodes) && (pr.Match != 0 || pr.State != tracker.StateProbe) {
					t.Errorf("remembers %v", &pr)
				}
				if id == standIn {
					t.Error("the stand-in stays")
				}
			})
			if voters != nodes {
				t.Errorf("%d voters", voters)
			}
			// What the former process had acknowledged does not count any more.
			turn(ack(nodes, 2))
			if c := n.raft.BasicStatus().GetCommit(); c != 1 {
				t.Fatalf("commit %d by a process that has ended", c)
			}
			again := ack(nodes, 2)
			again.incarnation = 999
			turn(again)
			if end := <-s; end != gateway.Applied {
				t.Errorf("end %v", end)
			}
		})
	}
}

// Nodes whose peer lists differ do not talk, and each says why.
func TestPeerListsDiffer(t *testing.T) {
	p := peers(3)
	q := map[int]string{1: p[1], 2: p[2], 3: strings.Replace(p[3], ":8411", ":9", 1)}
	one, out1 := startNode(t, 1, p, nil)
	_, out2 := startNode(t, 2, q, nil)
	await(t, "both to complain", func() bool {
		return strings.Contains(out1.String(), "node 2 at "+p[2]+" refuses this node: its -peers are ") &&
			strings.Contains(out2.String(), "node 1 at "+p[1]+" refuses this node: its -peers are ")
	})
	if l := one.Leadership(); l.Leader != 0 {
		t.Errorf("leadership %+v", l)
	}
	if s := out1.String(); strings.Count(s, "refuses this node") != 1 {
		t.Errorf("said %q", s)
	}
}

// A hostile connection ends, the node does not.
func TestHostileConnection(t *testing.T) {
	p := peers(1)
	p[2], p[3] = "127.0.0.1:9", "127.0.0.2:9" // nobody
	n, out := startNode(t, 1, p, nil)
	h := hello{from: 2, to: 1, incarnation: 5, cluster: n.transport.cluster}
	garbage := func(head []byte) {
		t.Helper()
		conn, err := net.Dial("tcp", p[1])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(append(head, "\xff\xff\xff\xff\xff and so on and so forth, longer than a hello is"...)); err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(gatewaytest.Patience))
		io.Copy(io.Discard, conn) // until it is closed
	}
	garbage(nil)
	garbage(h.append(nil))
	garbage(frames(t, snapshotMessage(t, nil)))
	for _, m := range []*pb.Message{
		message(pb.MsgHeartbeat, func(m *pb.Message) { m.Commit = new(uint64(1000)) }),
		message(pb.MsgProp, nil),
		message(pb.MsgVote, func(m *pb.Message) { m.To = new(uint64(7)) }),
	} {
		garbage(append(h.append(nil), frames(t, m)...))
	}
	await(t, "complaints", func() bool {
		s := out.String()
		return strings.Contains(s, "another program") && strings.Contains(s, "speaks of entry 1000") && strings.Contains(s, "connection from node 2: ")
	})
	if _, err := n.Status(); err != nil {
		t.Error(err)
	}
}

// A disk that fails ends the proposals and the node, with one line.
func TestGivesUpInOneLine(t *testing.T) {
	n, out := startNode(t, 1, peers(1), nil)
	await(t, "a leader", func() bool { return n.Leadership().Leader == 1 })
	applyMany(t, n, 3)
	n.in.post(event{kind: called, call: func() error { n.log.Panicf("entry %d is missing", 7); return nil }})
	await(t, "the end", func() bool { _, err := n.Status(); return err != nil })
	if l := n.Leadership(); l.Leader != 0 {
		t.Errorf("leadership %+v", l)
	}
	const want = "node 1 has stopped: entry 7 is missing"
	if err := n.Close(); err == nil || err.Error() != want {
		t.Errorf("close: %v", err)
	}
	if s := out.String(); s != "etcdraft: "+want+"\n" {
		t.Errorf("said %q", s)
	}
	if err := apply(n, kv.Append(nil, 1, nil)); err == nil {
		t.Error("takes proposals")
	}
}

// A commit index goes out with entries if they follow, else after a while.
func TestCommitIndexWaitsForEntries(t *testing.T) {
	start := func(delay time.Duration) (n *Node, queued func() []*pb.Message) {
		n = &Node{cfg: Config{CommitDelay: delay}, transport: newTransport(1, peers(3), nil, newMailbox(), nil)}
		n.loop = newLoop(nil)
		t.Cleanup(func() { n.release.Stop() })
		return n, func() (messages []*pb.Message) {
			for _, o := range n.transport.links[2].take(nil) {
				messages = append(messages, o.msg)
			}
			return messages
		}
	}
	message := func(kind pb.MessageType, commit uint64, entries ...*pb.Entry) *pb.Message {
		return &pb.Message{Type: kind.Enum(), To: new(uint64(2)), Commit: new(commit), Entries: entries}
	}
	expect := func(got []*pb.Message, commits ...uint64) {
		t.Helper()
		var have []uint64
		for _, m := range got {
			have = append(have, m.GetCommit())
		}
		if !slices.Equal(have, commits) {
			t.Errorf("sent messages with commit indexes %v, want %v", have, commits)
		}
	}
	n, queued := start(time.Minute)
	n.send(message(pb.MsgApp, 1))
	n.send(message(pb.MsgHeartbeat, 1)) // is not held up, and takes nothing along
	expect(queued(), 1)
	n.send(message(pb.MsgApp, 2))
	expect(queued())
	n.send(message(pb.MsgApp, 3, &pb.Entry{}))
	expect(queued(), 3)
	n.sendHeld()
	expect(queued())
	n.send(message(pb.MsgApp, 4))
	n.sendHeld()
	n.sendHeld()
	expect(queued(), 4)

	n, queued = start(-1)
	n.send(message(pb.MsgApp, 1))
	expect(queued(), 1)
}
