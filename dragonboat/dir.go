package dragonboat

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"raftrig/gateway/serve"
)

// memoryMinBytes is the room without which a node in memory does not start: the
// log is allocated in files of 64 MiB, of which there are two or three.
const memoryMinBytes = 256 << 20

// nodeDir is where the library keeps a node's state: log, snapshots and who
// owns them. It calls fsync and cannot be told not to, so a node in memory has
// its directory on a tmpfs, where that does nothing.
type nodeDir struct {
	*serve.DataDir
	inMemory bool // removed with the node
}

// openDir makes the directory ready and locks it.
func openDir(cfg Config) (nodeDir, error) {
	if cfg.DataDir != "" {
		data, err := cfg.OpenDataDir()
		return nodeDir{DataDir: data}, err
	}
	fail := func(err error) (nodeDir, error) {
		return nodeDir{}, fmt.Errorf("-shm %s: %w", cfg.MemoryDir, err)
	}
	path := filepath.Join(cfg.MemoryDir, fmt.Sprintf("raftrig-dragonboat-%d-%s", cfg.ID, fileName(cfg.Peers[cfg.ID])))
	if locked(path) {
		return fail(fmt.Errorf("%s is in use by another process: choose another directory", path))
	}
	// What a process that was killed has left behind.
	if err := os.RemoveAll(path); err != nil {
		return fail(fmt.Errorf("%w: remove it, or choose another directory", err))
	}
	if err := checkMemoryDir(cfg.MemoryDir); err != nil {
		return fail(err)
	}
	// Not one that somebody else has made by now, as in a directory for all.
	if err := os.Mkdir(path, 0o700); err != nil {
		return fail(err)
	}
	common := cfg.Config
	common.DataDir = path
	data, err := common.OpenDataDir()
	return nodeDir{DataDir: data, inMemory: true}, err
}

// locked says whether a process has the directory open.
func locked(path string) bool {
	f, err := os.Open(filepath.Join(path, "lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

func checkMemoryDir(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return errors.New("no such directory: name one on a tmpfs, or keep the log on disk with -data DIR")
		}
		return err
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
		return errors.New("not on a tmpfs, so the log would be synced to disk: name one that is, or say so with -data DIR")
	}
	if free := int64(fs.Bavail) * fs.Bsize; fs.Type == unix.TMPFS_MAGIC && free < memoryMinBytes {
		return fmt.Errorf("%d MiB are free, a node in memory takes %d at least: enlarge the tmpfs, name another directory, or keep the log on disk with -data DIR",
			free>>20, memoryMinBytes>>20)
	}
	return nil
}

// fileName makes one name of an address.
func fileName(addr string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '.', r == '-':
			return r
		}
		return '_'
	}, addr)
}

// library is the part that is the library's alone.
func (d nodeDir) library() string { return filepath.Join(d.Path, "nodehost") }

func (d nodeDir) close() error {
	if d.DataDir == nil {
		return nil
	}
	return errors.Join(d.removeMemory(), d.Close())
}

func (d nodeDir) removeMemory() error {
	if !d.inMemory {
		return nil
	}
	return os.RemoveAll(d.Path)
}
