package braft

import (
	"os"
	"path/filepath"
	"testing"

	"raftrig/loadgen/clustertest"
)

// TestRealGroup needs servers, which take brpc and braft to build.
func TestRealGroup(t *testing.T) {
	server := os.Getenv("BRAFT_SERVER")
	if server == "" {
		t.Skip("BRAFT_SERVER is not set: it names the braft server to test with; see braft/README.md")
	}
	if !filepath.IsAbs(server) {
		server = filepath.Join("..", server) // from the root, as make has it
	}
	server, err := filepath.Abs(server)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(server); err != nil {
		t.Fatalf("BRAFT_SERVER: %v", err)
	}
	clustertest.Run(t, clustertest.Product{
		Client:         Product,
		Argv:           []string{server, "-id", "{id}", "-addr", "{addr}", "-port", "8300", "-peers", "{peers:8300}", "-data", "{dir}/data"},
		QuickElections: []string{"-election_timeout_ms", "1000"},
	})
}
