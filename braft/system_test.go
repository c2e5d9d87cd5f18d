package braft

import (
	"context"
	"encoding/json"
	"flag"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"raftrig/fleet"
	"raftrig/loadgen"
)

// httpNode is the HTTP side of a node.
type httpNode struct {
	self, leader int
	refuse       string // what transfer_leader says; "" takes it
	transfers    []map[string]string
}

func (n *httpNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/raftrig/status":
		json.NewEncoder(w).Encode(map[string]any{
			"node": n.self, "leads": n.self == n.leader, "leader": n.leader, "term": 3, "applied": 10, "count": 7,
			"digest": "d", "version": "scripted 1", "log": "in memory",
		})
	case "/braft.CliService/transfer_leader":
		var m map[string]string
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil || r.Method != http.MethodPost {
			http.Error(w, "malformed", http.StatusBadRequest)
			return
		}
		if n.refuse != "" {
			http.Error(w, n.refuse, http.StatusInternalServerError)
			return
		}
		n.transfers = append(n.transfers, m)
		// As brpc answers with a message that has no fields: nothing.
	default:
		http.NotFound(w, r)
	}
}

// httpNodes serves nodes on one port of several loopback addresses, and opens
// them as a system.
func httpNodes(t *testing.T, nodes ...*httpNode) *System {
	t.Helper()
	hosts := []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}[:len(nodes)]
	ports, err := fleet.FreePorts(1, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		if n == nil {
			continue
		}
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(hosts[i]), uint16(ports[0]))))
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: n}
		done := make(chan struct{})
		go func() { srv.Serve(l); close(done) }()
		t.Cleanup(func() { srv.Close(); <-done })
	}
	s, err := Open(t.Context(), hosts, ports[0], "Atomic")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStatus(t *testing.T) {
	s := httpNodes(t, &httpNode{self: 1, leader: 1}, &httpNode{self: 3, leader: 1}, nil)
	nodes := s.Status(t.Context())
	want := loadgen.NodeStatus{Node: 1, Addr: s.addrs[0].String(), Leads: true, Leader: 1, Term: 3, Applied: 10, Count: 7,
		Digest: "d", Version: "scripted 1", Log: "in memory"}
	if nodes[0] != want {
		t.Errorf("%+v", nodes[0])
	}
	if err := nodes[1].Err; err == nil || !strings.Contains(err.Error(), "it says it is node 3") {
		t.Error(err)
	}
	if err := nodes[2].Err; err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
}

func TestTransferLeader(t *testing.T) {
	leader := &httpNode{self: 2, leader: 2}
	s := httpNodes(t, &httpNode{self: 1, leader: 2}, leader, nil)
	if err := s.TransferLeader(t.Context(), 2); err != nil || len(leader.transfers) != 0 {
		t.Errorf("to the leader: %v, %v", err, leader.transfers)
	}
	if err := s.TransferLeader(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	got := leader.transfers[0]
	if len(got) != 3 || got["group_id"] != "Atomic" || got["leader_id"] != s.addrs[1].String()+":0" || got["peer_id"] != s.addrs[0].String()+":0" {
		t.Errorf("%v", got)
	}
	leader.refuse = "[E1]no such peer\nsecond line"
	if err := s.TransferLeader(t.Context(), 3); err == nil || err.Error() != "transfer from node 2 to node 3: HTTP status 500 [E1]no such peer" {
		t.Error(err)
	}
	leader.leader = 1
	if err := s.TransferLeader(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "no leader; node 3 at ") {
		t.Error(err)
	}
	for _, node := range []int{0, 4} {
		if err := s.TransferLeader(t.Context(), node); err == nil {
			t.Errorf("transfer to node %d", node)
		}
	}
}

func TestProduct(t *testing.T) {
	p := Product()
	f := flag.NewFlagSet("", flag.ContinueOnError)
	p.Flags(f)
	if err := f.Parse([]string{"-port", "81", "-group", "G"}); err != nil {
		t.Fatal(err)
	}
	sys, err := p.Open(t.Context(), []string{"127.0.0.1", "127.0.0.2"})
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	if s := sys.(*System); s.group != "G" || s.addrs[1].String() != "127.0.0.2:81" {
		t.Errorf("%+v", s)
	}
	if p.Name != "braft" || p.Size != 24 {
		t.Errorf("%+v", p)
	}
}

func TestOpenRejects(t *testing.T) {
	for _, test := range []struct {
		hosts []string
		port  int
		group string
		want  string
	}{
		{nil, 1, "G", "0 hosts"},
		{make([]string, maxNodes+1), 1, "G", "201 hosts"},
		{[]string{"127.0.0.1"}, 0, "G", "port 0"},
		{[]string{"127.0.0.1"}, 1, "", "-group"},
		{[]string{"127.0.0.1", "127.0.0.2", "127.0.0.1"}, 1, "G", "nodes 1 and 3 have one address"},
	} {
		if _, err := Open(context.Background(), test.hosts, test.port, test.group); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}
