// Command braft-client loads a braft group.
package main

import (
	"os"

	"raftrig/braft"
	"raftrig/loadgen/cli"
)

func main() {
	os.Exit(cli.Main(braft.Product(), os.Args[1:], os.Stdout, os.Stderr))
}
