package openraft

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"raftrig/loadgen"
	"raftrig/loadgen/nodehttp"
	"raftrig/loadgen/sock"
)

const (
	// initVerb is the step between the start of the nodes and a cluster.
	initVerb = "init-cluster"
	// askTimeout bounds one question to a node.
	askTimeout = 2 * time.Second
	// stepGap is between two looks at the cluster.
	stepGap = 50 * time.Millisecond
)

// initMain runs init-cluster and returns the exit status.
func initMain(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := initVerbRun(ctx, args, stdout)
	var usage *loadgen.UsageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "openraft-client %s: %v\n", initVerb, err)
		return 2
	}
	fmt.Fprintf(stderr, "openraft-client %s: %v\n", initVerb, err)
	return 1
}

func initVerbRun(ctx context.Context, args []string, stdout io.Writer) error {
	f := flag.NewFlagSet(initVerb, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	hosts := f.String("hosts", "127.0.0.11,127.0.0.12,127.0.0.13", "the nodes' `hosts`, in the order of their numbers")
	f.String("topology", "local", "not used: the client's other commands have it")
	Product().Flags(f)
	wait := f.Duration("wait", 30*time.Second, "`time` until every node has to be a member")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, "openraft-client %s [flags]: make a cluster of the nodes, or take back those that have lost their log\n\n", initVerb)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return nil
	case err != nil:
		return loadgen.Usagef("%v (see -help)", err)
	case f.NArg() > 0:
		return loadgen.Usagef("unexpected argument %q: flags only (see -help)", f.Arg(0))
	case *wait <= 0:
		return loadgen.Usagef("-wait %v: want more than 0", *wait)
	}
	port := f.Lookup("port").Value.(flag.Getter).Get().(int)
	addrs, err := sock.Resolve(ctx, strings.Split(strings.ReplaceAll(*hosts, " ", ""), ","), port)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, *wait)
	defer cancel()
	text, err := InitCluster(bounded, addrs, func(did string) { fmt.Fprintln(stdout, did) })
	switch {
	case err == nil:
		_, err = fmt.Fprintln(stdout, text)
		return err
	case ctx.Err() != nil:
		return errors.New("interrupted; it can be run again")
	case bounded.Err() != nil:
		return fmt.Errorf("not done after %v: %w", *wait, err)
	}
	return err
}

// InitCluster makes a cluster of the nodes at addrs, node i at addrs[i-1], and
// returns when all of them are voting members and follow one leader; the text
// says which. did is told of each step.
//
// It may be run at any time, for it looks at what is there and does what is
// missing: node 1 is initialised only when all nodes answer and none knows of a
// cluster; a node that the cluster does not have, or that has lost its log, is
// added as a learner, for which the server takes out its former self first; at
// last all nodes become voters.
//
// An error says what was missing when ctx ended, or what cannot be mended.
func InitCluster(ctx context.Context, addrs []netip.AddrPort, did func(string)) (string, error) {
	f := forming{addrs: addrs, did: did}
	for i := range addrs {
		f.all = append(f.all, i+1)
	}
	for {
		text, err := f.step(ctx)
		var hopeless *hopelessError
		if text != "" || errors.As(err, &hopeless) {
			return text, err
		}
		// What a question says once the time is up is not what is missing.
		if ctx.Err() == nil || f.missing == nil {
			f.missing = err
		}
		select {
		case <-ctx.Done():
			return "", f.missing
		case <-time.After(stepGap):
		}
	}
}

// hopelessError is what waiting does not mend.
type hopelessError struct{ msg string }

func (e *hopelessError) Error() string { return e.msg }

type forming struct {
	addrs   []netip.AddrPort
	all     []int // 1 to len(addrs)
	did     func(string)
	missing error
}

// step looks at the cluster and does the next thing. The text is not empty when
// there was nothing to do; else the error says what was missing.
func (f *forming) step(ctx context.Context) (string, error) {
	nodes, err := f.look(ctx)
	if err != nil {
		return "", err
	}
	leader, known := 0, 0
	for i, m := range nodes {
		if m.State == "Leader" && (leader == 0 || m.CurrentTerm > nodes[leader-1].CurrentTerm) {
			leader = i + 1
		}
		if !m.empty() && (known == 0 || m.CurrentTerm > nodes[known-1].CurrentTerm) {
			known = i + 1
		}
	}
	if known == 0 {
		return "", f.do(ctx, 1, "/init", [][2]any{{1, f.addrs[0].String()}}, "initialised node 1")
	}
	if leader != 0 {
		known = leader
	}
	membership := nodes[known-1].MembershipConfig.Membership
	if len(membership.Configs) != 1 {
		return "", errors.New("a change of the membership is under way")
	}
	voters := slices.Sorted(slices.Values(membership.Configs[0]))
	var lost []int
	for i, m := range nodes {
		if m.empty() && slices.Contains(voters, i+1) {
			lost = append(lost, i+1)
		}
	}
	switch {
	case 2*len(lost) >= len(voters):
		return "", &hopelessError{fmt.Sprintf("nodes %s have lost their log, so that no majority remembers what was acknowledged: start anew (make restart)", list(lost))}
	case leader == 0:
		return "", errors.New("no node leads: see the servers' logs")
	}
	for i, m := range nodes {
		n := i + 1
		if _, member := membership.Nodes[n]; !member || m.empty() {
			did := fmt.Sprintf("added node %d as a learner", n)
			if member {
				did = fmt.Sprintf("took out node %d, which has lost its log, and added it as a learner", n)
			}
			return "", f.do(ctx, leader, "/add-learner", []any{n, f.addrs[i].String()}, did)
		}
	}
	if !slices.Equal(voters, f.all) {
		return "", f.do(ctx, leader, "/change-membership", f.all, "made nodes "+list(f.all)+" the voters")
	}
	for i, m := range nodes {
		configs := m.MembershipConfig.Membership.Configs
		if m.CurrentLeader != leader || len(configs) != 1 || !slices.Equal(slices.Sorted(slices.Values(configs[0])), voters) {
			return "", fmt.Errorf("node %d at %s does not yet follow node %d", i+1, f.addrs[i], leader)
		}
	}
	for _, n := range nodehttp.Status(ctx, f.addrs, "/status") {
		if n.Err != nil {
			return "", n.Err
		}
		if n.Leader != leader {
			return "", fmt.Errorf("node %d at %s does not yet follow node %d", n.Node, n.Addr, leader)
		}
	}
	return fmt.Sprintf("node %d leads, term %d; nodes %s vote", leader, nodes[leader-1].CurrentTerm, list(voters)), nil
}

// empty says whether the node knows of no cluster.
func (m *metrics) empty() bool { return len(m.MembershipConfig.Membership.Configs) == 0 }

// look asks all nodes for their metrics. Each has to answer.
func (f *forming) look(ctx context.Context) ([]*metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	nodes := make([]*metrics, len(f.addrs))
	errs := make([]error, len(f.addrs))
	var wg sync.WaitGroup
	for i, addr := range f.addrs {
		wg.Go(func() {
			var says json.RawMessage
			if errs[i] = nodehttp.Get(ctx, addr, "/metrics", &says); errs[i] == nil {
				nodes[i], errs[i] = readMetrics(200, says, i+1)
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("node %d at %s: %w", i+1, f.addrs[i], err)
		}
	}
	return nodes, nil
}

// do asks node to change the cluster; did is what it has then done. It returns
// an error in any case: that it may not be done yet.
func (f *forming) do(ctx context.Context, node int, path string, body any, did string) error {
	var says struct{ Ok, Err json.RawMessage }
	err := nodehttp.Post(ctx, f.addrs[node-1], path, body, &says)
	if err == nil && says.Err != nil {
		err = fmt.Errorf("%.200s", says.Err)
	}
	if err != nil {
		err = fmt.Errorf("node %d at %s: POST %s: %w", node, f.addrs[node-1], path, err)
		var refused *nodehttp.StatusError
		if errors.As(err, &refused) && refused.Code >= 400 && refused.Code < 500 {
			return &hopelessError{err.Error()}
		}
		return err
	}
	f.did(did)
	return errors.New(did + ", which does not show yet")
}

// list is 1,2,3.
func list(nodes []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(nodes), " ", ","), "[]")
}
