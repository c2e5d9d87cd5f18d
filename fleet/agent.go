package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Agent serves one call of a fleet on another host: it reads the call from
// stdin, does on this host what it asks for, and answers on stdout. The end of
// stdin ends a call that is under way. root is raftrig's folder here. It
// returns an error when there was no call; what went wrong in one is its answer.
func Agent(stdin io.Reader, stdout io.Writer, root string) error {
	out := &frameWriter{w: stdout}
	if err := out.write(frame{Agent: protocol}); err != nil {
		return err
	}
	lines := bufio.NewScanner(stdin)
	lines.Buffer(make([]byte, 0, 64<<10), maxFrameBytes)
	if !lines.Scan() {
		return errors.New("agent: no request: fleet runs it on the other hosts, it is not for use by hand")
	}
	req, err := parseRequest(lines.Bytes())
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan unix.Signal)
	go func() {
		defer cancel()
		for lines.Scan() {
			c, err := parseControl(lines.Bytes())
			if err != nil {
				return
			}
			select {
			case signals <- c.Signal:
			case <-ctx.Done():
			}
		}
	}()
	var rep reply
	l, err := newLocal(root, req.Dir, "")
	if err == nil {
		err = l.serve(ctx, req, signals, out, &rep)
	}
	rep.setErr(err)
	return out.write(frame{Reply: &rep})
}

func parseRequest(line []byte) (request, error) {
	var req request
	if err := json.Unmarshal(line, &req); err != nil {
		return req, fmt.Errorf("not a request: %w", err)
	}
	if req.Protocol != protocol {
		return req, fmt.Errorf("request of version %d, want %d: make push (fleet push)", req.Protocol, protocol)
	}
	return req, nil
}

// parseControl takes the signals that a call may pass on.
func parseControl(line []byte) (control, error) {
	var c control
	if err := json.Unmarshal(line, &c); err != nil {
		return c, fmt.Errorf("not a control line: %w", err)
	}
	for _, known := range signals {
		if c.Signal == known {
			return c, nil
		}
	}
	return c, fmt.Errorf("signal %d: not one to pass on", c.Signal)
}

// serve does what the request asks for.
func (l *local) serve(ctx context.Context, req request, signals <-chan unix.Signal, out *frameWriter, rep *reply) error {
	x := expander{inv: req.Inv, node: req.Node}
	switch req.Verb {
	case "start":
		st, err := l.start(ctx, req.Node, req.Command, x)
		rep.Status = &st
		return err
	case "stop":
		r, err := l.stop(ctx, req.Node, req.Grace)
		rep.Stop = &r
		return err
	case "status":
		st, err := l.status(ctx, req.Node)
		rep.Status = &st
		return err
	case "signal":
		return l.signal(ctx, req.Node, req.Signal)
	case "logs":
		return l.logs(ctx, req.Node, req.Tail, req.Follow, out.stdout())
	case "exited":
		return l.exited(ctx, req.Node)
	case "run":
		t := req.Task
		t.stdout, t.stderr, t.signals = out.stdout(), out.stderr(), signals
		o, err := l.run(ctx, req.Node, t, x)
		rep.Outcome = &o
		return err
	case "list":
		files, err := listFiles(l.root, req.Paths, req.Since)
		rep.Files = files
		return err
	case "get":
		if len(req.Paths) != 1 {
			return errors.New("get: want one path")
		}
		return copyFile(l.root, req.Paths[0], out.stdout())
	}
	return fmt.Errorf("agent: no verb %q", req.Verb)
}
