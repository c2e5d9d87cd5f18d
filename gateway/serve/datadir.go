package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// DataDir is a node's directory, locked until Close:
//
//	lock           flock of the process that uses it
//	identity.json  whose data it is
//
// All other names are the product's.
type DataDir struct {
	Path string
	lock *os.File
}

// OpenDataDir makes the directory at DataDir if it is not there, locks it and
// ties it to this node of this cluster. It refuses one that another process
// has open, and one that belongs to another node or another cluster: that would
// bring its votes along.
func (c Config) OpenDataDir() (_ *DataDir, err error) {
	d := &DataDir{Path: c.DataDir}
	defer func() {
		if err != nil {
			d.Close()
			err = fmt.Errorf("data directory %s: %w", d.Path, err)
		}
	}()
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return nil, err
	}
	d.lock, err = os.OpenFile(filepath.Join(d.Path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.New("in use by another process: stop it or choose another directory")
		}
		return nil, err
	}
	if err := (identity{c.ID, c.Peers}).claim(d.Path); err != nil {
		return nil, err
	}
	return d, nil
}

// Close unlocks the directory.
func (d *DataDir) Close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

// identity ties a directory to one node of one cluster.
type identity struct {
	Node  int            `json:"node"`
	Peers map[int]string `json:"peers"`
}

func (i identity) String() string {
	var peers []string
	for _, id := range slices.Sorted(maps.Keys(i.Peers)) {
		peers = append(peers, fmt.Sprintf("%d=%s", id, i.Peers[id]))
	}
	return fmt.Sprintf("node %d of %s", i.Node, strings.Join(peers, ","))
}

// claim writes the identity into a fresh directory, and refuses one that is
// another's.
func (i identity) claim(dir string) error {
	path := filepath.Join(dir, "identity.json")
	text, err := os.ReadFile(path)
	if err == nil {
		var owner identity
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&owner); err != nil {
			return fmt.Errorf("identity.json is damaged: %w", err)
		}
		if owner.Node != i.Node || !maps.Equal(owner.Peers, i.Peers) {
			return fmt.Errorf("belongs to %v, this is %v: choose another directory or remove this one", owner, i)
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if text, err = json.Marshal(i); err != nil {
		return err
	}
	return WriteSynced(path, text, []byte{'\n'})
}

// WriteSynced makes path appear with its whole content, the parts one after the
// other, or not at all. It is on the disk when WriteSynced returns. In between
// the content lies in path.new, which a crash can leave there.
func WriteSynced(path string, parts ...[]byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	for _, b := range parts {
		if err == nil {
			_, err = f.Write(b)
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name()) // a full disk needs the room
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
