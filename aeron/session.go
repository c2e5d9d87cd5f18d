package aeron

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"raftrig/loadgen"
)

// Times of a session, in nanoseconds.
const (
	// attemptTimeout is how long a node may take to answer a request for a
	// session, before another is asked.
	attemptTimeout = 1_000_000_000
	// attemptGap keeps nodes that send us to and fro from being flooded.
	attemptGap = 50_000_000
	// lostAfter is how long the leader may stay out of reach before the session
	// counts as lost; it is longer where the leader's heartbeat timeout, of
	// which the cluster tells, says that an election takes longer.
	lostAfter = 5_000_000_000
	// silentAfter is how long requests may go without any reply before the
	// session counts as lost. It is the cluster's session timeout: a leader that
	// hung for longer has ended the session, and one that knows nothing of it,
	// because the cluster was started anew, says nothing.
	silentAfter = 10_000_000_000
	// keepAliveAfter is how long a session may send nothing.
	keepAliveAfter = 1_000_000_000
	// checkEvery is how often the media driver is checked for its life.
	checkEvery = 100_000_000
	// maxAttempts is how many requests for a session are remembered.
	maxAttempts = 32
	// termRolls bounds how often a claim is tried again at once.
	termRolls = 3
	// tickOpen and tickConnecting are how often the state is looked at.
	tickOpen       = 5_000_000
	tickConnecting = 1_000_000
)

// Streams of a cluster.
const (
	ingressStream = 101
	egressStream  = 102
)

// What a claim returns instead of a position; the values are Aeron's.
const (
	notConnected  = -1
	backPressured = -2
	adminAction   = -3 // the log's term is full: try again at once
	pubClosed     = -4
	maxPosition   = -5
)

// link is what a session needs of a media driver. Its methods do not wait.
type link interface {
	// onFragment sets what poll hands fragments to; whole says that one is a
	// message, not a part of it.
	onFragment(f func(b []byte, whole bool))
	// poll hands over up to limit fragments and returns how many.
	poll(limit int) int
	// responseChannel is where the cluster shall send to; "" while the driver
	// has not opened it.
	responseChannel() (string, error)
	// dial adds a publication to a node's ingress.
	dial(endpoint string) (ingress, error)
	// correlation is a number that no other client of the driver has.
	correlation() int64
	// check says whether the driver is alive.
	check() error
	close() error
}

// ingress is a publication to a node.
type ingress interface {
	// connected says whether the node receives it. An error is the driver's,
	// and final.
	connected() (bool, error)
	// claim n bytes of the log, which it returns, to be written and then
	// committed before anything else; nil and the reason when there are none.
	claim(n int) ([]byte, int64)
	commit()
	close()
}

// user is what a session tells of.
type user interface {
	// reply takes a message of the session, valid during the call. It returns
	// when the message was read, or 0 when it answers nothing outstanding.
	reply(payload []byte) (at int64)
	// abandon ends all outstanding requests as unknown and returns how many.
	abandon() int
	event(text string)
	// fail ends the run; it is called once.
	fail(err error)
}

type state uint8

const (
	stateOpening    state = iota // the driver has not opened the egress
	stateConnecting              // asking for a session
	stateOpen
	stateEnded // closed, or failed
)

// node is a member of the cluster; its number there is its index.
type node struct {
	endpoint string
	pub      ingress // nil when there is none
	asked    bool    // for a session, since connecting began
}

// session is a client's session with an Aeron cluster: it finds the leader,
// follows it to another node, and is made anew when it is lost. It is driven by
// tick, claim and poll, all on the lane's thread, and never waits.
//
// A request that has been committed is in the log of the driver here, no more.
// A leader drops what was sent in an older term without a word, so a new leader
// ends all outstanding requests as unknown.
type session struct {
	link  link
	user  user
	clock loadgen.Clock
	nodes []node

	state   state
	ready   bool    // open, and the leader receives
	pub     ingress // to the leader, while open
	id      int64   // of the session, while open
	term    int64
	leader  int    // index in nodes
	broken  string // why the publication cannot be used any more
	now     int64  // of the last tick that did something
	next    int64  // when the next is due
	checked int64

	// While connecting.
	channel  string
	attempts []int64 // correlation ids of the last requests for a session
	tries    int     // of them, since connecting began
	hint     int     // the node to ask, -1 for any
	last     int     // the node asked last
	wait     int64   // when to ask again
	limit    time.Duration
	deadline int64 // of the first session, limit after the start; 0 afterwards

	// While open.
	active   bool  // sent something since the last keep-alive was due
	keep     int64 // when a keep-alive is due
	downFrom int64 // since when the leader is out of reach; 0 when it is not
	patience int64 // how long it may be
	waiting  int   // outstanding requests
	asked    int64 // about when the first of them was sent
	heard    int64 // when the last reply came
}

// newSession begins to ask for one, for the limit at most.
func newSession(l link, u user, clock loadgen.Clock, endpoints []string, limit time.Duration) *session {
	s := &session{link: l, user: u, clock: clock, id: -1, hint: -1, last: -1, limit: limit}
	for _, e := range endpoints {
		s.nodes = append(s.nodes, node{endpoint: e})
	}
	now := clock.Now()
	s.deadline, s.checked, s.now, s.next = now+int64(limit), now, now, now
	l.onFragment(s.fragment)
	return s
}

// claim room for a request of n bytes; nil is "not now". It has to be committed.
func (s *session) claim(n int) []byte {
	if !s.ready {
		return nil
	}
	b := s.take(s.pub, messageHeaderLen+n)
	if b == nil {
		return nil
	}
	putMessageHeader(b, s.term, s.id)
	if s.waiting == 0 {
		s.asked = s.now // near enough, and the clock need not be read
	}
	s.waiting++
	s.active = true
	return b[messageHeaderLen:]
}

func (s *session) commit() { s.pub.commit() }

// take claims n bytes of a publication to the leader.
func (s *session) take(pub ingress, n int) []byte {
	for range termRolls {
		b, code := pub.claim(n)
		switch {
		case b != nil:
			return b
		case code == adminAction:
			continue
		case code == notConnected:
			s.ready, s.next = false, 0
		case code != backPressured:
			s.broken, s.ready, s.next = fmt.Sprintf("the publication to the leader ended (%d)", code), false, 0
		}
		return nil
	}
	return nil
}

// tick looks at the state, when it is time to.
func (s *session) tick(now int64) {
	if now < s.next || s.state == stateEnded {
		return
	}
	s.now = now
	if now >= s.checked+checkEvery {
		s.checked = now
		if err := s.link.check(); err != nil {
			s.fail(err)
			return
		}
	}
	switch s.state {
	case stateOpening:
		s.next = now + tickConnecting
		channel, err := s.link.responseChannel()
		if err != nil {
			s.fail(fmt.Errorf("the replies' channel: %w", err))
			return
		}
		if channel != "" {
			s.channel = channel
			s.connect(now)
		} else if now >= s.deadline {
			s.fail(fmt.Errorf("the media driver has not opened the replies' channel within %v", s.limit))
		}
	case stateConnecting:
		s.next = now + tickConnecting
		s.ask(now)
	case stateOpen:
		s.next = now + tickOpen
		s.watch(now)
	}
}

// connect begins to ask for a session.
func (s *session) connect(now int64) {
	if s.broken != "" {
		s.nodes[s.leader].pub.close()
		s.nodes[s.leader].pub = nil
	}
	s.state, s.ready, s.broken, s.id, s.pub = stateConnecting, false, "", -1, nil
	s.tries, s.wait, s.next = 0, 0, now
	for i := range s.nodes {
		n := &s.nodes[i]
		n.asked = false
		if err := s.dial(n); err != nil {
			s.fail(err)
			return
		}
	}
}

func (s *session) dial(n *node) error {
	if n.pub != nil {
		return nil
	}
	pub, err := s.link.dial(n.endpoint)
	if err != nil {
		return fmt.Errorf("ingress at %s: %w", n.endpoint, err)
	}
	n.pub = pub
	return nil
}

// ask the next node for a session, if it is time to.
func (s *session) ask(now int64) {
	for i := range s.nodes {
		if _, err := s.nodes[i].pub.connected(); err != nil {
			s.fail(fmt.Errorf("ingress at %s: %w", s.nodes[i].endpoint, err))
			return
		}
	}
	if s.deadline != 0 && now >= s.deadline {
		s.fail(fmt.Errorf("no session within %v: %s", s.limit, s.why()))
		return
	}
	if now < s.wait {
		return
	}
	at := s.candidate()
	if at < 0 {
		return
	}
	n := &s.nodes[at]
	b, code := n.pub.claim(connectLen(s.channel))
	if b == nil {
		if code != adminAction {
			s.last = at // it is another's turn
		}
		return
	}
	id := s.link.correlation()
	putConnect(b, id, egressStream, s.channel)
	n.pub.commit()
	n.asked = true
	if len(s.attempts) == maxAttempts {
		s.attempts = slices.Delete(s.attempts, 0, 1)
	}
	s.attempts = append(s.attempts, id)
	s.tries++
	s.last, s.hint, s.wait = at, -1, now+attemptTimeout
}

// candidate is the node to ask: the one that another has named, else the next
// that is there; -1 for none.
func (s *session) candidate() int {
	if s.hint >= 0 {
		if ok, _ := s.nodes[s.hint].pub.connected(); ok {
			return s.hint
		}
	}
	for i := range s.nodes {
		at := (s.last + 1 + i) % len(s.nodes)
		if ok, _ := s.nodes[at].pub.connected(); ok {
			return at
		}
	}
	return -1
}

// why says how far each node got.
func (s *session) why() string {
	var parts []string
	for i := range s.nodes {
		n := &s.nodes[i]
		what := "does not receive"
		if ok, _ := n.pub.connected(); n.asked {
			what = "gave no session"
		} else if ok {
			what = "was not asked"
		}
		parts = append(parts, fmt.Sprintf("node %d at %s %s", i+1, n.endpoint, what))
	}
	return strings.Join(parts, ", ")
}

// watch an open session.
func (s *session) watch(now int64) {
	connected, err := s.pub.connected()
	if err != nil {
		s.fail(fmt.Errorf("ingress at %s: %w", s.nodes[s.leader].endpoint, err))
		return
	}
	s.ready = connected && s.broken == ""
	switch {
	case connected:
		s.downFrom = 0
	case s.downFrom == 0:
		s.downFrom = now
	}
	switch {
	case s.broken != "":
		s.lose(now, s.broken)
	case s.downFrom != 0 && now-s.downFrom >= s.patience:
		s.lose(now, fmt.Sprintf("node %d has been out of reach for %.1f s", s.leader+1, float64(now-s.downFrom)/1e9))
	case s.waiting > 0 && now-max(s.asked, s.heard) >= max(silentAfter, s.patience):
		s.lose(now, fmt.Sprintf("no reply for %.1f s", float64(now-max(s.asked, s.heard))/1e9))
	case !s.ready:
		s.next = now + tickConnecting
	case now >= s.keep:
		if s.active || s.short(templateKeepAlive, s.term, s.id) {
			s.active, s.keep = false, now+keepAliveAfter
		}
	}
}

// short sends a message without a payload to the leader.
func (s *session) short(template uint16, term, id int64) bool {
	b := s.take(s.pub, shortLen)
	if b == nil {
		return false
	}
	putShort(b, template, term, id)
	s.pub.commit()
	return true
}

// lose the session, and ask for another.
func (s *session) lose(now int64, why string) {
	id, n := s.id, s.abandon()
	s.user.event(fmt.Sprintf("session %d lost: %s; %d outstanding ended as unknown", id, why, n))
	s.connect(now)
}

func (s *session) abandon() int {
	s.waiting = 0
	return s.user.abandon()
}

func (s *session) fail(err error) {
	s.state, s.ready = stateEnded, false
	s.user.fail(err)
}

// fragment takes what the cluster has sent. What is no message of a session, or
// one of a kind not known here, is left alone: the port may have been another's.
func (s *session) fragment(b []byte, whole bool) {
	h, err := decodeHeader(b)
	if err != nil || s.state == stateEnded {
		return
	}
	if h.template == templateMessage {
		m, err := h.message()
		switch {
		case err != nil || m.session != s.id || s.state != stateOpen:
		case !whole:
			s.fail(fmt.Errorf("a reply came in parts: the leader's driver sends smaller datagrams than -mtu says"))
		default:
			if at := s.user.reply(m.payload); at != 0 {
				s.waiting--
				s.heard = at
			}
		}
		return
	}
	switch h.template {
	case templateEvent:
		if e, err := h.event(); err == nil {
			s.told(e)
		}
	case templateNewLeader:
		if l, err := h.newLeader(); err == nil {
			s.follow(l)
		}
	case templateChallenge:
		if id, err := h.challenge(); err == nil && s.requested(id) {
			s.fail(fmt.Errorf("node %d asks for credentials, which this client has none of: run the cluster without an authenticator", s.last+1))
		}
	}
}

// requested says whether id is of a request for the session that is wanted.
func (s *session) requested(id int64) bool {
	return s.state == stateConnecting && slices.Contains(s.attempts, id)
}

// told acts on a SessionEvent.
func (s *session) told(e event) {
	switch {
	case e.code == eventOK && s.requested(e.correlation):
		s.opened(e)
	case e.code == eventOK && s.state == stateOpen && e.session != s.id:
		// Of a request that was given up when another node was asked. The
		// cluster has room for a few sessions only.
		s.short(templateClose, e.term, e.session)
	case e.code == eventClosed && s.state == stateOpen && e.session == s.id:
		s.hint = s.leader // it is there
		s.lose(s.clock.Now(), "the cluster closed it: "+quote(e.detail))
	case e.code == eventRedirect && s.requested(e.correlation):
		s.redirected(e)
	case (e.code == eventError || e.code == eventRejected) && s.requested(e.correlation):
		why := fmt.Sprintf("node %d refused a session (%v): %s", s.last+1, e.code, quote(e.detail))
		if s.deadline != 0 {
			s.fail(fmt.Errorf("%s; a client that was killed keeps its session for 10 s", why))
			return
		}
		s.user.event(why)
	}
}

// quote bounds what a server said of itself to one short line.
func quote(detail string) string {
	return fmt.Sprintf("%.200q", detail)
}

func (s *session) opened(e event) {
	if e.leader < 0 || int(e.leader) >= len(s.nodes) {
		s.fail(fmt.Errorf("node %d leads, of %d that -hosts names: name all of them", e.leader+1, len(s.nodes)))
		return
	}
	now := s.clock.Now()
	s.state, s.id, s.deadline = stateOpen, e.session, 0
	s.patience = max(lostAfter, 2*e.heartbeatTimeout)
	s.active, s.keep, s.heard = true, now, now
	s.user.event(fmt.Sprintf("session %d to node %d, term %d", e.session, e.leader+1, e.term+1))
	s.lead(now, int(e.leader), e.term)
}

// lead makes the node at the index the one that requests go to.
func (s *session) lead(now int64, leader int, term int64) {
	for i := range s.nodes {
		if n := &s.nodes[i]; i != leader && n.pub != nil {
			n.pub.close()
			n.pub = nil
		}
	}
	if err := s.dial(&s.nodes[leader]); err != nil {
		s.fail(err)
		return
	}
	s.leader, s.term, s.pub = leader, term, s.nodes[leader].pub
	s.broken, s.downFrom, s.next = "", 0, now
	s.ready, _ = s.pub.connected() // an error comes again, in watch
}

// redirected to another node. One that knows no leader names none.
func (s *session) redirected(e event) {
	now := s.clock.Now()
	s.next = now
	s.wait = now + attemptGap
	if e.leader >= 0 && int(e.leader) < len(s.nodes) && int(e.leader) != s.last {
		s.hint = int(e.leader)
		if s.tries <= len(s.nodes) {
			s.wait = now
		}
	}
}

// follow the session to a new leader.
func (s *session) follow(l newLeader) {
	if s.state != stateOpen || l.session != s.id || l.term <= s.term {
		return
	}
	if l.leader < 0 || int(l.leader) >= len(s.nodes) {
		s.fail(fmt.Errorf("node %d leads, of %d that -hosts names: name all of them", l.leader+1, len(s.nodes)))
		return
	}
	now := s.clock.Now()
	silence := now - s.heard
	n := s.abandon()
	s.user.event(fmt.Sprintf("new leader node %d, term %d, %.2f s after the last reply; %d outstanding ended as unknown",
		l.leader+1, l.term+1, float64(silence)/1e9, n))
	s.lead(now, int(l.leader), l.term)
}

// close ends the session and lets go of the driver.
func (s *session) close() error {
	if s.state == stateOpen {
		s.short(templateClose, s.term, s.id)
	}
	s.state, s.ready = stateEnded, false
	for i := range s.nodes {
		if n := &s.nodes[i]; n.pub != nil {
			n.pub.close()
			n.pub = nil
		}
	}
	return s.link.close()
}
