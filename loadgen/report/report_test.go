package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"raftrig/record"
)

// The transcripts of loadgen/sim are the reference for whole summaries; these
// are the parts that a system without a network does not have.

func TestHosts(t *testing.T) {
	for want, addrs := range map[string][]string{
		"127.0.0.11-13":                    {"127.0.0.11:8400", "127.0.0.12:8400", "127.0.0.13:8400"},
		"10.0.1.11, 10.0.2.11, 10.0.3.11":  {"10.0.1.11:1", "10.0.2.11:1", "10.0.3.11:1"},
		"10.0.1.11, 10.0.1.12, 10.0.1.14":  {"10.0.1.11:1", "10.0.1.12:1", "10.0.1.14:1"},
		"node1, node2":                     {"node1:8400", "node2:8400"},
		"10.0.1.11, node2, 10.0.1.12":      {"10.0.1.11:1", "node2:1", "10.0.1.12:1"},
		"::1, ::2":                         {"[::1]:8400", "[::2]:8400"},
		"10.0.1.11":                        {"10.0.1.11:1"},
		"10.0.1.255, 10.0.2.0":             {"10.0.1.255:1", "10.0.2.0:1"},
		"unix-socket-without-port, node2x": {"unix-socket-without-port", "node2x:1"},
		"":                                 nil,
	} {
		var nodes []record.Node
		for _, a := range addrs {
			nodes = append(nodes, record.Node{Addr: a})
		}
		if got := hosts(nodes); got != want {
			t.Errorf("%v: %q, want %q", addrs, got, want)
		}
	}
}

func TestCluster(t *testing.T) {
	c := record.Cluster{LeaderBefore: 2, TermBefore: 7, Log: "in memory", Emulated: true}
	if got := cluster(c); got != "leader node 2 term 7, log in memory, emulated network" {
		t.Error(got)
	}
	if got := cluster(record.Cluster{}); got != "" {
		t.Error(got)
	}
}

// A share near 0 or 1 never reads as if it were.
func TestPercent(t *testing.T) {
	for share, want := range map[float64]string{
		0: "0.00 %", 1: "100.00 %", 0.5: "50.00 %", 0.999933: "99.9933 %", 0.0000667: "0.0067 %", 0.9999999: "99.99999 %", 0.00999: "1 %",
	} {
		if got := percent(share); got != want {
			t.Errorf("%v: %q, want %q", share, got, want)
		}
	}
}

func TestLiveLine(t *testing.T) {
	k := record.Knobs{Mode: "closed", Threads: 100}
	s := record.Second{Second: 4, Phase: "measure", OK: 1234, MeanUS: 81.26, MaxUS: 900.4, LagMaxUS: 12, Sent: 1235, InFlight: 100, Failed: 1, Lost: 2, Dropped: 3}
	want := "hashiraft closed threads=100 at qps=1234 latency=81 max=900 lag_max=12 sent=1235 in_flight=100 failed=1 lost=2 dropped=3 t=5s measure"
	if got := LiveLine("hashiraft", k, s); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestSummaryTellsThatItWasNotPrinted(t *testing.T) {
	if err := Summary(full{}, &record.Run{}); err == nil {
		t.Error("no error")
	}
}

// What the client cost, and what went wrong in it, is told when there is any.
func TestSummaryOfTheRig(t *testing.T) {
	r := &record.Run{Product: "p", MeasuredS: 1}
	r.Knobs.Mode = "closed"
	r.Rig = record.Rig{CPUUSPerRequest: 1.25, CPUShare: 0.5, LaneCPUShare: 0.4, GCPauses: 2, GCPauseMaxUS: 90, OutOfRange: 3, Backpressure: 4}
	var b bytes.Buffer
	if err := Summary(&b, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"  client 1.2 us of CPU a request, 0.50 cores; lane on its core 40 % of the time; GC pauses 2, longest 90 us\n",
		"  back-pressure: the client refused 4 times for lack of room, the wait is in the latency\n",
		"  3 values lay beyond the histogram's range and count at its end\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in %s", want, b.String())
		}
	}
}

func TestTable(t *testing.T) {
	closed := &record.Run{Product: "p", MeasuredS: 2, Measured: record.Counters{Offered: 100, OK: 100}}
	closed.Knobs.Mode, closed.Knobs.Threads = "closed", 100
	closed.Cluster.Log, closed.Cluster.Versions = "in memory", map[string]string{"p": "lib v1"}
	closed.Latency.Percentiles = []record.Percentile{{Rank: 50, US: 10.4}, {Rank: 99, US: 20}, {Rank: 99.9, US: 30}, {Rank: 100, US: 40}}
	closed.Verdict.Valid = true
	open := &record.Run{Product: "q", MeasuredS: 2}
	open.Knobs.Mode, open.Knobs.Rate, open.Knobs.Arrival, open.Knobs.Burst = "open", 1000, "uniform", 10
	open.Latency.Percentiles = []record.Percentile{{Rank: 50, US: 1}, {Rank: 99, US: 5e6, AtLeast: true}}
	open.Verdict.Reasons = []record.Reason{{Code: "lag"}, {Code: "lag"}, {Code: "errors"}}
	var b bytes.Buffer
	if err := Table(&b, []*record.Run{closed, open}); err != nil {
		t.Fatal(err)
	}
	want := `| product | log | load | answered/s | p50 us | p99 us | p99.9 us | max us | verdict |
|---|---|---|--:|--:|--:|--:|--:|---|
| lib v1 | in memory | closed, 100 outstanding | 50 | 10 | 20 | 30 | 40 | VALID |
| q |  | open, 1000/s uniform, burst 10 | 0 | 1 | >= 5000000 | - | - | INVALID: lag errors |
`
	if b.String() != want {
		t.Errorf("%s", b.String())
	}
}
