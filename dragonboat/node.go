package dragonboat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lni/dragonboat/v4"
	"github.com/lni/dragonboat/v4/client"
	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/plugin/tan"
	"github.com/lni/dragonboat/v4/raftio"
	"github.com/lni/dragonboat/v4/statemachine"

	"raftrig/gateway"
	"raftrig/gateway/serve"
)

// Config says which node of which cluster to run, and how. The zero value of
// each of its own fields stands for its default.
type Config struct {
	serve.Config
	// MemoryDir is where a node in memory makes its directory: it has to lie on
	// a tmpfs. Default /dev/shm.
	MemoryDir string
	// ElectionTimeout is how long a follower hears nothing before it stands for
	// election, at random up to twice that, and how long a leader may be
	// without a quorum. A pause of the leader that is shorter does not cost it
	// its office. Rounded up to the library's clock, 10 ms. Default 2 s.
	ElectionTimeout time.Duration
	// HeartbeatInterval is how often the leader is heard of when nothing
	// happens; at most a fifth of ElectionTimeout. Rounded up to 10 ms.
	// Default 100 ms.
	HeartbeatInterval time.Duration
	// SnapshotEntries is how many entries since the last one make a snapshot.
	// Default 65536.
	SnapshotEntries uint64
	// TrailingEntries is how many entries are kept behind a snapshot for
	// followers that are a little late: one that missed more is sent the
	// snapshot. Default 131072.
	TrailingEntries uint64
}

// Defaults of Config that flags show.
const (
	DefaultMemoryDir         = "/dev/shm"
	DefaultElectionTimeout   = 2 * time.Second
	DefaultHeartbeatInterval = 100 * time.Millisecond
	DefaultSnapshotEntries   = 1 << 16
	DefaultTrailingEntries   = 1 << 17
)

func (c Config) withDefaults() Config {
	c.MemoryDir = cmp.Or(c.MemoryDir, DefaultMemoryDir)
	c.ElectionTimeout = cmp.Or(c.ElectionTimeout, DefaultElectionTimeout)
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, DefaultHeartbeatInterval)
	c.SnapshotEntries = cmp.Or(c.SnapshotEntries, DefaultSnapshotEntries)
	c.TrailingEntries = cmp.Or(c.TrailingEntries, DefaultTrailingEntries)
	return c
}

const (
	shardID = 1 // of the only Raft group

	// tick is the library's clock. It wakes a few goroutines each time.
	tick = 10 * time.Millisecond
	// proposalTimeout is far beyond what anybody waits: a client says how long
	// it waits, and a lost office ends proposals.
	proposalTimeout = 30 * time.Second
	// busyPoll is how often a full queue of the library is tried again; it
	// empties once a turn of its loop.
	busyPoll = 100 * time.Microsecond
	// sendQueueBytes bounds the entries that wait for a peer that does not read.
	// More are dropped, and replicated again later.
	sendQueueBytes = 128 << 20
	// askInterval is how often a node that is behind asks for entries.
	askInterval = 500 * time.Millisecond
	// tellingTime is how far apart the library's word of a change of leadership
	// and what it answers about it may be.
	tellingTime = 20 * time.Millisecond
	// settleTime is how long a leader waits after the last entry before it hands
	// its office over.
	settleTime = 2 * tick
	// closeTimeout bounds how long Close waits for proposals on their way.
	closeTimeout = 5 * time.Second
)

var (
	errNotLeader      = errors.New("this node does not lead")
	errTransfer       = errors.New("this node is handing its office over")
	errLeadershipLost = errors.New("this node lost its office")
	errClosed         = errors.New("this node is closed")
)

// Node is a running member of the cluster. It implements gateway.Node.
type Node struct {
	cfg     Config
	dir     nodeDir
	host    *dragonboat.NodeHost
	user    dragonboat.INodeUser
	session *client.Session
	queue   *queue

	proposing sync.Mutex // keeps the order of queue that of the library's
	fresh     []pending
	closing   atomic.Bool
	closed    bool // with proposing

	heard     atomic.Pointer[raftio.LeaderInfo]
	transfers atomic.Int32
	changed   chan struct{} // a token: Leadership may have changed
	stop      chan struct{} // closed: Close has begun
	asking    sync.WaitGroup
}

var _ serve.Node = (*Node)(nil)

// Start runs a node until Close. A node without a state begins with the
// members that Peers gives, which are the same on all of them.
func Start(cfg Config) (_ *Node, err error) {
	cfg = cfg.withDefaults()
	n := &Node{cfg: cfg, changed: make(chan struct{}, 1), stop: make(chan struct{})}
	n.queue = newQueue(n.heardLeading, n.again, cfg.ElectionTimeout)
	// The address is this node's alone from here on, and with it the directory
	// in memory that is named after it.
	listener, err := cfg.ListenRaft()
	if err != nil {
		return nil, err
	}
	transport := newTransport(cfg, listener)
	defer func() {
		if err != nil {
			if n.host != nil {
				n.host.Close()
			}
			transport.Close()
			err = errors.Join(err, n.dir.close())
			logs.leave(n)
		}
	}()
	if n.dir, err = openDir(cfg); err != nil {
		return nil, err
	}
	logs.join(n)
	defer func() {
		// Some of what the library does not expect to find is met with a panic.
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: %v", n.dir.Path, p)
		}
	}()

	n.host, err = dragonboat.NewNodeHost(config.NodeHostConfig{
		DeploymentID:        cfg.deployment(),
		NodeHostDir:         n.dir.library(),
		RTTMillisecond:      uint64(tick.Milliseconds()),
		RaftAddress:         cfg.Peers[cfg.ID],
		RaftEventListener:   leaderListener{n},
		MaxSendQueueSize:    sendQueueBytes,
		MaxReceiveQueueSize: sendQueueBytes,
		Expert: config.ExpertConfig{
			LogDBFactory:     tan.Factory,
			TransportFactory: transport,
			// Buffers of 4 MiB instead of 128: tan makes sixteen, and one group
			// uses one.
			LogDB: config.GetTinyMemLogDBConfig(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.dir.Path, err)
	}
	transport.host.Store(n.host)
	members := make(map[uint64]dragonboat.Target)
	for id, addr := range cfg.Peers {
		members[uint64(id)] = addr
	}
	err = n.host.StartConcurrentReplica(members, false, func(uint64, uint64) statemachine.IConcurrentStateMachine {
		return &machine{kv: cfg.State}
	}, config.Config{
		ReplicaID:          uint64(cfg.ID),
		ShardID:            shardID,
		CheckQuorum:        true,
		PreVote:            true,
		ElectionRTT:        ticks(cfg.ElectionTimeout),
		HeartbeatRTT:       ticks(cfg.HeartbeatInterval),
		SnapshotEntries:    cfg.SnapshotEntries,
		CompactionOverhead: cfg.TrailingEntries,
		WaitReady:          true,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.dir.Path, err)
	}
	if n.user, err = n.host.GetNodeUser(shardID); err != nil {
		return nil, err
	}
	n.session = n.host.GetNoOPSession(shardID)
	go n.queue.run()
	n.asking.Go(func() { n.askForEntries(transport.behind) })
	return n, nil
}

// askForEntries is for a node in memory that has come back: as long as no new
// entries come, the leader takes it for up to date and sends it none. It then
// proposes an empty command, which the library forwards to the leader and the
// state machine skips.
func (n *Node) askForEntries(behind <-chan struct{}) {
	for {
		select {
		case <-behind:
		case <-n.stop:
			return
		}
		// Nobody waits for the end. Without a leader it is dropped, and the next
		// heartbeat asks again.
		n.user.Propose(n.session, nil, proposalTimeout)
		select {
		case <-time.After(askInterval):
		case <-n.stop:
			return
		}
	}
}

func ticks(d time.Duration) uint64 { return uint64((d + tick - 1) / tick) }

// deployment is a number that the nodes of this cluster share and those with
// other peers do not.
func (c Config) deployment() uint64 {
	h := fnv.New64a()
	for _, id := range slices.Sorted(maps.Keys(c.Peers)) {
		fmt.Fprintf(h, "%d=%s,", id, c.Peers[id])
	}
	return h.Sum64() | 1<<63 // neither 0 nor 1, which mean "none"
}

// leaderListener hears from the library when the leader or the term changes, a
// moment before or after leader says so.
type leaderListener struct{ n *Node }

// LeaderUpdated implements raftio.IRaftEventListener.
func (l leaderListener) LeaderUpdated(info raftio.LeaderInfo) {
	l.n.heard.Store(&info)
	l.n.queue.leadershipChanged()
	gateway.Notify(l.n.changed)
	time.AfterFunc(tellingTime, func() { gateway.Notify(l.n.changed) })
}

// heardLeading is leads by what the listener heard last.
func (n *Node) heardLeading() (term uint64, ok bool) {
	info := n.heard.Load()
	if info == nil {
		return 0, false
	}
	return info.Term, info.LeaderID == uint64(n.cfg.ID)
}

// leader is who leads in which term as far as the library has told.
func (n *Node) leader() (leader int, term uint64) {
	id, term, _, err := n.host.GetLeaderID(shardID)
	if err != nil {
		return 0, 0 // closed
	}
	return int(id), term
}

func (n *Node) leads() (term uint64, ok bool) {
	leader, term := n.leader()
	return term, leader == n.cfg.ID
}

// again is called for a proposal that the library has dropped: it does not lead,
// or hands its office over. It drops a moment before it tells, and a node that
// rejects must not claim to lead, so this waits that long. Where the two do not
// agree, as when the library still is at a transfer that has been given up, the
// proposal is made again.
func (n *Node) again(p *pending) error {
	for start := time.Now(); ; time.Sleep(busyPoll) {
		l := n.Leadership()
		if l.Leader != n.cfg.ID {
			return errNotLeader
		}
		if time.Since(start) < tellingTime {
			continue
		}
		r, err := n.user.Propose(n.session, p.command, proposalTimeout)
		if err == dragonboat.ErrSystemBusy {
			continue
		}
		p.request, p.term = r, l.Term
		return err
	}
}

// Propose implements gateway.Node. The library copies the commands. It forwards
// what it gets while another node leads, so that is looked at first; should the
// office be lost right then, the proposal is forwarded, and its end told all the
// same, or it is lost on its way and ends as uncertain.
func (n *Node) Propose(batch []gateway.Proposal, sink gateway.Sink) {
	n.proposing.Lock()
	defer n.proposing.Unlock()
	n.fresh = n.fresh[:0]
	defer func() {
		n.queue.add(n.fresh)
		clear(n.fresh)
	}()
	for len(batch) > 0 {
		term, ok := n.leads()
		switch {
		case n.closed || n.closing.Load():
			reject(batch, sink, errClosed)
			return
		case !ok:
			reject(batch, sink, errNotLeader)
			return
		case n.transfers.Load() > 0:
			reject(batch, sink, errTransfer)
			return
		}
		for len(batch) > 0 {
			r, err := n.user.Propose(n.session, batch[0].Command, proposalTimeout)
			if err == dragonboat.ErrSystemBusy {
				break
			}
			if err != nil {
				// Told before the command is in the library's queue.
				sink.Done(batch[0].ID, gateway.Rejected, err)
			} else {
				n.fresh = append(n.fresh, pending{r, sink, batch[0].ID, term, batch[0].Command})
			}
			batch = batch[1:]
		}
		if len(batch) > 0 {
			// The queue is full: its content can end meanwhile.
			n.queue.add(n.fresh)
			n.fresh = n.fresh[:0]
			time.Sleep(busyPoll)
		}
	}
}

func reject(batch []gateway.Proposal, sink gateway.Sink, err error) {
	for _, p := range batch {
		sink.Done(p.ID, gateway.Rejected, err)
	}
}

// Leadership implements gateway.Node. A node that hands its office over rejects
// all, so it does not say that it leads: clients then wait for the next leader.
func (n *Node) Leadership() gateway.Leadership {
	leader, term := n.leader()
	if leader == n.cfg.ID && n.transfers.Load() > 0 {
		leader = 0
	}
	return gateway.Leadership{Leader: leader, Term: term}
}

// LeadershipChanged implements gateway.Node.
func (n *Node) LeadershipChanged() <-chan struct{} { return n.changed }

// Status implements gateway.Node. The library does not tell whether a node that
// knows no leader stands for election already: it is shown as a candidate.
func (n *Node) Status() (gateway.Status, error) {
	if n.closing.Load() {
		return gateway.Status{}, errClosed
	}
	leader, _ := n.leader()
	l, m := n.Leadership(), n.cfg.State.Status()
	st := gateway.Status{
		Node:    n.cfg.ID,
		Role:    gateway.Follower,
		Leader:  l.Leader,
		Term:    l.Term,
		Applied: m.Applied,
		Count:   m.Count,
		Digest:  m.Digest,
		Version: Version(),
		Log:     n.Log(),
	}
	switch leader {
	case n.cfg.ID:
		st.Role = gateway.Leader
	case 0:
		st.Role = gateway.Candidate
	}
	return st, nil
}

// Log implements serve.Node.
func (n *Node) Log() string {
	if n.dir.inMemory {
		return "in memory (tan on tmpfs)"
	}
	return "on disk, synced (tan)"
}

// TransferLeader implements gateway.Node: this node has to lead.
func (n *Node) TransferLeader(ctx context.Context, to int) error {
	if _, ok := n.cfg.Peers[to]; !ok {
		return fmt.Errorf("there is no node %d", to)
	}
	if n.closing.Load() {
		return errClosed
	}
	switch leader, _ := n.leader(); leader {
	case n.cfg.ID:
	case 0:
		return errors.New("no leader is known")
	default:
		return fmt.Errorf("node %d does not lead: ask node %d", n.cfg.ID, leader)
	}
	if to == n.cfg.ID {
		return nil
	}
	transferring := func(delta int32) {
		n.transfers.Add(delta)
		gateway.Notify(n.changed)
	}
	transferring(1)
	defer transferring(-1)
	// A follower that has not applied all it knows to be committed ignores the
	// library's call to stand for election, and the transfer is lost. So the
	// proposals on their way come to their end first, while new ones are
	// rejected, and the follower gets a moment to apply them too.
	n.until(ctx, n.cfg.ElectionTimeout, func() bool { return n.queue.quietFor(settleTime) })
	if err := n.requestTransfer(to); err != nil {
		return err
	}
	// The library gives a transfer up after an election's time; until then it
	// drops proposals, so this waits longer.
	return n.until(ctx, 2*n.cfg.ElectionTimeout, func() bool {
		leader, _ := n.leader()
		return leader == to
	})
}

// until waits for ok.
func (n *Node) until(ctx context.Context, limit time.Duration, ok func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("the other node did not take office"))
	defer cancel()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for !ok() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-n.stop:
			return errClosed
		}
	}
	return nil
}

// requestTransfer keeps the request apart from Close, which the library does not.
func (n *Node) requestTransfer(to int) error {
	n.proposing.Lock()
	defer n.proposing.Unlock()
	if n.closed {
		return errClosed
	}
	return n.host.RequestLeaderTransfer(shardID, uint64(to))
}

// Close ends every proposal and stops the node. Those on their way get up to
// five seconds to end by themselves. Propose rejects from then on.
func (n *Node) Close() error {
	n.closing.Store(true) // makes a Propose that waits for room return
	n.proposing.Lock()
	if n.closed {
		n.proposing.Unlock()
		return nil
	}
	n.closed = true
	n.proposing.Unlock()
	close(n.stop)

	deadline := time.After(closeTimeout)
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
wait:
	for !n.queue.empty() {
		select {
		case <-poll.C:
		case <-deadline:
			break wait
		}
	}
	n.asking.Wait()
	n.host.Close() // ends what is left
	n.queue.close()
	<-n.queue.ended
	err := n.dir.close()
	logs.leave(n)
	return err
}

// ownIP is the address that the node listens on.
func ownIP(l net.Listener) *net.TCPAddr {
	own, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	return &net.TCPAddr{IP: own.IP, Zone: own.Zone}
}
