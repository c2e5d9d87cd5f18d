package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userHZ is the unit of times in /proc/PID/stat: 100 ticks a second on every
// Linux that Go runs on, whatever the kernel's own HZ.
const userHZ = 100

// errGone says that the process that was started is no more, or that its pid
// now belongs to another.
var errGone = errors.New("process is gone")

// identity names one process of one boot of one machine.
type identity struct {
	PID int `json:"pid"`
	// StartTicks is the start in ticks since boot, field 22 of /proc/PID/stat.
	StartTicks uint64 `json:"start_ticks"`
	// Boot is the kernel's boot id; ticks of another boot mean nothing.
	Boot string `json:"boot_id"`
}

// procStat is what is used of /proc/PID/stat (proc(5)).
type procStat struct {
	State      byte
	Session    int
	CPUTicks   uint64
	StartTicks uint64
	RSSPages   int64
}

func readStat(pid int) (procStat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return procStat{}, errGone
		}
		return procStat{}, err
	}
	return parseStat(b)
}

// parseStat reads a line of /proc/PID/stat. The command's name, field 2, may
// hold blanks and parentheses, so fields are counted from the last ')'.
func parseStat(b []byte) (procStat, error) {
	bad := func(what string) (procStat, error) {
		return procStat{}, fmt.Errorf("/proc stat line %q: %s", shorten(string(b)), what)
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return bad("no command name")
	}
	f := strings.Fields(string(b[i+1:])) // f[0] is field 3
	if len(f) < 22 || len(f[0]) != 1 {
		return bad("too few fields")
	}
	var err error
	uint := func(field int) uint64 {
		v, e := strconv.ParseUint(f[field-3], 10, 64)
		err = errors.Join(err, e)
		return v
	}
	s := procStat{
		State:      f[0][0],
		CPUTicks:   uint(14) + uint(15),
		StartTicks: uint(22),
	}
	session, e1 := strconv.Atoi(f[6-3])
	rss, e2 := strconv.ParseInt(f[24-3], 10, 64)
	if errors.Join(err, e1, e2) != nil {
		return bad("not a number")
	}
	s.Session, s.RSSPages = session, rss
	return s, nil
}

var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
})

// identify names the process that has pid now. The caller knows that it has
// not been reaped.
func identify(pid int) (identity, error) {
	boot, err := bootID()
	if err != nil {
		return identity{}, err
	}
	s, err := readStat(pid)
	if err != nil {
		return identity{}, err
	}
	return identity{PID: pid, StartTicks: s.StartTicks, Boot: boot}, nil
}

// process is a hold on a process by pidfd: it stays the same process whatever
// becomes of the number.
type process struct {
	identity
	fd *os.File
}

// open takes hold of the process, or gives errGone.
func (id identity) open() (*process, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if id.Boot != boot {
		return nil, errGone
	}
	same := func() error {
		s, err := readStat(id.PID)
		if err == nil && s.StartTicks != id.StartTicks {
			err = errGone
		}
		return err
	}
	if err := same(); err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH {
		return nil, errGone
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd_open (Linux 5.10 or later is needed): %w", err)
	}
	p := &process{id, os.NewFile(uintptr(fd), "pidfd")}
	// The pid may have changed hands between the look and the open. What it
	// says now is said of the process that the pidfd holds, or of a later one.
	if err := same(); err != nil {
		p.close()
		return nil, err
	}
	if p.exited() {
		p.close()
		return nil, errGone
	}
	return p, nil
}

func (p *process) close() { p.fd.Close() }

// readable says whether the pidfd tells of the process's end, without waiting.
func readable(fd uintptr) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR {
			return n > 0
		}
	}
}

// exited says whether the process has ended; a zombie has.
func (p *process) exited() bool {
	var done bool
	conn, err := p.fd.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { done = readable(fd) })
	}
	return err != nil || done
}

// wait returns nil when the process has ended, or the context's error.
func (p *process) wait(ctx context.Context) error {
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	for {
		if err := p.fd.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { p.fd.SetReadDeadline(time.Unix(1, 0)) })
		err = conn.Read(readable)
		stop()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		// A deadline may also be the late one of a wait before this.
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// signal sends to the process alone.
func (p *process) signal(sig unix.Signal) error { return p.send(sig, 0) }

// signalGroup sends to the process group that the process leads.
func (p *process) signalGroup(sig unix.Signal) error {
	err := p.send(sig, unix.PIDFD_SIGNAL_PROCESS_GROUP)
	if err != unix.EINVAL {
		return err
	}
	// Before Linux 6.9 a pidfd does not reach a group. The number is good as
	// long as the process has not been reaped.
	if p.exited() {
		return errGone
	}
	err = unix.Kill(-p.PID, sig)
	if err == unix.ESRCH {
		return errGone
	}
	return err
}

func (p *process) send(sig unix.Signal, flags int) error {
	conn, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, flags) })
	if err == nil {
		err = sent
	}
	if err == unix.ESRCH {
		return errGone
	}
	return err
}

// session takes hold of the living members of the session that id leads or
// led. The caller closes them.
func (id identity) session() ([]*process, error) {
	boot, err := bootID()
	if err != nil || id.Boot != boot {
		return nil, err
	}
	// A number stays taken while a session goes by it. If another process has
	// it, the session is empty and what has that id now is a stranger's.
	if s, err := readStat(id.PID); err == nil && s.StartTicks != id.StartTicks {
		return nil, nil
	}
	names, err := readDirNames("/proc")
	if err != nil {
		return nil, err
	}
	var members []*process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		s, err := readStat(pid)
		if err != nil || s.Session != id.PID || s.StartTicks < id.StartTicks {
			continue
		}
		p, err := identity{pid, s.StartTicks, boot}.open()
		if err == nil {
			members = append(members, p)
		} else if !errors.Is(err, errGone) {
			closeAll(members)
			return nil, err
		}
	}
	return members, nil
}

func closeAll(ps []*process) {
	for _, p := range ps {
		p.close()
	}
}

func readDirNames(path string) ([]string, error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// uptime is the time since boot.
func uptime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}

// pidFile is the content of nodeN.pid.
type pidFile struct {
	identity
	Argv []string `json:"argv"`
}

// maxPIDFileBytes bounds a pid file: a command line is at most this long.
const maxPIDFileBytes = 1 << 20

// parsePIDFile refuses what could not have been written by start: above all
// pids that mean something else to kill(2).
func parsePIDFile(b []byte) (pidFile, error) {
	var f pidFile
	if err := json.Unmarshal(b, &f); err != nil {
		return pidFile{}, errors.New("not what start wrote")
	}
	if f.PID <= 1 || f.PID > 1<<22 || f.StartTicks == 0 || f.Boot == "" || len(f.Argv) == 0 {
		return pidFile{}, errors.New("not what start wrote")
	}
	return f, nil
}

func readPIDFile(path string) (pidFile, error) {
	file, err := os.Open(path)
	if err != nil {
		return pidFile{}, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxPIDFileBytes))
	if err != nil {
		return pidFile{}, err
	}
	f, err := parsePIDFile(b)
	if err != nil {
		return pidFile{}, fmt.Errorf("%s: %w: see that the node is not running and remove the file", path, err)
	}
	return f, nil
}

// write replaces the file at once, so that a reader sees all of it or the one
// before.
func (f pidFile) write(path string) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return replaceFile(path, 0o644, func(w io.Writer) error {
		_, err := w.Write(append(b, '\n'))
		return err
	})
}
