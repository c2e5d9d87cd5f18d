package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"raftrig/loadgen"
	"raftrig/record"
)

// poll is how often a node is asked for something that has to come.
const poll = 50 * time.Millisecond

// ask all nodes.
func ask(ctx context.Context, sys loadgen.System) []loadgen.NodeStatus {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return sys.Status(ctx)
}

// down is the first node that did not answer.
func down(nodes []loadgen.NodeStatus) error {
	for _, n := range nodes {
		if n.Err != nil {
			return n.Err
		}
	}
	return nil
}

// await asks until ok takes the answer, or the time is up.
func await(ctx context.Context, sys loadgen.System, limit time.Duration, ok func([]loadgen.NodeStatus) bool) ([]loadgen.NodeStatus, bool) {
	end := time.Now().Add(limit)
	for {
		nodes := ask(ctx, sys)
		if ok(nodes) {
			return nodes, true
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return nodes, false
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}

func (c *command) status(ctx context.Context, args []string) error {
	asJSON := c.flags.Bool("json", false, "print JSON")
	if err := c.parse(args); err != nil {
		return err
	}
	sys, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer sys.Close()
	nodes := ask(ctx, sys)
	if *asJSON {
		type node struct {
			loadgen.NodeStatus
			Err string `json:",omitempty"`
		}
		list := make([]node, len(nodes))
		for i, n := range nodes {
			list[i].NodeStatus = n
			if n.Err != nil {
				list[i].Err = n.Err.Error()
			}
		}
		e := json.NewEncoder(c.stdout)
		e.SetIndent("", "  ")
		err = e.Encode(list)
	} else {
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "node\taddress\trole\tleader\tterm\tapplied\tcount\tdigest\tversion\tlog")
		for _, n := range nodes {
			if n.Err != nil {
				why := errors.Unwrap(n.Err) // without the node, which the row has
				if why == nil {
					why = n.Err
				}
				fmt.Fprintf(w, "%d\t%s\t%v\n", n.Node, n.Addr, why)
				continue
			}
			role := "follower"
			if n.Leads {
				role = "leader"
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", n.Node, n.Addr, role, n.Leader, n.Term, n.Applied, n.Count, n.Digest, n.Version, n.Log)
		}
		err = w.Flush()
	}
	if err != nil {
		return err
	}
	if err := down(nodes); err != nil {
		return err
	}
	if loadgen.Leading(nodes) == nil {
		return errors.New("no node leads: see the servers' logs")
	}
	return nil
}

func (c *command) leader(ctx context.Context, args []string) error {
	var wait time.Duration
	c.flags.Var(seconds(&wait, 0), "wait", "`time` to wait for a leader that all others follow")
	if err := c.parse(args); err != nil {
		return err
	}
	sys, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer sys.Close()
	nodes, ok := await(ctx, sys, wait, func(nodes []loadgen.NodeStatus) bool {
		l := loadgen.Leading(nodes)
		if l == nil {
			return false
		}
		for _, n := range nodes {
			if n.Err == nil && n.Leader != l.Node {
				return false
			}
		}
		return wait == 0 || down(nodes) == nil
	})
	l := loadgen.Leading(nodes)
	if l == nil || !ok {
		if err := down(nodes); err != nil {
			return fmt.Errorf("no settled leader: %w", err)
		}
		return errors.New("no settled leader: the nodes do not agree on one; see the servers' logs")
	}
	fmt.Fprintf(c.stdout, "node %d leads, term %d\n", l.Node, l.Term)
	return nil
}

func (c *command) transfer(ctx context.Context, args []string) error {
	to := c.flags.Int("to", 0, "`node` that shall lead")
	if err := c.parse(args); err != nil {
		return err
	}
	hosts, err := c.hostList()
	if err != nil {
		return err
	}
	if *to < 1 || *to > len(hosts) {
		return loadgen.Usagef("-to %d: want a node from 1 to %d", *to, len(hosts))
	}
	sys, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer sys.Close()
	l, err := lead(ctx, sys, *to)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "node %d leads, term %d\n", l.Node, l.Term)
	return nil
}

// transferTimeout bounds a transfer and the wait until it shows.
const transferTimeout = 10 * time.Second

// lead makes a node the leader, and waits until every node that answers says
// so.
func lead(ctx context.Context, sys loadgen.System, node int) (*loadgen.NodeStatus, error) {
	bounded, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	if err := sys.TransferLeader(bounded, node); err != nil {
		return nil, err
	}
	nodes, ok := await(ctx, sys, transferTimeout, func(nodes []loadgen.NodeStatus) bool {
		l := loadgen.Leading(nodes)
		if l == nil || l.Node != node {
			return false
		}
		for _, n := range nodes {
			if n.Err == nil && n.Leader != node {
				return false
			}
		}
		return true
	})
	if !ok {
		return nil, fmt.Errorf("node %d does not lead %v after the transfer: see the servers' logs", node, transferTimeout)
	}
	return loadgen.Leading(nodes), nil
}

// verify holds a record against the cluster.
func (c *command) verify(ctx context.Context, args []string) error {
	path := c.flags.String("record", "", "`file` of the run; the newest in -out when not given")
	out := c.flags.String("out", "results/"+c.product.Name, "`folder` of the records")
	var wait time.Duration
	c.flags.Var(seconds(&wait, 10*time.Second), "wait", "`time` for the nodes to reach one index")
	if err := c.parse(args); err != nil {
		return err
	}
	if *path == "" {
		newest, err := newestRecord(*out)
		if err != nil {
			return err
		}
		*path = newest
	}
	run, err := record.Read(*path)
	if err != nil {
		return err
	}
	sys, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer sys.Close()
	// Followers learn of the last commit by the next heartbeat.
	nodes, settled := await(ctx, sys, wait, func(nodes []loadgen.NodeStatus) bool {
		for _, n := range nodes {
			if n.Err != nil || n.Applied != nodes[0].Applied {
				return false
			}
		}
		return true
	})
	if err := down(nodes); err != nil {
		return fmt.Errorf("cannot verify: %w", err)
	}
	if faults := Check(run, nodes, settled); len(faults) > 0 {
		return fmt.Errorf("verify FAILED for %s: %s", *path, strings.Join(faults, "; "))
	}
	fmt.Fprintf(c.stdout, "verify: OK: %d acknowledged, %d applied since; %d nodes at index %d agree on digest %s\n",
		run.AckedTotal, nodes[0].Count-run.AppliedBefore, len(nodes), nodes[0].Applied, nodes[0].Digest)
	return nil
}

// Check holds what a run was told against what the nodes say: no acknowledged
// request may be missing, and equal indexes have to mean equal states. All
// nodes have answered; settled says whether they came to one index.
func Check(run *record.Run, nodes []loadgen.NodeStatus, settled bool) (faults []string) {
	at := map[uint64]loadgen.NodeStatus{}
	for _, n := range nodes {
		if n.Count < run.AppliedBefore {
			faults = append(faults, fmt.Sprintf("node %d has applied %d requests, fewer than the %d before the run: it was started anew since, or has lost some", n.Node, n.Count, run.AppliedBefore))
		} else if since := n.Count - run.AppliedBefore; since < uint64(run.AckedTotal) {
			faults = append(faults, fmt.Sprintf("node %d has applied %d requests since the run began, but %d were acknowledged: %d are lost", n.Node, since, run.AckedTotal, uint64(run.AckedTotal)-since))
		}
		if o, ok := at[n.Applied]; ok && o.Digest != n.Digest {
			faults = append(faults, fmt.Sprintf("nodes %d and %d differ at index %d: digests %s and %s", o.Node, n.Node, n.Applied, o.Digest, n.Digest))
		} else if !ok {
			at[n.Applied] = n
		}
	}
	if !settled {
		var indexes []string
		for _, n := range nodes {
			indexes = append(indexes, fmt.Sprintf("node %d %d", n.Node, n.Applied))
		}
		faults = append(faults, "the nodes do not come to one index: "+strings.Join(indexes, ", ")+": is something writing, or a follower behind?")
	}
	return faults
}

// newestRecord by time of writing.
func newestRecord(dir string) (newest string, err error) {
	var when time.Time
	names, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return "", err
	}
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil || strings.HasSuffix(name, partialSuffix) {
			continue
		}
		if newest == "" || info.ModTime().After(when) {
			newest, when = name, info.ModTime()
		}
	}
	if newest == "" {
		return "", fmt.Errorf("no record in %s: run the client first, or name one by -record", dir)
	}
	return newest, nil
}
