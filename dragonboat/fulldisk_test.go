package dragonboat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/gateway/gatewaytest"
)

// smallTmpfs mounts a tmpfs that this goroutine and the processes it starts see,
// and that is gone with them. The goroutine keeps its thread to its end.
func smallTmpfs(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skipf("SKIP: a small tmpfs takes a mount namespace: %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skipf("SKIP: a small tmpfs takes a private mount: %v", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		t.Skipf("SKIP: no small tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// The leader's disk is full: it ends with one line, and what it acknowledged is
// on the others.
func TestFullDisk(t *testing.T) {
	inMemory(t)
	disk := smallTmpfs(t, 160<<20)
	c := gatewaytest.NewCluster(t, product)
	flags := slices.Concat(product.QuickElections, product.SmallSnapshots)
	c.Start(1, flags)
	c.Start(2, flags)

	var stderr gatewaytest.Output
	server := exec.Command(os.Args[0], c.Args(3, append(flags, "-data", filepath.Join(disk, "data"))...)...)
	server.Env = append(os.Environ(), "RAFTRIG_TEST_SERVER=1", "RAFTRIG_TEST_DIE_WITH_STDIN=1")
	server.Stderr = &stderr
	if _, err := server.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		server.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		server.Process.Kill()
		<-exited
	})
	c.Leader(gatewaytest.Everyone...)
	sys := c.System()
	c.Until("node 3 to lead", func() string {
		ctx, cancel := context.WithTimeout(context.Background(), gatewaytest.Patience)
		defer cancel()
		if err := sys.TransferLeader(ctx, 3); err != nil {
			return err.Error()
		}
		return ""
	})
	if got := c.Propose(3, 100, 20, 0, nil); got.Applied != 100 {
		t.Fatalf("before: %+v", got)
	}

	fill(t, filepath.Join(disk, "filler"))
	got := c.Propose(3, 100000, 100, 1<<40, nil)
	select {
	case <-exited:
	case <-time.After(gatewaytest.Patience):
		t.Fatalf("node 3 goes on: %+v, %s", got, &stderr)
	}
	if code := server.ProcessState.ExitCode(); code != 1 || got.Unknown == 0 {
		t.Errorf("exit status %d, %+v", code, got)
	}
	last := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if line := last[len(last)-1]; !strings.HasPrefix(line, "dragonboat-server: "+disk) || !strings.Contains(line, "no space left on device") || strings.Contains(stderr.String(), "goroutine ") {
		t.Errorf("said %s", &stderr)
	}
	rest := gatewaytest.Others(3)
	c.Leader(rest...)
	if st := c.Agreed(uint64(100+got.Applied), rest...); st.Count > uint64(100+got.Applied+100) {
		t.Errorf("count %d of %d acknowledged and 100 outstanding", st.Count, 100+got.Applied)
	}
}

func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
