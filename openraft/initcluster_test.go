package openraft

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// makings is what init-cluster talks to: three nodes that form as told.
type makings struct {
	mu     sync.Mutex
	addrs  []netip.AddrPort
	nodes  [4]bool // in the cluster and not without a log; from 1
	voters []int
	member map[int]string
	leader int
	said   []string                 // the POSTs
	fail   func(path string) string // an answer instead; may be nil
}

func newMakings(t *testing.T) *makings {
	t.Helper()
	m := &makings{member: map[int]string{}}
	for id := 1; id <= 3; id++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		m.addrs = append(m.addrs, l.Addr().(*net.TCPAddr).AddrPort())
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(id, w, r) })}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
	}
	return m
}

func (m *makings) serve(id int, w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	if r.Method == "POST" {
		m.said = append(m.said, fmt.Sprintf("%d %s %s", id, r.URL.Path, body))
		if m.fail != nil {
			if text := m.fail(r.URL.Path); text != "" {
				io.WriteString(w, text)
				return
			}
		}
	}
	switch r.URL.Path {
	case "/status":
		json.NewEncoder(w).Encode(map[string]any{"node": id, "leads": id == m.leader, "leader": m.leader, "term": 1})
		return
	case "/metrics":
		state, configs, members := "Learner", [][]int{}, map[string]any{}
		var leader any
		if m.nodes[id] {
			state, leader = "Follower", m.leader
			configs = append(configs, m.voters)
			for n, addr := range m.member {
				members[fmt.Sprint(n)] = map[string]string{"addr": addr}
			}
		}
		if id == m.leader {
			state = "Leader"
		}
		json.NewEncoder(w).Encode(map[string]any{"Ok": map[string]any{"id": id, "state": state, "current_leader": leader, "current_term": 1,
			"membership_config": map[string]any{"log_id": nil, "membership": map[string]any{"configs": configs, "nodes": members}}}})
		return
	case "/init":
		m.leader, m.voters, m.member[id], m.nodes[id] = id, []int{id}, m.addrs[id-1].String(), true
	case "/add-learner":
		var member [2]any
		json.Unmarshal(body, &member)
		n := int(member[0].(float64))
		m.member[n] = member[1].(string)
		m.voters = slices.DeleteFunc(m.voters, func(v int) bool { return v == n })
		m.nodes[n] = true
	case "/change-membership":
		json.Unmarshal(body, &m.voters)
	}
	io.WriteString(w, `{"Ok":null}`)
}

func (m *makings) run(t *testing.T, wait time.Duration) (text string, did []string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	m.mu.Lock()
	m.said = nil
	m.mu.Unlock()
	text, err = InitCluster(ctx, m.addrs, func(what string) { did = append(did, what) })
	return text, did, err
}

func (m *makings) want(t *testing.T, said ...string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(m.said, said) {
		t.Errorf("posted %q, want %q", m.said, said)
	}
}

func TestInitCluster(t *testing.T) {
	m := newMakings(t)
	add := func(n int) string { return fmt.Sprintf(`1 /add-learner [%d,"%s"]`, n, m.addrs[n-1]) }
	form := func() []string {
		t.Helper()
		text, did, err := m.run(t, time.Minute)
		if err != nil || text != "node 1 leads, term 1; nodes 1,2,3 vote" {
			t.Fatalf("%q, %v", text, err)
		}
		return did
	}
	did := form()
	m.want(t, fmt.Sprintf(`1 /init [[1,"%s"]]`, m.addrs[0]), add(2), add(3), "1 /change-membership [1,2,3]")
	if len(did) != 4 {
		t.Errorf("%q", did)
	}
	// Again: nothing to do.
	form()
	m.want(t)
	// A node that has lost its log joins anew.
	m.nodes[2] = false
	did = form()
	m.want(t, add(2), "1 /change-membership [1,2,3]")
	if !strings.Contains(did[0], "node 2, which has lost its log") {
		t.Errorf("%q", did)
	}
	// One that was interrupted goes on where it was.
	m.voters, m.nodes[3] = []int{1, 2}, false
	delete(m.member, 3)
	form()
	m.want(t, add(3), "1 /change-membership [1,2,3]")
}

func TestInitClusterErrors(t *testing.T) {
	formed := func(m *makings) {
		m.leader, m.voters, m.nodes = 1, []int{1, 2, 3}, [4]bool{false, true, true, true}
		for i, a := range m.addrs {
			m.member[i+1] = a.String()
		}
	}
	for _, c := range []struct {
		name string
		set  func(*makings)
		wait time.Duration
		want []string
	}{
		{"two have lost their logs", func(m *makings) { formed(m); m.nodes[2], m.nodes[3] = false, false }, time.Minute,
			[]string{"nodes 2,3 have lost their log", "start anew"}},
		{"they and the leader", func(m *makings) { formed(m); m.nodes[1], m.nodes[3], m.leader = false, false, 0 }, time.Minute,
			[]string{"nodes 1,3 have lost their log"}},
		{"no leader", func(m *makings) { formed(m); m.leader = 0 }, 200 * time.Millisecond, []string{"no node leads"}},
		{"a node down", func(m *makings) { m.addrs[2] = netip.MustParseAddrPort("127.0.0.1:1") }, 200 * time.Millisecond,
			[]string{"node 3 at 127.0.0.1:1: ", "connection refused"}},
		{"refused for good", func(m *makings) {
			m.fail = func(string) string { return `{"Err":{"APIError":{"NotAllowed":{}}}}` }
		}, 200 * time.Millisecond, []string{"node 1 at ", "POST /init", "NotAllowed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMakings(t)
			c.set(m)
			_, _, err := m.run(t, c.wait)
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%v, want %q", err, w)
				}
			}
		})
	}
}

func TestInitVerb(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-help"}, 0, "make a cluster of the nodes"},
		{[]string{"-what"}, 2, "-what"},
		{[]string{"now"}, 2, `unexpected argument "now"`},
		{[]string{"-wait", "-1s"}, 2, "-wait -1s"},
		{[]string{"-port", "0"}, 1, "port 0"},
		{[]string{"-hosts", "127.0.0.1", "-port", "1", "-topology", "local", "-keys", "5", "-wait", "100ms"}, 1, "not done after 100ms: node 1 at 127.0.0.1:1: "},
	} {
		var out, errs bytes.Buffer
		status := Main(append([]string{initVerb}, c.args...), &out, &errs)
		text := out.String() + errs.String()
		if status != c.status || !strings.Contains(text, c.want) || status != 0 && strings.Count(text, "\n") != 1 {
			t.Errorf("%q: exit status %d: %s", c.args, status, text)
		}
	}
	m := newMakings(t)
	var out, errs bytes.Buffer
	// One node of the three.
	status := Main([]string{initVerb, "-hosts", "127.0.0.1", "-port", fmt.Sprint(m.addrs[0].Port())}, &out, &errs)
	if status != 0 || out.String() != "initialised node 1\nnode 1 leads, term 1; nodes 1 vote\n" {
		t.Errorf("exit status %d: %s%s", status, out.String(), errs.String())
	}
}
