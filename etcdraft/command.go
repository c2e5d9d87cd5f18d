package etcdraft

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"time"

	"raftrig/gateway/serve"
)

// Server is the server's program, for serve.Main.
func Server() serve.Product {
	var c Config
	return serve.Product{
		Name:     "etcdraft",
		Port:     8410,
		RaftPort: 8411,
		Version:  Version,
		Flags: func(fs *flag.FlagSet) {
			fs.DurationVar(&c.ElectionTimeout, "election", DefaultElectionTimeout, "silence of the leader after which a follower stands for election, up to twice that")
			fs.DurationVar(&c.HeartbeatInterval, "heartbeat", 0, "how often the leader sends heartbeats, and the library's tick (default a tenth of -election)")
			fs.IntVar(&c.MaxInflight, "max-inflight", DefaultMaxInflight, "append requests on their way to a follower, 1 to 1024")
			fs.DurationVar(&c.CommitDelay, "commit-delay", DefaultCommitDelay, "how long a risen commit index waits for entries to go out with; 0 sends it at once")
			fs.IntVar(&c.MaxBatch, "max-batch", DefaultMaxBatch, "proposals appended at once, 1 to 65536")
			fs.Uint64Var(&c.SnapshotThreshold, "snapshot-threshold", DefaultSnapshotThreshold, "entries after which a snapshot is made")
			fs.Uint64Var(&c.TrailingLogs, "snapshot-trailing", DefaultTrailingLogs, "entries kept behind a snapshot for late followers")
		},
		Check: func() error { return c.check() },
		Start: func(common serve.Config) (serve.Node, error) {
			c.Config = common
			return Start(c)
		},
	}
}

// Version names the library and its version.
func Version() string { return serve.Version("etcd raft", "go.etcd.io/raft/v3") }

// check says which flag has a wrong value.
func (c *Config) check() error {
	if c.ElectionTimeout < 50*time.Millisecond || c.ElectionTimeout > time.Minute {
		return fmt.Errorf("-election %v: 50ms to 1m are allowed", c.ElectionTimeout)
	}
	c.HeartbeatInterval = cmp.Or(c.HeartbeatInterval, c.ElectionTimeout/ticksPerElection)
	if c.HeartbeatInterval < time.Millisecond || c.HeartbeatInterval > c.ElectionTimeout/2 {
		return fmt.Errorf("-heartbeat %v: 1ms to half of -election are allowed", c.HeartbeatInterval)
	}
	if c.MaxInflight < 1 || c.MaxInflight > 1024 {
		return fmt.Errorf("-max-inflight %d: 1 to 1024 are allowed", c.MaxInflight)
	}
	if c.CommitDelay < 0 || c.CommitDelay > time.Second {
		return fmt.Errorf("-commit-delay %v: 0 to 1s are allowed", c.CommitDelay)
	}
	if c.CommitDelay == 0 {
		c.CommitDelay = -1 // the zero value is the default
	}
	if c.MaxBatch < 1 || c.MaxBatch > 1<<16 {
		return fmt.Errorf("-max-batch %d: 1 to 65536 are allowed", c.MaxBatch)
	}
	if c.SnapshotThreshold == 0 || c.TrailingLogs == 0 {
		return errors.New("-snapshot-threshold and -snapshot-trailing are at least 1")
	}
	return nil
}
