package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"raftrig/fleet"
)

func start(ctx context.Context, c *call) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout+c.settle)
	defer cancel()
	sts, err := f.Start(ctx, fleet.Command{Argv: c.args, Env: c.environ, Settle: c.settle})
	for _, st := range sts {
		if st.PID != 0 {
			fmt.Fprintf(c.stdout, "%s started (pid %d)\n", fleet.Title(st.Node), st.PID)
		}
	}
	var others []error
	var running []string
	for _, e := range fleet.NodeErrors(err) {
		var re *fleet.RunningError
		if errors.As(e, &re) {
			fmt.Fprintf(c.stdout, "%s already running (pid %d)\n", fleet.Title(e.Node), re.PID)
			running = append(running, fleet.Title(e.Node))
		} else {
			others = append(others, e)
		}
	}
	switch {
	case len(others) > 0:
		return errors.Join(others...)
	case len(running) > 0:
		return fmt.Errorf("already running: %s: make stop (fleet stop) first", strings.Join(running, ", "))
	}
	return err
}

func stop(ctx context.Context, c *call) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout+c.timeout)
	defer cancel()
	results, err := f.Stop(ctx, c.timeout)
	failed := make(map[int]bool)
	for _, e := range fleet.NodeErrors(err) {
		failed[e.Node] = true
	}
	for i, r := range results {
		id := f.Nodes[i].ID
		switch {
		case failed[id]:
		case r.Killed:
			fmt.Fprintf(c.stdout, "%s stopped by SIGKILL: it had not ended after %v\n", fleet.Title(id), c.timeout)
		case r.WasRunning:
			fmt.Fprintf(c.stdout, "%s stopped\n", fleet.Title(id))
		default:
			fmt.Fprintf(c.stdout, "%s not running\n", fleet.Title(id))
		}
	}
	return err
}

func status(ctx context.Context, c *call) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	all, err := f.Status(ctx)
	failed := make(map[int]bool)
	for _, e := range fleet.NodeErrors(err) {
		failed[e.Node] = true
	}
	known := make([]fleet.Status, 0, len(all))
	running := 0
	for i, st := range all {
		if failed[f.Nodes[i].ID] {
			continue
		}
		known = append(known, st)
		if st.State == fleet.Running {
			running++
		}
	}
	if c.json {
		enc := json.NewEncoder(c.stdout)
		enc.SetIndent("", "  ")
		if e := enc.Encode(known); e != nil {
			return e
		}
	} else if e := table(c.stdout, known); e != nil {
		return e
	}
	if err == nil && running < len(all) {
		err = fmt.Errorf("%d of %d nodes running", running, len(all))
	}
	return err
}

func table(w io.Writer, sts []fleet.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "node\thost\tstate\tpid\tup_s\tcpu_s\trss_mib")
	for _, st := range sts {
		pid, up, cpu, rss := "-", "-", "-", "-"
		if st.PID != 0 {
			pid = strconv.Itoa(st.PID)
		}
		if st.Alive() {
			up = fmt.Sprintf("%.1f", st.UptimeS)
			cpu = fmt.Sprintf("%.2f", st.CPUS)
			rss = fmt.Sprintf("%.1f", float64(st.RSSBytes)/(1<<20))
		}
		who := "client"
		if st.Node > 0 {
			who = strconv.Itoa(st.Node)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", who, st.Host, st.State, pid, up, cpu, rss)
	}
	return t.Flush()
}

func sendSignal(ctx context.Context, c *call) error {
	sig, err := fleet.ParseSignal(c.args[0])
	if err != nil {
		return usageError{err}
	}
	f, err := c.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	return f.Signal(ctx, sig)
}

func logs(ctx context.Context, c *call) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	return f.Logs(ctx, c.lines, c.follow, c.stdout)
}

func wait(ctx context.Context, c *call) error {
	f, err := c.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	out, err := f.Wait(ctx, c.args)
	if err != nil {
		return err
	}
	_, err = c.stdout.Write(out)
	return err
}
