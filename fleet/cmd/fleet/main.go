// Command fleet controls the nodes of a cluster; see fleet help.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/fleet"
)

const usage = `fleet controls the nodes of a cluster, on the hosts that .env names.

usage: fleet VERB [flags] [arguments]

  start [flags] -- COMMAND...    start COMMAND on each node
  stop                           end what start started, and its children
  status                         say what each node does; exit 0 if all run
  signal NAME                    send STOP, CONT, TERM, KILL, INT, QUIT or HUP
  logs                           print the end of each node's log
  wait [flags] -- PROBE...       run PROBE until it succeeds or a node dies
  hosts                          print the nodes' addresses, with commas

COMMAND may hold {id} {addr} {peers} {hosts} {dir}: the node's number, its
private address, the private and the public addresses of all nodes, the node's
own directory, where it also works. {addr:PORT} {peers:PORT} {hosts:PORT} put
the port behind each. PROBE may hold {peers} and {hosts}. No shell is involved.

flags of all verbs:
  -env FILE       inventory (default .env at the repository's root; without
                  that file three nodes on 127.0.0.11-13 of this host)
  -nodes 1,3      act on these nodes only
flags of all verbs but hosts:
  -product NAME   whose nodes
  -dir DIR        run directory (default run/NAME at the repository's root)
flags of single verbs:
  start   -e KEY=VALUE  add to the environment (repeatable)
          -settle 300ms watch that long for an early end
  stop    -timeout 10s  time between SIGTERM and SIGKILL
  status  -json
  logs    -n 20         lines a node, -1 for all
          -f            go on with what is added
  wait    -timeout 20s  give up after that long
  hosts   -private      addresses that the nodes use among themselves
          -port PORT    put the port behind each

exit status: 0, 1 failure, 2 usage
`

// opTimeout bounds a verb that has no time-out of its own.
const opTimeout = time.Minute

type usageError struct{ error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format+" (fleet help says more)", args...)}
}

func main() {
	// What else is open came from make or a test harness; a node would hold it
	// open for as long as it runs.
	unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if err == nil {
		return
	}
	for _, line := range describe(err) {
		fmt.Fprintf(os.Stderr, "fleet: %s\n", line)
	}
	if errors.As(err, new(usageError)) {
		os.Exit(2)
	}
	os.Exit(1)
}

// describe gives a line for each failure, and one for nodes that failed alike.
func describe(err error) []string {
	list := fleet.NodeErrors(err)
	if len(list) == 0 {
		return []string{err.Error()}
	}
	var order []string
	nodes := make(map[string][]string)
	for _, e := range list {
		text := e.Err.Error()
		if nodes[text] == nil {
			order = append(order, text)
		}
		nodes[text] = append(nodes[text], strconv.Itoa(e.Node))
	}
	var lines []string
	for _, text := range order {
		lines = append(lines, fmt.Sprintf("node %s: %s", strings.Join(nodes[text], ", "), text))
	}
	return lines
}

// options are the values of all verbs' flags.
type options struct {
	env, product, dir, nodes string
	environ                  []string
	settle, timeout          time.Duration
	json, follow, private    bool
	lines, port              int
}

// verb is one of the commands: its own flags, whether what follows the flags
// is a command line, how many arguments it takes if not, and what it does.
type verb struct {
	flags   func(*flag.FlagSet, *options)
	command bool
	args    int
	do      func(context.Context, *fleet.Fleet, *options, []string, io.Writer) error
}

var verbs = map[string]verb{
	"start": {do: start, command: true, flags: func(fs *flag.FlagSet, o *options) {
		fs.Func("e", "", func(s string) error {
			if key, _, ok := strings.Cut(s, "="); !ok || key == "" {
				return errors.New("want KEY=VALUE")
			}
			o.environ = append(o.environ, s)
			return nil
		})
		fs.DurationVar(&o.settle, "settle", fleet.DefaultSettle, "")
	}},
	"stop": {do: stop, flags: func(fs *flag.FlagSet, o *options) {
		fs.DurationVar(&o.timeout, "timeout", fleet.DefaultGrace, "")
	}},
	"status": {do: status, flags: func(fs *flag.FlagSet, o *options) {
		fs.BoolVar(&o.json, "json", false, "")
	}},
	"signal": {do: sendSignal, args: 1},
	"logs": {do: logs, flags: func(fs *flag.FlagSet, o *options) {
		fs.IntVar(&o.lines, "n", 20, "")
		fs.BoolVar(&o.follow, "f", false, "")
	}},
	"wait": {do: wait, command: true, flags: func(fs *flag.FlagSet, o *options) {
		fs.DurationVar(&o.timeout, "timeout", 20*time.Second, "")
	}},
	"hosts": {flags: func(fs *flag.FlagSet, o *options) {
		fs.BoolVar(&o.private, "private", false, "")
		fs.IntVar(&o.port, "port", 0, "")
	}},
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return usagef("which verb? start, stop, status, signal, logs, wait or hosts")
	}
	name := args[0]
	switch name {
	case "help", "-h", "-help", "--help":
		_, err := io.WriteString(stdout, usage)
		return err
	}
	v, ok := verbs[name]
	if !ok {
		return usagef("no verb %q: want start, stop, status, signal, logs, wait or hosts", name)
	}
	o, rest, err := parse(name, v, args[1:])
	if errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	if err != nil {
		return err
	}

	root := findRoot()
	if o.env == "" {
		o.env = filepath.Join(root, ".env")
	}
	inv, err := fleet.Load(o.env)
	if err != nil {
		return err
	}
	ids, err := parseNodes(o.nodes, len(inv.Nodes))
	if err != nil {
		return err
	}
	if v.do == nil {
		return hosts(inv, ids, o, stdout)
	}
	if o.dir == "" {
		o.dir = filepath.Join(root, "run", o.product)
	}
	f, err := fleet.Open(inv, o.dir)
	if err == nil {
		f, err = f.Only(ids...)
	}
	if err != nil {
		return err
	}
	return v.do(ctx, f, o, rest, stdout)
}

var productRE = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)

// parse reads the flags of a verb, and what is left behind them.
func parse(name string, v verb, args []string) (*options, []string, error) {
	o := new(options)
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.env, "env", "", "")
	fs.StringVar(&o.nodes, "nodes", "", "")
	if v.do != nil {
		fs.StringVar(&o.product, "product", "", "")
		fs.StringVar(&o.dir, "dir", "", "")
	}
	if v.flags != nil {
		v.flags(fs, o)
	}
	var rest []string
	for {
		if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
			return nil, nil, err
		} else if err != nil {
			return nil, nil, usagef("%s: %v", name, err)
		}
		args = fs.Args()
		if v.command || len(args) == 0 {
			rest = append(rest, args...)
			break
		}
		rest, args = append(rest, args[0]), args[1:]
	}
	switch {
	case v.command && len(rest) == 0:
		return nil, nil, usagef("%s: no command: fleet %s [flags] -- COMMAND", name, name)
	case !v.command && len(rest) > v.args:
		return nil, nil, usagef("%s: argument %q is one too many", name, rest[v.args])
	case !v.command && len(rest) < v.args:
		return nil, nil, usagef("%s: no signal: want STOP, CONT, TERM, KILL, INT, QUIT or HUP", name)
	case o.settle < 0 || o.timeout < 0 || (name == "wait" || name == "stop") && o.timeout == 0:
		return nil, nil, usagef("%s: a time must be more than 0", name)
	case o.port < 0 || o.port > 65535:
		return nil, nil, usagef("%s: -port %d: want 1 to 65535", name, o.port)
	case v.do != nil && o.product == "" && o.dir == "":
		return nil, nil, usagef("%s: whose nodes? -product NAME", name)
	case o.product != "" && !productRE.MatchString(o.product):
		return nil, nil, usagef("%s: -product %q: want a-z, 0-9, '_' and '-'", name, o.product)
	}
	return o, rest, nil
}

// parseNodes reads "1,3"; nothing is all of them.
func parseNodes(s string, nodes int) ([]int, error) {
	var ids []int
	if s == "" {
		for id := 1; id <= nodes; id++ {
			ids = append(ids, id)
		}
		return ids, nil
	}
	seen := make(map[int]bool)
	for part := range strings.SplitSeq(s, ",") {
		id, err := strconv.Atoi(part)
		if err != nil || id < 1 || id > nodes || seen[id] {
			return nil, usagef("-nodes %q: want numbers from 1 to %d with commas, each once", s, nodes)
		}
		seen[id] = true
		ids = append(ids, id)
	}
	return ids, nil
}

// findRoot gives the folder above this one that holds go.mod, or this one, so
// that a product's own folder shares the root's .env and run/.
func findRoot() string {
	wd, err := os.Getwd()
	if err != nil {
		return "."
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return wd
		}
	}
}

func hosts(inv fleet.Inventory, ids []int, o *options, stdout io.Writer) error {
	all := inv.Hosts()
	if o.private {
		all = inv.PrivateHosts()
	}
	var chosen []string
	for _, id := range ids {
		chosen = append(chosen, fleet.HostPort(all[id-1], o.port))
	}
	_, err := fmt.Fprintln(stdout, strings.Join(chosen, ","))
	return err
}

func start(ctx context.Context, f *fleet.Fleet, o *options, argv []string, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, opTimeout+o.settle)
	defer cancel()
	sts, err := f.Start(ctx, fleet.Command{Argv: argv, Env: o.environ, Settle: o.settle})
	for _, st := range sts {
		if st.PID != 0 {
			fmt.Fprintf(stdout, "node %d started (pid %d)\n", st.Node, st.PID)
		}
	}
	var others []error
	var running []string
	for _, e := range fleet.NodeErrors(err) {
		var re *fleet.RunningError
		if errors.As(e, &re) {
			fmt.Fprintf(stdout, "node %d already running (pid %d)\n", e.Node, re.PID)
			running = append(running, strconv.Itoa(e.Node))
		} else {
			others = append(others, e)
		}
	}
	switch {
	case len(others) > 0:
		return errors.Join(others...)
	case len(running) > 0:
		return fmt.Errorf("already running: node %s: make stop (fleet stop) first", strings.Join(running, ", "))
	}
	return err
}

func stop(ctx context.Context, f *fleet.Fleet, o *options, _ []string, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, opTimeout+o.timeout)
	defer cancel()
	results, err := f.Stop(ctx, o.timeout)
	failed := make(map[int]bool)
	for _, e := range fleet.NodeErrors(err) {
		failed[e.Node] = true
	}
	for i, r := range results {
		id := f.Nodes[i].ID
		switch {
		case failed[id]:
		case r.Killed:
			fmt.Fprintf(stdout, "node %d stopped by SIGKILL: it had not ended after %v\n", id, o.timeout)
		case r.WasRunning:
			fmt.Fprintf(stdout, "node %d stopped\n", id)
		default:
			fmt.Fprintf(stdout, "node %d not running\n", id)
		}
	}
	return err
}

func status(ctx context.Context, f *fleet.Fleet, o *options, _ []string, stdout io.Writer) error {
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
	if o.json {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		if e := enc.Encode(known); e != nil {
			return e
		}
	} else if e := table(stdout, known); e != nil {
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
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", st.Node, st.Host, st.State, pid, up, cpu, rss)
	}
	return t.Flush()
}

func sendSignal(ctx context.Context, f *fleet.Fleet, _ *options, args []string, stdout io.Writer) error {
	sig, err := fleet.ParseSignal(args[0])
	if err != nil {
		return usageError{err}
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	return f.Signal(ctx, sig)
}

func logs(ctx context.Context, f *fleet.Fleet, o *options, _ []string, stdout io.Writer) error {
	return f.Logs(ctx, o.lines, o.follow, stdout)
}

func wait(ctx context.Context, f *fleet.Fleet, o *options, probe []string, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	out, err := f.Wait(ctx, probe)
	if err != nil {
		return err
	}
	_, err = stdout.Write(out)
	return err
}
