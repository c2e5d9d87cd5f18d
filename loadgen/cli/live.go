package cli

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"raftrig/loadgen"
	"raftrig/loadgen/report"
	"raftrig/record"
)

// live prints the live line: on a terminal in place, elsewhere a line each.
type live struct {
	mu       sync.Mutex
	out      io.Writer
	product  string
	knobs    record.Knobs
	terminal int // file descriptor, or -1
	shown    bool
}

func newLive(out io.Writer, product string, c loadgen.Config) *live {
	l := &live{
		out: out, product: product, terminal: -1,
		knobs: record.Knobs{Mode: c.Mode.String(), Threads: c.Threads, Rate: c.Rate},
	}
	if f, ok := out.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			l.terminal = int(f.Fd())
		}
	}
	return l
}

func (l *live) second(s record.Second) {
	if s.Phase == "drain" && s.Sent+s.OK+s.Failed+s.Lost == 0 {
		return
	}
	line := report.LiveLine(l.product, l.knobs, s)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.terminal < 0 {
		fmt.Fprintln(l.out, line)
		return
	}
	// A line that wraps could not be rewritten in place.
	if size, err := unix.IoctlGetWinsize(l.terminal, unix.TIOCGWINSZ); err == nil && size.Col > 0 && len(line) >= int(size.Col) {
		line = line[:size.Col-1]
	}
	fmt.Fprintf(l.out, "\r\x1b[K%s", line)
	l.shown = true
}

// note prints a line of its own.
func (l *live) note(text string) {
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, "%s-client: %s\n", l.product, text)
}

// end the line shown.
func (l *live) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown {
		fmt.Fprintln(l.out)
		l.shown = false
	}
}
