// Command openraft-client loads an openraft cluster, and makes one of nodes
// that have been started (init-cluster).
package main

import (
	"os"

	"raftrig/openraft"
)

func main() {
	os.Exit(openraft.Main(os.Args[1:], os.Stdout, os.Stderr))
}
