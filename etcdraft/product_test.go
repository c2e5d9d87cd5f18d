package etcdraft

import (
	"testing"

	"raftrig/gateway"
	"raftrig/gateway/gatewaytest"
	"raftrig/gateway/serve"
)

var product = gatewaytest.Product{
	Server:         Server,
	QuickElections: []string{"-election", "500ms"},
	SmallSnapshots: []string{"-snapshot-threshold", "300", "-snapshot-trailing", "100"},
	MemoryLog:      "in memory",
	DiskLog:        "on disk",
	Refused: [][2]string{
		{"-election", "1ms"},
		{"-heartbeat", "1500ms"},
		{"-max-inflight", "0"},
		{"-max-batch", "100000"},
		{"-commit-delay", "2s"},
		{"-snapshot-threshold", "0"},
	},
	Apply: apply,
}

// apply is what a user of the library writes around it: a loop that batches,
// and a channel to wait on. The loop is the node's own, the library has none
// that would do as well.
func apply(node serve.Node, command []byte) error {
	done := make(waitingSink, 1)
	node.Propose([]gateway.Proposal{{Command: command}}, done)
	return <-done
}

type waitingSink chan error

func (s waitingSink) Done(_ uint32, _ gateway.End, err error) { s <- err }

func TestMain(m *testing.M) { gatewaytest.Main(m, product) }

func TestProduct(t *testing.T) { gatewaytest.Run(t, product) }

func BenchmarkInProcess(b *testing.B)      { gatewaytest.BenchmarkInProcess(b, product) }
func BenchmarkGateway(b *testing.B)        { gatewaytest.BenchmarkGateway(b, product) }
func BenchmarkGatewayShare(b *testing.B)   { gatewaytest.BenchmarkGatewayShare(b, product) }
func BenchmarkGatewayLatency(b *testing.B) { gatewaytest.BenchmarkGatewayLatency(b, product) }
