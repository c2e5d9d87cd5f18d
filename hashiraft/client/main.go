// Command hashiraft-client loads a hashiraft cluster.
package main

import (
	"os"

	"raftrig/gateway"
	"raftrig/loadgen/cli"
)

func main() {
	os.Exit(cli.Main(gateway.Product("hashiraft", 8400), os.Args[1:], os.Stdout, os.Stderr))
}
