package fleet

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// protocol is the version of what an agent and its caller say to each other.
const protocol = 1

const (
	// maxFrameBytes bounds a line of either side.
	maxFrameBytes = 4 << 20
	// chunkBytes is how much output goes into one frame.
	chunkBytes = 32 << 10
	// maxNoiseBytes bounds what a login script may print before the agent does.
	maxNoiseBytes = 64 << 10
)

// request is the first line to an agent: one call of the transport.
type request struct {
	Protocol int       `json:"protocol"`
	Verb     string    `json:"verb"`
	Inv      Inventory `json:"inv"`
	Node     Node      `json:"node"`
	// Dir is the run directory, below the agent's root where it is relative.
	Dir     string        `json:"dir"`
	Command Command       `json:"command,omitzero"`
	Grace   time.Duration `json:"grace_ns,omitempty"`
	Signal  unix.Signal   `json:"signal,omitempty"`
	Tail    int           `json:"tail,omitempty"`
	Follow  bool          `json:"follow,omitempty"`
	Task    task          `json:"task,omitzero"`
	Paths   []string      `json:"paths,omitempty"`
	Since   time.Time     `json:"since,omitzero"`
}

// control is each further line to an agent. The end of the stream ends the call.
type control struct {
	Signal unix.Signal `json:"signal"`
}

// frame is one line from an agent. The first has Agent, the last has Reply, and
// output of either kind is between them.
type frame struct {
	Agent  int    `json:"agent,omitempty"` // its protocol
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	Reply  *reply `json:"reply,omitempty"`
}

// reply is how a call ended.
type reply struct {
	Status  *Status     `json:"status,omitempty"`
	Stop    *StopResult `json:"stop,omitempty"`
	Outcome *outcome    `json:"outcome,omitempty"`
	Files   []fileInfo  `json:"files,omitempty"`

	Err        string        `json:"err,omitempty"`
	Running    *RunningError `json:"running,omitempty"`
	Exit       *ExitError    `json:"exit,omitempty"`
	NotStarted bool          `json:"not_started,omitempty"`
}

// setErr keeps an error with what callers tell errors apart by.
func (r *reply) setErr(err error) {
	if err == nil {
		return
	}
	r.Err = err.Error()
	errors.As(err, &r.Running)
	errors.As(err, &r.Exit)
	r.NotStarted = errors.Is(err, errNotStarted)
}

func (r *reply) err() error {
	switch {
	case r.Running != nil:
		return r.Running
	case r.Exit != nil:
		return r.Exit
	case r.NotStarted:
		return notStarted(errors.New(r.Err))
	case r.Err != "":
		return errors.New(r.Err)
	}
	return nil
}

// frameWriter writes frames of several goroutines.
type frameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frameWriter) write(x frame) error {
	b, err := json.Marshal(x)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err = f.w.Write(append(b, '\n'))
	return err
}

// output gives a writer whose bytes become frames.
func (f *frameWriter) output(make func([]byte) frame) io.Writer {
	return writeFunc(func(b []byte) (int, error) {
		n := len(b)
		for len(b) > 0 {
			chunk := b[:min(len(b), chunkBytes)]
			b = b[len(chunk):]
			if err := f.write(make(chunk)); err != nil {
				return n - len(b), err
			}
		}
		return n, nil
	})
}

func (f *frameWriter) stdout() io.Writer {
	return f.output(func(b []byte) frame { return frame{Stdout: b} })
}

func (f *frameWriter) stderr() io.Writer {
	return f.output(func(b []byte) frame { return frame{Stderr: b} })
}

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(b []byte) (int, error) { return f(b) }

// errCut is a stream of frames that ends before its reply.
var errCut = errors.New("connection lost")

// readFrames reads what an agent says, hands its output on, and returns its
// reply. What stands before the agent's first frame is a login script's.
func readFrames(r io.Reader, stdout, stderr io.Writer) (*reply, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxFrameBytes)
	met, noise := false, 0
	for lines.Scan() {
		line := lines.Bytes()
		var f frame
		err := json.Unmarshal(line, &f)
		if !met {
			if err != nil || f.Agent == 0 {
				if noise += len(line) + 1; noise > maxNoiseBytes {
					return nil, errors.New("its login prints without end, and no answer")
				}
				continue
			}
			if f.Agent != protocol {
				return nil, fmt.Errorf("its bin/fleet is of another version: make push (fleet push)")
			}
			met = true
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("not what bin/fleet says: %q", shorten(string(bytes.ToValidUTF8(line, nil))))
		}
		if len(f.Stdout) > 0 && stdout != nil {
			if _, err := stdout.Write(f.Stdout); err != nil {
				return nil, err
			}
		}
		if len(f.Stderr) > 0 && stderr != nil {
			if _, err := stderr.Write(f.Stderr); err != nil {
				return nil, err
			}
		}
		if f.Reply != nil {
			return f.Reply, nil
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, errCut
}
