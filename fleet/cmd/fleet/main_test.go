package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"raftrig/fleet"
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
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			ports, err := fleet.FreePorts(1, fleet.Default().Hosts()...)
			if err != nil {
				return err
			}
			env.Setenv("GORACE", "atexit_sleep_ms=0") // or each command takes a second to end
			env.Setenv("PORT", strconv.Itoa(ports[0]))
			env.Defer(func() {
				dirs, _ := filepath.Glob(filepath.Join(env.WorkDir, "run", "*"))
				for _, dir := range dirs {
					f, err := fleet.Open(fleet.Default(), dir)
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
		},
	})
}
