// Command dragonboat-server is one node of a key-value store replicated by
// dragonboat, behind the gateway.
package main

import (
	"os"

	"raftrig/dragonboat"
	"raftrig/gateway/serve"
)

func main() { os.Exit(serve.Main(dragonboat.Server(), os.Args[1:], os.Stdout, os.Stderr)) }
