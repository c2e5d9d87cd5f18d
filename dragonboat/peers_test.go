package dragonboat

import (
	"strings"
	"testing"
	"time"

	"raftrig/gateway"
	"raftrig/gateway/gatewaytest"
	"raftrig/gateway/kv"
	"raftrig/gateway/serve"
)

// A node with another list of peers is refused and says so; the others go on.
func TestPeersDiffer(t *testing.T) {
	inMemory(t)
	c := gatewaytest.NewCluster(t, product)
	args := c.Args(1)
	peers := make(map[int]string)
	for i, a := range args {
		if a == "-peers" {
			for _, entry := range strings.Split(args[i+1], ",") {
				_, host, _ := strings.Cut(entry, "=")
				peers[len(peers)+1] = host + ":8421"
			}
		}
	}
	others := map[int]string{1: peers[1], 2: peers[2], 3: peers[3], 4: "127.0.0.1:1"}
	start := func(id int, peers map[int]string) (*Node, *gatewaytest.Output) {
		var said gatewaytest.Output
		cfg := Config{Config: serve.Config{ID: id, Peers: peers, State: kv.New(), LogOutput: &said}}
		cfg.MemoryDir = inMemory(t)
		cfg.ElectionTimeout, cfg.HeartbeatInterval = 500*time.Millisecond, 50*time.Millisecond
		n, err := Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		return n, &said
	}
	a, _ := start(1, peers)
	b, _ := start(2, peers)
	odd, said := start(3, others) // the last one has the log
	c.Until("the odd one to be refused", func() string {
		if l := a.Leadership().Leader; l == 0 || l == 3 || l != b.Leadership().Leader {
			return "no leader"
		}
		if !strings.Contains(said.String(), errOtherPeers.Error()) {
			return said.String()
		}
		return ""
	})
	if l := odd.Leadership(); l.Leader != 0 {
		t.Errorf("the odd one follows %+v", l)
	}
	if st, err := odd.Status(); err != nil || st.Role != gateway.Candidate || st.Count != 0 {
		t.Errorf("the odd one: %+v, %v", st, err)
	}
}
