// Command record prints run records: a summary as the run printed it, or
// several runs side by side.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"raftrig/loadgen/report"
	"raftrig/record"
)

const usage = `record prints run records.

usage: record show FILE...     each run's summary, as the run printed it
       record table FILE...    the runs side by side, in Markdown
       record bench FILE...    the runs in Go's benchmark format, for benchstat

exit status: 0, 1 failure, 2 usage
`

var errUsage = errors.New("want show, table or bench, and records (record help says more)")

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "record: %v\n", err)
	if errors.Is(err, errUsage) {
		os.Exit(2)
	}
	os.Exit(1)
}

func run(args []string, out io.Writer) error {
	if len(args) == 1 && (args[0] == "help" || args[0] == "-help" || args[0] == "--help" || args[0] == "-h") {
		_, err := io.WriteString(out, usage)
		return err
	}
	if len(args) < 2 {
		return errUsage
	}
	var runs []*record.Run
	for _, path := range args[1:] {
		r, err := record.Read(path)
		if err != nil {
			return err
		}
		runs = append(runs, r)
	}
	switch args[0] {
	case "show":
		for i, r := range runs {
			if i > 0 {
				fmt.Fprintln(out)
			}
			if err := report.Summary(out, r); err != nil {
				return err
			}
		}
		return nil
	case "table":
		return report.Table(out, runs)
	case "bench":
		for _, r := range runs {
			if err := record.WriteBench(out, r); err != nil {
				return err
			}
		}
		return nil
	}
	return errUsage
}
