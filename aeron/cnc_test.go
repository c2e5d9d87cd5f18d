package aeron

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const testRingLen = 1<<10 + ringTrailerLen

// cncFile is what a driver that is alive, and is this process, has written.
func cncFile() []byte {
	b := make([]byte, cncHeaderLen+testRingLen+64)
	binary.NativeEndian.PutUint32(b[cncVersionAt:], cncVersion)
	binary.NativeEndian.PutUint32(b[cncRingLenAt:], testRingLen)
	binary.NativeEndian.PutUint64(b[cncPIDAt:], uint64(os.Getpid()))
	beatAt(b, time.Now())
	return b
}

func beatAt(b []byte, at time.Time) {
	binary.NativeEndian.PutUint64(b[cncHeaderLen+testRingLen-ringTrailerLen+ringBeatAt:], uint64(at.UnixMilli()))
}

func writeCnc(tb testing.TB, b []byte) (dir string) {
	tb.Helper()
	dir = tb.TempDir()
	if err := os.WriteFile(filepath.Join(dir, cncName), b, 0o600); err != nil {
		tb.Fatal(err)
	}
	return dir
}

func TestCnc(t *testing.T) {
	dir := writeCnc(t, cncFile())
	c, err := openCnc(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.check(); err != nil {
		t.Error(err)
	}
	// It stops, while it is watched.
	late := cncFile()
	beatAt(late, time.Now().Add(-driverTimeout-time.Second))
	if err := os.WriteFile(filepath.Join(dir, cncName), late, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.check(); err == nil || !strings.Contains(err.Error(), "is gone: its last heartbeat was 11.") {
		t.Errorf("%v", err)
	}
	for range 2 {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestCncErrors(t *testing.T) {
	for text, change := range map[string]func(b []byte) []byte{
		"still starting":                   func(b []byte) []byte { clear(b[:4]); return b },
		"has layout 0.3.1, this client":    func(b []byte) []byte { copy(b, "\x01\x03\x00\x00"); return b },
		"has 100 bytes":                    func(b []byte) []byte { return b[:100] },
		"a command buffer of 1792 bytes":   func(b []byte) []byte { return b[:cncHeaderLen+testRingLen-1] },
		"a command buffer of 0 bytes":      func(b []byte) []byte { clear(b[4:8]); return b },
		"a command buffer of -1 bytes":     func(b []byte) []byte { copy(b[4:], "\xff\xff\xff\xff"); return b },
		"its last heartbeat was":           func(b []byte) []byte { beatAt(b, time.Now().Add(-time.Minute)); return b },
		"its process 2147483647 has ended": func(b []byte) []byte { copy(b[cncPIDAt:], "\xff\xff\xff\x7f\x00\x00\x00\x00"); return b },
	} {
		dir := writeCnc(t, change(cncFile()))
		_, err := openCnc(dir)
		if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q and the folder", err, text)
		}
	}
	if _, err := openCnc(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "no media driver in") {
		t.Errorf("no driver: %v", err)
	}
}

func FuzzCnc(f *testing.F) {
	f.Add(cncFile()[:cncHeaderLen], uint16(testRingLen))
	f.Add(make([]byte, cncHeaderLen), uint16(0))
	f.Fuzz(func(t *testing.T, head []byte, rest uint16) {
		b := make([]byte, max(cncHeaderLen, len(head))+int(rest))
		copy(b, head)
		c := &cnc{dir: "d", file: b}
		if err := c.parse(); err == nil {
			c.check()
		}
	})
}
