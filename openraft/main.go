package openraft

import (
	"io"

	"raftrig/loadgen/cli"
)

// Main runs openraft-client and returns its exit status: init-cluster here, all
// else as every product's client does.
func Main(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == initVerb {
		return initMain(args[1:], stdout, stderr)
	}
	return cli.Main(Product(), args, stdout, stderr)
}
