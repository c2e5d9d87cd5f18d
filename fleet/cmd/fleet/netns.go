package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"raftrig/fleet"
)

// namespaces are those that the inventory or the flags name.
func (c *call) namespaces() (*fleet.Netns, error) {
	n := &fleet.Netns{Prefix: c.inv.Netns, RTT: c.rtt}
	if c.name != "" {
		n.Prefix = c.name
	}
	if text := c.inv.Extra["RTT"]; text != "" && !c.rttSet {
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("%s: RTT=%s: want a time, as 390us", c.env, text)
		}
		n.RTT = d
	}
	n.Dir = filepath.Join(c.root, "run", "netns", n.Prefix)
	exe, err := os.Executable()
	n.Router = []string{exe, "delay"}
	return n, err
}

func (c *call) isNetns() bool {
	return c.inv.Topology == fleet.TopologyNetns && c.inv.Transport == fleet.TransportLocal
}

func netns(ctx context.Context, c *call) error {
	n, err := c.namespaces()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*opTimeout)
	defer cancel()
	switch c.args[0] {
	case "up":
		return netnsUp(ctx, c, n)
	case "down":
		removed, err := n.Down(ctx)
		for _, what := range removed {
			fmt.Fprintf(c.stdout, "removed %s\n", what)
		}
		if err == nil && c.isNetns() && c.inv.Netns == n.Prefix {
			err = os.Remove(c.env)
		}
		return err
	case "status":
		return netnsStatus(ctx, c, n)
	}
	return usagef("netns: %q: want up, down or status", c.args[0])
}

func netnsUp(ctx context.Context, c *call, n *fleet.Netns) error {
	_, err := os.Stat(c.env)
	if err == nil && !c.isNetns() {
		return fmt.Errorf("%s describes another fleet (TRANSPORT=%s TOPOLOGY=%s): make destroy, or move it away", c.env, c.inv.Transport, c.inv.Topology)
	}
	if err == nil && c.inv.Extra["RTT"] == fleet.DurationText(n.RTT) && c.inv.Netns == n.Prefix && whole(ctx, n) {
		fmt.Fprintf(c.stdout, "%s-* are up already, RTT=%s\n", n.Prefix, fleet.DurationText(n.RTT))
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	up, err := n.Up(ctx)
	if err != nil {
		return err
	}
	if err := fleet.WriteEnv(c.env, n.Env(up.Delay)); err != nil {
		_, downErr := n.Down(context.WithoutCancel(ctx))
		return errors.Join(err, downErr)
	}
	line := fmt.Sprintf("%s-1 to -3 and %s-client are up; node 1 to node 2 takes %.0f us there and back", n.Prefix, n.Prefix, up.RTTUS)
	if n.RTT > 0 {
		line += fmt.Sprintf(" (RTT=%s by %s)", fleet.DurationText(n.RTT), up.Delay)
	}
	_, err = fmt.Fprintln(c.stdout, line)
	return err
}

// whole says that all namespaces are there and joined.
func whole(ctx context.Context, n *fleet.Netns) bool {
	hosts, err := n.Status(ctx)
	for _, h := range hosts {
		if h.State != "joined" {
			return false
		}
	}
	return err == nil
}

func netnsStatus(ctx context.Context, c *call, n *fleet.Netns) error {
	hosts, err := n.Status(ctx)
	if len(hosts) == 0 {
		return err
	}
	t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "host\tnamespace\taddress\tzone\tstate")
	absent := 0
	for _, h := range hosts {
		if h.State == "absent" {
			absent++
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", fleet.Title(h.Node.ID), h.Namespace, h.Node.Addr, h.Node.Zone, h.State)
	}
	if e := t.Flush(); e != nil {
		return e
	}
	if err == nil && absent > 0 {
		err = fmt.Errorf("%d of %d namespaces are absent: make env TOPOLOGY=netns (fleet netns up)", absent, len(hosts))
	}
	return err
}

func partition(ctx context.Context, c *call) error {
	if len(c.ids) == 0 {
		return usagef("partition: which nodes? -nodes 2")
	}
	return c.relink(ctx, c.ids, (*fleet.Netns).Cut)
}

func heal(ctx context.Context, c *call) error {
	ids := c.ids
	if len(ids) == 0 {
		for id := 0; id <= fleet.Nodes; id++ {
			ids = append(ids, id)
		}
	}
	return c.relink(ctx, ids, (*fleet.Netns).Join)
}

func (c *call) relink(ctx context.Context, ids []int, change func(*fleet.Netns, context.Context, int) error) error {
	if !c.isNetns() {
		return fmt.Errorf("only network namespaces can be cut off, and the fleet has TRANSPORT=%s TOPOLOGY=%s: make env TOPOLOGY=netns (fleet netns up)", c.inv.Transport, c.inv.Topology)
	}
	n, err := c.namespaces()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	var errs []error
	for _, id := range ids {
		errs = append(errs, change(n, ctx, id))
	}
	return errors.Join(errs...)
}

// delay is the router that netns up starts: NAMESPACE ONE-WAY-DELAY.
func delay(args []string, stdout io.Writer) error {
	if len(args) != 2 {
		return usagef("delay: fleet netns up runs it, it is not for use by hand")
	}
	oneWay, err := time.ParseDuration(args[1])
	if err != nil {
		return usagef("delay: %v", err)
	}
	return fleet.DelayRouter(args[0], oneWay, stdout)
}
