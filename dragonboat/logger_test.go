package dragonboat

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"raftrig/gateway/serve"
)

// traced has a stack trace for %+v, as the library's errors do.
type traced struct{ error }

func (e traced) Unwrap() error { return e.error }

func (e traced) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "%v\n(1) stack\n  | trace", e.error) }

func TestFatal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "memory")
	os.Mkdir(dir, 0o700)
	var out bytes.Buffer
	status := 0
	l := &logbook{exit: func(code int) { status = code }}
	n := &Node{cfg: Config{Config: serve.Config{LogOutput: &out}}, dir: nodeDir{DataDir: &serve.DataDir{Path: dir}, inMemory: true}}
	l.join(n)
	l.fatal("%+v", traced{fmt.Errorf("write x: %w", syscall.ENOSPC)})
	want := "dragonboat-server: " + dir + ": no room for the log or a snapshot: free some, or move it, and start the node again (write x: no space left on device)\n"
	if out.String() != want || status != 1 {
		t.Errorf("exit status %d, said %q, want %q", status, &out, want)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("the directory in memory stays")
	}
	out.Reset()
	l.fatal("%s has\n%d entries", "it", 3)
	if out.String() != "dragonboat-server: it has 3 entries\n" {
		t.Errorf("said %q", &out)
	}
	l.leave(n)
	if len(l.nodes) != 0 {
		t.Error("has not left")
	}
}

func TestErrorsRepeatSeldom(t *testing.T) {
	var out bytes.Buffer
	l := &logbook{}
	l.join(&Node{cfg: Config{Config: serve.Config{LogOutput: &out}}})
	library := libraryLogger{l}
	for i := range 100 {
		library.Errorf("no connection to %d", i)
		library.Warningf("warning")
		library.Infof("info")
	}
	library.Errorf("something else: %+v", traced{errors.New("why")})
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "Z no connection to 0") || !strings.HasSuffix(lines[1], "Z something else: why") {
		t.Errorf("said %q", &out)
	}
}
