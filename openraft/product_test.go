package openraft

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"raftrig/loadgen/clustertest"
)

// quick are the server's arguments with which a follower stands for election
// within a second or so.
var quick = []string{"--heartbeat-ms", "100", "--election-ms", "500"}

func product(tb testing.TB) clustertest.Product {
	clustertest.Build(tb, "openraft")
	return clustertest.Product{
		Client:         Product,
		Argv:           []string{clustertest.Bin(tb, "openraft-server"), "--id", "{id}", "--addr", "{addr}", "--peers", "{peers:22001}"},
		QuickElections: quick,
		Form:           func(c *clustertest.Cluster) { form(c) },
	}
}

// form runs init-cluster and returns what it printed.
func form(c *clustertest.Cluster) string {
	c.TB.Helper()
	var out, errs bytes.Buffer
	if status := Main([]string{initVerb, "-hosts", strings.Join(c.Hosts, ","), "-wait", "60s"}, &out, &errs); status != 0 {
		c.TB.Fatalf("%s: exit status %d: %s%s", initVerb, status, out.String(), errs.String())
	}
	return out.String()
}

func TestProduct(t *testing.T) { clustertest.Run(t, product(t)) }

// Of servers that have been started, node 1 leads; init-cluster may be run
// again; a node that lost its log with its process joins anew.
func TestInitRealCluster(t *testing.T) {
	c := clustertest.Start(t, product(t), quick...)
	if leader := c.Leader(); leader != 1 {
		t.Errorf("node %d leads", leader)
	}
	if text := form(c); strings.Count(text, "\n") != 1 || !strings.Contains(text, "nodes 1,2,3 vote") {
		t.Errorf("the second time: %s", text)
	}
	if err := c.Sys.TransferLeader(t.Context(), 1); err != nil {
		t.Error(err)
	}
	if err := c.Sys.TransferLeader(t.Context(), 2); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%v", err)
	}
	c.Kill(3)
	c.StartNode(3)
	c.Agreed()
	c.Kill(1)
	c.Until("another leader", func() string {
		if l := c.Leader(); l == 1 {
			return "node 1"
		}
		return ""
	})
	c.StartNode(1)
	if st := c.Agreed(); st.Leader == 1 {
		t.Errorf("%+v", st)
	}
}
