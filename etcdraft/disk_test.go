package etcdraft

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"golang.org/x/sys/unix"

	"raftrig/gateway"
	"raftrig/gateway/kv"
	"raftrig/gateway/serve"
)

func diskConfig(dir string) serve.Config {
	return serve.Config{ID: 1, Peers: map[int]string{1: "h:1", 2: "i:1"}, DataDir: dir}
}

// reopen closes d, if any, and loads what a new process finds.
func reopen(t *testing.T, d *disk, dir string) (*disk, string) {
	t.Helper()
	if d != nil {
		if err := d.close(); err != nil {
			t.Fatal(err)
		}
	}
	d, err := openDisk(diskConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.close() })
	hard, snap, entries, err := d.load()
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("term %d vote %d commit %d snapshot %d/%d %q log", hard.GetTerm(), hard.GetVote(), hard.GetCommit(),
		snap.GetMetadata().GetIndex(), snap.GetMetadata().GetTerm(), snap.GetData())
	for _, e := range entries {
		text += fmt.Sprintf(" %d/%d%s", e.GetIndex(), e.GetTerm(), e.GetData())
	}
	return d, text
}

// What a new process finds after each of the steps that may be its last.
func TestDiskAfterAKill(t *testing.T) {
	dir := t.TempDir()
	var d *disk
	check := func(want string) {
		t.Helper()
		var got string
		if d, got = reopen(t, d, dir); got != want {
			t.Fatalf("found %s\n want %s", got, want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(`term 0 vote 0 commit 0 snapshot 0/0 "" log`)
	must(d.setHardState(2, 1))
	must(d.append([]*pb.Entry{entry(1, 1, ""), entry(2, 1, "b"), entry(3, 2, "c"), entry(4, 2, "d")}))
	check(`term 2 vote 1 commit 0 snapshot 0/0 "" log 1/1 2/1b 3/2c 4/2d`)
	must(d.append([]*pb.Entry{entry(3, 3, "C")}))
	check(`term 2 vote 1 commit 0 snapshot 0/0 "" log 1/1 2/1b 3/3C`)
	must(d.append([]*pb.Entry{entry(4, 3, "D"), entry(5, 3, "E")}))
	must(d.saveSnapshot(3, 3, []byte("three")))
	check(`term 2 vote 1 commit 3 snapshot 3/3 "three" log 4/3D 5/3E`)
	must(d.compact(2))
	must(d.saveSnapshot(2, 1, []byte("older"))) // made in the background, late
	check(`term 2 vote 1 commit 3 snapshot 3/3 "three" log 4/3D 5/3E`)
	must(d.compact(3))
	check(`term 2 vote 1 commit 3 snapshot 3/3 "three" log 4/3D 5/3E`)
	// From a leader whose log has something else at 5; killed before dropLog.
	must(d.saveSnapshot(5, 4, []byte("five")))
	check(`term 2 vote 1 commit 5 snapshot 5/4 "five" log`)
	must(d.append([]*pb.Entry{entry(6, 4, "f")}))
	check(`term 2 vote 1 commit 5 snapshot 5/4 "five" log 6/4f`)
	must(d.saveSnapshot(100, 4, []byte("hundred"))) // and one far behind the log
	check(`term 2 vote 1 commit 100 snapshot 100/4 "hundred" log`)
	must(os.WriteFile(filepath.Join(dir, "snapshot.new"), []byte("half of"), 0o600))
	must(d.append([]*pb.Entry{entry(101, 4, "g"), entry(102, 4, "h")}))
	check(`term 2 vote 1 commit 100 snapshot 100/4 "hundred" log 101/4g 102/4h`)
	must(d.saveSnapshot(101, 4, []byte("more")))
	must(d.dropLog())
	check(`term 2 vote 1 commit 101 snapshot 101/4 "more" log`)
	must(d.append([]*pb.Entry{entry(102, 5, "i")}))
	check(`term 2 vote 1 commit 101 snapshot 101/4 "more" log 102/5i`)
	// What was replaced goes with what replaced it.
	must(d.append([]*pb.Entry{entry(103, 5, "j"), entry(104, 5, "k"), entry(105, 5, "l")}))
	must(d.append([]*pb.Entry{entry(104, 6, "K")}))
	must(d.append([]*pb.Entry{entry(103, 7, "J"), entry(104, 7, "KK")}))
	must(d.saveSnapshot(103, 7, []byte("last")))
	must(d.compact(103))
	if first, err := d.wal.FirstIndex(); err != nil || first != d.record {
		t.Errorf("the log begins with record %d of %d, %v", first, d.record, err)
	}
	check(`term 2 vote 1 commit 103 snapshot 103/7 "last" log 104/7KK`)

	// A snapshot that is gone or damaged is named.
	path := filepath.Join(dir, "snapshot")
	good, err := os.ReadFile(path)
	must(err)
	for want, text := range map[string][]byte{
		"damaged":        append(bytes.Clone(good[:40]), append([]byte{^good[40]}, good[41:]...)...),
		"truncated":      good[:len(good)-1],
		"another format": append([]byte("x"), good...),
		"is lost":        nil,
	} {
		must(d.close())
		if text == nil {
			must(os.Remove(path))
		} else {
			must(os.WriteFile(path, text, 0o600))
		}
		var err error
		d, err = openDisk(diskConfig(dir))
		must(err)
		if _, _, _, err := d.load(); err == nil || !strings.HasPrefix(err.Error(), "data directory "+dir+": ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func FuzzSnapshotFile(f *testing.F) {
	path := filepath.Join(f.TempDir(), "snapshot")
	if err := writeSnapshot(path, 7, 2, []byte("data")); err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		snap, err := decodeSnapshot(b)
		if err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), "snapshot")
		if err := writeSnapshot(path, snap.GetMetadata().GetIndex(), snap.GetMetadata().GetTerm(), snap.GetData()); err != nil {
			t.Fatal(err)
		}
		if again, _ := os.ReadFile(path); !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
	})
}

// fullDiskEnv makes the test binary the inner half of TestFullDisk, in a mount
// namespace of its own, so that the disk goes away with it.
const fullDiskEnv = "ETCDRAFT_TEST_FULL_DISK"

// A full disk stops the node that has it: what it acknowledged is there when it
// comes back with room, and what it could not store was not acknowledged.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(fullDiskEnv); dir != "" {
		fillDisk(t, dir)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, for a small disk of its own")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), fullDiskEnv+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		t.Skip("this root may not unshare: ", err)
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestFullDisk")) {
		t.Errorf("%v: %s", err, out)
	}
}

func fillDisk(t *testing.T, dir string) {
	// One segment of the log (64 MiB) has room, a second one has not.
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=100m"); err != nil {
		t.Skip("cannot mount: ", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, 0) })
	peers := map[int]string{1: fmt.Sprintf("127.9.%d.1:8411", os.Getpid()%250)}
	var said bytes.Buffer
	start := func() *Node {
		node, err := Start(Config{Config: serve.Config{ID: 1, Peers: peers, DataDir: dir, State: kv.New(), LogOutput: &said},
			ElectionTimeout: 50e6, SnapshotThreshold: 1e6})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { node.Close() })
		await(t, "a leader", func() bool { return node.Leadership().Leader == 1 })
		return node
	}
	node := start()
	acked := 0
	var failure error
	for i := range 1000 {
		if failure = apply(node, kv.Append(nil, uint64(i), make([]byte, kv.MaxCommand-kv.KeySize))); failure != nil {
			break
		}
		acked++
	}
	t.Logf("acknowledged %d, then %v", acked, failure)
	if acked < 10 || failure == nil || !strings.Contains(failure.Error(), "no space left on device") {
		t.Fatalf("acknowledged %d, then %v", acked, failure)
	}
	if _, err := node.Status(); err == nil || !strings.Contains(err.Error(), "data directory "+dir+": append to the log: ") {
		t.Errorf("status %v", err)
	}
	if l := node.Leadership(); l.Leader != 0 {
		t.Errorf("leadership %+v", l)
	}
	s := make(endSink, 1)
	node.Propose([]gateway.Proposal{{Command: kv.Append(nil, 1, nil)}}, s)
	if end := <-s; end != gateway.Rejected {
		t.Errorf("end %v", end)
	}
	if err := node.Close(); err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("close: %v", err)
	}
	if text := said.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "node 1 has stopped: data directory") {
		t.Errorf("said %q", text)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=300m"); err != nil {
		t.Fatal(err)
	}
	node = start()
	await(t, "the state", func() bool { st, _ := node.Status(); return st.Count >= uint64(acked) })
	if st, err := node.Status(); err != nil || st.Count > uint64(acked+1) {
		t.Errorf("%+v, %v, acknowledged %d", st, err, acked)
	}
	if err := node.Close(); err != nil {
		t.Error(err)
	}
}

type endSink chan gateway.End

func (s endSink) Done(_ uint32, e gateway.End, _ error) { s <- e }
