// Command etcdraft-server is one node of a key-value store replicated by etcd's
// Raft library, behind the gateway.
package main

import (
	"os"

	"raftrig/etcdraft"
	"raftrig/gateway/serve"
)

func main() { os.Exit(serve.Main(etcdraft.Server(), os.Args[1:], os.Stdout, os.Stderr)) }
