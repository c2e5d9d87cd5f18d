package openraft

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"raftrig/loadgen"
	"raftrig/loadgen/clienttest"
)

// double is a scripted node.
type double struct {
	tb   testing.TB
	node int
	addr netip.AddrPort

	mu     sync.Mutex
	l      net.Listener
	conns  map[net.Conn]bool
	leader int // what it says: 0 for none
	term   uint64
	mute   bool // does not answer /metrics
	script func(*write, net.Conn) bool
	asked  int
	writes []write
	served sync.WaitGroup
}

// write is one request as it arrived.
type write struct {
	key   string
	stamp uint64 // the request's number
}

func newDouble(tb testing.TB, node int) *double {
	tb.Helper()
	d := &double{tb: tb, node: node, conns: map[net.Conn]bool{}, script: says(200, okAnswer)}
	d.start("127.0.0.1:0")
	d.addr = d.l.Addr().(*net.TCPAddr).AddrPort()
	tb.Cleanup(d.stop)
	return d
}

// cluster is three doubles that say that leader leads in term 1.
func cluster(tb testing.TB, leader int) []*double {
	tb.Helper()
	var nodes []*double
	for node := 1; node <= 3; node++ {
		d := newDouble(tb, node)
		d.follow(leader, 1)
		nodes = append(nodes, d)
	}
	return nodes
}

func (d *double) start(addr string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		d.tb.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.l = l
	d.served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			if d.l != l {
				d.mu.Unlock()
				c.Close()
				return
			}
			d.conns[c] = true
			d.served.Go(func() { d.serve(c) })
			d.mu.Unlock()
		}
	})
}

// stop is the end of its process: every connection is reset.
func (d *double) stop() {
	d.mu.Lock()
	if d.l != nil {
		d.l.Close()
		d.l = nil
	}
	d.mu.Unlock()
	d.cut()
	d.served.Wait()
}

// cut ends its connections.
func (d *double) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
		delete(d.conns, c)
	}
}

func (d *double) again() { d.start(d.addr.String()) }

func (d *double) follow(leader int, term uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leader, d.term = leader, term
}

func (d *double) do(script func(*write, net.Conn) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.script = script
}

func (d *double) silence(mute bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mute = mute
}

// received is how many writes arrived.
func (d *double) received() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.writes)
}

func (d *double) questions() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

func (d *double) open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.conns)
}

func (d *double) serve(c net.Conn) {
	defer func() {
		c.Close()
		d.mu.Lock()
		delete(d.conns, c)
		d.mu.Unlock()
	}()
	in := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		d.mu.Lock()
		if req.Method == "GET" && req.URL.Path == "/metrics" {
			d.asked++
			text := d.metrics()
			mute := d.mute
			d.mu.Unlock()
			if !mute {
				reply(c, 200, text)
			}
			continue
		}
		var set struct {
			Set struct{ Key, Value string }
		}
		if err := json.Unmarshal(body, &set); err != nil || req.Method != "POST" || req.URL.Path != "/write" ||
			req.Header.Get("Content-Type") != "application/json" || req.Host != d.addr.String() {
			d.tb.Errorf("%s %s %v %q: %v", req.Method, req.URL, req.Header, body, err)
		}
		w := write{key: set.Set.Key}
		if len(set.Set.Value) >= stampLen {
			if w.stamp, err = strconv.ParseUint(set.Set.Value[:stampLen], 16, 64); err != nil {
				d.tb.Error(err)
			}
		}
		d.writes = append(d.writes, w)
		script := d.script
		d.mu.Unlock()
		if !script(&w, c) {
			return
		}
	}
}

func (d *double) metrics() string {
	state, leader := "Follower", "null"
	if d.leader == d.node {
		state = "Leader"
	}
	if d.leader != 0 {
		leader = strconv.Itoa(d.leader)
	}
	return fmt.Sprintf(`{"Ok":{"running_state":{"Ok":null},"id":%d,"current_term":%d,"last_log_index":null,"state":%q,"current_leader":%s}}`,
		d.node, d.term, state, leader)
}

func reply(c net.Conn, status int, body string) bool {
	_, err := fmt.Fprintf(c, "HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s", status, http.StatusText(status), len(body), body)
	return err == nil
}

// Scripts. They return false to close the connection.

func says(status int, body string) func(*write, net.Conn) bool {
	return func(_ *write, c net.Conn) bool { return reply(c, status, body) }
}

// sends writes text as it is, and goes on or closes.
func sends(text string, goOn bool) func(*write, net.Conn) bool {
	return func(_ *write, c net.Conn) bool {
		io.WriteString(c, text)
		return goOn
	}
}

func swallow(*write, net.Conn) bool { return true }
func hangUp(*write, net.Conn) bool  { return false }

func forward(to int) string {
	if to == 0 {
		return `{"Err":{"APIError":{"ForwardToLeader":{"leader_id":null,"leader_node":null}}}}`
	}
	return fmt.Sprintf(`{"Err":{"APIError":{"ForwardToLeader":{"leader_id":%d,"leader_node":{"addr":"192.0.2.1:21001"}}}}}`, to)
}

// rig drives a client as a lane does, and checks what every client must do:
// each id ends once, after it was submitted and before it is again.
type rig struct {
	tb          testing.TB
	c           *Client
	clock       *clienttest.Clock
	outstanding []bool
	inFlight    int
	inCall      int    // completions within the call
	ends        [3]int // by Outcome
	last        map[uint32]loadgen.Outcome
	events      []string
	failure     error
	fails       bool // a failure is expected
	closed      bool
	onEnd       func(uint32, loadgen.Outcome) // may be nil
}

func newRig(tb testing.TB, slots, size int, nodes ...*double) *rig {
	tb.Helper()
	var addrs []netip.AddrPort
	for _, n := range nodes {
		addrs = append(addrs, n.addr)
	}
	r := &rig{tb: tb, clock: clienttest.NewClock(), outstanding: make([]bool, slots), last: map[uint32]loadgen.Outcome{}}
	var err error
	r.c, err = NewClient(loadgen.Wiring{Lanes: 1, Slots: slots, Size: size, Clock: r.clock, Complete: r.complete,
		Event: func(text string) { r.events = append(r.events, text) },
		Fail: func(err error) {
			if r.failure != nil {
				tb.Errorf("failed twice: %v, %v", r.failure, err)
			}
			r.failure = err
		},
	}, addrs, defaultKeys)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.close)
	return r
}

func (r *rig) complete(id uint32, outcome loadgen.Outcome, at int64) {
	if r.closed || !r.outstanding[id] {
		r.tb.Errorf("id %d ended, closed %v, outstanding %v", id, r.closed, r.outstanding[id])
	}
	if now := r.clock.Now(); at > now {
		r.tb.Errorf("id %d ended in the future: %d, now %d", id, at, now)
	}
	r.outstanding[id] = false
	r.inFlight--
	r.inCall++
	r.ends[outcome]++
	r.last[id] = outcome
	if r.onEnd != nil {
		r.onEnd(id, outcome)
	}
}

func (r *rig) submit(id uint32) bool {
	r.outstanding[id] = true
	r.inFlight++
	if !r.c.Submit(id) {
		r.outstanding[id] = false
		r.inFlight--
		return false
	}
	return true
}

// all submits every id.
func (r *rig) all() {
	r.tb.Helper()
	for id := range r.outstanding {
		if !r.submit(uint32(id)) {
			r.tb.Fatalf("id %d refused", id)
		}
	}
}

func (r *rig) wait() {
	r.tb.Helper()
	r.inCall = 0
	if n := r.c.Wait(r.clock.Now() + 2*millisecond); n != r.inCall {
		r.tb.Fatalf("Wait says %d completions of %d", n, r.inCall)
	}
	r.check()
}

// check what the client counts.
func (r *rig) check() {
	r.tb.Helper()
	out, up, connecting := 0, 0, 0
	for i := range r.c.links {
		l := &r.c.links[i]
		if l.state == sent {
			out++
		}
		if l.node != 0 && !l.up {
			connecting++
		}
		if l.up && int(l.node) == r.c.target {
			up++
		}
		if (l.state != idle) != r.outstanding[i] {
			r.tb.Fatalf("id %d: state %d, outstanding %v", i, l.state, r.outstanding[i])
		}
		if (l.node == 0) != l.conn.Closed() {
			r.tb.Fatalf("id %d: node %d, connection closed %v", i, l.node, l.conn.Closed())
		}
	}
	if c := r.c; !r.closed && (out != c.outstanding || connecting != c.connecting || c.target != 0 && up != c.up) {
		r.tb.Fatalf("counts %d %d %d, are %d %d %d", c.outstanding, c.connecting, c.up, out, connecting, up)
	}
}

// until drives the client until done.
func (r *rig) until(what string, done func() bool) {
	r.tb.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			r.tb.Fatalf("%s: not within 20 s; in flight %d, ends %v, events %q, failure %v", what, r.inFlight, r.ends, r.events, r.failure)
		}
		r.wait()
		if r.failure != nil && !r.fails {
			r.tb.Fatal(r.failure)
		}
	}
}

func (r *rig) ready() { r.tb.Helper(); r.until("ready", r.c.Ready) }
func (r *rig) done()  { r.tb.Helper(); r.until("all ended", func() bool { return r.inFlight == 0 }) }

// opened waits until every connection is open and nobody is asked, so that a
// leap of the clock times out none.
func (r *rig) opened() {
	r.tb.Helper()
	r.until("open", func() bool {
		for i := range r.c.probes {
			if r.c.probes[i].asking {
				return false
			}
		}
		return r.c.target != 0 && r.c.up == len(r.c.links)
	})
}

func (r *rig) close() {
	if r.closed {
		return
	}
	if err := r.c.Close(); err != nil {
		r.tb.Error(err)
	}
	if r.inFlight != 0 {
		r.tb.Errorf("%d outstanding after Close", r.inFlight)
	}
	r.closed = true
	if r.c.Poll() != 0 || r.c.Ready() || r.c.Submit(0) {
		r.tb.Error("alive after Close")
	}
	if err := r.c.Close(); err != nil {
		r.tb.Errorf("second Close: %v", err)
	}
}

func (r *rig) wantEnds(ok, failed, unknown int) {
	r.tb.Helper()
	if r.ends != [3]int{ok, failed, unknown} {
		r.tb.Errorf("ended %d ok, %d failed, %d unknown; want %d, %d, %d; events %q", r.ends[0], r.ends[1], r.ends[2], ok, failed, unknown, r.events)
	}
}

// wantEvent wants one of the events to have all of the words.
func (r *rig) wantEvent(words ...string) {
	r.tb.Helper()
	for _, e := range r.events {
		all := !strings.ContainsAny(e, "\n\r")
		for _, w := range words {
			all = all && strings.Contains(e, w)
		}
		if all {
			return
		}
	}
	r.tb.Errorf("events %q, none of which has %q in one line", r.events, words)
}

// Requests go to the leader, each on a connection of its own, with the keys in
// turn and numbers of their own.
func TestClient(t *testing.T) {
	nodes := cluster(t, 2)
	const slots = 50
	r := newRig(t, slots, 64, nodes...)
	r.ready()
	for range 3 {
		r.all()
		r.done()
	}
	r.wantEnds(3*slots, 0, 0)
	r.wantEvent("node 2", "leads, term 1")
	d := nodes[1]
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortFunc(d.writes, func(a, b write) int { return int(a.stamp) - int(b.stamp) })
	for i, w := range d.writes {
		if w.stamp != uint64(i) || w.key != fmt.Sprintf("k%04d", i) {
			t.Fatalf("request %d: %+v", i, w)
		}
	}
	if nodes[0].received()+nodes[2].received() > 0 {
		t.Error("followers got writes")
	}
	if len(r.events) != 1 {
		t.Errorf("%q", r.events)
	}
}

// The connections are opened ahead, and kept.
func TestClientOpensAhead(t *testing.T) {
	nodes := cluster(t, 1)
	r := newRig(t, 200, 64, nodes...)
	r.opened()
	r.until("accepted", func() bool { return nodes[0].open() == 201 })
	before := nodes[0].questions()
	for range 5 {
		r.all()
		r.done()
	}
	if n := nodes[0].open(); n != 201 {
		t.Errorf("%d connections", n)
	}
	// A leader that answers is not asked whether it leads.
	if n := nodes[0].questions(); n != before || n != 1 {
		t.Errorf("asked %d times, then %d", before, n-before)
	}
}

func TestClientAnswers(t *testing.T) {
	long := `{"Ok":{"data":{"value":"` + strings.Repeat("v", 20_000) + `"}}}`
	dribble := func(_ *write, c net.Conn) bool {
		text := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length:  %d  \r\nServer: x\r\n\r\n%s", len(okAnswer), okAnswer)
		for i := range text {
			if _, err := c.Write([]byte{text[i]}); err != nil {
				return false
			}
			runtime.Gosched()
		}
		return true
	}
	for _, c := range []struct {
		name   string
		script func(*write, net.Conn) bool
		want   loadgen.Outcome
		event  []string // one has these words
	}{
		{"ok", says(200, okAnswer), loadgen.OK, nil},
		{"ok with spaces", says(200, " { \"Ok\" : null }\n"), loadgen.OK, nil},
		{"long", says(200, long), loadgen.OK, nil},
		{"byte by byte", dribble, loadgen.OK, nil},
		{"closes", sends("HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 11\r\n\r\n"+`{"Ok":null}`, false), loadgen.OK, nil},
		{"says it closes, and does not", sends("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 11\r\n\r\n"+`{"Ok":null}`, true), loadgen.OK, nil},
		{"malformed", says(400, `{"Err":{"BadRequest":"no"}}`), loadgen.Failed, []string{"node 1", "HTTP status 400", "BadRequest"}},
		{"too long", says(413, ``), loadgen.Failed, []string{"413"}},
		{"full", says(503, `{"Err":"takes no more"}`), loadgen.Failed, []string{"503", "no more"}},
		{"no quorum", says(503, `{"Err":{"NoQuorum":"not written"}}`), loadgen.Failed, []string{"NoQuorum"}},
		{"unknown", says(503, `{"Err":{"Unknown":"no quorum within 2 s"}}`), loadgen.Unknown, []string{"within 2 s"}},
		{"error 503", says(503, `{"Err":{"Other":1}}`), loadgen.Unknown, []string{"Other"}},
		{"other error", says(200, `{"Err":{"Fatal":"Stopped"}}`), loadgen.Unknown, []string{"Stopped"}},
		{"error 500", says(500, "oh\nno"), loadgen.Unknown, []string{"500", `oh\nno`}},
		{"error 504", says(504, `{"Ok":null}`), loadgen.Unknown, []string{"504"}},
		{"not JSON", says(200, "ok"), loadgen.Unknown, []string{`"ok"`}},
		{"nothing", says(200, ""), loadgen.Unknown, []string{`200 ""`}},
		{"hangs up", hangUp, loadgen.Unknown, nil},
		{"hangs up in mid-answer", sends("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n"+`{"Ok":`, false), loadgen.Unknown, nil},
		{"hangs up in mid-head", sends("HTTP/1.1 200", false), loadgen.Unknown, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDouble(t, 1)
			d.follow(1, 1)
			d.do(c.script)
			r := newRig(t, 4, 64, d)
			for range 3 {
				r.ready()
				r.submit(0)
				r.done()
				r.ready()
				r.all()
				r.done()
			}
			if n := r.ends[c.want]; n != 15 {
				t.Errorf("ended %v", r.ends)
			}
			if d.received() != 15 {
				t.Errorf("%d received: a write was sent again, or not at all", d.received())
			}
			if c.event != nil {
				r.wantEvent(c.event...)
			}
			if r.failure != nil {
				t.Error(r.failure)
			}
		})
	}
}

// What is no answer of such a server ends the run, with a line that says so.
func TestClientViolations(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "chunked"},
		{"no length", "HTTP/1.1 200 OK\r\n\r\n", "no Content-Length"},
		{"bad length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "none that makes sense"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", "none that makes sense"},
		{"endless", "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", "more than 1048576 bytes"},
		{"endless head", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 5000), "head of its answer has more than 1024 bytes"},
		{"more than it says", "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n" + `{"Ok":null}{}`, "longer than its Content-Length"},
		{"two answers", strings.Repeat("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n"+`{"Ok":null}`, 2), "longer than its Content-Length"},
		{"not HTTP", "SSH-2.0-OpenSSH_9.9\r\n", "not HTTP/1.1"},
		{"old HTTP", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "not HTTP/1.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDouble(t, 1)
			d.follow(1, 1)
			d.do(sends(c.text, true))
			r := newRig(t, 2, 64, d)
			r.fails = true
			r.ready()
			r.submit(0)
			r.done()
			r.wantEnds(0, 0, 1)
			if r.failure == nil || !strings.Contains(r.failure.Error(), c.want) || !strings.HasPrefix(r.failure.Error(), "node 1 at "+d.addr.String()+": ") {
				t.Errorf("%v, want %q", r.failure, c.want)
			}
		})
	}
}

// A redirection is followed at once, on the request's own account.
func TestClientRedirected(t *testing.T) {
	for _, to := range []int{2, 0} {
		t.Run(fmt.Sprint(to), func(t *testing.T) {
			nodes := cluster(t, 1)
			r := newRig(t, 20, 64, nodes...)
			r.opened()
			nodes[0].do(says(200, forward(to)))
			for _, n := range nodes {
				n.follow(2, 2)
			}
			r.all()
			r.done()
			r.wantEnds(20, 0, 0)
			if n := nodes[1].received(); n != 20 {
				t.Errorf("node 2 received %d", n)
			}
			r.until("confirmed", func() bool { return r.c.target == 2 && r.c.term == 2 })
			r.wantEvent("node 2", "leads")
			// The connections to node 1 are given up, but for the question's.
			r.opened()
			r.until("closed", func() bool { return nodes[0].open() == 1 })
		})
	}
}

// Every node sends it on: three sends, no more.
func TestClientThreeTries(t *testing.T) {
	nodes := cluster(t, 1)
	r := newRig(t, 1, 64, nodes...)
	r.opened()
	nodes[0].do(says(200, forward(2)))
	nodes[1].do(says(200, forward(1)))
	nodes[2].do(says(200, forward(1)))
	r.submit(0)
	r.done()
	r.wantEnds(0, 1, 0)
	if n := nodes[0].received() + nodes[1].received() + nodes[2].received(); n != 3 {
		t.Errorf("sent %d times", n)
	}
}

// A leader that is not among the hosts.
func TestClientLeaderElsewhere(t *testing.T) {
	nodes := cluster(t, 1)
	r := newRig(t, 1, 64, nodes...)
	r.opened()
	nodes[0].do(says(200, forward(4)))
	nodes[0].follow(4, 2)
	r.submit(0)
	r.until("no leader", func() bool { return !r.c.Ready() })
	r.wantEvent("node 4 leads, of 3 nodes")
	r.until("queued", func() bool { return len(r.c.queue) == 1 })
	r.clock.Leap(switchGrace)
	r.done()
	r.wantEnds(0, 1, 0)
}

// The leader's process ends with requests outstanding: they end unknown, and
// the next leader is found though the followers still name the old one.
func TestClientLeaderKilled(t *testing.T) {
	nodes := cluster(t, 1)
	r := newRig(t, 300, 64, nodes...)
	r.opened()
	nodes[0].do(swallow)
	for id := range uint32(100) {
		r.submit(id)
	}
	r.until("arrived", func() bool { return nodes[0].received() == 100 })
	nodes[0].stop()
	r.done()
	r.until("not ready", func() bool { return !r.c.Ready() })
	r.wantEnds(0, 0, 100)
	r.wantEvent("no leader: node 1")
	if r.c.Submit(0) {
		t.Error("taken without a leader")
	}
	before := nodes[1].questions()
	r.until("asked again", func() bool { return nodes[1].questions() > before+2 })
	if r.c.Ready() {
		t.Error("a dead node is believed to lead")
	}
	nodes[1].follow(3, 2)
	nodes[2].follow(3, 2)
	r.ready()
	r.wantEvent("node 3", "term 2", "ms without a leader; 100 requests ended unknown")
	r.all()
	r.done()
	r.wantEnds(300, 0, 100)
}

// The leader is killed while requests are submitted: whatever was not sent is
// sent to the next one, and what was may be anything but Failed.
func TestClientLeaderKilledUnderLoad(t *testing.T) {
	nodes := cluster(t, 1)
	r := newRig(t, 50, 64, nodes...)
	r.opened()
	go func() {
		for nodes[0].received() < 2000 {
			time.Sleep(time.Millisecond)
		}
		nodes[0].stop()
		nodes[1].follow(2, 2)
		nodes[2].follow(2, 2)
	}()
	submitted := 0
	r.until("served by node 2", func() bool {
		for id := range uint32(50) {
			if !r.outstanding[id] && r.submit(id) {
				submitted++
			}
		}
		return nodes[1].received() > 2000
	})
	r.done()
	if r.ends[loadgen.Failed] != 0 || r.ends[loadgen.Unknown] > 50 || r.ends[0]+r.ends[2] != submitted {
		t.Errorf("ended %v of %d", r.ends, submitted)
	}
}

// One connection of many is closed: its request ends unknown, the leader stays.
func TestClientOneConnectionLost(t *testing.T) {
	nodes := cluster(t, 1)
	r := newRig(t, 10, 64, nodes...)
	r.opened()
	var once sync.Once
	nodes[0].do(func(w *write, c net.Conn) bool {
		goOn := true
		once.Do(func() { goOn = false })
		return goOn && reply(c, 200, okAnswer)
	})
	r.all()
	r.done()
	r.wantEnds(9, 0, 1)
	r.all()
	r.done()
	r.wantEnds(19, 0, 1)
	if len(r.events) != 1 {
		t.Errorf("%q", r.events)
	}
}

// A server that closes idle connections: they are opened again when they are
// needed, and it costs no request.
func TestClientIdleClosed(t *testing.T) {
	d := newDouble(t, 1)
	d.follow(1, 1)
	r := newRig(t, 10, 64, d)
	r.opened()
	r.until("accepted", func() bool { return d.open() == 11 })
	for range 3 {
		d.cut()
		r.until("noticed", func() bool { return r.c.up == 0 })
		r.ready()
		r.submit(3)
		r.submit(4)
		r.done()
		if r.c.up != 2 {
			t.Errorf("%d connections", r.c.up)
		}
	}
	r.wantEnds(6, 0, 0)
	if len(r.events) != 1 {
		t.Errorf("%q", r.events)
	}
}

// A server at its limit answers on connecting and closes: that is noted, and
// the connection is tried again when it is needed, not in a loop.
func TestClientRefusedConnections(t *testing.T) {
	d := newDouble(t, 1)
	d.follow(1, 1)
	r := newRig(t, 2, 64, d)
	r.opened()
	r.until("accepted", func() bool { return d.open() == 3 })
	d.mu.Lock()
	for c := range d.conns {
		reply(c, 503, `{"Err":"this node has 3 connections, and takes no more"}`)
	}
	d.mu.Unlock()
	r.until("noted", func() bool { return r.c.up == 0 })
	r.wantEvent("503", "takes no more")
	r.all()
	r.done()
	r.wantEnds(2, 0, 0)
}

// The leader hangs and another is elected: the client learns of it by asking,
// and gives the old one a second to answer.
func TestClientLeaderHangs(t *testing.T) {
	for _, answers := range []bool{false, true} {
		t.Run(fmt.Sprintf("answers=%v", answers), func(t *testing.T) {
			nodes := cluster(t, 1)
			release := make(chan struct{})
			nodes[0].do(func(_ *write, c net.Conn) bool {
				<-release
				return reply(c, 200, forward(2))
			})
			defer func() {
				if !answers {
					close(release)
				}
			}()
			r := newRig(t, 20, 64, nodes...)
			r.opened()
			for id := range uint32(10) {
				r.submit(id)
			}
			nodes[0].silence(true)
			for _, n := range nodes[1:] {
				n.follow(2, 2)
			}
			for range silentLooks + 1 {
				if !r.c.Ready() || r.c.target != 1 {
					break
				}
				r.wait()
				r.clock.Leap(lookEvery)
			}
			r.until("switched", func() bool { return r.c.target == 2 })
			r.wantEvent("node 1", "leaves 10 requests unanswered")
			r.wantEvent("node 2", "term 2, after node 1")
			// The others go to node 2 meanwhile.
			for id := uint32(10); id < 20; id++ {
				r.submit(id)
			}
			r.until("ten", func() bool { return r.inFlight == 10 })
			r.wantEnds(10, 0, 0)
			if answers {
				close(release)
				r.done()
				r.wantEnds(20, 0, 0)
				return
			}
			r.clock.Leap(switchGrace)
			r.done()
			r.wantEnds(10, 0, 10)
			r.wantEvent("node 1", "left 10 requests unanswered for 1 s")
		})
	}
}

// A stalled leader that no other replaces stays the leader: what it holds ends
// when it goes on.
func TestClientStall(t *testing.T) {
	nodes := cluster(t, 1)
	release := make(chan struct{})
	nodes[0].do(func(_ *write, c net.Conn) bool {
		<-release
		return reply(c, 200, okAnswer)
	})
	nodes[0].silence(true)
	r := newRig(t, 10, 64, nodes...)
	nodes[0].silence(false)
	r.opened()
	nodes[0].silence(true)
	r.all()
	for range 10 {
		r.clock.Leap(lookEvery)
		r.wait()
	}
	if r.c.target != 1 || r.inFlight != 10 {
		t.Errorf("target %d, in flight %d, events %q", r.c.target, r.inFlight, r.events)
	}
	nodes[0].silence(false)
	close(release)
	r.done()
	r.wantEnds(10, 0, 0)
}

// Who leads, by what the nodes have said, in whichever order.
func TestClientElection(t *testing.T) {
	type says struct {
		leads bool
		term  uint64 // 0 for nothing
	}
	for _, c := range []struct {
		name string
		was  int // in term 3
		says [3]says
		want int
	}{
		{"nobody says anything", 0, [3]says{}, 0},
		{"followers only", 0, [3]says{{false, 5}, {false, 5}, {false, 5}}, 0},
		{"one says so", 0, [3]says{{false, 5}, {true, 5}, {}}, 2},
		{"two say so: the higher term", 0, [3]says{{true, 4}, {true, 6}, {true, 5}}, 2},
		{"a candidate of a higher term does not count", 0, [3]says{{false, 9}, {true, 5}, {}}, 2},
		{"the leader says nothing", 1, [3]says{{}, {false, 3}, {false, 3}}, 1},
		{"the leader says it leads no longer", 1, [3]says{{false, 3}, {}, {}}, 0},
		{"another in a later term", 1, [3]says{{true, 3}, {true, 4}, {}}, 2},
		{"another in an earlier term", 1, [3]says{{}, {true, 2}, {}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes := cluster(t, 0)
			for _, n := range nodes {
				n.silence(true)
			}
			r := newRig(t, 1, 64, nodes...)
			r.c.setTarget(c.was, 3, "")
			for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}} {
				for _, i := range order {
					if s := c.says[i]; s.term > 0 {
						p := &r.c.probes[i]
						p.fresh, p.leads, p.term = true, s.leads, s.term
						r.c.elect()
					}
				}
				if r.c.target != c.want {
					t.Errorf("order %v: leader %d, want %d", order, r.c.target, c.want)
				}
				r.c.ask(r.clock.Now())
				r.c.setTarget(c.was, 3, "the test has another order")
			}
		})
	}
}

// The hosts in the wrong order, or other servers: said once, in one line.
func TestClientWrongNodes(t *testing.T) {
	nodes := cluster(t, 1)
	r := newRig(t, 1, 64, nodes[1], nodes[0], nodes[2])
	before := nodes[0].questions()
	r.until("asked twice", func() bool { return nodes[0].questions() > before+1 && nodes[1].questions() > before+1 })
	if r.c.Ready() {
		t.Error("ready")
	}
	r.wantEvent("node 1 at "+nodes[1].addr.String(), "it says it is node 2: name the hosts in the order")
	if len(r.events) != 2 {
		t.Errorf("%q", r.events)
	}
}

// A node that is down, and one that accepts and says nothing, keep nobody from
// being found.
func TestClientNodesDown(t *testing.T) {
	nodes := cluster(t, 3)
	nodes[0].stop()
	nodes[1].silence(true)
	r := newRig(t, 3, 64, nodes...)
	r.ready()
	r.all()
	r.done()
	r.wantEnds(3, 0, 0)
	r.wantEvent("node 1", "connection refused")
	r.clock.Leap(probeTimeout)
	r.until("given up", func() bool { return !r.c.probes[1].asking })
	r.wantEvent("node 2", "no answer within 1 s")
}

// Nobody is there, and then somebody is.
func TestClientComesUp(t *testing.T) {
	nodes := cluster(t, 1)
	for _, n := range nodes {
		n.stop()
	}
	r := newRig(t, 3, 64, nodes...)
	r.until("all refused", func() bool { return len(r.events) == 3 })
	for _, n := range nodes {
		n.again()
	}
	r.ready()
	r.all()
	r.done()
	r.wantEnds(3, 0, 0)
}

// Values larger than the sockets hold, to a server that does not read: the lane
// goes on.
func TestClientLargeValues(t *testing.T) {
	d := newDouble(t, 1)
	d.follow(1, 1)
	r := newRig(t, 50, loadgen.MaxSize, d)
	r.opened()
	d.mu.Lock()
	d.writes = nil
	r.all() // no request can be taken while mu is held
	d.mu.Unlock()
	r.done()
	r.wantEnds(50, 0, 0)
}

func TestClientClose(t *testing.T) {
	nodes := cluster(t, 1)
	nodes[0].do(swallow)
	for _, wait := range []bool{false, true} {
		r := newRig(t, 100, 64, nodes...)
		r.ready()
		r.all()
		if wait {
			before := nodes[0].received()
			r.until("arrived", func() bool { return nodes[0].received() > before })
		}
		r.close()
		r.wantEnds(0, 0, 100)
	}
	r := newRig(t, 1, 64, nodes...)
	r.close()
}

func TestClientSubmitTwicePanics(t *testing.T) {
	nodes := cluster(t, 1)
	nodes[0].do(swallow)
	r := newRig(t, 1, 64, nodes...)
	r.ready()
	r.submit(0)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	r.c.Submit(0)
}

// Too few files: a line, not an endless try.
func TestEnoughFiles(t *testing.T) {
	if err := enoughFiles(1); err != nil {
		t.Error(err)
	}
	if err := enoughFiles(1 << 40); err == nil || !strings.Contains(err.Error(), "ulimit -Hn") {
		t.Error(err)
	}
}

// Whatever the nodes do to it, each id ends exactly once (rig checks), and no
// request is applied that was told to be Failed, or twice.
func TestClientAnyOrder(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			nodes := cluster(t, 1)
			var mu sync.Mutex
			done := map[uint64]bool{} // applied, by any node
			for _, n := range nodes {
				rng := rand.New(rand.NewPCG(seed, uint64(n.node)))
				n.do(func(w *write, c net.Conn) bool {
					mu.Lock()
					defer mu.Unlock()
					if done[w.stamp] {
						t.Errorf("node %d got request %d after it had been applied", n.node, w.stamp)
					}
					v := rng.IntN(100)
					if v < 80 || v >= 92 {
						done[w.stamp] = true
					}
					switch {
					case v < 80:
						return reply(c, 200, okAnswer)
					case v < 88:
						return reply(c, 200, forward(rng.IntN(4)))
					case v < 92:
						return reply(c, 503, `{"Err":{"NoQuorum":""}}`)
					case v < 96:
						return reply(c, 503, `{"Err":{"Unknown":""}}`)
					case v < 98:
						return false
					}
					return true // swallowed
				})
			}
			const slots = 64
			r := newRig(t, slots, 64, nodes...)
			r.onEnd = func(id uint32, outcome loadgen.Outcome) {
				mu.Lock()
				defer mu.Unlock()
				switch n := r.c.links[id].sequence; {
				case outcome == loadgen.OK && !done[n]:
					t.Errorf("request %d is OK and was not applied", n)
				case outcome == loadgen.Failed && done[n]:
					t.Errorf("request %d is Failed and was applied", n)
				}
			}
			rng := rand.New(rand.NewPCG(seed, 99))
			stop := make(chan struct{})
			var wg sync.WaitGroup
			chaos := rand.New(rand.NewPCG(seed, 100))
			wg.Go(func() {
				for term := uint64(2); ; term++ {
					select {
					case <-stop:
						return
					case <-time.After(time.Duration(chaos.IntN(20)) * time.Millisecond):
					}
					n := nodes[chaos.IntN(3)]
					switch chaos.IntN(8) {
					case 0:
						n.cut()
					case 1:
						n.stop()
						n.again()
					default:
						leader := 1 + chaos.IntN(3)
						for _, n := range nodes {
							if chaos.IntN(5) > 0 {
								n.follow(leader, term)
							}
						}
					}
				}
			})
			submitted := 0
			began := time.Now()
			for time.Since(began) < time.Second || r.ends[loadgen.OK] < 500 && time.Since(began) < time.Minute {
				for range rng.IntN(20) {
					id := rng.Uint32N(slots)
					if !r.outstanding[id] && r.submit(id) {
						submitted++
					}
				}
				if rng.IntN(20) == 0 {
					r.clock.Leap(rng.Int64N(switchGrace))
				}
				r.wait()
			}
			close(stop)
			wg.Wait()
			r.close()
			if sum := r.ends[0] + r.ends[1] + r.ends[2]; sum != submitted {
				t.Errorf("%d submitted, %d ended", submitted, sum)
			}
			if r.ends[loadgen.OK] == 0 {
				t.Error("none ended well: nothing was tested")
			}
			t.Logf("%d submitted, ends %v", submitted, r.ends)
		})
	}
}

// Nothing is allocated on the path of a request.
func TestClientAllocatesNothing(t *testing.T) {
	clock := clienttest.NewClock()
	free := 1
	c, err := NewClient(loadgen.Wiring{Slots: 1, Size: 64, Clock: clock, Event: func(string) {},
		Complete: func(_ uint32, o loadgen.Outcome, _ int64) {
			if o != loadgen.OK {
				t.Error(o)
			}
			free = 1
		}}, []netip.AddrPort{answerOnly(t)}, defaultKeys)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	request := func() {
		for free == 0 || !c.Submit(0) {
			c.Wait(clock.Now() + millisecond)
		}
		for free = 0; free == 0; {
			c.Wait(clock.Now() + millisecond)
		}
	}
	request()
	if n := testing.AllocsPerRun(2000, request); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}
