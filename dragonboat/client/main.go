// Command dragonboat-client loads a dragonboat cluster.
package main

import (
	"os"

	"raftrig/gateway"
	"raftrig/loadgen/cli"
)

func main() {
	os.Exit(cli.Main(gateway.Product("dragonboat", 8420), os.Args[1:], os.Stdout, os.Stderr))
}
