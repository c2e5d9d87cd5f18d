package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// execGrace is how long a command may take to end after SIGTERM.
	execGrace = 2 * time.Second
	// clientGrace is the same for a client after SIGINT: it waits for its last
	// replies and writes its record.
	clientGrace = time.Minute
)

// On chooses hosts for Exec and Push as Only does; without any it is all of
// them, the client's too.
func (f *Fleet) On(ids ...int) ([]Node, error) {
	if len(ids) == 0 {
		return append(append([]Node(nil), f.inv.Nodes...), f.Client()), nil
	}
	g, err := f.Only(ids...)
	if err != nil {
		return nil, err
	}
	return g.Nodes, nil
}

// Exec runs a command on the hosts at once, with the placeholders of Command,
// each line of its output behind "nodeN | " or "client | ". When the context
// ends, the command is ended there too. Another exit status than 0 is an error.
func (f *Fleet) Exec(ctx context.Context, hosts []Node, argv []string, stdout, stderr io.Writer) error {
	if len(argv) == 0 {
		return errors.New("exec: no command")
	}
	var mu sync.Mutex
	_, err := each(hosts, func(n Node) (struct{}, error) {
		out, complaint := newPrefixer(stdout, &mu, n), newPrefixer(stderr, &mu, n)
		t := task{Argv: argv, End: unix.SIGTERM, Grace: execGrace, stdout: out, stderr: complaint}
		o, err := f.t.run(ctx, n, t, f.expander(n))
		switch {
		case errors.Is(err, context.DeadlineExceeded) && !o.Started.IsZero():
			err = fmt.Errorf("%s did not end in time, and was ended", shorten(argv[0]))
		case err == nil && o.Exit != 0:
			err = fmt.Errorf("%s: exit status %d", shorten(argv[0]), o.Exit)
		}
		return struct{}{}, errors.Join(err, out.flush(), complaint.flush())
	})
	return err
}

// Push brings bin/fleet, which does the work on other hosts, and files below
// the root to the hosts, each only where it is not there already, and says
// which it sent where. On this host nothing has to be done.
func (f *Fleet) Push(ctx context.Context, hosts []Node, files []string) ([][]string, error) {
	return each(hosts, func(n Node) ([]string, error) { return f.t.push(ctx, n, files) })
}

// Pull brings the files below the paths, and those whose names begin with one
// of them, from the client's host to the same places here, and says which were
// not here.
func (f *Fleet) Pull(ctx context.Context, paths []string) ([]string, error) {
	n := f.Client()
	got, err := f.t.pull(ctx, n, paths, time.Time{})
	if err != nil {
		err = &NodeError{n.ID, err}
	}
	return got, err
}

// ClientRun is a run of the load generator.
type ClientRun struct {
	Argv []string // with the placeholders of Command
	// Pull are the paths where its files come to lie, as for Pull.
	Pull           []string
	Stdout, Stderr io.Writer
	// Signals are passed on to it. When the context ends it is sent SIGINT, and
	// has a minute to write what it measured.
	Signals <-chan unix.Signal
}

// RunClient runs a client in the root on the client's host, waits for its end,
// brings its files back, and gives its exit status. With TRANSPORT=local this
// process becomes the client instead, and RunClient does not return unless that
// fails: the client then has the terminal, and nothing runs beside it.
func (f *Fleet) RunClient(ctx context.Context, c ClientRun) (exit int, err error) {
	if len(c.Argv) == 0 {
		return 0, errors.New("client: no command")
	}
	if l, ok := f.t.(*local); ok {
		return 0, l.become(f.Client(), c.Argv, f.expander(f.Client()))
	}
	n := f.Client()
	t := task{Argv: c.Argv, End: unix.SIGINT, Grace: clientGrace, stdout: c.Stdout, stderr: c.Stderr, signals: c.Signals}
	o, err := f.t.run(ctx, n, t, f.expander(f.Client()))
	if err != nil && o.Started.IsZero() {
		return 0, &NodeError{n.ID, err}
	}
	// What it wrote is worth having however it ended. The context may have
	// ended with it.
	pctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clientGrace)
	defer cancel()
	_, pullErr := f.t.pull(pctx, n, c.Pull, o.Started)
	if pullErr != nil {
		pullErr = fmt.Errorf("its files did not come back: %w", pullErr)
	}
	if err = errors.Join(err, pullErr); err != nil {
		return o.Exit, &NodeError{n.ID, err}
	}
	return o.Exit, nil
}

// become makes this process the command.
func (l *local) become(n Node, argv []string, x expander) error {
	x.root = l.root
	argv, err := x.expand(argv)
	if err != nil {
		return err
	}
	if err := os.Chdir(l.root); err != nil {
		return err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	// exec keeps the namespace of the thread that calls it.
	runtime.LockOSThread()
	if err := enter(l.netns(n)); err != nil {
		return err
	}
	return fmt.Errorf("exec %s: %w", path, unix.Exec(path, argv, os.Environ()))
}
