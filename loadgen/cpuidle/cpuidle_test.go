package cpuidle

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// limit is what all processes together allow, in microseconds.
func limit(t *testing.T) int32 {
	t.Helper()
	f, err := os.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [4]byte
	if _, err := io.ReadFull(f, b[:]); err != nil {
		t.Fatal(err)
	}
	return int32(binary.NativeEndian.Uint32(b[:]))
}

func TestPoll(t *testing.T) {
	release, err := Poll()
	if err != nil {
		t.Skipf("idle CPUs that poll: %v", err)
	}
	held := limit(t)
	release()
	if held != 0 {
		t.Errorf("while held, %d us are allowed, want 0", held)
	}
	if after := limit(t); after == 0 {
		t.Error("after release 0 us are allowed: by this process still, or by another one's wish")
	}
}

func TestPollFails(t *testing.T) {
	for name, path := range map[string]string{"no device": filepath.Join(t.TempDir(), "none"), "full": "/dev/full"} {
		_, err := poll(path)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "root") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		for _, fd := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); to == "/dev/full" {
				t.Error("the device is still open")
			}
		}
	}
}
