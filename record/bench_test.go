package record

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"golang.org/x/perf/benchfmt"
)

// parseBench reads what WriteBench wrote; a line that is not understood fails
// the test.
func parseBench(t *testing.T, text string) (results []*benchfmt.Result, units benchfmt.UnitMetadataMap) {
	t.Helper()
	r := benchfmt.NewReader(strings.NewReader(text), "bench")
	for r.Scan() {
		switch rec := r.Result().(type) {
		case *benchfmt.Result:
			results = append(results, rec.Clone())
		case *benchfmt.SyntaxError:
			t.Fatalf("%v in\n%s", rec, text)
		}
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	return results, r.Units()
}

func bench(t *testing.T, r *Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteBench(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestBenchIsReadable(t *testing.T) {
	r := sampleRun(t)
	all := Distribution{}
	all, err := Merge(r.Latency)
	if err != nil {
		t.Fatal(err)
	}
	h, err := all.Decode()
	if err != nil {
		t.Fatal(err)
	}
	r.Latency = NewDistribution(h, int64(all.MaxUS*1e3), 0, 0) // all answered
	r.Verdict.Valid = true
	results, units := parseBench(t, bench(t, r))
	if len(results) != 1 {
		t.Fatalf("%d results", len(results))
	}
	res := results[0]
	if got := string(res.Name); got != "Hashiraft/mode=open/rate=1000/burst=10/size=64-2" {
		t.Errorf("name %q", got)
	}
	if res.Iters != 1999 {
		t.Errorf("iterations %d", res.Iters)
	}
	for key, want := range map[string]string{
		"goos": "linux", "goarch": "amd64", "pkg": "raftrig/hashiraft", "cpu": "AMD EPYC",
		"topology": "local (emulated)", "log": "in memory", "verdict": "VALID",
		"commit": "", "version": "", // would part the sets that are to be compared
	} {
		if got := res.GetConfig(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	at := func(d Distribution, rank float64) float64 {
		p, ok := d.At(rank)
		if !ok {
			t.Fatalf("no p%v", rank)
		}
		return p.US / 1e6
	}
	for unit, want := range map[string]float64{
		"sec/op": r.Latency.MeanUS / 1e6, "p50-sec": at(r.Latency, 50), "p90-sec": at(r.Latency, 90), "p99-sec": at(r.Latency, 99),
		"p99.9-sec": at(r.Latency, 99.9), "max-sec": r.Latency.MaxUS / 1e6, "lag-p99-sec": at(r.Lag, 99),
		"req/s": 999.5, "drop-%": 100 * 6 / 2010., "error-%": 100 * 5 / 2010., "client-cpu-sec/op": 4.5e-6,
	} {
		got, ok := res.Value(unit)
		if !ok || math.Abs(got-want) > 1e-4*want+1e-9 {
			t.Errorf("%s: %v %v, want %v", unit, got, ok, want)
		}
		better := -1
		if unit == "req/s" {
			better = 1
		}
		if units.GetBetter(unit) != better {
			t.Errorf("%s: better %d, want %d", unit, units.GetBetter(unit), better)
		}
	}
	if got := len(res.Values); got != 11 {
		t.Errorf("%d values: %s", got, BenchLine(r))
	}
}

func TestBenchLeavesOutWhatIsNotExact(t *testing.T) {
	r := sampleRun(t) // 4 of 2004 unanswered: p99.9 and the maximum are lower bounds
	results, _ := parseBench(t, bench(t, r))
	for unit, want := range map[string]bool{"p50-sec": true, "p99-sec": true, "p99.9-sec": false, "max-sec": false, "sec/op": false, "req/s": true} {
		if _, got := results[0].Value(unit); got != want {
			t.Errorf("%s: %v, want %v in %s", unit, got, want, BenchLine(r))
		}
	}

	// Nothing was answered: still a line that parses.
	r.Measured = Counters{}
	r.Latency, r.Lag, r.MeasuredS = Distribution{}, Distribution{}, 0
	results, _ = parseBench(t, bench(t, r))
	if len(results) != 1 || results[0].Iters != 0 || len(results[0].Values) != 1 {
		t.Errorf("%s", BenchLine(r))
	}
}

func TestBenchNames(t *testing.T) {
	r := sampleRun(t)
	name := func() string {
		first, _, _ := strings.Cut(BenchLine(r), "\t")
		return first
	}
	r.Knobs.Arrival, r.Knobs.Lanes = "poisson", 2
	if got := name(); got != "BenchmarkHashiraft/mode=open/rate=1000/burst=10/arrival=poisson/size=64/lanes=2-2" {
		t.Error(got)
	}
	r.Knobs.Mode, r.Product, r.Environment.GOMAXPROCS = "closed", "my raft/2", 0
	if got := name(); got != "BenchmarkMy_raft_2/mode=closed/threads=100/size=64/lanes=2" {
		t.Error(got)
	}
}

// Blocks of several runs may share a file: none inherits from the one before.
func TestBenchBlocksFollowOneAnother(t *testing.T) {
	a, b := sampleRun(t), sampleRun(t)
	b.Cluster.Topology, b.Cluster.Emulated, b.Cluster.Log, b.Verdict.Valid = "", false, "line\nbreak", true
	b.Environment.GoVersion = "unknown"
	results, _ := parseBench(t, bench(t, a)+bench(t, b))
	if len(results) != 2 {
		t.Fatalf("%d results", len(results))
	}
	if got := results[0].GetConfig("verdict") + "," + results[1].GetConfig("verdict"); got != "INVALID,VALID" {
		t.Error(got)
	}
	for key, want := range map[string]string{"topology": "", "goos": "", "log": "line break"} {
		if got := results[1].GetConfig(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}
