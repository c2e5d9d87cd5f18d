package dragonboat

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lni/dragonboat/v4/logger"
)

// The library logs to one place for the process, whichever node it is for, so
// logs knows the nodes of this process.
var logs = &logbook{exit: os.Exit}

func init() { logger.SetLoggerFactory(func(string) logger.ILogger { return libraryLogger{logs} }) }

// repeatInterval is how often a message of one kind is written: the library
// says once a second or more that a node cannot be reached.
const repeatInterval = 10 * time.Second

// logbook writes messages of level error to the output of the node that was
// started last, in lines.
type logbook struct {
	mu      sync.Mutex
	nodes   []*Node
	written map[string]time.Time // by format; there are as many as in the source
	exit    func(int)            // os.Exit but in tests
}

func (l *logbook) join(n *Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes = append(l.nodes, n)
}

func (l *logbook) leave(n *Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.nodes {
		if l.nodes[i] == n {
			l.nodes = append(l.nodes[:i], l.nodes[i+1:]...)
			return
		}
	}
}

// output is called with mu held.
func (l *logbook) output() io.Writer {
	if len(l.nodes) == 0 {
		return io.Discard // what closing goroutines still have to say
	}
	return l.nodes[len(l.nodes)-1].cfg.LogOutput
}

func (l *logbook) error(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if last, ok := l.written[format]; ok && now.Sub(last) < repeatInterval {
		return
	}
	if l.written == nil {
		l.written = make(map[string]time.Time)
	}
	l.written[format] = now
	fmt.Fprintf(l.output(), "%s %s\n", now.UTC().Format("2006-01-02T15:04:05.000Z"), line(format, args))
}

// fatal ends the process. The library calls it where it cannot go on, from
// goroutines of its own: nothing can be returned to anybody. What it was about
// to store is not acknowledged. A directory in memory goes with the process.
func (l *logbook) fatal(format string, args ...any) {
	l.mu.Lock()
	message := line(format, args)
	for _, a := range args {
		if err, ok := a.(error); ok && errors.Is(err, syscall.ENOSPC) && len(l.nodes) > 0 {
			message = fmt.Sprintf("%s: no room for the log or a snapshot: free some, or move it, and start the node again (%s)",
				l.nodes[len(l.nodes)-1].dir.Path, message)
			break
		}
	}
	out := l.output()
	if len(l.nodes) == 0 {
		out = os.Stderr
	}
	fmt.Fprintf(out, "dragonboat-server: %s\n", message)
	for _, n := range l.nodes {
		n.dir.removeMemory()
	}
	l.exit(1)
	l.mu.Unlock() // reached in tests
}

// line is a message in one line. Errors are shown without the stack trace that
// the library's formats ask for.
func line(format string, args []any) string {
	plain := make([]any, len(args))
	for i, a := range args {
		plain[i] = a
		if err, ok := a.(error); ok {
			plain[i] = err.Error()
		}
	}
	return strings.Join(strings.Fields(fmt.Sprintf(format, plain...)), " ")
}

// libraryLogger is the library's view.
type libraryLogger struct{ *logbook }

func (libraryLogger) SetLevel(logger.LogLevel)    {}
func (libraryLogger) Debugf(string, ...any)       {}
func (libraryLogger) Infof(string, ...any)        {}
func (libraryLogger) Warningf(string, ...any)     {}
func (l libraryLogger) Errorf(f string, a ...any) { l.error(f, a...) }
func (l libraryLogger) Panicf(f string, a ...any) { l.fatal(f, a...) }
