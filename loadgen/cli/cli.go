// Package cli is the command line of every product's client: flags, the checks
// before a run, the run itself with its live line, summary and record, and the
// small commands beside it. A product's main is one call of Main.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"raftrig/loadgen"
)

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitInvalid = 3
)

// statusTimeout bounds one question to all nodes.
const statusTimeout = 2 * time.Second

// command is one invocation.
type command struct {
	product        loadgen.Product
	stdout, stderr io.Writer
	flags          *flag.FlagSet
	hosts          string
	topology       string
	zones          string
	rtt            string
	own            []string // the product's flags
}

// verbs beside the run itself, by name.
var verbs = map[string]struct {
	summary string
	run     func(*command, context.Context, []string) error
}{
	"status":   {"what every node says of itself", (*command).status},
	"leader":   {"wait until a leader answers, and name it", (*command).leader},
	"transfer": {"make a node the leader", (*command).transfer},
	"verify":   {"hold a run's record against what the nodes have applied", (*command).verify},
}

// errInvalid ends a run whose verdict is INVALID; it has been printed.
var errInvalid = errors.New("INVALID")

// Main runs a product's client and returns its exit status: 0, 1 for a
// failure, 2 for wrong usage, 3 for a run whose verdict is INVALID.
func Main(p loadgen.Product, args []string, stdout, stderr io.Writer) int {
	c := &command{product: p, stdout: stdout, stderr: stderr}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	run := (*command).load
	name := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name = args[0]
		verb, ok := verbs[name]
		if !ok {
			fmt.Fprintf(stderr, "%s-client: unknown command %q: want flags for a run, or status, leader, transfer, verify; see -help\n", p.Name, name)
			return exitUsage
		}
		run, args = verb.run, args[1:]
	}
	c.flags = flag.NewFlagSet(name, flag.ContinueOnError)
	c.flags.SetOutput(io.Discard)
	c.flags.StringVar(&c.hosts, "hosts", "127.0.0.11,127.0.0.12,127.0.0.13", "the nodes' `hosts`, in the order of their numbers")
	c.flags.StringVar(&c.topology, "topology", "local", "the fleet's topology, for the record")
	c.flags.StringVar(&c.zones, "zones", "", "the nodes' availability `zones` in the order of -hosts, for the record")
	c.flags.StringVar(&c.rtt, "rtt", "", "round trips between the nodes, the `JSON` of fleet rtt, for the record")
	shared := map[string]bool{}
	c.flags.VisitAll(func(f *flag.Flag) { shared[f.Name] = true })
	if p.Flags != nil {
		p.Flags(c.flags)
	}
	c.flags.VisitAll(func(f *flag.Flag) {
		if !shared[f.Name] {
			c.own = append(c.own, f.Name)
		}
	})
	err := run(c, ctx, args)
	var usage *loadgen.UsageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, flag.ErrHelp):
		c.help(name)
		return exitOK
	case errors.Is(err, errInvalid):
		return exitInvalid
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "%s-client: %v\n", p.Name, err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "%s-client: %v\n", p.Name, err)
	return exitFailure
}

// parse the flags; what is wrong is one line.
func (c *command) parse(args []string) error {
	if err := c.flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		// The package says: invalid value "x" for flag -f: why.
		return loadgen.Usagef("%v (see -help)", err)
	}
	if c.flags.NArg() > 0 {
		return loadgen.Usagef("unexpected argument %q: flags only (see -help)", c.flags.Arg(0))
	}
	return nil
}

func (c *command) help(verb string) {
	if verb == "" {
		fmt.Fprintf(c.stdout, "%s-client [flags]: load the cluster and say what came of it\n", c.product.Name)
		for _, name := range []string{"status", "leader", "transfer", "verify"} {
			fmt.Fprintf(c.stdout, "%s-client %s [flags]: %s\n", c.product.Name, name, verbs[name].summary)
		}
	} else {
		fmt.Fprintf(c.stdout, "%s-client %s [flags]: %s\n", c.product.Name, verb, verbs[verb].summary)
	}
	fmt.Fprintln(c.stdout)
	c.flags.SetOutput(c.stdout)
	c.flags.PrintDefaults()
	fmt.Fprintln(c.stdout, "\nExit status: 0; 1 failure; 2 usage; 3 the run's verdict is INVALID.")
}

// hostList splits and checks -hosts.
func (c *command) hostList() ([]string, error) {
	hosts := strings.Split(c.hosts, ",")
	for i, h := range hosts {
		hosts[i] = strings.TrimSpace(h)
		if hosts[i] == "" {
			return nil, loadgen.Usagef("-hosts %q: want one host a node, with commas between", c.hosts)
		}
	}
	return hosts, nil
}

// open the cluster.
func (c *command) open(ctx context.Context) (loadgen.System, error) {
	hosts, err := c.hostList()
	if err != nil {
		return nil, err
	}
	return c.product.Open(ctx, hosts)
}
