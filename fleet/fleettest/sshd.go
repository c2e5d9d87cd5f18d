// Package fleettest gives tests hosts to reach by ssh: a real sshd of the
// test's own on loopback addresses.
package fleettest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Hosts are the addresses that SSHD listens on when it is given none: three
// nodes and a client.
var Hosts = []string{"127.0.31.11", "127.0.31.12", "127.0.31.13", "127.0.31.14"}

// SSHD is an sshd that runs until the test's end, as this user and for this
// user alone.
type SSHD struct {
	Port int
	// Key is the file of the private key that it lets in.
	Key  string
	User string
	// RemoteDir is for REMOTE_DIR: a folder of the test.
	RemoteDir string

	program, dir string
	hosts        []string
	stop         func()
}

// StartSSHD starts an sshd on that port of the addresses, or skips the test
// where there is none. fleet.FreePorts gives a port.
func StartSSHD(t testing.TB, port int, hosts ...string) *SSHD {
	t.Helper()
	program := "/usr/sbin/sshd" // not on every user's PATH; it wants to be called by its full path
	if _, err := os.Stat(program); err != nil {
		t.Skip("no sshd on this machine: install openssh-server")
	}
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("no ssh on this machine: install openssh-client")
	}
	if len(hosts) == 0 {
		hosts = Hosts
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &SSHD{Port: port, Key: filepath.Join(dir, "key"), User: me.Username, RemoteDir: filepath.Join(dir, "remote"), program: program, dir: dir, hosts: hosts}
	if os.Geteuid() == 0 {
		// Its service makes it at its start, and may never have been started. It
		// stays, for other tests may have an sshd as well.
		if err := os.Mkdir("/run/sshd", 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	public := writeKey(t, s.Key)
	writeKey(t, filepath.Join(dir, "host_key"))
	var config strings.Builder
	for _, h := range hosts {
		fmt.Fprintf(&config, "ListenAddress %s:%d\n", h, s.Port)
	}
	fmt.Fprintf(&config, `HostKey %[1]s/host_key
AuthorizedKeysFile %[1]s/authorized
AllowUsers %[2]s
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
LogLevel VERBOSE
`, dir, s.User)
	for name, text := range map[string]string{"authorized": string(public), "config": config.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.start(t)
	t.Cleanup(func() { s.stop() })
	return s
}

// writeKey makes a key pair and gives the public half.
func writeKey(t testing.TB, file string) []byte {
	t.Helper()
	for _, f := range []string{file, file + ".pub"} {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	public, err := os.ReadFile(file + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	return public
}

func (s *SSHD) start(t testing.TB) {
	t.Helper()
	cmd := exec.Command(s.program, "-D", "-e", "-f", filepath.Join(s.dir, "config"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, w := io.Pipe()
	cmd.Stderr = w
	started := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		// The kernel counts the thread as the parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		w.Close()
		close(ended)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	s.stop = sync.OnceFunc(func() {
		// A process a connection; it outlives the one that listens.
		pid := cmd.Process.Pid
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for _, child := range strings.Fields(string(children)) {
			if c, err := strconv.Atoi(child); err == nil {
				_ = syscall.Kill(c, syscall.SIGKILL)
			}
		}
		<-ended
	})
	var said []string
	left := len(s.hosts)
	lines := bufio.NewScanner(log)
	for left > 0 && lines.Scan() {
		said = append(said, lines.Text())
		if strings.HasPrefix(lines.Text(), "Server listening on ") {
			left--
		}
	}
	if left > 0 {
		s.stop()
		t.Fatalf("sshd does not start:\n%s", strings.Join(said, "\n"))
	}
	go func() { _, _ = io.Copy(io.Discard, log) }()
}

// NewHostKey starts it again with another host key: to its clients it is
// another host.
func (s *SSHD) NewHostKey(t testing.TB) {
	t.Helper()
	s.stop()
	writeKey(t, filepath.Join(s.dir, "host_key"))
	s.start(t)
}

// Opts are for SSH_OPTS.
func (s *SSHD) Opts() []string {
	return []string{"-F", "/dev/null", "-p", fmt.Sprint(s.Port)}
}

// Env is the text of an inventory with its hosts: three nodes and a client.
func (s *SSHD) Env() string {
	return fmt.Sprintf("TRANSPORT=ssh\nTOPOLOGY=local\nSSH_USER=%s\nSSH_KEY=%s\nSSH_OPTS=%s\nREMOTE_DIR=%s\nNODE1=%s\nNODE2=%s\nNODE3=%s\nCLIENT=%s\n",
		s.User, s.Key, strings.Join(s.Opts(), " "), s.RemoteDir, s.hosts[0], s.hosts[1], s.hosts[2], s.hosts[3])
}
