package etcdraft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/go-hclog"
	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
	pb "go.etcd.io/raft/v3/raftpb"

	"raftrig/gateway/serve"
)

// disk keeps a node's state in its data directory, synced:
//
//	wal/       the log, the term and the vote (raft-wal)
//	snapshot   the last snapshot
//
// Nothing is read from it after the start: the library works on the copy in
// memory. The commit index is not kept; the leader tells it.
//
// The records of wal are numbered apart from the entries in them, and an entry
// takes the place of what was recorded before under its index or a higher one.
// So nothing is ever cut off the end of wal: raft-wal v0.4.0 cannot read a
// segment any more whose end was cut off before it was full, once it has been
// opened anew.
//
// What a kill leaves behind, at any moment, is one of these: the log and the
// snapshot that it continues; a snapshot that was sent by a leader with the log
// that it replaces, which load drops; and files with other names, which are
// overwritten or removed.
type disk struct {
	dir   *serve.DataDir
	wal   *wal.WAL
	meta  metadb.BoltMetaDB // the log's, which does not close it
	filer *segmentFiler
	// record is the number of the last record in wal.
	record uint64
	// runs says where the entries of the log are: those from first on are the
	// records from record on, up to the next run.
	runs []run

	saving sync.Mutex
	saved  uint64 // index of the snapshot
}

type run struct{ first, record uint64 }

func openDisk(cfg serve.Config) (_ *disk, err error) {
	d := &disk{}
	if d.dir, err = cfg.OpenDataDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = d.error(errors.Join(err, d.close()))
		}
	}()
	dir := filepath.Join(d.dir.Path, "wal")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	d.filer = &segmentFiler{SegmentFiler: segment.NewFiler(dir, fs.New())}
	// What it logs it returns as errors too, but for one that segmentFiler has.
	d.wal, err = wal.Open(dir, wal.WithLogger(hclog.NewNullLogger()), wal.WithSegmentFiler(d.filer), wal.WithMetaStore(&d.meta))
	if err != nil {
		return nil, err
	}
	return d, nil
}

// error says where err has happened.
func (d *disk) error(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("data directory %s: %w", d.dir.Path, err)
}

func (d *disk) close() error {
	var err error
	if d.wal != nil {
		err = errors.Join(d.wal.Close(), d.meta.Close())
	}
	return errors.Join(err, d.dir.Close())
}

// segmentFiler remembers why a segment could not be made. The log does that in
// the background, and all that its next append says is that the old one is full.
type segmentFiler struct {
	types.SegmentFiler
	mu  sync.Mutex
	err error
}

func (f *segmentFiler) Create(info types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := f.SegmentFiler.Create(info)
	if err != nil {
		f.mu.Lock()
		f.err = err
		f.mu.Unlock()
	}
	return w, err
}

func (f *segmentFiler) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// load returns the state at the last sync: term and vote, the last snapshot (of
// index 0 when there is none), and the entries behind it.
func (d *disk) load() (hard *pb.HardState, snap *pb.Snapshot, entries []*pb.Entry, err error) {
	defer func() { err = d.error(err) }()
	if hard, err = d.loadHardState(); err != nil {
		return nil, nil, nil, err
	}
	if snap, err = readSnapshot(d.snapshotPath()); err != nil {
		return nil, nil, nil, err
	}
	index, term := snap.GetMetadata().GetIndex(), snap.GetMetadata().GetTerm()
	d.saved = index
	hard.Commit = new(index)
	if entries, err = d.replay(); err != nil || len(entries) == 0 {
		return hard, snap, nil, err
	}
	first := entries[0].GetIndex()
	last := first + uint64(len(entries)) - 1
	switch {
	case first > index+1:
		return nil, nil, nil, fmt.Errorf("the log begins with entry %d, the snapshot ends at %d: what is between them is lost", first, index)
	case first == index+1:
		return hard, snap, entries, nil
	case last < index || entries[index-first].GetTerm() != term:
		return hard, snap, nil, d.dropLog()
	}
	return hard, snap, entries[index-first+1:], nil
}

// replay reads the log.
func (d *disk) replay() (entries []*pb.Entry, err error) {
	first, err := d.wal.FirstIndex()
	if err != nil {
		return nil, err
	}
	if d.record, err = d.wal.LastIndex(); err != nil || d.record == 0 {
		return nil, err
	}
	for r := first; r <= d.record; r++ {
		var log hraft.Log
		if err := d.wal.GetLog(r, &log); err != nil {
			return nil, fmt.Errorf("record %d of the log: %w", r, err)
		}
		if len(log.Extensions) != 8 {
			return nil, fmt.Errorf("record %d of the log has no index: damaged", r)
		}
		e := &pb.Entry{Type: pb.EntryNormal.Enum(), Term: new(log.Term), Index: new(binary.LittleEndian.Uint64(log.Extensions))}
		if len(log.Data) > 0 {
			e.Data = log.Data
		}
		if n := uint64(len(entries)); n > 0 {
			base := entries[0].GetIndex()
			if e.GetIndex() > base+n {
				return nil, fmt.Errorf("record %d of the log has entry %d where entry %d is due: damaged", r, e.GetIndex(), base+n)
			}
			entries = entries[:max(e.GetIndex(), base)-base]
		}
		entries = append(entries, e)
		d.place(e.GetIndex(), r)
	}
	return entries, nil
}

// place notes that the log goes on with entry index in a record.
func (d *disk) place(index, record uint64) {
	for len(d.runs) > 0 && d.runs[len(d.runs)-1].first >= index {
		d.runs = d.runs[:len(d.runs)-1]
	}
	if n := len(d.runs); n > 0 && record-d.runs[n-1].record == index-d.runs[n-1].first {
		return
	}
	d.runs = append(d.runs, run{index, record})
}

// hardStateKey names term and vote, 8 bytes each: they change together.
var hardStateKey = []byte("term and vote")

func (d *disk) loadHardState() (*pb.HardState, error) {
	b, err := d.wal.Get(hardStateKey)
	if err != nil {
		return nil, err
	}
	if b == nil {
		b = make([]byte, 16)
	}
	if len(b) != 16 {
		return nil, fmt.Errorf("term and vote take %d bytes, not 16: damaged", len(b))
	}
	return &pb.HardState{Term: new(binary.LittleEndian.Uint64(b)), Vote: new(binary.LittleEndian.Uint64(b[8:]))}, nil
}

// setHardState stores term and vote.
func (d *disk) setHardState(term, vote uint64) error {
	b := binary.LittleEndian.AppendUint64(nil, term)
	return d.error(d.wal.Set(hardStateKey, binary.LittleEndian.AppendUint64(b, vote)))
}

// append stores entries, in place of those of the same and higher indexes.
func (d *disk) append(entries []*pb.Entry) error {
	logs := make([]hraft.Log, len(entries))
	refs := make([]*hraft.Log, len(entries))
	for i, e := range entries {
		logs[i] = hraft.Log{
			Index:      d.record + 1 + uint64(i),
			Term:       e.GetTerm(),
			Data:       e.GetData(),
			Extensions: binary.LittleEndian.AppendUint64(nil, e.GetIndex()),
		}
		refs[i] = &logs[i]
	}
	if err := d.wal.StoreLogs(refs); err != nil {
		if cause := d.filer.failure(); cause != nil {
			err = cause
		}
		return d.error(fmt.Errorf("append to the log: %w", err))
	}
	d.place(entries[0].GetIndex(), logs[0].Index)
	d.record += uint64(len(entries))
	return nil
}

// compact removes the entries up to index, which a snapshot covers, and all that
// they have replaced.
func (d *disk) compact(index uint64) error {
	for len(d.runs) > 1 && d.runs[1].first <= index {
		d.runs = d.runs[1:]
	}
	if len(d.runs) == 0 || d.runs[0].first > index {
		return nil
	}
	return d.error(d.wal.DeleteRange(1, d.runs[0].record+index-d.runs[0].first))
}

// dropLog removes all entries: a snapshot replaces them.
func (d *disk) dropLog() error {
	if len(d.runs) == 0 {
		return nil
	}
	d.runs = nil
	return d.error(d.wal.DeleteRange(1, d.record))
}

// A snapshot file, little-endian:
//
//	magic    8 bytes
//	index, term, length of the data   8 bytes each
//	data
//	checksum xxHash64 of all before it, 8 bytes
const snapshotMagic = "rrigsnp\x01"

func (d *disk) snapshotPath() string { return filepath.Join(d.dir.Path, "snapshot") }

// saveSnapshot replaces the snapshot, unless that is newer. It may be called
// from any goroutine.
func (d *disk) saveSnapshot(index, term uint64, data []byte) error {
	d.saving.Lock()
	defer d.saving.Unlock()
	if index <= d.saved {
		return nil
	}
	if err := writeSnapshot(d.snapshotPath(), index, term, data); err != nil {
		return d.error(fmt.Errorf("save a snapshot: %w", err))
	}
	d.saved = index
	return nil
}

func writeSnapshot(path string, index, term uint64, data []byte) error {
	head := []byte(snapshotMagic)
	for _, v := range []uint64{index, term, uint64(len(data))} {
		head = binary.LittleEndian.AppendUint64(head, v)
	}
	hash := xxhash.New()
	hash.Write(head)
	hash.Write(data)
	return serve.WriteSynced(path, head, data, binary.LittleEndian.AppendUint64(nil, hash.Sum64()))
}

// readSnapshot is one of index 0 when there is no file.
func readSnapshot(path string) (*pb.Snapshot, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return newSnapshot(0, 0, nil, nil), nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	snap, err := decodeSnapshot(text)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return snap, nil
}

func decodeSnapshot(text []byte) (*pb.Snapshot, error) {
	const head = len(snapshotMagic) + 3*8
	if len(text) < head+8 {
		return nil, fmt.Errorf("%d bytes: truncated", len(text))
	}
	if string(text[:len(snapshotMagic)]) != snapshotMagic {
		return nil, fmt.Errorf("begins with %x, not with %x: another format or version", text[:len(snapshotMagic)], snapshotMagic)
	}
	field := func(i int) uint64 { return binary.LittleEndian.Uint64(text[len(snapshotMagic)+8*i:]) }
	data := text[head : len(text)-8]
	if n := field(2); n != uint64(len(data)) {
		return nil, fmt.Errorf("%d bytes of data where the header says %d: truncated", len(data), n)
	}
	if got, want := binary.LittleEndian.Uint64(text[len(text)-8:]), xxhash.Sum64(text[:len(text)-8]); got != want {
		return nil, fmt.Errorf("checksum is %016x, its content has %016x: damaged", got, want)
	}
	if field(0) == 0 || field(0) > maxCounter || field(1) == 0 || field(1) > maxCounter {
		return nil, fmt.Errorf("of index %d, term %d: damaged", field(0), field(1))
	}
	return newSnapshot(field(0), field(1), nil, data), nil
}

func newSnapshot(index, term uint64, voters []uint64, data []byte) *pb.Snapshot {
	return &pb.Snapshot{
		Data: data,
		Metadata: &pb.SnapshotMetadata{
			Index:     new(index),
			Term:      new(term),
			ConfState: &pb.ConfState{Voters: voters, AutoLeave: new(false)},
		},
	}
}
