package hashiraft

import (
	"testing"

	"raftrig/gateway/gatewaytest"
	"raftrig/gateway/serve"
)

var product = gatewaytest.Product{
	Server:         Server,
	QuickElections: []string{"-heartbeat", "500ms"},
	SmallSnapshots: []string{"-snapshot-interval", "100ms", "-snapshot-threshold", "300", "-snapshot-trailing", "100"},
	MemoryLog:      "in memory",
	DiskLog:        "on disk",
	Refused: [][2]string{
		{"-max-append", "5000"},
		{"-heartbeat", "1ms"},
		{"-election", "1s"},
		{"-snapshot-interval", "2m"},
		{"-snapshot-threshold", "0"},
	},
	Apply: func(node serve.Node, command []byte) error { return node.(*Node).raft.Apply(command, 0).Error() },
}

func TestMain(m *testing.M) { gatewaytest.Main(m, product) }

func TestProduct(t *testing.T) { gatewaytest.Run(t, product) }

func BenchmarkInProcess(b *testing.B)      { gatewaytest.BenchmarkInProcess(b, product) }
func BenchmarkGateway(b *testing.B)        { gatewaytest.BenchmarkGateway(b, product) }
func BenchmarkGatewayShare(b *testing.B)   { gatewaytest.BenchmarkGatewayShare(b, product) }
func BenchmarkGatewayLatency(b *testing.B) { gatewaytest.BenchmarkGatewayLatency(b, product) }
