package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// connectSeconds bounds the set-up of a connection.
	connectSeconds = 10
	// aliveSeconds and aliveCount: a host is given up that has said nothing for
	// so many times so long.
	aliveSeconds, aliveCount = 5, 3
	// persistSeconds is how long a connection stays for the next command.
	persistSeconds = 60
	// leaveWait is how long the other end may take to end a call.
	leaveWait = 5 * time.Second
	// maxComplaintBytes is what is kept of ssh's own messages.
	maxComplaintBytes = 16 << 10
	// maxSocketDirBytes leaves room for a socket's name, and for what ssh puts
	// behind it while it connects, in the 107 bytes that a socket's path has.
	maxSocketDirBytes = 107 - len("/0123456789abcdef.XXXXXXXXXXXXXXXX")
)

// remote is the transport to hosts reached by ssh. There, bin/fleet does what
// local does here: it is started for each call as an agent.
type remote struct {
	inv        Inventory
	root       string // raftrig's folder on this host
	dir        string // run directory, as the agent takes it
	ssh        string // the program
	key        string // absolute
	knownHosts string
	sockets    string // directory of the shared connections
}

func newSSH(inv Inventory, root, dir string) (*remote, error) {
	r := &remote{inv: inv, dir: dir}
	var err error
	if r.root, err = filepath.Abs(root); err != nil {
		return nil, fmt.Errorf("root: %w", err)
	}
	if r.ssh, err = exec.LookPath("ssh"); err != nil {
		return nil, errors.New("TRANSPORT=ssh: ssh is not on the PATH: install openssh-client")
	}
	if r.key, err = checkKey(inv.SSHKey); err != nil {
		return nil, err
	}
	r.knownHosts = filepath.Join(r.root, "run", "ssh_known_hosts")
	if strings.ContainsAny(r.knownHosts, " \t\"%") {
		return nil, fmt.Errorf("%s: ssh takes no such path for its known hosts: move raftrig to a folder without blanks, '%%' and quotes", r.root)
	}
	if err := os.MkdirAll(filepath.Dir(r.knownHosts), 0o755); err != nil {
		return nil, err
	}
	r.sockets = socketDir(r.root)
	return r, nil
}

// checkKey sees that ssh will take the key: with a prompt forbidden, ssh itself
// would only say that it was refused.
func checkKey(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	bad := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("SSH_KEY=%s: %s", file, fmt.Sprintf(format, args...))
	}
	p := file
	if rest, ok := strings.CutPrefix(file, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return bad("%v", err)
		}
		p = filepath.Join(home, rest)
	}
	p, err := filepath.Abs(p)
	if err != nil {
		return bad("%v", err)
	}
	info, err := os.Stat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return bad("no such file: name the private key that the hosts know")
	case err != nil:
		return bad("%v", errors.Unwrap(err))
	case !info.Mode().IsRegular():
		return bad("not a file: name the private key that the hosts know")
	case info.Mode().Perm()&0o077 != 0:
		return bad("its mode %04o lets others read it, and ssh then refuses it: chmod 600 %s", info.Mode().Perm(), shellWords(p))
	}
	f, err := os.Open(p)
	if err != nil {
		return bad("%v", errors.Unwrap(err))
	}
	defer f.Close()
	head := make([]byte, 64)
	n, _ := io.ReadFull(f, head)
	if !bytes.HasPrefix(head[:n], []byte("-----BEGIN ")) {
		return bad("not a private key: name the file that has no .pub")
	}
	return p, nil
}

// socketDir is where the connections of one raftrig are shared: a directory of
// this user alone, with a path short enough for sockets.
func socketDir(root string) string {
	sum := sha256.Sum256([]byte(root))
	own := fmt.Sprintf("raftrig-%d-%x", os.Geteuid(), sum[:4])
	for _, base := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR")} {
		dir := filepath.Join(base, own)
		if info, err := os.Stat(base); filepath.IsAbs(base) && err == nil && info.IsDir() && len(dir) <= maxSocketDirBytes && !strings.ContainsAny(dir, " \t\"%$") {
			return dir
		}
	}
	return filepath.Join("/tmp", own)
}

// private makes the directory if it is not there, and sees that nobody else has
// made it.
func private(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("folder of the connections: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("folder of the connections: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || info.Mode().Perm() != 0o700 || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a folder of this user alone: remove it", dir)
	}
	return nil
}

// socket is where the connection to a host is shared: one for each way to reach
// it, so that a changed setting does not use an old one.
func (r *remote) socket(n Node) string {
	h := sha256.New()
	for _, s := range append([]string{r.key, r.inv.SSHUser, n.Addr}, r.inv.SSHOpts...) {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return filepath.Join(r.sockets, hex.EncodeToString(h.Sum(nil))[:16])
}

// argv is ssh's command line up to the command for the other side.
func (r *remote) argv(n Node) []string {
	argv := []string{r.ssh, "-T"}
	// Of two settings of an option ssh takes the first: the user's.
	argv = append(argv, r.inv.SSHOpts...)
	option := func(format string, args ...any) { argv = append(argv, "-o", fmt.Sprintf(format, args...)) }
	option("BatchMode=yes")
	option("ConnectTimeout=%d", connectSeconds)
	option("ServerAliveInterval=%d", aliveSeconds)
	option("ServerAliveCountMax=%d", aliveCount)
	option("StrictHostKeyChecking=accept-new")
	option("UserKnownHostsFile=%s", r.knownHosts)
	option("GlobalKnownHostsFile=/dev/null")
	option("UpdateHostKeys=no")
	option("ControlMaster=auto")
	option("ControlPersist=%d", persistSeconds)
	option("ControlPath=%s", r.socket(n))
	option("ForwardAgent=no")
	option("ForwardX11=no")
	if r.key != "" {
		option("IdentitiesOnly=yes")
		argv = append(argv, "-i", r.key)
	}
	if r.inv.SSHUser != "" {
		argv = append(argv, "-l", r.inv.SSHUser)
	}
	return append(argv, "--", n.Addr)
}

// shellWords makes one line of the words that a POSIX shell splits into just
// these words again, whatever they hold.
func shellWords(words ...string) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteByte('\'')
		b.WriteString(strings.ReplaceAll(w, "'", `'\''`))
		b.WriteByte('\'')
	}
	return b.String()
}

// connection is one command on the other side.
type connection struct {
	cmd       *exec.Cmd
	stdin     io.WriteCloser
	stdout    io.Reader
	complaint *tailBuffer
}

// command begins a command on the other side, by a line for its shell.
func (r *remote) command(n Node, line string) (*connection, error) {
	if err := private(r.sockets); err != nil {
		return nil, err
	}
	argv := append(r.argv(n), line)
	c := &connection{cmd: exec.Command(argv[0], argv[1:]...), complaint: &tailBuffer{}}
	// Ctrl-C at the terminal is for this process, which tells the other side;
	// ssh in a group of its own does not get it.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.cmd.Env = append(os.Environ(), "LC_ALL=C")
	c.cmd.Stderr = c.complaint
	// A shared connection's process may keep stderr open.
	c.cmd.WaitDelay = time.Second
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if c.stdout, err = c.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return c, c.cmd.Start()
}

// end waits for ssh and says why it failed.
func (r *remote) end(c *connection) error {
	err := c.cmd.Wait()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return r.explain(c.cmd.ProcessState.ExitCode(), c.complaint.String())
}

var offendingRE = regexp.MustCompile(`Offending \S+ key in (\S+):([0-9]+)`)

// explain makes one line of ssh's complaint, with what to do.
func (r *remote) explain(exit int, complaint string) error {
	last := "ssh ended without a word"
	if lines := lastLines([]byte(complaint), 1); len(lines) > 0 {
		last = lines[0]
	}
	agent := path.Join(r.inv.RemoteDir, "bin/fleet")
	switch {
	case strings.Contains(complaint, "HOST IDENTIFICATION HAS CHANGED"):
		where := "its line in " + r.knownHosts
		if m := offendingRE.FindStringSubmatch(complaint); m != nil {
			where = fmt.Sprintf("line %s of %s", m[2], m[1])
		}
		return fmt.Errorf("its host key has changed: if the host was made anew, remove %s; if not, somebody else answers there", where)
	case strings.Contains(complaint, "Host key verification failed"):
		return fmt.Errorf("its host key was not accepted: %s", last)
	case strings.Contains(complaint, "Permission denied ("):
		key := r.inv.SSHKey
		if key == "" {
			key = "(not set)"
		}
		return fmt.Errorf("it refuses the login: see SSH_USER=%s and SSH_KEY=%s (%s)", r.inv.SSHUser, key, last)
	case exit == 127:
		return fmt.Errorf("there is no %s on it: make push (fleet push)", agent)
	case exit == 126:
		return fmt.Errorf("%s does not run on it (%s): make push (fleet push)", agent, last)
	case exit == 255:
		return fmt.Errorf("ssh: %s", strings.TrimPrefix(last, "ssh: "))
	}
	return errors.New(last)
}

// call has the agent of a host do one thing. When the context ends, the agent
// is told so, and has grace to end what it does.
func (r *remote) call(ctx context.Context, n Node, req request, t task) (*reply, error) {
	req.Protocol, req.Node, req.Dir, req.Task = protocol, n, r.dir, t
	// The agent has no use for the rest.
	req.Inv = Inventory{Nodes: r.inv.Nodes, Client: r.inv.Client, Topology: r.inv.Topology, NodeRTT: r.inv.NodeRTT}
	line, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := r.command(n, shellWords(path.Join(r.inv.RemoteDir, "bin/fleet"), "agent"))
	if err != nil {
		return nil, err
	}
	type answer struct {
		rep *reply
		err error
	}
	done := make(chan answer, 1)
	go func() {
		rep, err := readFrames(c.stdout, t.stdout, t.stderr)
		done <- answer{rep, err}
	}()
	// A write fails when ssh has ended, and its end says why.
	_, _ = c.stdin.Write(append(line, '\n'))
	var a answer
	for waiting := true; waiting; {
		select {
		case a = <-done:
			waiting = false
		case sig := <-t.signals:
			line, _ := json.Marshal(control{sig})
			_, _ = c.stdin.Write(append(line, '\n'))
		case <-ctx.Done():
			c.stdin.Close()
			leave := time.AfterFunc(t.Grace+leaveWait, func() { c.cmd.Process.Kill() })
			a = <-done
			leave.Stop()
			waiting = false
		}
	}
	c.stdin.Close()
	if a.rep == nil && !errors.Is(a.err, errCut) {
		c.cmd.Process.Kill() // it says what nobody reads
	}
	sshErr := r.end(c)
	switch {
	case a.rep != nil && ctx.Err() != nil && a.rep.Err != "":
		return a.rep, fmt.Errorf("%s: %w", a.rep.Err, ctx.Err())
	case a.rep != nil:
		return a.rep, a.rep.err()
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer: %w", ctx.Err())
	case errors.Is(a.err, errCut) && sshErr != nil:
		return nil, sshErr
	}
	return nil, a.err
}

// there makes paths below the root here such below the root of the other side.
func (r *remote) there(argv []string) []string {
	argv = slices.Clone(argv)
	for i, arg := range argv {
		if rest, ok := strings.CutPrefix(arg, r.root+"/"); ok {
			argv[i] = "{root}/" + rest
		}
	}
	return argv
}

func (r *remote) start(ctx context.Context, n Node, c Command, _ expander) (Status, error) {
	c.Argv = r.there(c.Argv)
	rep, err := r.call(ctx, n, request{Verb: "start", Command: c}, task{})
	return r.statusOf(n, rep), err
}

func (r *remote) statusOf(n Node, rep *reply) Status {
	if rep == nil || rep.Status == nil {
		return Status{}
	}
	return *rep.Status
}

func (r *remote) stop(ctx context.Context, n Node, grace time.Duration) (StopResult, error) {
	rep, err := r.call(ctx, n, request{Verb: "stop", Grace: grace}, task{})
	if rep == nil || rep.Stop == nil {
		return StopResult{}, err
	}
	return *rep.Stop, err
}

func (r *remote) status(ctx context.Context, n Node) (Status, error) {
	rep, err := r.call(ctx, n, request{Verb: "status"}, task{})
	return r.statusOf(n, rep), err
}

func (r *remote) signal(ctx context.Context, n Node, sig unix.Signal) error {
	_, err := r.call(ctx, n, request{Verb: "signal", Signal: sig}, task{})
	return err
}

func (r *remote) logs(ctx context.Context, n Node, tail int, follow bool, w io.Writer) error {
	_, err := r.call(ctx, n, request{Verb: "logs", Tail: tail, Follow: follow}, task{stdout: w})
	return err
}

func (r *remote) exited(ctx context.Context, n Node) error {
	_, err := r.call(ctx, n, request{Verb: "exited"}, task{})
	return err
}

func (r *remote) run(ctx context.Context, n Node, t task, _ expander) (outcome, error) {
	t.Argv = r.there(t.Argv)
	rep, err := r.call(ctx, n, request{Verb: "run"}, t)
	if rep == nil || rep.Outcome == nil {
		return outcome{}, err
	}
	return *rep.Outcome, err
}

// close ends the shared connection. Where there is none, nothing is to be done.
func (r *remote) close(ctx context.Context, n Node) error {
	argv := append([]string{r.ssh, "-O", "exit"}, r.argv(n)[1:]...)
	_ = exec.CommandContext(ctx, argv[0], argv[1:]...).Run()
	// Its process removes the socket when it ends, and the last to leave takes
	// the folder along.
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Lstat(r.socket(n)); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(r.sockets)
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: the shared connection does not end: %w", r.socket(n), ctx.Err())
		}
	}
}

// shell runs a line in a POSIX shell of the other side, with stdin from in, and
// gives what it prints.
func (r *remote) shell(ctx context.Context, n Node, line string, in io.Reader) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := r.command(n, "exec sh -c "+shellWords(line))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.cmd.Process.Kill() })
	defer stop()
	if in != nil {
		// A failed write is told better by ssh's end.
		_, _ = io.Copy(c.stdin, in)
	}
	c.stdin.Close()
	out, readErr := io.ReadAll(io.LimitReader(c.stdout, maxFrameBytes))
	err = r.end(c)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return out, errors.Join(err, readErr)
}

// tailBuffer keeps the last of what is written to it.
type tailBuffer struct{ bytes.Buffer }

func (t *tailBuffer) Write(b []byte) (int, error) {
	t.Buffer.Write(b[max(0, len(b)-maxComplaintBytes):])
	if over := t.Len() - maxComplaintBytes; over > 0 {
		t.Next(over)
	}
	return len(b), nil
}
