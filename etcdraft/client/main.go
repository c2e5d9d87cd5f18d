// Command etcdraft-client loads an etcdraft cluster.
package main

import (
	"os"

	"raftrig/gateway"
	"raftrig/loadgen/cli"
)

func main() {
	os.Exit(cli.Main(gateway.Product("etcdraft", 8410), os.Args[1:], os.Stdout, os.Stderr))
}
