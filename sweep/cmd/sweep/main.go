// Command sweep makes ladders of runs and judges them; see sweep help.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"raftrig/sweep/compare"
	"raftrig/sweep/ladder"
)

const usage = `sweep makes ladders of runs and judges them.

usage: sweep VERB [flags] [arguments]

  zone FILE...          the comfort zone of each file, and why it ends
  sensitivity FILE...   how far the choice of the ratio bound moves it
  compare A B           two sets of runs: medians, intervals, significance
  report FILE...        one page of charts, zones and tables; -o report.html
  run -- KNOB=VALUE...  run a ladder of rates through a product's Makefile
  edge -- KNOB=VALUE... find the edge of the zone in few runs
  agree -- KNOB=VALUE...  closed and open mode at the same rate: one median?
  stall -- KNOB=VALUE...  stop the leader in mid-run, in both modes

FILE is a CSV file with the columns product, mode, offered, achieved, p50_us,
p99_us, dropped, measure_s, burst, or run records (*.json), which make one
ladder a product. KNOB is a variable of make client: BURST=10, MEASURE=10s.
sweep VERB -help lists the flags.

exit status: 0, 1 failure (also of agree and stall), 2 usage and bad input,
130 interrupted
`

// Exit statuses.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// env is what a verb works with.
type env struct {
	ctx context.Context
	// again tells of the second Ctrl-C.
	again          <-chan struct{}
	stdout, stderr io.Writer
}

// verbs by name. A verb defines its flags, parses its arguments by parse, and
// works.
var verbs = map[string]func(e env, f *flag.FlagSet, args []string) error{
	"zone":        zoneVerb,
	"sensitivity": sensitivityVerb,
	"compare":     compareVerb,
	"report":      reportVerb,
	"run":         runVerb,
	"edge":        edgeVerb,
	"agree":       agreeVerb,
	"stall":       stallVerb,
}

// A usageError is an argument that makes no sense.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errInterrupted ends a verb after Ctrl-C; it has said what there is to say.
var errInterrupted = errors.New("interrupted")

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	again := make(chan struct{})
	go func() {
		<-signals
		cancel()
		<-signals
		close(again)
	}()
	os.Exit(run(env{ctx, again, os.Stdout, os.Stderr}, os.Args[1:]))
}

func run(e env, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(e.stderr, "sweep: which verb? sweep help lists them\n")
		return exitUsage
	}
	switch name := args[0]; name {
	case "help", "-h", "-help", "--help":
		fmt.Fprint(e.stdout, usage)
		return 0
	default:
		verb, ok := verbs[name]
		if !ok {
			fmt.Fprintf(e.stderr, "sweep: unknown verb %q: sweep help lists them\n", name)
			return exitUsage
		}
		f := flag.NewFlagSet("sweep "+name, flag.ContinueOnError)
		f.SetOutput(io.Discard)
		err := verb(e, f, args[1:])
		return status(e, f, err)
	}
}

func status(e env, f *flag.FlagSet, err error) int {
	var (
		usage        usageError
		input        *ladder.InputError
		incomparable *compare.Incomparable
	)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(e.stdout, "%s [flags] [arguments]\n\n", f.Name())
		f.SetOutput(e.stdout)
		f.PrintDefaults()
		return 0
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	}
	fmt.Fprintf(e.stderr, "%s: %v\n", f.Name(), err)
	if errors.As(err, &usage) || errors.As(err, &input) || errors.As(err, &incomparable) {
		return exitUsage
	}
	return exitFailure
}

// parse takes flags before, between and behind arguments. What follows -- is
// an argument whatever it looks like.
func parse(f *flag.FlagSet, args []string) (rest []string, err error) {
	var behind []string
	if i := slices.Index(args, "--"); i >= 0 {
		args, behind = args[:i], args[i+1:]
	}
	for len(args) > 0 {
		if err := f.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, usagef("%v (see -help)", err)
		}
		args = f.Args()
		if len(args) > 0 {
			rest = append(rest, args[0])
			args = args[1:]
		}
	}
	return append(rest, behind...), nil
}

// format is the flag -format.
func formatFlag(f *flag.FlagSet) *string {
	return f.String("format", "text", "text, csv, json or md")
}

func checkFormat(format string) error {
	if !slices.Contains([]string{"text", "csv", "json", "md"}, format) {
		return usagef("-format %q: want text, csv, json or md", format)
	}
	return nil
}

// markdown writes rows as a table; the first is the header.
func markdown(w io.Writer, rows [][]string) error {
	var b strings.Builder
	for i, row := range rows {
		cells := make([]string, len(row))
		for j, cell := range row {
			cells[j] = strings.ReplaceAll(cell, "|", "\\|")
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
