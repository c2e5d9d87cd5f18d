package etcdraft

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"raftrig/gateway"
	"raftrig/gateway/serve"
)

// Config says which node of which cluster to run, and how. The zero value of
// each of its own fields stands for its default.
type Config struct {
	serve.Config
	// ElectionTimeout is how long a follower hears nothing before it stands for
	// election, at random up to twice that, and how long a leader keeps its
	// office without a quorum. A pause of the leader that is shorter does not
	// cost it its office. A multiple of HeartbeatInterval; default 2 s.
	ElectionTimeout time.Duration
	// HeartbeatInterval is how often the leader sends heartbeats, and the tick
	// by which the library counts time. Default a tenth of ElectionTimeout.
	HeartbeatInterval time.Duration
	// MaxInflight is how many append requests may be on their way to a follower.
	// While they are, entries gather for the next one. Default 4.
	MaxInflight int
	// CommitDelay is how long a commit index that has risen waits for entries to
	// go out with. Followers apply that much later, and no request waits for
	// that. Negative sends it at once. Default 10 ms.
	CommitDelay time.Duration
	// MaxBatch is how many proposals, at most, go into the log at once, beside a
	// bound of 1 MiB. Default 4096.
	MaxBatch int
	// SnapshotThreshold is how many entries after the last snapshot the next one
	// is made. Default 131072.
	SnapshotThreshold uint64
	// TrailingLogs is how many entries are kept behind a snapshot for followers
	// that are a little late: one that missed more is sent the snapshot.
	// Default 131072.
	TrailingLogs uint64
}

// Defaults of Config that flags show.
const (
	DefaultElectionTimeout   = 2 * time.Second
	DefaultMaxInflight       = 4
	DefaultCommitDelay       = 10 * time.Millisecond
	DefaultMaxBatch          = 4096
	DefaultSnapshotThreshold = 1 << 17
	DefaultTrailingLogs      = 1 << 17

	// ticksPerElection is the default of ElectionTimeout/HeartbeatInterval.
	ticksPerElection = 10
)

func (c Config) withDefaults() Config {
	c.ElectionTimeout = cmp.Or(c.ElectionTimeout, DefaultElectionTimeout)
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, c.ElectionTimeout/ticksPerElection)
	c.MaxInflight = cmp.Or(c.MaxInflight, DefaultMaxInflight)
	c.CommitDelay = cmp.Or(c.CommitDelay, DefaultCommitDelay)
	c.MaxBatch = cmp.Or(c.MaxBatch, DefaultMaxBatch)
	c.SnapshotThreshold = cmp.Or(c.SnapshotThreshold, DefaultSnapshotThreshold)
	c.TrailingLogs = cmp.Or(c.TrailingLogs, DefaultTrailingLogs)
	return c
}

// closeTimeout bounds how long Close waits for proposals on their way. A leader
// without a quorum gives up within its election timeout.
const closeTimeout = 5 * time.Second

var (
	errNotLeader    = errors.New("this node does not lead")
	errTransferring = errors.New("this node is handing its office over")
	errLostOffice   = errors.New("this node lost its office before the entry was committed")
	errStopped      = errors.New("node is stopped")
)

// Node is a running member of the cluster. It implements gateway.Node.
type Node struct {
	cfg Config
	loop
	in        *mailbox
	transport *transport
	log       *logger
	disk      *disk // nil in memory
	// view is what the loop lets others see.
	view    atomic.Pointer[view]
	changed chan struct{} // a token: view has changed

	stop       chan struct{}
	stopped    chan struct{}  // closed when the loop has ended
	background sync.WaitGroup // snapshots being made

	closing sync.Once
	closed  error
}

// view is the state of the node at one moment.
type view struct {
	role   gateway.Role
	leader int // 0: none known, or this one while it hands its office over
	term   uint64
	// transferee is to lead next; 0: nobody.
	transferee int
	// err is why the node has stopped, nil while it runs.
	err error
}

var _ serve.Node = (*Node)(nil)

// Start runs a node until Close.
func Start(cfg Config) (_ *Node, err error) {
	cfg = cfg.withDefaults()
	n := &Node{
		cfg:     cfg,
		in:      newMailbox(),
		log:     &logger{out: cfg.LogOutput},
		changed: make(chan struct{}, 1),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
	}
	listener, err := cfg.ListenRaft()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			listener.Close()
			if n.disk != nil {
				err = errors.Join(err, n.disk.close())
			}
		}
	}()
	n.transport = newTransport(cfg.ID, cfg.Peers, listener, n.in, n.log)
	n.loop = newLoop(n.transport.voters)
	var hard *pb.HardState
	snap := newSnapshot(0, 0, n.voters, nil)
	var entries []*pb.Entry
	if cfg.DataDir != "" {
		if n.disk, err = openDisk(cfg.Config); err != nil {
			return nil, err
		}
		if hard, snap, entries, err = n.disk.load(); err != nil {
			return nil, err
		}
		snap.Metadata.ConfState.Voters = n.voters
		n.stored = term{hard.GetTerm(), hard.GetVote()}
		n.storage.SetHardState(hard)
	}
	if err := n.storage.ApplySnapshot(snap); err != nil {
		return nil, err
	}
	if n.applied = snap.GetMetadata().GetIndex(); n.applied > 0 {
		n.snapshot = n.applied
		if err := cfg.State.Restore(bytes.NewReader(snap.GetData())); err != nil {
			return nil, n.disk.error(err)
		}
	}
	if err := n.storage.Append(entries); err != nil {
		return nil, err
	}
	if n.raft, err = raft.NewRawNode(n.raftConfig()); err != nil {
		return nil, err
	}
	n.publish()
	n.transport.start()
	go n.run()
	return n, nil
}

func (n *Node) raftConfig() *raft.Config {
	return &raft.Config{
		ID:                        uint64(n.cfg.ID),
		ElectionTick:              int(n.cfg.ElectionTimeout / n.cfg.HeartbeatInterval),
		HeartbeatTick:             1,
		Storage:                   n.storage,
		Applied:                   n.applied,
		MaxSizePerMsg:             maxMessageBytes,
		MaxInflightMsgs:           n.cfg.MaxInflight,
		CheckQuorum:               true,
		PreVote:                   true,
		DisableProposalForwarding: true,
		Logger:                    n.log,
	}
}

// Propose implements gateway.Node. The batch is the caller's again when it
// returns. A command must have passed kv.Check.
func (n *Node) Propose(batch []gateway.Proposal, sink gateway.Sink) {
	// Looked at here for speed: the loop would find it a little later.
	err := n.view.Load().refusal()
	if err == nil && !n.in.propose(batch, sink) {
		err = errStopped
	}
	if err != nil {
		for _, p := range batch {
			sink.Done(p.ID, gateway.Rejected, err)
		}
	}
}

// refusal is why the node takes no proposals, nil if it does.
func (v *view) refusal() error {
	switch {
	case v.err != nil:
		return v.err
	case v.transferee != 0:
		return errTransferring
	case v.role != gateway.Leader:
		return errNotLeader
	}
	return nil
}

// Leadership implements gateway.Node. A node that hands its office over rejects
// all, so it does not say that it leads: clients then wait for the next leader.
func (n *Node) Leadership() gateway.Leadership {
	v := n.view.Load()
	return gateway.Leadership{Leader: v.leader, Term: v.term}
}

// LeadershipChanged implements gateway.Node.
func (n *Node) LeadershipChanged() <-chan struct{} { return n.changed }

// Status implements gateway.Node. A node that has stopped, because its disk is
// full for one, says so.
func (n *Node) Status() (gateway.Status, error) {
	v, m := n.view.Load(), n.cfg.State.Status()
	if v.err != nil {
		return gateway.Status{}, v.err
	}
	return gateway.Status{
		Node:    n.cfg.ID,
		Role:    v.role,
		Leader:  v.leader,
		Term:    v.term,
		Applied: m.Applied,
		Count:   m.Count,
		Digest:  m.Digest,
		Version: Version(),
		Log:     n.Log(),
	}, nil
}

// Log implements serve.Node.
func (n *Node) Log() string {
	if n.disk == nil {
		return "in memory"
	}
	return "on disk, synced (raft-wal)"
}

// TransferLeader implements gateway.Node: this node has to lead.
func (n *Node) TransferLeader(ctx context.Context, to int) error {
	if _, ok := n.cfg.Peers[to]; !ok {
		return fmt.Errorf("there is no node %d", to)
	}
	before := n.view.Load()
	switch {
	case before.err != nil:
		return before.err
	case before.role == gateway.Leader && to == n.cfg.ID:
		return nil
	case before.role == gateway.Leader:
	case before.leader == 0:
		return errors.New("no leader is known")
	default:
		return fmt.Errorf("node %d does not lead: ask node %d", n.cfg.ID, before.leader)
	}
	asked := make(chan struct{})
	if !n.in.post(event{kind: called, call: func() error {
		n.raft.TransferLeader(uint64(to))
		n.publish()
		close(asked)
		return nil
	}}) {
		return errStopped
	}
	select {
	case <-asked:
	case <-n.stopped:
		return errStopped
	}
	// The library gives a transfer up after an election timeout, and tells
	// nobody.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(2 * n.cfg.ElectionTimeout)
	defer limit.Stop()
	failed := fmt.Errorf("node %d did not take office", to)
	for {
		switch v := n.view.Load(); {
		case v.err != nil:
			return v.err
		case v.leader == to:
			return nil
		case v.leader != 0 && v.term > before.term, v.role == gateway.Leader && v.transferee != to:
			return failed
		}
		select {
		case <-tick.C:
		case <-limit.C:
			return failed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close ends every proposal and stops the node. Those on their way get up to
// five seconds to end by themselves. Propose rejects from then on. It returns
// why the node had stopped before, if it had.
func (n *Node) Close() error {
	n.closing.Do(func() {
		n.in.drain(closeTimeout)
		close(n.stop)
		<-n.stopped
		n.background.Wait()
		if err := n.view.Load().err; err != errStopped {
			n.closed = err
		}
		if n.disk != nil {
			n.closed = errors.Join(n.closed, n.disk.close())
		}
	})
	return n.closed
}
