package record

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// units are the figures of a benchmark line, and which direction is better.
var units = []struct{ name, better string }{
	{"ns/op", "lower"},
	{"p50-ns", "lower"},
	{"p90-ns", "lower"},
	{"p99-ns", "lower"},
	{"p99.9-ns", "lower"},
	{"max-ns", "lower"},
	{"lag-p99-ns", "lower"},
	{"req/s", "higher"},
	{"drop-%", "lower"},
	{"error-%", "lower"},
	{"client-cpu-ns/op", "lower"},
}

// WriteBench writes the run in Go's benchmark format: what benchstat needs to
// know of its surroundings, then BenchLine. Blocks of several runs may follow
// one another in one file.
//
// benchstat compares runs of equal configuration only, and by default all
// lines of the form "key: value" are configuration: the host, the topology,
// where the log is kept, and the verdict, so that an INVALID run is never
// averaged with VALID ones. Commit and versions are what two sets of runs
// usually differ in; they stand in comments.
func WriteBench(w io.Writer, r *Run) error {
	goos, goarch := platform(r.Environment.GoVersion)
	verdict := "INVALID"
	if r.Verdict.Valid {
		verdict = "VALID"
	}
	topology := r.Cluster.Topology
	if r.Cluster.Emulated {
		topology += " (emulated)"
	}
	var b strings.Builder
	for _, c := range [][2]string{
		{"goos", goos}, {"goarch", goarch}, {"pkg", "raftrig/" + r.Product}, {"cpu", r.Environment.CPU},
		{"topology", topology}, {"log", r.Cluster.Log}, {"verdict", verdict},
	} {
		// An empty value takes back what a block before it said.
		fmt.Fprintf(&b, "%s: %s\n", c[0], oneLine(c[1]))
	}
	fmt.Fprintf(&b, "# raftrig %s\n", oneLine(r.Environment.Commit))
	for _, component := range slices.Sorted(maps.Keys(r.Cluster.Versions)) {
		fmt.Fprintf(&b, "# %s %s\n", oneLine(component), oneLine(r.Cluster.Versions[component]))
	}
	for _, u := range units {
		fmt.Fprintf(&b, "Unit %s better=%s\n", u.name, u.better)
	}
	b.WriteString(BenchLine(r) + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// BenchLine is the run as one line of Go's benchmark format, without a
// newline. The iterations are the requests acknowledged in the measured window.
// ns/op is the mean latency, pN-ns and max-ns its percentiles, req/s the
// acknowledged rate; drop-% and error-% (failed and unanswered) are of the
// offered.
//
// A figure that is not known exactly is left out: a percentile that falls among
// the unanswered and, when there are any, the mean.
func BenchLine(r *Run) string {
	k := r.Knobs
	product := benchName(r.Product)
	name := "Benchmark" + strings.ToUpper(product[:1]) + product[1:]
	if k.Mode == "closed" {
		name += fmt.Sprintf("/mode=closed/threads=%d", k.Threads)
	} else {
		name += fmt.Sprintf("/mode=open/rate=%d/burst=%d", k.Rate, k.Burst)
		if k.Arrival != "" && k.Arrival != "uniform" {
			name += "/arrival=" + benchName(k.Arrival)
		}
	}
	name += fmt.Sprintf("/size=%d", k.Size)
	if k.Lanes > 1 {
		name += fmt.Sprintf("/lanes=%d", k.Lanes)
	}
	if r.Environment.GOMAXPROCS > 0 {
		name += fmt.Sprintf("-%d", r.Environment.GOMAXPROCS)
	}

	figures := make(map[string]float64)
	percentile := func(d Distribution, rank float64, unit string) {
		if p, ok := d.At(rank); ok && !p.AtLeast {
			figures[unit] = p.US * 1e3
		}
	}
	if r.Latency.Count > 0 && r.Latency.Beyond == 0 {
		figures["ns/op"] = r.Latency.MeanUS * 1e3
	}
	percentile(r.Latency, 50, "p50-ns")
	percentile(r.Latency, 90, "p90-ns")
	percentile(r.Latency, 99, "p99-ns")
	percentile(r.Latency, 99.9, "p99.9-ns")
	percentile(r.Latency, 100, "max-ns")
	percentile(r.Lag, 99, "lag-p99-ns")
	m := r.Measured
	rate := 0.0
	if r.MeasuredS > 0 {
		rate = float64(m.OK) / r.MeasuredS
	}
	figures["req/s"] = rate
	if m.Offered > 0 {
		figures["drop-%"] = 100 * float64(m.Dropped()) / float64(m.Offered)
		figures["error-%"] = 100 * float64(m.Failed+m.Unanswered) / float64(m.Offered)
	}
	if m.OK > 0 {
		figures["client-cpu-ns/op"] = r.Rig.CPUUSPerRequest * 1e3
	}

	line := name + "\t" + strconv.FormatInt(m.OK, 10)
	for _, u := range units {
		if v, ok := figures[u.name]; ok {
			line += "\t" + strconv.FormatFloat(v, 'f', decimals(u.name), 64) + " " + u.name
		}
	}
	return line
}

// decimals keeps nanoseconds whole, and a share to one in a hundred million.
func decimals(unit string) int {
	switch {
	case strings.HasSuffix(unit, "%"):
		return 6
	case strings.Contains(unit, "ns"):
		return 0
	}
	return 1
}

// benchName makes s a part of a benchmark's name, which white space, a slash or
// a dash would end.
func benchName(s string) string {
	if s == "" {
		return "_"
	}
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, s)
}

// platform takes the system and the architecture from a version as
// HostEnvironment writes it, "go1.26.0 linux/amd64".
func platform(goVersion string) (goos, goarch string) {
	_, both, _ := strings.Cut(goVersion, " ")
	goos, goarch, _ = strings.Cut(both, "/")
	return goos, goarch
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
