package openraft

import (
	"encoding/json"
	"errors"
	"fmt"

	"raftrig/loadgen/sock"
)

const (
	// probeTimeout is how long a node may take from the connect to the end of
	// its answer.
	probeTimeout = 1000 * millisecond
	// probeGap is between two questions to a node while no leader is known.
	probeGap = 50 * millisecond
	// metricsSize bounds an answer to GET /metrics.
	metricsSize = 64 << 10
)

// metrics is what GET /metrics says, as far as it is read here.
type metrics struct {
	ID               int    `json:"id"`
	State            string `json:"state"`
	CurrentTerm      uint64 `json:"current_term"`
	CurrentLeader    int    `json:"current_leader"` // 0 for null
	MembershipConfig struct {
		Membership struct {
			Configs [][]int `json:"configs"`
			Nodes   map[int]struct {
				Addr string `json:"addr"`
			} `json:"nodes"`
		} `json:"membership"`
	} `json:"membership_config"`
}

// probe is a node that is asked who leads, on a connection of its own.
type probe struct {
	node     int // from 1
	conn     *sock.Conn
	text     []byte // of the question
	asking   bool
	deadline int64 // asking: to give up; else to ask; 0 for not at all
	said     string

	// Of the answer since the last ask.
	fresh bool
	leads bool
	term  uint64
}

func newProbes(hosts []string) []probe {
	probes := make([]probe, len(hosts))
	for i, host := range hosts {
		p := &probes[i]
		p.node = i + 1
		p.text = fmt.Appendf(nil, "GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		p.conn = sock.NewConn(sock.Config{In: metricsSize, Out: len(p.text)})
		p.conn.Tag = -1 - i
	}
	return probes
}

// ask all nodes who leads, from now on: what they said before no longer
// counts. A question that is under way is not asked again.
func (c *Client) ask(now int64) {
	c.suspect, c.askedAt = false, now
	for i := range c.probes {
		p := &c.probes[i]
		p.fresh = false
		if !p.asking {
			c.question(p, now)
		}
	}
	c.setTimer()
}

// tickProbes gives up questions that have no answer, and asks again while no
// leader is known.
func (c *Client) tickProbes(now int64) {
	for i := range c.probes {
		switch p := &c.probes[i]; {
		case p.deadline == 0 || now < p.deadline:
		case p.asking:
			c.silent(p, errProbeTimeout)
		case c.target == 0:
			c.question(p, now)
		default:
			p.deadline = 0
		}
	}
}

func (c *Client) question(p *probe, now int64) {
	p.asking, p.deadline = true, now+probeTimeout
	if p.conn.Closed() {
		if err := c.poller.Dial(p.conn, c.addrs[p.node-1]); err != nil {
			c.silent(p, err)
			return
		}
	}
	p.conn.Write(p.text)
	if err := p.conn.Flush(); err != nil {
		c.silent(p, err)
	}
}

// answered acts on what the poller saw of a probe.
func (c *Client) answered(p *probe) {
	if p.conn.Closed() || !p.conn.Readable() && p.conn.Err() == nil {
		return
	}
	n, err := p.conn.Fill()
	if n == 0 && err == nil {
		return
	}
	if n == 0 {
		c.silent(p, err)
		return
	}
	if !p.asking {
		c.silent(p, errors.New("an answer without a question"))
		return
	}
	in := p.conn.In()
	h, used, err := parseHead(in)
	if err != nil {
		c.silent(p, err)
		return
	}
	if used == 0 || len(in)-used < h.length {
		return
	}
	body := in[used : used+h.length]
	m, err := readMetrics(h.status, body, p.node)
	if err != nil {
		c.silent(p, err)
		return
	}
	p.conn.Discard(len(in))
	if h.close {
		p.conn.Close()
	}
	p.said = ""
	p.fresh, p.leads, p.term = true, m.State == "Leader", m.CurrentTerm
	c.elect()
	c.rest(p)
}

// readMetrics reads node's answer to GET /metrics.
func readMetrics(status int, body []byte, node int) (*metrics, error) {
	if status != 200 {
		return nil, fmt.Errorf("HTTP status %d %.100q", status, body)
	}
	var m struct{ Ok *metrics }
	if err := json.Unmarshal(body, &m); err != nil || m.Ok == nil {
		return nil, fmt.Errorf("its /metrics are not those of an openraft node: %.100q", body)
	}
	if m.Ok.ID != node {
		return nil, fmt.Errorf("it says it is node %d: name the hosts in the order of their nodes, and the port of this cluster", m.Ok.ID)
	}
	return m.Ok, nil
}

var errProbeTimeout = fmt.Errorf("no answer within %d s", probeTimeout/(1000*millisecond))

// silent ends a question without an answer.
func (c *Client) silent(p *probe, err error) {
	asking := p.asking
	refused := !p.conn.Connected() && err != errProbeTimeout
	p.conn.Close()
	p.fresh = false
	if own(err) {
		c.fail(fmt.Errorf("node %d at %s: %w", p.node, c.addrs[p.node-1], err))
	}
	if !asking {
		return // an idle connection was closed: the next question opens one
	}
	if p.said != err.Error() { // once each, not every time
		p.said = err.Error()
		c.w.Event(fmt.Sprintf("node %d at %s does not say who leads: %v", p.node, c.addrs[p.node-1], err))
	}
	c.rest(p)
	if p.node == c.target && refused {
		c.setTarget(0, 0, err.Error())
	}
}

// rest until the next question, which is due while no leader is known.
func (c *Client) rest(p *probe) {
	p.asking, p.deadline = false, 0
	if c.target == 0 {
		p.deadline = c.w.Clock.Now() + probeGap
	}
	c.setTimer()
}

// elect the node that says it leads in the highest term.
func (c *Client) elect() {
	var best *probe
	for i := range c.probes {
		if p := &c.probes[i]; p.fresh && p.leads && (best == nil || p.term > best.term) {
			best = p
		}
	}
	if best != nil && (c.target == 0 || best.node == c.target || best.term > c.term) {
		c.setTarget(best.node, best.term, "")
		return
	}
	if c.target != 0 {
		if p := &c.probes[c.target-1]; p.fresh && !p.leads {
			c.setTarget(0, 0, "it no longer leads")
		}
	}
}
