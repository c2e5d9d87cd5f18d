package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/fleet"
)

// pushTimeout bounds a push to one host: some tens of megabytes over a slow
// line.
const pushTimeout = 15 * time.Minute

func hosts(_ context.Context, c *call) error {
	all := c.inv.Hosts()
	if c.private {
		all = c.inv.PrivateHosts()
	}
	var chosen []string
	for _, id := range c.ids {
		chosen = append(chosen, all[id-1])
	}
	if len(c.ids) == 0 {
		chosen = all
	}
	for i := range chosen {
		chosen[i] = fleet.HostPort(chosen[i], c.port)
	}
	_, err := fmt.Fprintln(c.stdout, strings.Join(chosen, ","))
	return err
}

func execute(ctx context.Context, c *call) error {
	f, hosts, err := c.hosts()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return f.Exec(ctx, hosts, c.args, c.stdout, c.stderr)
}

func push(ctx context.Context, c *call) error {
	f, hosts, err := c.hosts()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	sent, err := f.Push(ctx, hosts, c.args)
	for i, files := range sent {
		if len(files) > 0 {
			fmt.Fprintf(c.stdout, "%s gets %s\n", fleet.Title(hosts[i].ID), strings.Join(files, " "))
		}
	}
	return err
}

func pull(ctx context.Context, c *call) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	got, err := f.Pull(ctx, c.args)
	for _, file := range got {
		fmt.Fprintln(c.stdout, file)
	}
	return err
}

// client passes on the signals that it gets: the first has the client stop its
// load and write what it has, the second not wait for replies. A third is for
// fleet itself, should the host be gone.
func client(ctx context.Context, c *call) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	got := make(chan os.Signal, 4)
	signal.Notify(got, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(got)
	pass := make(chan unix.Signal, 2)
	go func() {
		for n := 1; ; n++ {
			select {
			case <-ctx.Done():
				return
			case sig := <-got:
				if n > cap(pass) {
					fmt.Fprintln(c.stderr, "fleet: leaving; what the client writes stays on its host (fleet pull)")
					os.Exit(1)
				}
				pass <- sig.(unix.Signal)
			}
		}
	}()
	exit, err := f.RunClient(ctx, fleet.ClientRun{Argv: c.args, Pull: c.pull, Stdout: c.stdout, Stderr: c.stderr, Signals: pass})
	if err == nil && exit != 0 {
		err = exitStatus(exit)
	}
	return err
}

func rtt(ctx context.Context, c *call) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	if c.save && len(c.ids) > 0 {
		return usagef("rtt: -save keeps the measurement of all nodes: leave -nodes out")
	}
	m, err := f.MeasureRTT(ctx, c.pings, c.stderr)
	if m == nil || len(m.Pairs) == 0 {
		return err
	}
	text, e := json.Marshal(m)
	if e == nil && c.json {
		_, e = fmt.Fprintf(c.stdout, "%s\n", text)
	} else if e == nil {
		e = m.Write(c.stdout, f.Nodes)
	}
	if e == nil && err == nil && c.save {
		e = fleet.SetEnv(c.env, "NODE_RTT", string(text))
	}
	return errors.Join(err, e)
}

func disconnect(ctx context.Context, c *call) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	return f.Disconnect(ctx)
}

// agent serves one call from another host. Its own place says where raftrig is
// here: ROOT/bin/fleet.
func agent() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	// A caller that is gone must not end the work on what it left.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
	return fleet.Agent(os.Stdin, os.Stdout, filepath.Dir(filepath.Dir(exe)))
}
