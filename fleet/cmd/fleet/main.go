// Command fleet controls the nodes of a cluster; see fleet help.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
  client [flags] -- COMMAND...   run COMMAND on the client's host, pass signals
                                 on and its exit status back, and bring its
                                 files here
  exec [flags] -- COMMAND...     run COMMAND on all hosts, and wait for it
  push FILE...                   bring bin/fleet and files below the root to
                                 the hosts, as far as they have others
  pull PATH...                   bring files from the client's host here: those
                                 below a folder, or whose names begin with PATH
  rtt                            measure the round trips between the nodes
  netns up|down|status           a fleet of network namespaces here (root)
  partition, heal                take nodes off that network, and back
  hosts                          print the nodes' addresses, with commas
  disconnect                     end the connections that ssh keeps open

All but hosts, netns, partition and heal work on this host and over ssh
(TRANSPORT in .env). start, exec, client and wait replace {root}, the folder of
raftrig on the host, and {peers} {hosts}, the private and the public addresses
of all nodes, in their commands; start and exec {id} {addr} {dir} {shared}, the
node's number, its private address, its own directory, where start's command
also works, and whether another node runs on its host; client and wait {topology} {zones} {rtt}. Over ssh an argument that is a
path below the root here becomes the one below the root there. {addr:PORT} {peers:PORT}
{hosts:PORT} put the port behind each. No shell is involved. exec, client and
wait work in the root.

flags of all verbs:
  -env FILE       inventory (default .env at the repository's root; without
                  that file three nodes on 127.0.0.11-13 of this host)
  -nodes 1,3      act on these nodes only; "client" is the client's host
flags of start, stop, status, signal, logs, wait and exec:
  -product NAME   whose nodes
  -dir DIR        run directory (default run/NAME at the root)
flags of single verbs:
  start   -e KEY=VALUE  add to the environment (repeatable)
          -settle 300ms watch that long for an early end
  stop    -timeout 10s  time between SIGTERM and SIGKILL
  status  -json
  logs    -n 20         lines a node, -1 for all
          -f            go on with what is added
  wait    -timeout 20s  give up after that long
  client  -pull PATH    what to bring here afterwards, as pull does (repeatable)
  exec    -timeout 1m   end it after that long
  rtt     -n 200        replies a pair
          -json
          -save         keep the result in the inventory, for records
  netns   -rtt 390us    up: add that to round trips between zones
          -name NAME    begin the namespaces' names so (default raftrig)
  hosts   -private      addresses that the nodes use among themselves
          -port PORT    put the port behind each

exit status: 0, 1 failure, 2 usage; of client that of its command
`

// opTimeout bounds a verb that has no time-out of its own.
const opTimeout = time.Minute

type usageError struct{ error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format+" (fleet help says more)", args...)}
}

// exitStatus ends fleet with the status of the command that it ran.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	// What else is open came from make or a test harness; a node would hold it
	// open for as long as it runs.
	unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	if status := exitStatus(0); errors.As(err, &status) {
		os.Exit(int(status))
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
	where := make(map[string]string)
	for _, e := range list {
		text := e.Err.Error()
		name := fleet.Title(e.Node)
		if where[text] == "" {
			order = append(order, text)
		} else if short, ok := strings.CutPrefix(name, "node "); ok && strings.HasPrefix(where[text], "node ") {
			name = short
		}
		where[text] = strings.TrimPrefix(where[text]+", "+name, ", ")
	}
	var lines []string
	for _, text := range order {
		lines = append(lines, where[text]+": "+text)
	}
	return lines
}

// options are the values of all verbs' flags.
type options struct {
	env, product, dir, nodes, name string
	environ, pull                  []string
	settle, timeout, rtt           time.Duration
	json, follow, private, save    bool
	lines, port, pings             int
	rttSet                         bool
}

// call is one invocation of a verb.
type call struct {
	*options
	root   string
	inv    fleet.Inventory
	ids    []int // the nodes asked for; 0 is the client
	args   []string
	stdout io.Writer
	stderr io.Writer
}

// open gives the fleet with the nodes asked for.
func (c *call) open() (*fleet.Fleet, error) {
	f, err := fleet.Open(c.inv, c.root, c.dir)
	if err != nil || len(c.ids) == 0 {
		return f, err
	}
	return f.Only(c.ids...)
}

// hosts are those that exec and push are for.
func (c *call) hosts() (*fleet.Fleet, []fleet.Node, error) {
	f, err := fleet.Open(c.inv, c.root, c.dir)
	if err != nil {
		return nil, nil, err
	}
	hosts, err := f.On(c.ids...)
	return f, hosts, err
}

// verb is one of the commands.
type verb struct {
	do    func(context.Context, *call) error
	flags func(*flag.FlagSet, *options)
	// command says that what follows the flags is a command line. Otherwise
	// args is how many arguments there are; -1 for one or more.
	command bool
	args    int
	// missing is what to say of an absent argument.
	missing string
	product bool // it has -product and -dir
	needs   bool // and they must be given
	cluster bool // -nodes may not name the client's host
}

var verbs map[string]verb

func init() {
	verbs = map[string]verb{
		"start": {do: start, command: true, product: true, needs: true, flags: func(fs *flag.FlagSet, o *options) {
			fs.Func("e", "", func(s string) error {
				if key, _, ok := strings.Cut(s, "="); !ok || key == "" {
					return errors.New("want KEY=VALUE")
				}
				o.environ = append(o.environ, s)
				return nil
			})
			fs.DurationVar(&o.settle, "settle", fleet.DefaultSettle, "")
		}},
		"stop": {do: stop, product: true, needs: true, flags: func(fs *flag.FlagSet, o *options) {
			fs.DurationVar(&o.timeout, "timeout", fleet.DefaultGrace, "")
		}},
		"status": {do: status, product: true, needs: true, flags: func(fs *flag.FlagSet, o *options) {
			fs.BoolVar(&o.json, "json", false, "")
		}},
		"signal": {do: sendSignal, product: true, needs: true, args: 1,
			missing: "no signal: want STOP, CONT, TERM, KILL, INT, QUIT or HUP"},
		"logs": {do: logs, product: true, needs: true, flags: func(fs *flag.FlagSet, o *options) {
			fs.IntVar(&o.lines, "n", 20, "")
			fs.BoolVar(&o.follow, "f", false, "")
		}},
		"wait": {do: wait, command: true, product: true, needs: true, flags: func(fs *flag.FlagSet, o *options) {
			fs.DurationVar(&o.timeout, "timeout", 20*time.Second, "")
		}},
		"client": {do: client, command: true, flags: func(fs *flag.FlagSet, o *options) {
			fs.Func("pull", "", func(s string) error {
				if s == "" {
					return errors.New("want a path")
				}
				o.pull = append(o.pull, s)
				return nil
			})
		}},
		"exec": {do: execute, command: true, product: true, flags: func(fs *flag.FlagSet, o *options) {
			fs.DurationVar(&o.timeout, "timeout", opTimeout, "")
		}},
		"push": {do: push, args: -1, missing: "no file"},
		"pull": {do: pull, args: -1, missing: "no path"},
		"rtt": {do: rtt, cluster: true, flags: func(fs *flag.FlagSet, o *options) {
			fs.IntVar(&o.pings, "n", 200, "")
			fs.BoolVar(&o.json, "json", false, "")
			fs.BoolVar(&o.save, "save", false, "")
		}},
		"netns": {do: netns, args: 1, missing: "want up, down or status", flags: func(fs *flag.FlagSet, o *options) {
			fs.StringVar(&o.name, "name", "", "")
			fs.Func("rtt", "", func(s string) (err error) {
				o.rttSet = true
				o.rtt, err = time.ParseDuration(s)
				return err
			})
		}},
		"partition": {do: partition},
		"heal":      {do: heal},
		"hosts": {do: hosts, cluster: true, flags: func(fs *flag.FlagSet, o *options) {
			fs.BoolVar(&o.private, "private", false, "")
			fs.IntVar(&o.port, "port", 0, "")
		}},
		"disconnect": {do: disconnect},
	}
}

const verbList = "start, stop, status, signal, logs, wait, client, exec, push, pull, rtt, netns, partition, heal, hosts or disconnect"

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return usagef("which verb? %s", verbList)
	}
	name := args[0]
	switch name {
	case "help", "-h", "-help", "--help":
		_, err := io.WriteString(stdout, usage)
		return err
	case "agent":
		return agent()
	case "delay":
		return delay(args[1:], stdout)
	}
	v, ok := verbs[name]
	if !ok {
		return usagef("no verb %q: want %s", name, verbList)
	}
	o, rest, err := parse(name, v, args[1:])
	if errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	if err != nil {
		return err
	}

	c := &call{options: o, root: findRoot(), args: rest, stdout: stdout, stderr: stderr}
	if o.env == "" {
		o.env = filepath.Join(c.root, ".env")
	}
	if c.inv, err = fleet.Load(o.env); err != nil {
		return err
	}
	if c.ids, err = parseNodes(o.nodes, len(c.inv.Nodes), !v.cluster); err != nil {
		return err
	}
	switch {
	case o.dir == "":
		o.dir = filepath.Join("run", o.product)
	case c.inv.Transport == fleet.TransportLocal: // from here, not from the root
		if o.dir, err = filepath.Abs(o.dir); err != nil {
			return err
		}
	}
	return v.do(ctx, c)
}

var productRE = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)

// parse reads the flags of a verb, and what is left behind them.
func parse(name string, v verb, args []string) (*options, []string, error) {
	o := new(options)
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.env, "env", "", "")
	fs.StringVar(&o.nodes, "nodes", "", "")
	if v.product {
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
	timed := fs.Lookup("timeout") != nil
	switch {
	case v.command && len(rest) == 0:
		return nil, nil, usagef("%s: no command: fleet %s [flags] -- COMMAND", name, name)
	case !v.command && v.args >= 0 && len(rest) > v.args:
		return nil, nil, usagef("%s: argument %q is one too many", name, rest[v.args])
	case !v.command && v.args != 0 && len(rest) < max(1, v.args):
		return nil, nil, usagef("%s: %s", name, v.missing)
	case o.settle < 0 || o.timeout < 0 || timed && o.timeout == 0:
		return nil, nil, usagef("%s: a time must be more than 0", name)
	case o.port < 0 || o.port > 65535:
		return nil, nil, usagef("%s: -port %d: want 1 to 65535", name, o.port)
	case v.needs && o.product == "" && o.dir == "":
		return nil, nil, usagef("%s: whose nodes? -product NAME", name)
	case o.product != "" && !productRE.MatchString(o.product):
		return nil, nil, usagef("%s: -product %q: want a-z, 0-9, '_' and '-'", name, o.product)
	}
	return o, rest, nil
}

// parseNodes reads "1,3"; nothing is nil, for all. client is number 0.
func parseNodes(s string, nodes int, client bool) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	want := fmt.Sprintf("numbers from 1 to %d", nodes)
	if client {
		want += " and client,"
	}
	var ids []int
	for part := range strings.SplitSeq(s, ",") {
		id, err := strconv.Atoi(part)
		if client && part == "client" {
			id, err = 0, nil
		} else if id < 1 {
			id = -1
		}
		if err != nil || id < 0 || id > nodes || slices.Contains(ids, id) {
			return nil, usagef("-nodes %q: want %s with commas, each once", s, want)
		}
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
