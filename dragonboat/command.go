package dragonboat

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
		Name:     "dragonboat",
		Port:     8420,
		RaftPort: 8421,
		Version:  Version,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&c.MemoryDir, "shm", DefaultMemoryDir, "`directory` on a tmpfs for the log in memory, without -data")
			fs.DurationVar(&c.ElectionTimeout, "election", DefaultElectionTimeout, "silence of the leader after which a follower stands for election, up to twice that")
			fs.DurationVar(&c.HeartbeatInterval, "heartbeat", DefaultHeartbeatInterval, "how often an idle leader is heard of; at most a fifth of -election")
			fs.Uint64Var(&c.SnapshotEntries, "snapshot-entries", DefaultSnapshotEntries, "entries that make a snapshot")
			fs.Uint64Var(&c.TrailingEntries, "snapshot-trailing", DefaultTrailingEntries, "entries kept behind a snapshot for late followers")
		},
		Check: func() error { return c.check() },
		Start: func(common serve.Config) (serve.Node, error) {
			c.Config = common
			return Start(c)
		},
	}
}

// Version names the library and its version.
func Version() string { return serve.Version("dragonboat", "github.com/lni/dragonboat/v4") }

// check says which flag has a wrong value.
func (c *Config) check() error {
	if c.MemoryDir == "" {
		return errors.New("-shm is empty: it names a directory on a tmpfs")
	}
	const least, most = 100 * time.Millisecond, time.Minute
	if d := c.ElectionTimeout; d < least || d > most {
		return fmt.Errorf("-election %v: %v to %v are allowed", d, least, most)
	}
	if d, most := c.HeartbeatInterval, c.ElectionTimeout/5; d < tick || d > most {
		return fmt.Errorf("-heartbeat %v: %v to %v, a fifth of -election, are allowed", d, tick, most)
	}
	for _, n := range []struct {
		name  string
		value uint64
	}{
		{"snapshot-entries", c.SnapshotEntries},
		{"snapshot-trailing", c.TrailingEntries},
	} {
		if n.value < 1 || n.value > 1<<40 {
			return fmt.Errorf("-%s %d: 1 to %d are allowed", n.name, n.value, uint64(1<<40))
		}
	}
	return nil
}
