package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killWait is how long a process may take to end after SIGKILL. Longer
	// means that it hangs in the kernel.
	killWait = 10 * time.Second
	// stopWait is the same for SIGSTOP.
	stopWait = 2 * time.Second
	// logTailLines is how much of a log goes into an error.
	logTailLines = 5
)

// local is the transport to processes on this host.
type local struct {
	root string // absolute
	dir  string // absolute
	// namespaces begins the names of the hosts' network namespaces; empty when
	// all are in this one.
	namespaces string
}

func newLocal(root, dir, namespaces string) (*local, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("root: %w", err)
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(root, dir)
	}
	return &local{root, dir, namespaces}, nil
}

// file is the path of a node's file in the run directory.
func (l *local) file(n Node, suffix string) string {
	return filepath.Join(l.dir, n.name()+suffix)
}

// netns is the network namespace of a host; empty for this process's own.
func (l *local) netns(n Node) string {
	if l.namespaces == "" {
		return ""
	}
	return namespaceOf(l.namespaces, n)
}

// lock keeps a second start or stop of the node out until unlock.
func (l *local) lock(ctx context.Context, n Node) (func(), error) {
	f, err := os.OpenFile(l.file(n, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	fd := int(f.Fd())
	unlock := func() {
		unix.Flock(fd, unix.LOCK_UN)
		f.Close()
	}
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return unlock, nil
	}
	if err != unix.EWOULDBLOCK {
		f.Close()
		return nil, fmt.Errorf("%s: flock: %w", f.Name(), err)
	}
	// flock knows no time-out: wait for it aside, and give it back when it
	// comes after the context's end.
	got := make(chan error, 1)
	go func() {
		for {
			err := unix.Flock(fd, unix.LOCK_EX)
			if err != unix.EINTR {
				got <- err
				return
			}
		}
	}()
	select {
	case err := <-got:
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("%s: flock: %w", f.Name(), err)
		}
		return unlock, nil
	case <-ctx.Done():
		go func() {
			<-got
			unlock()
		}()
		return nil, fmt.Errorf("another start or stop of it is under way: %w", ctx.Err())
	}
}

func (l *local) start(ctx context.Context, n Node, c Command, x expander) (Status, error) {
	x.root, x.dir = l.root, l.file(n, "")
	argv, err := x.expand(c.Argv)
	if err != nil {
		return Status{}, err
	}
	// The process works in its own directory, so its program is looked up
	// before it goes there.
	path, err := exec.LookPath(argv[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return Status{}, err
	}
	if err := os.MkdirAll(x.dir, 0o755); err != nil {
		return Status{}, err
	}
	unlock, err := l.lock(ctx, n)
	if err != nil {
		return Status{}, err
	}
	defer unlock()
	if err := l.mayStart(n); err != nil {
		return Status{}, err
	}

	logFile := l.file(n, ".log")
	if err := os.Rename(logFile, logFile+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Status{}, err
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return Status{}, err
	}
	defer log.Close()
	cmd := exec.Command(path, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Dir = x.dir
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if c.dieWithParent {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	id, end, err := launch(cmd, l.netns(n))
	if err != nil {
		return Status{}, err
	}
	if err := (pidFile{id, argv}).write(l.file(n, ".pid")); err != nil {
		_, killErr := endSession(context.WithoutCancel(ctx), id, 0)
		return Status{}, errors.Join(err, killErr)
	}
	settle := time.NewTimer(c.Settle)
	defer settle.Stop()
	select {
	case <-end.done:
		return Status{}, l.exitError(n, "ended within start-up: "+end.how)
	case <-settle.C:
		select {
		case <-end.done:
			return Status{}, l.exitError(n, "ended within start-up: "+end.how)
		default:
			return l.status(ctx, n)
		}
	case <-ctx.Done():
		// The caller does not learn that it runs, so it must not.
		_, err := endSession(context.WithoutCancel(ctx), id, 0)
		if err == nil {
			err = os.Remove(l.file(n, ".pid"))
		}
		return Status{}, errors.Join(fmt.Errorf("given up in start-up: %w", ctx.Err()), err)
	}
}

// ending is how a child of this process ended; the rest may be read after done.
type ending struct {
	done chan struct{}
	how  string
	exit int // 128 and the signal's number when a signal ended it
}

// launch starts the command in a network namespace (none: this one), names its
// process before it can be reaped, and reaps it when it ends.
func launch(cmd *exec.Cmd, netns string) (identity, *ending, error) {
	type started struct {
		id  identity
		err error
	}
	result := make(chan started, 1)
	end := &ending{done: make(chan struct{})}
	go func() {
		// The kernel sends a parent-death signal when the thread that forked
		// ends, so this one stays with the process. It is never unlocked: a
		// thread that went to another namespace must not serve anybody else.
		runtime.LockOSThread()
		if err := enter(netns); err != nil {
			result <- started{err: err}
			return
		}
		if err := cmd.Start(); err != nil {
			result <- started{err: err}
			return
		}
		id, err := identify(cmd.Process.Pid)
		if err != nil {
			cmd.Process.Kill()
		}
		result <- started{id, err}
		err = cmd.Wait()
		end.how = cmd.ProcessState.String()
		end.exit = cmd.ProcessState.ExitCode()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			end.exit = 128 + int(ws.Signal())
		}
		if err != nil {
			end.how = err.Error()
		}
		close(end.done)
	}()
	r := <-result
	return r.id, end, r.err
}

// mayStart says why the node must not be started now.
func (l *local) mayStart(n Node) error {
	pf, err := readPIDFile(l.file(n, ".pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	p, err := pf.open()
	if err == nil {
		p.close()
		return &RunningError{pf.PID}
	}
	if !errors.Is(err, errGone) {
		return err
	}
	left, err := pf.session()
	if err != nil || len(left) == 0 {
		return err
	}
	defer closeAll(left)
	return fmt.Errorf("it is dead but a process that it started runs (pid %d): stop it first", left[0].PID)
}

func (l *local) stop(ctx context.Context, n Node, grace time.Duration) (StopResult, error) {
	if _, err := os.Stat(l.dir); errors.Is(err, fs.ErrNotExist) {
		return StopResult{}, nil
	}
	unlock, err := l.lock(ctx, n)
	if err != nil {
		return StopResult{}, err
	}
	defer unlock()
	pf, err := readPIDFile(l.file(n, ".pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return StopResult{}, nil
	}
	if err != nil {
		return StopResult{}, err
	}
	r, err := endSession(ctx, pf.identity, grace)
	if err != nil {
		return r, err
	}
	return r, os.Remove(l.file(n, ".pid"))
}

// endSession ends the process and all of its session: by SIGTERM, and what has
// not ended after grace by SIGKILL.
func endSession(ctx context.Context, id identity, grace time.Duration) (StopResult, error) {
	var r StopResult
	if grace > 0 {
		if err := terminate(id, &r); err != nil {
			return r, err
		}
		gctx, cancel := context.WithTimeout(ctx, grace)
		empty, err := waitSession(gctx, id)
		cancel()
		if empty || ctx.Err() != nil || err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return r, errors.Join(ctx.Err(), err)
		}
	}
	// A member may fork between the look and the signal: look again until
	// none is left.
	kctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	for {
		members, err := id.session()
		if err != nil || len(members) == 0 {
			return r, err
		}
		r.WasRunning, r.Killed = true, true
		for _, p := range members {
			if e := p.signal(unix.SIGKILL); e != nil && !errors.Is(e, errGone) && err == nil {
				err = fmt.Errorf("kill pid %d: %w", p.PID, e)
			}
		}
		for _, p := range members {
			if err == nil && p.wait(kctx) != nil {
				err = fmt.Errorf("pid %d does not end after SIGKILL: see /proc/%d/stack", p.PID, p.PID)
				if ctx.Err() != nil {
					err = ctx.Err()
				}
			}
		}
		closeAll(members)
		if err != nil {
			return r, err
		}
	}
}

// terminate asks the process group to end; where its leader is dead, each
// process that is left of the session.
func terminate(id identity, r *StopResult) error {
	ask := func(send func(unix.Signal) error) error {
		r.WasRunning = true
		// SIGSTOP holds back SIGTERM until SIGCONT.
		err := errors.Join(send(unix.SIGTERM), send(unix.SIGCONT))
		if errors.Is(err, errGone) {
			return nil
		}
		return err
	}
	leader, err := id.open()
	if err == nil {
		defer leader.close()
		return ask(leader.signalGroup)
	}
	if !errors.Is(err, errGone) {
		return err
	}
	left, err := id.session()
	defer closeAll(left)
	for _, p := range left {
		err = errors.Join(err, ask(p.signal))
	}
	return err
}

// waitSession waits until the session is empty.
func waitSession(ctx context.Context, id identity) (empty bool, err error) {
	for {
		members, err := id.session()
		if err != nil || len(members) == 0 {
			return err == nil, err
		}
		err = members[0].wait(ctx)
		closeAll(members)
		if err != nil {
			return false, err
		}
	}
}

func (l *local) status(_ context.Context, n Node) (Status, error) {
	st := Status{Node: n.ID, Host: n.Addr, State: Down}
	pf, err := readPIDFile(l.file(n, ".pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	st.State, st.PID, st.Argv = Dead, pf.PID, pf.Argv
	p, err := pf.open()
	if errors.Is(err, errGone) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	defer p.close()
	s, err := readStat(pf.PID)
	up, err2 := uptime()
	if p.exited() {
		return st, nil
	}
	if err := errors.Join(err, err2); err != nil {
		return st, err
	}
	st.State = Running
	if s.State == 'T' || s.State == 't' {
		st.State = Stopped
	}
	st.UptimeS = max(0, up.Seconds()-float64(s.StartTicks)/userHZ)
	st.CPUS = float64(s.CPUTicks) / userHZ
	st.RSSBytes = s.RSSPages * int64(os.Getpagesize())
	return st, nil
}

// open takes hold of the node's process; dead says why it cannot.
func (l *local) open(n Node) (*process, error) {
	pf, err := readPIDFile(l.file(n, ".pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &ExitError{How: "not started"}
	}
	if err != nil {
		return nil, err
	}
	p, err := pf.open()
	if errors.Is(err, errGone) {
		return nil, l.exitError(n, "dead")
	}
	return p, err
}

func (l *local) signal(ctx context.Context, n Node, sig unix.Signal) error {
	p, err := l.open(n)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.signalGroup(sig); err != nil {
		if errors.Is(err, errGone) {
			return l.exitError(n, "dead")
		}
		return err
	}
	switch sig {
	case unix.SIGKILL:
		wctx, cancel := context.WithTimeout(ctx, killWait)
		defer cancel()
		if err := p.wait(wctx); err != nil {
			return fmt.Errorf("pid %d does not end after SIGKILL: %w", p.PID, err)
		}
	case unix.SIGSTOP:
		return p.standsStill(ctx)
	}
	return nil
}

// standsStill waits until SIGSTOP has taken hold. Only a parent is told of
// that, so it has to look.
func (p *process) standsStill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopWait)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		s, err := readStat(p.PID)
		if err != nil || p.exited() || s.State == 'T' || s.State == 't' {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("pid %d does not stop after SIGSTOP: %w", p.PID, ctx.Err())
		}
	}
}

func (l *local) exited(ctx context.Context, n Node) error {
	p, err := l.open(n)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.wait(ctx); err != nil {
		return err
	}
	return l.exitError(n, "died")
}

// exitError tells of a node's end, with the last lines of its log.
func (l *local) exitError(n Node, how string) error {
	e := &ExitError{How: how, LogFile: l.file(n, ".log")}
	var tail capped
	if err := l.logs(context.Background(), n, logTailLines, false, &tail); err == nil {
		e.Log = lastLines(tail.Bytes(), logTailLines)
	}
	return e
}

func (l *local) logs(ctx context.Context, n Node, tail int, follow bool, w io.Writer) error {
	path := l.file(n, ".log")
	if follow {
		return followLog(ctx, path, tail, w)
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("no log: it was not started")
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := seekTail(f, tail); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
