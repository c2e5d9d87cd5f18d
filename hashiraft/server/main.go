// Command hashiraft-server is one node of a key-value store replicated by
// hashicorp/raft, behind the gateway.
package main

import (
	"os"

	"raftrig/gateway/serve"
	"raftrig/hashiraft"
)

func main() { os.Exit(serve.Main(hashiraft.Server(), os.Args[1:], os.Stdout, os.Stderr)) }
