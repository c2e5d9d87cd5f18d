// Command aeron-client loads an Aeron cluster.
package main

import (
	"os"

	"raftrig/aeron"
	"raftrig/loadgen/cli"
)

func main() {
	os.Exit(cli.Main(aeron.Product(), os.Args[1:], os.Stdout, os.Stderr))
}
