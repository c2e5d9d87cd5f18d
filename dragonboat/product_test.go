package dragonboat

import (
	"context"
	"flag"
	"os"
	"testing"

	"raftrig/gateway/gatewaytest"
	"raftrig/gateway/serve"
)

// memoryDirEnv names the directory on a tmpfs that a test has made for the nodes
// in memory that it starts and kills: it is removed after them.
const memoryDirEnv = "RAFTRIG_TEST_DRAGONBOAT_SHM"

var product = gatewaytest.Product{
	Server: func() serve.Product {
		p := Server()
		flags := p.Flags
		p.Flags = func(fs *flag.FlagSet) {
			flags(fs)
			if dir := os.Getenv(memoryDirEnv); dir != "" {
				fs.Set("shm", dir)
			}
		}
		return p
	},
	QuickElections: []string{"-election", "500ms", "-heartbeat", "50ms"},
	SmallSnapshots: []string{"-snapshot-entries", "300", "-snapshot-trailing", "100"},
	MemoryLog:      "in memory",
	DiskLog:        "on disk",
	Refused: [][2]string{
		{"-election", "1ms"},
		{"-heartbeat", "1s"},
		{"-snapshot-entries", "0"},
		{"-snapshot-trailing", "0"},
		{"-shm", ""},
	},
	Apply: func(node serve.Node, command []byte) error {
		n := node.(*Node)
		ctx, cancel := context.WithTimeout(context.Background(), proposalTimeout)
		defer cancel()
		_, err := n.host.SyncPropose(ctx, n.session, command)
		return err
	},
}

func TestMain(m *testing.M) { gatewaytest.Main(m, product) }

// inMemory makes a directory for the nodes of a test.
func inMemory(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp(DefaultMemoryDir, "raftrig-dragonboat-test-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	tb.Setenv(memoryDirEnv, dir)
	return dir
}

func TestProduct(t *testing.T) {
	inMemory(t)
	gatewaytest.Run(t, product)
}

// A node in memory that was killed catches up although nothing is written any
// more, from the log and from a snapshot.
func TestComesBackEmptyToIdleCluster(t *testing.T) {
	inMemory(t)
	for name, flags := range map[string][]string{"log": nil, "snapshot": product.SmallSnapshots} {
		t.Run(name, func(t *testing.T) {
			c := gatewaytest.NewCluster(t, product)
			c.StartAll(flags...)
			leader := c.Leader(gatewaytest.Everyone...)
			if got := c.Propose(leader, 2000, 100, 0, nil); got.Applied != 2000 {
				t.Fatalf("%+v", got)
			}
			c.Agreed(2000, gatewaytest.Everyone...)
			gone := gatewaytest.Others(leader)[0]
			c.Kill(gone)
			c.Start(gone, flags)
			if st := c.Agreed(2000, gatewaytest.Everyone...); st.Count != 2000 {
				t.Errorf("count is %d", st.Count)
			}
		})
	}
}

func BenchmarkInProcess(b *testing.B) {
	inMemory(b)
	gatewaytest.BenchmarkInProcess(b, product)
}

func BenchmarkGateway(b *testing.B) {
	inMemory(b)
	gatewaytest.BenchmarkGateway(b, product)
}

func BenchmarkGatewayShare(b *testing.B) {
	inMemory(b)
	gatewaytest.BenchmarkGatewayShare(b, product)
}

func BenchmarkGatewayLatency(b *testing.B) {
	inMemory(b)
	gatewaytest.BenchmarkGatewayLatency(b, product)
}
