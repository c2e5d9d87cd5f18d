package gatewaytest

import (
	"io"
	"os"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"

	"raftrig/gateway/kv"
	"raftrig/gateway/serve"
)

const (
	// serverEnv makes the test binary a server.
	serverEnv = "RAFTRIG_TEST_SERVER"
	// forgetEnv makes its state machine forget the n-th command, which no flag
	// of the server can.
	forgetEnv = "RAFTRIG_TEST_FORGET"
	// profileEnv names a file for a CPU profile of the server, with %d for its
	// process number.
	profileEnv = "RAFTRIG_TEST_CPUPROFILE"
	// orphanEnv makes the server exit with its standard input, so that a test
	// that dies leaves none behind.
	orphanEnv = "RAFTRIG_TEST_DIE_WITH_STDIN"
)

// Main is TestMain: it runs the tests, or p's server where a test has started
// the binary as one. It does not return.
func Main(m *testing.M, p Product) {
	if next := os.Getenv(relayEnv); next != "" {
		os.Exit(relay(next))
	}
	if os.Getenv(serverEnv) == "" {
		os.Exit(m.Run())
	}
	if os.Getenv(orphanEnv) != "" {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
	}
	server := p.Server()
	if n, err := strconv.ParseUint(os.Getenv(forgetEnv), 10, 64); err == nil {
		server.State = func() kv.Machine { return &forgetful{Machine: kv.New(), nth: n} }
	}
	if name := os.Getenv(profileEnv); name != "" {
		if f, err := os.Create(strings.ReplaceAll(name, "%d", strconv.Itoa(os.Getpid()))); err == nil {
			pprof.StartCPUProfile(f)
		}
	}
	status := serve.Main(server, os.Args[1:], os.Stdout, os.Stderr)
	pprof.StopCPUProfile()
	os.Exit(status)
}

// forgetful is a state machine that answers for its n-th command and forgets it.
type forgetful struct {
	kv.Machine
	nth, seen uint64
}

func (f *forgetful) ApplyBatch(indexes []uint64, cmds [][]byte) {
	for i := range cmds {
		if f.seen++; f.seen != f.nth {
			f.Machine.ApplyBatch(indexes[i:i+1], cmds[i:i+1])
		}
	}
}
