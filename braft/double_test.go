package braft

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// group is a braft group whose behaviour a test writes: three servers that
// share one state, with no consensus behind them.
type group struct {
	tb    testing.TB
	nodes []*node // node i is nodes[i-1]

	mu       sync.Mutex
	leader   int // 0 for none
	counters map[int64]int64
	calls    []*exchange // all compare_exchanges that came, in order
}

// node is one server. Its hooks run under the group's lock.
type node struct {
	g    *group
	self int
	addr netip.AddrPort
	lis  net.Listener
	wg   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool

	// exchange acts on a compare_exchange; by default the leader carries it
	// out and the others redirect.
	exchange func(*exchange)
	// says answers get_leader; by default with the group's leader. It may keep
	// the question.
	says func(*call)
	asks int
}

// call is one request that came.
type call struct {
	node        *node
	conn        net.Conn
	correlation uint64
	service     string
	method      string
	body        []byte
}

// exchange is a compare_exchange.
type exchange struct {
	call
	key, expected, value int64
}

// newGroup starts three nodes, of which leader leads.
func newGroup(tb testing.TB, leader int) *group {
	g := &group{tb: tb, leader: leader, counters: map[int64]int64{}}
	g.mu.Lock()
	defer g.mu.Unlock()
	for self := 1; self <= 3; self++ {
		n := &node{g: g, self: self, conns: map[net.Conn]bool{}, addr: netip.MustParseAddrPort("127.0.0.1:0")}
		n.exchange = func(e *exchange) {
			if g.leader == n.self {
				e.reply(g.carryOut(e))
			} else {
				e.redirect(g.leader)
			}
		}
		n.says = func(c *call) { c.leader(g.leader) }
		n.start()
		tb.Cleanup(n.stop)
		g.nodes = append(g.nodes, n)
	}
	return g
}

func (g *group) addrs() (addrs []netip.AddrPort) {
	for _, n := range g.nodes {
		addrs = append(addrs, n.addr)
	}
	return addrs
}

// do runs f under the group's lock, where a test changes what it is.
func (g *group) do(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// received is what came so far.
func (g *group) received() []*exchange {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.calls)
}

// carryOut a compare_exchange and return the reply's body.
func (g *group) carryOut(e *exchange) []byte {
	old := g.counters[e.key]
	if old == e.expected {
		g.counters[e.key] = e.value
	}
	return values(old == e.expected, e.key, g.counters[e.key], old)
}

// values is the body of a reply.
func values(success bool, key, new, old int64) []byte {
	b := []byte{1 << 3, 0}
	if success {
		b[1] = 1
	}
	b = protowire.AppendVarint(append(b, 2<<3), uint64(key))
	b = protowire.AppendVarint(append(b, 3<<3), uint64(new))
	return protowire.AppendVarint(append(b, 4<<3), uint64(old))
}

func (n *node) start() {
	l, err := net.Listen("tcp", n.addr.String())
	if err != nil {
		n.g.tb.Fatal(err)
	}
	n.lis, n.addr = l, l.Addr().(*net.TCPAddr).AddrPort()
	n.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.mu.Lock()
			n.conns[c] = true
			n.mu.Unlock()
			n.wg.Go(func() { n.serve(c) })
		}
	})
}

// stop ends the node, and its connections with a reset.
func (n *node) stop() {
	n.lis.Close()
	n.cut()
	n.wg.Wait()
}

// cut resets the connections.
func (n *node) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	clear(n.conns)
}

func (n *node) serve(conn net.Conn) {
	defer func() {
		n.mu.Lock()
		delete(n.conns, conn)
		n.mu.Unlock()
		conn.Close()
	}()
	r := bufio.NewReader(conn)
	for {
		c, err := readCall(r)
		if err != nil {
			return
		}
		c.node, c.conn = n, conn
		n.g.mu.Lock()
		switch c.service + "." + c.method {
		case "example.AtomicService.compare_exchange":
			e := &exchange{call: *c}
			for b := c.body; len(b) > 0; {
				num, _, tag := protowire.ConsumeTag(b)
				v, k := protowire.ConsumeVarint(b[tag:])
				*map[protowire.Number]*int64{1: &e.key, 2: &e.expected, 3: &e.value}[num] = int64(v)
				b = b[tag+k:]
			}
			n.g.calls = append(n.g.calls, e)
			n.exchange(e)
		case "braft.CliService.get_leader":
			n.asks++
			if string(c.body) != "\x0a\x06Atomic" {
				c.fail(codeNoGroup, "No nodes in group")
			} else {
				n.says(c)
			}
		default:
			c.fail(codeNoMethod, "Fail to find method")
		}
		n.g.mu.Unlock()
	}
}

// readCall reads one request, with decoders that are not the client's.
func readCall(r io.Reader) (*call, error) {
	head := make([]byte, 12)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(head[4:]))
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	meta := binary.BigEndian.Uint32(head[8:])
	m, err := parsed(requestMetaType, frame[:meta])
	if err != nil {
		return nil, err
	}
	q, err := parsed(requestType, bytesField(m, "request"))
	if err != nil {
		return nil, err
	}
	return &call{
		correlation: uint64(intField(m, "correlation_id")), body: frame[meta:],
		service: string(bytesField(q, "service_name")), method: string(bytesField(q, "method_name")),
	}, nil
}

var (
	requestMetaType = message("RequestMeta", "request:1:bytes", "correlation_id:4:int64")
	requestType     = message("Request", "service_name:1:bytes", "method_name:2:bytes")
)

func (c *call) answer(code int, text string, body []byte) {
	var response []byte
	response = protowire.AppendVarint(append(response, 1<<3), uint64(code))
	if text != "" {
		response = protowire.AppendString(append(response, 2<<3|2), text)
	}
	meta := protowire.AppendBytes([]byte{2<<3 | 2}, response)
	meta = protowire.AppendVarint(append(meta, 4<<3), c.correlation)
	c.conn.Write(frame(meta, body)) // the client may be gone
}

func (c *call) reply(body []byte) { c.answer(0, "", body) }

func (c *call) fail(code int, text string) { c.answer(code, text, nil) }

// leader answers get_leader.
func (c *call) leader(leader int) {
	if leader == 0 {
		c.fail(codeNoLeader, "Unknown leader")
		return
	}
	c.names(peerID(c.node.g.nodes[leader-1].addr) + ":0")
}

// names answers get_leader with any peer id.
func (c *call) names(id string) { c.reply(protowire.AppendString([]byte{1<<3 | 2}, id)) }

// redirect to a node, or to nobody.
func (c *call) redirect(leader int) {
	b := []byte{1 << 3, 0}
	if leader != 0 {
		b = protowire.AppendString(append(b, 5<<3|2), peerID(c.node.g.nodes[leader-1].addr)+":0")
	}
	c.reply(b)
}
