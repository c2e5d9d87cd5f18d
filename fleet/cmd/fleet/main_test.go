package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"raftrig/fleet"
	"raftrig/fleet/fleettest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"fleet": main, "server": server})
}

// server is what the scripts start: server MODE ADDR.
func server() {
	// Whatever happens to the test, its servers do not stay.
	time.AfterFunc(2*time.Minute, func() { os.Exit(99) })
	if os.Args[1] == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	if _, err := net.Listen("tcp", os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	fmt.Println("serving", os.Args[2], os.Getenv("WHO"))
	select {}
}

func TestScripts(t *testing.T) {
	netns := fmt.Sprintf("fleet%d", os.Getpid())
	var remotes sync.Map // by the script's folder: its sshd
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "sshd":
				_, err := os.Stat("/usr/sbin/sshd")
				_, err2 := exec.LookPath("ssh")
				return err == nil && err2 == nil, nil
			case "netns":
				probe := netns + "-probe"
				if os.Geteuid() != 0 || exec.Command("ip", "netns", "add", probe).Run() != nil {
					return false, nil
				}
				return true, exec.Command("ip", "netns", "del", probe).Run()
			}
			return false, fmt.Errorf("no condition %q", cond)
		},
		Setup: func(env *testscript.Env) error {
			hosts := append(fleet.Default().Hosts(), "127.0.0.14")
			hosts = append(hosts, fleettest.Hosts...)
			ports, err := fleet.FreePorts(3, hosts...)
			if err != nil {
				return err
			}
			env.Setenv("RAFT_PORT", strconv.Itoa(ports[1]))
			env.Setenv("SSHD_PORT", strconv.Itoa(ports[2]))
			env.Setenv("NETNS", netns)
			env.Setenv("GORACE", "atexit_sleep_ms=0") // or each command takes a second to end
			env.Setenv("PORT", strconv.Itoa(ports[0]))
			env.Defer(func() {
				n := fleet.Netns{Prefix: netns, Dir: filepath.Join(env.WorkDir, "run", "netns", netns)}
				if _, err := os.Stat(n.Dir); err == nil {
					if _, err := n.Down(context.Background()); err != nil {
						t.Errorf("clean up: %v", err)
					}
				}
				if s, ok := remotes.Load(env.WorkDir); ok {
					s.(func())()
				}
				dirs, _ := filepath.Glob(filepath.Join(env.WorkDir, "run", "*", "*.lock"))
				for _, dir := range dirs {
					dir = filepath.Dir(dir)
					f, err := fleet.Open(fleet.Default(), env.WorkDir, dir)
					if err == nil {
						_, err = f.Stop(context.Background(), 10*time.Millisecond)
					}
					if err != nil {
						t.Errorf("clean up: %v", err)
					}
				}
			})
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// occupy ADDR holds a TCP port until the script's end.
			"occupy": func(ts *testscript.TestScript, neg bool, args []string) {
				l, err := net.Listen("tcp", args[0])
				ts.Check(err)
				ts.Defer(func() { l.Close() })
			},
			// sshd starts one, and writes .env for it.
			"sshd": func(ts *testscript.TestScript, neg bool, args []string) {
				port, err := strconv.Atoi(ts.Getenv("SSHD_PORT"))
				ts.Check(err)
				s := fleettest.StartSSHD(t, port)
				ts.Setenv("REMOTE", s.RemoteDir)
				env := ts.MkAbs(".env")
				ts.Check(os.WriteFile(env, []byte(s.Env()), 0o644))
				remotes.Store(ts.Getenv("WORK"), func() {
					inv, err := fleet.Load(env)
					if err != nil {
						t.Errorf("clean up: %v", err)
						return
					}
					f, err := fleet.Open(inv, ts.Getenv("WORK"), "run/hashiraft")
					if err == nil && exists(filepath.Join(s.RemoteDir, "run")) {
						_, err = f.Stop(context.Background(), 10*time.Millisecond)
					}
					if err == nil {
						err = f.Disconnect(context.Background())
					}
					if err != nil {
						t.Errorf("clean up: %v", err)
					}
				})
			},
			// hashiraft puts a product's server and client into bin/.
			"hashiraft": func(ts *testscript.TestScript, neg bool, args []string) {
				ts.Check(os.MkdirAll(ts.MkAbs("bin"), 0o755))
				for _, part := range []string{"server", "client"} {
					built, err := product(t, part)
					ts.Check(err)
					ts.Check(os.Symlink(built, ts.MkAbs("bin/hashiraft-"+part)))
				}
			},
		},
	})
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

var (
	builtMu  sync.Mutex
	builtDir string
)

// product builds a part of hashiraft, once for all scripts.
func product(t *testing.T, part string) (string, error) {
	builtMu.Lock()
	defer builtMu.Unlock()
	if builtDir == "" {
		builtDir = t.TempDir()
	}
	file := filepath.Join(builtDir, part)
	if exists(file) {
		return file, nil
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", file, "raftrig/hashiraft/"+part)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %s", err, out)
	}
	return file, nil
}
