package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errNotStarted is a command that could not be run at all.
var errNotStarted = errors.New("")

// task is a command to run on one host and to wait for.
type task struct {
	// Argv may hold the placeholders of Command. It runs in the root.
	Argv []string `json:"argv"`
	// Env are KEY=VALUE pairs added to the environment.
	Env []string `json:"env,omitempty"`
	// End is sent to its process group when the context ends, and SIGKILL to
	// its session after Grace; without Grace it is killed at once.
	End   unix.Signal   `json:"end,omitempty"`
	Grace time.Duration `json:"grace_ns,omitempty"`

	stdout, stderr io.Writer
	// signals are sent on to its process group.
	signals <-chan unix.Signal
}

// outcome is a task that has ended.
type outcome struct {
	Exit int `json:"exit"`
	// Started is when it began, by its host's clock.
	Started time.Time `json:"started"`
}

func (l *local) run(ctx context.Context, n Node, t task, x expander) (outcome, error) {
	x.root, x.dir = l.root, l.file(n, "")
	argv, err := x.expand(t.Argv)
	if err != nil {
		return outcome{}, notStarted(err)
	}
	if err := ctx.Err(); err != nil {
		return outcome{}, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = l.root
	cmd.Env = append(os.Environ(), t.Env...)
	cmd.Stdout, cmd.Stderr = t.stdout, t.stderr
	// A child that keeps its output open does not hold up its parent's end.
	cmd.WaitDelay = time.Second
	// What runs it may be killed: it is then asked to end as well.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	o := outcome{Started: time.Now()}
	id, end, err := launch(cmd, l.netns(n))
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, exec.ErrDot) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return outcome{}, notStarted(err)
	}
	if err != nil {
		return outcome{}, err
	}
	for {
		select {
		case <-end.done:
			o.Exit = end.exit
			return o, nil
		case sig := <-t.signals:
			if p, err := id.open(); err == nil {
				p.signalGroup(sig)
				p.close()
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	if t.Grace > 0 {
		if p, err := id.open(); err == nil {
			p.signalGroup(t.End)
			p.close()
		}
		grace := time.NewTimer(t.Grace)
		select {
		case <-end.done:
		case <-grace.C:
		}
		grace.Stop()
	}
	_, err = endSession(context.WithoutCancel(ctx), id, 0)
	if err == nil {
		<-end.done
		o.Exit = end.exit
	}
	return o, errors.Join(ctx.Err(), err)
}

func notStarted(err error) error { return fmt.Errorf("%w%w", err, errNotStarted) }

// push and pull have nothing to do: the files are here.
func (l *local) push(context.Context, Node, []string) ([]string, error) { return nil, nil }

func (l *local) pull(context.Context, Node, []string, time.Time) ([]string, error) { return nil, nil }

func (l *local) close(context.Context, Node) error { return nil }
