package hashiraft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"raftrig/gateway"
	"raftrig/gateway/serve"
)

// Config says which node of which cluster to run, and how. The zero value of
// each of its own fields stands for its default.
type Config struct {
	serve.Config
	// HeartbeatTimeout is how long a follower hears nothing before it stands
	// for election, at random up to twice that. A pause of the leader that is
	// shorter does not cost it its office. Default 2 s.
	HeartbeatTimeout time.Duration
	// ElectionTimeout is how long a candidate waits for votes, at random up to
	// twice that; at least HeartbeatTimeout. Default HeartbeatTimeout.
	ElectionTimeout time.Duration
	// MaxAppendEntries bounds the batches that the library makes: from its
	// queue, on the wire, into the state machine. 1 to 1024, default 512.
	MaxAppendEntries int
	// SnapshotInterval is how often a snapshot is considered, at random up to
	// twice that. Default 5 s.
	SnapshotInterval time.Duration
	// SnapshotThreshold is how many entries since the last one make a snapshot
	// worthwhile. Default 65536.
	SnapshotThreshold uint64
	// TrailingLogs is how many entries are kept behind a snapshot for followers
	// that are a little late: one that missed more is sent the snapshot.
	// Default 131072.
	TrailingLogs uint64
}

// Defaults of Config that flags show.
const (
	DefaultHeartbeatTimeout  = 2 * time.Second
	DefaultMaxAppendEntries  = 512
	DefaultSnapshotInterval  = 5 * time.Second
	DefaultSnapshotThreshold = 1 << 16
	DefaultTrailingLogs      = 1 << 17
)

func (c Config) withDefaults() Config {
	c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, DefaultHeartbeatTimeout)
	c.ElectionTimeout = cmp.Or(c.ElectionTimeout, c.HeartbeatTimeout)
	c.MaxAppendEntries = cmp.Or(c.MaxAppendEntries, DefaultMaxAppendEntries)
	c.SnapshotInterval = cmp.Or(c.SnapshotInterval, DefaultSnapshotInterval)
	c.SnapshotThreshold = cmp.Or(c.SnapshotThreshold, DefaultSnapshotThreshold)
	c.TrailingLogs = cmp.Or(c.TrailingLogs, DefaultTrailingLogs)
	return c
}

const (
	// Two append requests to a follower at a time: one on its way while the
	// other is worked on. More of them leave the library less to batch.
	maxRPCsInFlight = 2
	rpcTimeout      = 10 * time.Second
	pooledConns     = 3

	// sweepInterval is how late a failed proposal is found; a successful one
	// does not wait for it.
	sweepInterval = 5 * time.Millisecond
	// closeTimeout bounds how long Close waits for proposals on their way. A
	// leader without a quorum gives up within its lease.
	closeTimeout = 5 * time.Second
)

// Node is a running member of the cluster. It implements gateway.Node.
type Node struct {
	cfg       Config
	raft      *raft.Raft
	transport *raft.NetworkTransport
	queue     *queue
	data      *dataDir // nil in memory

	proposing sync.Mutex // keeps the order of queue that of the library's
	futures   []raft.ApplyFuture
	closed    bool

	transfers atomic.Int32
	changed   chan struct{} // a token: Leadership may have changed
	stop      chan struct{}
	sweeping  chan struct{} // closed when sweep has ended
}

var _ serve.Node = (*Node)(nil)

// Start runs a node until Close. A node without a state begins with the
// configuration that Peers gives, which is the same on all of them.
func Start(cfg Config) (_ *Node, err error) {
	cfg = cfg.withDefaults()
	logger := hclog.New(&hclog.LoggerOptions{Name: "raft", Level: hclog.Error, Output: cfg.LogOutput})
	n := &Node{cfg: cfg, queue: newQueue(), changed: make(chan struct{}, 1), stop: make(chan struct{}), sweeping: make(chan struct{})}
	listener, err := cfg.ListenRaft()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.closeStores())
			if n.transport == nil {
				listener.Close()
			}
		}
	}()

	var log raft.LogStore
	var stable raft.StableStore
	var snapshots raft.SnapshotStore
	if cfg.DataDir == "" {
		log, stable, snapshots = &memoryLog{}, newMemoryStable(), &memorySnapshots{}
	} else {
		n.data, err = openDataDir(cfg.Config, logger)
		if err != nil {
			return nil, err
		}
		log, stable, snapshots = n.data.wal, n.data.wal, n.data.snapshots
	}

	conf := &raft.Config{
		ProtocolVersion:    raft.ProtocolVersionMax,
		LocalID:            serverID(cfg.ID),
		HeartbeatTimeout:   cfg.HeartbeatTimeout,
		ElectionTimeout:    cfg.ElectionTimeout,
		LeaderLeaseTimeout: cfg.HeartbeatTimeout,
		CommitTimeout:      50 * time.Millisecond,
		MaxAppendEntries:   cfg.MaxAppendEntries,
		BatchApplyCh:       true,
		TrailingLogs:       cfg.TrailingLogs,
		SnapshotInterval:   cfg.SnapshotInterval,
		SnapshotThreshold:  cfg.SnapshotThreshold,
		Logger:             logger,
		NoLegacyTelemetry:  true,
	}
	if err := raft.ValidateConfig(conf); err != nil {
		return nil, err
	}
	n.transport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:          streamLayer{listener},
		MaxPool:         pooledConns,
		MaxRPCsInFlight: maxRPCsInFlight,
		Timeout:         rpcTimeout,
		Logger:          logger,
	})
	defer func() {
		if err != nil {
			n.transport.Close()
		}
	}()

	known, err := raft.HasExistingState(log, stable, snapshots)
	if err != nil {
		return nil, err
	}
	if !known {
		if err := raft.BootstrapCluster(conf, log, stable, snapshots, n.transport, cfg.configuration()); err != nil {
			return nil, err
		}
	}
	n.raft, err = raft.NewRaft(conf, &fsm{machine: cfg.State, queue: n.queue}, log, stable, snapshots, n.transport)
	if err != nil {
		return nil, err
	}
	// The filter hears of everything right where it happens, so there is nothing
	// to pass on.
	n.raft.RegisterObserver(raft.NewObserver(nil, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.RaftState, raft.LeaderObservation:
			gateway.Notify(n.changed)
		}
		return false
	}))
	gateway.Notify(n.changed) // of what happened before
	go n.sweep()
	return n, nil
}

func serverID(id int) raft.ServerID { return raft.ServerID(strconv.Itoa(id)) }

func (c Config) configuration() raft.Configuration {
	var conf raft.Configuration
	for _, id := range slices.Sorted(maps.Keys(c.Peers)) {
		conf.Servers = append(conf.Servers, raft.Server{ID: serverID(id), Address: raft.ServerAddress(c.Peers[id])})
	}
	return conf
}

// streamLayer is TCP for the library's transport, on a listener that exists.
type streamLayer struct{ net.Listener }

// Dial implements raft.StreamLayer. It dials from the node's own address too:
// nodes that share a host are told apart by it, for delays between them.
func (s streamLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	if own, ok := s.Addr().(*net.TCPAddr); ok {
		d.LocalAddr = &net.TCPAddr{IP: own.IP, Zone: own.Zone}
	}
	return d.Dial("tcp", string(addr))
}

// Propose implements gateway.Node. The batch is the caller's again when it
// returns. A command must have passed kv.Check.
func (n *Node) Propose(batch []gateway.Proposal, sink gateway.Sink) {
	// Looked at here for speed: the library would say so too, and the sweep
	// find it a little later.
	switch {
	case n.raft.State() != raft.Leader:
		reject(batch, sink, raft.ErrNotLeader)
		return
	case n.transfers.Load() > 0:
		reject(batch, sink, raft.ErrLeadershipTransferInProgress)
		return
	}
	n.proposing.Lock()
	defer n.proposing.Unlock()
	if n.closed {
		reject(batch, sink, raft.ErrRaftShutdown)
		return
	}
	first := n.queue.push(batch, sink)
	n.futures = n.futures[:0]
	for _, p := range batch {
		// Without a timeout: it waits while the library's queue is full.
		n.futures = append(n.futures, n.raft.Apply(p.Command, 0))
	}
	n.queue.attach(first, n.futures)
	clear(n.futures)
}

func reject(batch []gateway.Proposal, sink gateway.Sink, err error) {
	for _, p := range batch {
		sink.Done(p.ID, gateway.Rejected, err)
	}
}

// sweep sweeps the queue from time to time, but not an idle node's.
func (n *Node) sweep() {
	defer close(n.sweeping)
	for {
		select {
		case <-n.queue.filled:
		case <-n.stop:
			return
		}
		select {
		case <-time.After(sweepInterval):
		case <-n.stop:
			return
		}
		n.queue.sweep()
		if !n.queue.empty() {
			gateway.Notify(n.queue.filled)
		}
	}
}

// Leadership implements gateway.Node. A node that hands its office over rejects
// all, so it does not say that it leads: clients then wait for the next leader.
func (n *Node) Leadership() gateway.Leadership {
	for {
		term := n.raft.CurrentTerm()
		_, id := n.raft.LeaderWithID()
		if n.raft.CurrentTerm() != term {
			continue // leader and term of different moments
		}
		leader, _ := strconv.Atoi(string(id)) // 0 when none is known
		if leader == n.cfg.ID && n.transfers.Load() > 0 {
			leader = 0
		}
		return gateway.Leadership{Leader: leader, Term: term}
	}
}

// LeadershipChanged implements gateway.Node.
func (n *Node) LeadershipChanged() <-chan struct{} { return n.changed }

// Status implements gateway.Node.
func (n *Node) Status() (gateway.Status, error) {
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
	switch n.raft.State() {
	case raft.Leader:
		st.Role = gateway.Leader
	case raft.Candidate:
		st.Role = gateway.Candidate
	case raft.Shutdown:
		return gateway.Status{}, raft.ErrRaftShutdown
	}
	return st, nil
}

// Log implements serve.Node.
func (n *Node) Log() string {
	if n.data == nil {
		return "in memory"
	}
	return "on disk, synced (raft-wal)"
}

// TransferLeader implements gateway.Node: this node has to lead.
func (n *Node) TransferLeader(ctx context.Context, to int) error {
	addr, ok := n.cfg.Peers[to]
	if !ok {
		return fmt.Errorf("there is no node %d", to)
	}
	if n.raft.State() != raft.Leader {
		switch l := n.Leadership(); l.Leader {
		case 0, n.cfg.ID:
			return errors.New("no leader is known")
		default:
			return fmt.Errorf("node %d does not lead: ask node %d", n.cfg.ID, l.Leader)
		}
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
	future := n.raft.LeadershipTransferToServer(serverID(to), raft.ServerAddress(addr))
	failed := make(chan error, 1)
	go func() { failed <- future.Error() }()
	// The future ends when this node has given up its office, not when the
	// other has taken it.
	ctx, cancel := context.WithTimeoutCause(ctx, 2*n.cfg.ElectionTimeout, errors.New("the other node did not take office"))
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-failed:
			if err != nil {
				return err
			}
		case <-tick.C:
			if n.Leadership().Leader == to {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-n.stop:
			return raft.ErrRaftShutdown
		}
	}
}

// Close ends every proposal and stops the node. Those on their way get up to
// five seconds to end by themselves. Propose rejects from then on.
func (n *Node) Close() error {
	n.proposing.Lock()
	if n.closed {
		n.proposing.Unlock()
		return nil
	}
	n.closed = true
	n.proposing.Unlock()

	deadline := time.After(closeTimeout)
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	ended := n.queue.empty()
wait:
	for !ended {
		select {
		case <-tick.C:
			ended = n.queue.empty()
		case <-deadline:
			break wait
		}
	}
	close(n.stop)
	err := n.raft.Shutdown().Error() // closes the transport's listener
	n.transport.CloseStreams()
	if ended {
		<-n.sweeping
	} else {
		// A future that the library will not answer any more may hold the
		// sweep up for good.
		n.queue.drain(raft.ErrRaftShutdown)
	}
	return errors.Join(err, n.closeStores())
}

func (n *Node) closeStores() error {
	if n.data == nil {
		return nil
	}
	return n.data.close()
}
