package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the servers that the tests run: with this variable
// set it does what its first argument says.
const helperEnv = "FLEET_TEST_HELPER"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		// Pushed as bin/fleet, the test binary is what the other hosts run.
		time.AfterFunc(5*time.Minute, func() { os.Exit(99) })
		signal.Ignore(syscall.SIGPIPE)
		if err := Agent(os.Stdin, os.Stdout, filepath.Dir(filepath.Dir(os.Args[0]))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(helperEnv) != "" {
		// Whatever happens to the test, its servers do not stay.
		time.AfterFunc(5*time.Minute, func() { os.Exit(99) })
		helper(os.Args[1], os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

func helper(mode string, args []string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	switch mode {
	case "serve": // ADDR...
		for _, addr := range args {
			if _, err := net.Listen("tcp", addr); err != nil {
				fail(err)
			}
		}
		fmt.Println("ready")
		select {}
	case "echo": // ARG...
		fmt.Println(strings.Join(args, " "))
		wd, _ := os.Getwd()
		fmt.Println("in", wd)
		fmt.Println("env", os.Getenv("FLEET_TEST_EXTRA"))
		fmt.Println("ready")
		select {}
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		select {}
	case "die":
		fmt.Println("first line")
		fmt.Fprintln(os.Stderr, "cannot \x1b[31mgo on")
		os.Exit(7)
	case "quit":
		os.Exit(0)
	case "fork": // has a stubborn child in its group and session
		child := exec.Command(os.Args[0], "stubborn")
		child.Stdout = os.Stdout // the child says ready
		if err := child.Start(); err != nil {
			fail(err)
		}
		select {}
	case "parent": // DIR: a program with a cluster of its own
		l := &Local{Dir: args[0], Argv: []string{os.Args[0], "serve"}, Settle: time.Millisecond}
		if err := l.StartAll(); err != nil {
			fail(err)
		}
		fmt.Println("up")
		select {}
	case "client": // FILE STATUS: as a load generator, writes its record when told to stop
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGINT)
		fmt.Fprintln(os.Stderr, "live line", os.Getpid())
		sig := <-stop
		fmt.Println("summary after", sig)
		if err := os.MkdirAll(filepath.Dir(args[0]), 0o755); err != nil {
			fail(err)
		}
		if err := os.WriteFile(args[0], []byte("record\n"), 0o644); err != nil {
			fail(err)
		}
		exit, _ := strconv.Atoi(args[1])
		os.Exit(exit)
	case "delay": // NAMESPACE ONE-WAY
		oneWay, err := time.ParseDuration(args[1])
		if err == nil {
			err = DelayRouter(args[0], oneWay, os.Stdout)
		}
		fail(err)
	case "no":
		fmt.Fprintln(os.Stderr, "no leader yet")
		os.Exit(1)
	case "hang":
		select {}
	default:
		fail(errors.New("helper: " + mode))
	}
}

// cluster gives a cluster of helpers that leaves nothing behind.
func cluster(t *testing.T, argv ...string) *Local {
	t.Helper()
	l := &Local{
		Dir:    t.TempDir(),
		Argv:   append([]string{os.Args[0]}, argv...),
		Env:    []string{helperEnv + "=1", "FLEET_TEST_EXTRA=x=y z", "GORACE=atexit_sleep_ms=0"},
		Settle: time.Millisecond,
		Grace:  time.Minute,
	}
	t.Cleanup(func() {
		l.Grace = 10 * time.Millisecond
		if err := l.StopAll(); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return l
}

// await returns once the logs of the nodes hold a line that ends with want.
func await(t *testing.T, l *Local, want string, nodes ...int) {
	t.Helper()
	f, err := l.open(nodes...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	left := make(map[string]bool)
	for _, n := range f.Nodes {
		left[fmt.Sprintf("node%d", n.ID)] = true
	}
	w := writerFunc(func(b []byte) {
		node, line, _ := strings.Cut(strings.TrimSuffix(string(b), "\n"), " | ")
		if strings.HasSuffix(line, want) {
			delete(left, node)
			if len(left) == 0 {
				cancel()
			}
		}
	})
	if err := f.Logs(ctx, -1, true, w); err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Fatalf("no line %q in the logs of %v", want, left)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

// stranger starts a process, in a session of its own, that is no node.
func stranger(t *testing.T) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], "hang")
	cmd.Env = append(os.Environ(), helperEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	id, end, err := launch(cmd, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-end.done
	})
	p, err := id.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}
