package hashiraft

import (
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
		Name:     "hashiraft",
		Port:     8400,
		RaftPort: 8401,
		Version:  Version,
		Flags: func(fs *flag.FlagSet) {
			fs.DurationVar(&c.HeartbeatTimeout, "heartbeat", DefaultHeartbeatTimeout, "silence of the leader after which a follower stands for election, up to twice that")
			fs.DurationVar(&c.ElectionTimeout, "election", 0, "how long a candidate waits for votes, up to twice that; at least -heartbeat (default the same)")
			fs.IntVar(&c.MaxAppendEntries, "max-append", DefaultMaxAppendEntries, "entries in one batch, 1 to 1024")
			fs.DurationVar(&c.SnapshotInterval, "snapshot-interval", DefaultSnapshotInterval, "how often a snapshot is considered")
			fs.Uint64Var(&c.SnapshotThreshold, "snapshot-threshold", DefaultSnapshotThreshold, "entries that make a snapshot worthwhile")
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
func Version() string { return serve.Version("hashicorp/raft", "github.com/hashicorp/raft") }

// check says which flag has a wrong value.
func (c *Config) check() error {
	if c.MaxAppendEntries < 1 || c.MaxAppendEntries > 1024 {
		return fmt.Errorf("-max-append %d: 1 to 1024 are allowed", c.MaxAppendEntries)
	}
	if c.ElectionTimeout == 0 {
		c.ElectionTimeout = c.HeartbeatTimeout
	}
	const least, most = 50 * time.Millisecond, time.Minute
	for _, d := range []struct {
		name        string
		value, from time.Duration
	}{
		{"heartbeat", c.HeartbeatTimeout, least},
		{"election", c.ElectionTimeout, max(least, c.HeartbeatTimeout)},
		{"snapshot-interval", c.SnapshotInterval, least},
	} {
		if d.value < d.from || d.value > most {
			return fmt.Errorf("-%s %v: %v to %v are allowed", d.name, d.value, d.from, most)
		}
	}
	if c.SnapshotThreshold == 0 || c.TrailingLogs == 0 {
		return errors.New("-snapshot-threshold and -snapshot-trailing are at least 1")
	}
	return nil
}
