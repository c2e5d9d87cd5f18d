package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

const (
	// tailBlockBytes is how much of a log is read at once, from its end.
	tailBlockBytes = 32 << 10
	// maxLineBytes is where a prefixed line is broken.
	maxLineBytes = 64 << 10
)

// seekTail puts the file's offset before its last n lines; a last line without
// an end counts. A negative n is the file's start.
func seekTail(f io.ReadSeeker, n int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return err
	}
	pos, newlines := end, 0
	block := make([]byte, tailBlockBytes)
	for n > 0 && pos > 0 {
		size := min(pos, tailBlockBytes)
		pos -= size
		if _, err := f.Seek(pos, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.ReadFull(f, block[:size]); err != nil {
			return err
		}
		for i := size - 1; i >= 0; i-- {
			// The newline that ends the file ends its last line.
			if block[i] != '\n' || pos+i == end-1 {
				continue
			}
			if newlines++; newlines == n {
				_, err := f.Seek(pos+i+1, io.SeekStart)
				return err
			}
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// lastLines gives the last n lines that are not blank, fit to stand in an
// error: bounded, and without what a terminal would act on.
func lastLines(b []byte, n int) []string {
	const most = 300
	var lines []string
	for raw := range bytes.SplitSeq(b, []byte("\n")) {
		line := strings.Map(func(r rune) rune {
			if r == '\t' {
				return ' '
			}
			if !unicode.IsPrint(r) {
				return -1
			}
			return r
		}, strings.TrimRight(string(raw), " \t\r"))
		if strings.TrimSpace(line) == "" {
			continue
		}
		if r := []rune(line); len(r) > most {
			line = string(r[:most]) + "..."
		}
		lines = append(lines, line)
	}
	return lines[max(0, len(lines)-n):]
}

// followLog writes the last lines of a log and what is added, also after a new
// start has put another file in its place, until the context ends.
func followLog(ctx context.Context, path string, tail int, w io.Writer) error {
	// The directory is watched, not the file: its file may not be there yet,
	// and is replaced by each start.
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		return fmt.Errorf("inotify %s: %w", dir, err)
	}
	stop := context.AfterFunc(ctx, func() { events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	var f *os.File
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	drain := func() error {
		if f == nil {
			return nil
		}
		_, err := io.Copy(w, f)
		return err
	}
	discard := make([]byte, 16<<10)
	for {
		if err := drain(); err != nil {
			return err
		}
		next, err := os.Open(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		switch {
		case err != nil: // between rename and create, or never started
		case f == nil:
			f = next
			if err := seekTail(f, tail); err != nil {
				return err
			}
			tail = -1 // a file that comes later is read from its start
			continue
		case sameFile(f, next):
			next.Close()
		default:
			// What the former process still wrote before the exchange.
			if err := drain(); err != nil {
				next.Close()
				return err
			}
			f.Close()
			f = next
			continue
		}
		if _, err := events.Read(discard); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("inotify: %w", err)
		}
	}
}

func sameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// prefixer puts the node's name before each line, and writes whole lines.
type prefixer struct {
	w       io.Writer
	mu      *sync.Mutex // shared by the writers of w; nil for one alone
	prefix  string
	partial []byte
}

func newPrefixer(w io.Writer, mu *sync.Mutex, n Node) *prefixer {
	if mu == nil {
		mu = new(sync.Mutex)
	}
	return &prefixer{w: w, mu: mu, prefix: n.name() + " | "}
}

func (p *prefixer) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		take := i
		if i < 0 {
			take = len(b)
		}
		take = min(take, maxLineBytes-len(p.partial))
		p.partial = append(p.partial, b[:take]...)
		b = b[take:]
		if i >= 0 && take == i {
			b = b[1:]
		} else if len(p.partial) < maxLineBytes {
			continue // b is used up and its line goes on
		}
		if err := p.line(); err != nil {
			return n - len(b), err
		}
	}
	return n, nil
}

// flush writes a last line that has no end.
func (p *prefixer) flush() error {
	if len(p.partial) == 0 {
		return nil
	}
	return p.line()
}

func (p *prefixer) line() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := fmt.Fprintf(p.w, "%s%s\n", p.prefix, p.partial)
	p.partial = p.partial[:0]
	return err
}
