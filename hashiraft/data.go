package hashiraft

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"raftrig/gateway/serve"
)

// dataDir is a node's directory with the library's stores in it:
//
//	wal/           log, term and vote (raft-wal)
//	snapshots/     the last two snapshots
type dataDir struct {
	dir       *serve.DataDir
	wal       *wal.WAL
	snapshots raft.SnapshotStore
}

// snapshotsKept is one more than is needed, for when the last one is damaged.
const snapshotsKept = 2

func openDataDir(cfg serve.Config, logger hclog.Logger) (_ *dataDir, err error) {
	d := &dataDir{}
	if d.dir, err = cfg.OpenDataDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("data directory %s: %w", d.dir.Path, errors.Join(err, d.close()))
		}
	}()
	walDir := filepath.Join(d.dir.Path, "wal")
	if err := os.MkdirAll(walDir, 0o700); err != nil {
		return nil, err
	}
	if d.wal, err = wal.Open(walDir, wal.WithLogger(logger.Named("wal"))); err != nil {
		return nil, err
	}
	if d.snapshots, err = raft.NewFileSnapshotStoreWithLogger(d.dir.Path, snapshotsKept, logger); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *dataDir) close() error {
	var err error
	if d.wal != nil {
		err = d.wal.Close()
	}
	return errors.Join(err, d.dir.Close())
}
