package zone_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"raftrig/record"
	"raftrig/sweep/ladder"
	"raftrig/sweep/zone"
)

func published(t testing.TB, product string) ladder.Ladder {
	t.Helper()
	all, err := ladder.Read([]string{"../published/" + product + ".csv"})
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

func rate(p *int64) string {
	if p == nil {
		return "-"
	}
	return ladder.FormatRate(*p)
}

// The zones that were published with the rows have to follow from the rows.
func TestPublishedZones(t *testing.T) {
	for _, c := range []struct {
		product, edge                string
		p50, p99                     float64
		floor                        string
		knee, p50At, tailAt, through string
		max                          float64
		failing, why                 string
		noise                        string
	}{
		{"aeron", "400k", 537, 705, "473@50k", "460k", "520k", "460k", "580k", 626508, "460k", "drops 0.41 % of the offered (limit 0.1 %)", "290k"},
		{"braft", "150k", 1404, 3154, "620@10k", "160k", "160k", "160k", "175k", 175323, "160k", "p99/p50 3.04 (limit 3)", ""},
		{"openraft", "85k", 1387, 4014, "864@10k", "110k", "120k", "110k", "110k", 127701, "92k", "drops 0.15 % of the offered (limit 0.1 %)", ""},
	} {
		z, err := zone.Of(published(t, c.product), zone.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		var noise []string
		for _, p := range z.Points {
			if p.Noise {
				noise = append(noise, ladder.FormatRate(p.Rate))
			}
		}
		got := []string{
			z.Product, rate(z.Edge), fmt.Sprint(z.AtEdge.P50US, z.AtEdge.P99US), fmt.Sprintf("%v@%s", z.Floor.P50US, ladder.FormatRate(z.Floor.Rate)),
			rate(z.Knee.Rate), rate(z.Knee.P50), rate(z.Knee.Tail), rate(z.Knee.Throughput), fmt.Sprint(z.MaxSustained.Achieved),
			rate(&z.FirstFailing.Rate), z.FirstFailing.Why(), strings.Join(noise, ","), fmt.Sprint(z.LowerBound),
		}
		want := []string{
			c.product, c.edge, fmt.Sprint(c.p50, c.p99), c.floor, c.knee, c.p50At, c.tailAt, c.through, fmt.Sprint(c.max),
			c.failing, c.why, c.noise, "false",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

func TestPublishedSensitivity(t *testing.T) {
	for product, want := range map[string]string{
		"aeron":    "400k 400k 400k 400k 400k 400k 400k 400k 400k",
		"braft":    "140k 150k 150k 160k 160k 160k 160k 160k 160k",
		"openraft": "30k 60k 85k 85k 85k 85k 85k 85k 85k",
	} {
		s, err := zone.SensitivityOf(published(t, product), zone.DefaultLimits(), zone.Bounds())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range s.Edges {
			got = append(got, rate(e.Edge))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %v", product, got, want)
		}
	}
}

// row of a run that passes; the letters spoil it: d drops, a achieved, r ratio.
func row(r int64, faults string) ladder.Row {
	x := ladder.Row{Product: "p", Mode: "open", Offered: r, Achieved: float64(r), P50US: 100, P99US: 200, MeasureS: 10}
	if strings.Contains(faults, "d") {
		x.Dropped = r // a tenth of 10 s
	}
	if strings.Contains(faults, "a") {
		x.Achieved = 0.98 * float64(r)
	}
	if strings.Contains(faults, "r") {
		x.P99US = 301
	}
	return x
}

func TestZoneIsContiguous(t *testing.T) {
	for _, c := range []struct {
		name  string
		rates []string // the runs of rate 10, 20, ..., by their faults, with commas
		edge  string
		lower bool
		noise string
	}{
		{"all pass", []string{"", "", ""}, "30", true, ""},
		{"none passes", []string{"d", "a", "r"}, "-", false, ""},
		{"the lowest fails", []string{"d", "", "", ""}, "-", false, ""},
		{"one among passing is noise", []string{"", "d", "", "", "a"}, "40", false, "20"},
		{"two among passing are not", []string{"", "d", "a", "", ""}, "10", false, ""},
		{"noise twice", []string{"", "d", "", "r", "", "a", "a"}, "50", false, "20 40"},
		{"the last is not noise", []string{"", "", "r"}, "20", false, ""},
		{"passing again in overload does not count", []string{"", "", "r", "a", "", ""}, "20", false, ""},
		{"repeats: the median passes", []string{"", "d,,", ""}, "30", true, ""},
		{"repeats: the median fails, and is not noise", []string{"", "d,d,", ""}, "10", false, ""},
		{"repeats elsewhere leave the rule on for a single run", []string{",", "d", ","}, "30", true, "20"},
		{"repeats: two that differ", []string{",", ",d", ","}, "10", false, ""},
	} {
		l := ladder.Ladder{Product: "p"}
		for i, faults := range c.rates {
			for f := range strings.SplitSeq(faults, ",") {
				l.Rows = append(l.Rows, row(int64(10*(i+1)), f))
			}
		}
		slices.Reverse(l.Rows) // the order of rows means nothing
		z, err := zone.Of(l, zone.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		var noise []string
		for _, p := range z.Points {
			if p.Noise {
				noise = append(noise, ladder.FormatRate(p.Rate))
			}
		}
		if rate(z.Edge) != c.edge || z.LowerBound != c.lower || strings.Join(noise, " ") != c.noise {
			t.Errorf("%s: edge %s, lower bound %v, noise %v", c.name, rate(z.Edge), z.LowerBound, noise)
		}
		if z.LowerBound != (z.FirstFailing == nil) || z.LowerBound && z.Knee.Rate != nil {
			t.Errorf("%s: first failing %+v, knee %+v", c.name, z.FirstFailing, z.Knee)
		}
	}
}

// Each criterion at its limit and just beyond.
func TestLimits(t *testing.T) {
	l := zone.DefaultLimits()
	for _, c := range []struct {
		row  ladder.Row
		want string
	}{
		{ladder.Row{Offered: 1000, Achieved: 990, P50US: 1, P99US: 3, Dropped: 9, MeasureS: 10}, ""},
		{ladder.Row{Offered: 1000, Achieved: 989.9, P50US: 1, P99US: 1, MeasureS: 10}, "achieved 99 % of the offered (limit 99 %)"},
		{ladder.Row{Offered: 1000, Achieved: 1000, P50US: 1, P99US: 1, Dropped: 10, MeasureS: 10}, "drops 0.1 % of the offered (limit 0.1 %)"},
		{ladder.Row{Offered: 1000, Achieved: 1000, P50US: 1, P99US: 1, Dropped: 10, MeasureS: 30}, ""}, // by its own measure_s
		{ladder.Row{Offered: 1000, Achieved: 1000, P50US: 1, P99US: 3.01, MeasureS: 10}, "p99/p50 3.01 (limit 3)"},
		{ladder.Row{Offered: 1000, Achieved: 900, P50US: 1, P99US: 4, Dropped: 1000, MeasureS: 10}, "achieved 90 % of the offered (limit 99 %), drops 10 % of the offered (limit 0.1 %), p99/p50 4 (limit 3)"},
	} {
		if got := zone.Judge(1000, []ladder.Row{c.row}, l).Why(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.row, got, c.want)
		}
	}
	for _, bad := range []zone.Limits{{0.5, 0.99, 0.001}, {3, 1.1, 0.001}, {3, 0.99, 0}} {
		if bad.Validate() == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// A verdict that speaks against the rig is told; one against the load is what
// the criteria judge anyway.
func TestDistrust(t *testing.T) {
	a, b := row(10, ""), row(10, "a")
	a.Verdict, b.Verdict = "INVALID lag gc", "INVALID achieved dropped lag"
	p := zone.Judge(10, []ladder.Row{a, b}, zone.DefaultLimits())
	if !slices.Equal(p.Distrust, []string{"lag", "gc"}) {
		t.Errorf("%q", p.Distrust)
	}
}

func TestWhatIsNoLadder(t *testing.T) {
	one := ladder.Ladder{Rows: []ladder.Row{row(10, ""), row(10, "")}}
	one.Rows[0].File, one.Rows[0].Line = "a.csv", 2
	closed := ladder.Ladder{Rows: []ladder.Row{row(10, ""), {Mode: "closed", Threads: 3, File: "a.csv", Line: 3}}}
	for want, l := range map[string]ladder.Ladder{
		"a.csv:2: a sweep with one rate, 10: a zone needs at least two":     one,
		"a.csv:3: a closed run has no offered rate: a zone needs MODE=open": closed,
	} {
		_, err := zone.Of(l, zone.DefaultLimits())
		if input := new(ladder.InputError); !errors.As(err, &input) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// What zone and sensitivity do with 200 run records of full size.
func BenchmarkZone200Records(b *testing.B) {
	run, err := record.Read("../../record/testdata/run.json")
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	var paths []string
	for len(run.Series) < 45 {
		run.Series = append(run.Series, run.Series...)
	}
	for len(run.Latency.Histogram) < 10_000 {
		run.Latency.Histogram += run.Latency.Histogram
	}
	for i := range 200 {
		run.Knobs.Mode, run.Knobs.Rate, run.Knobs.Threads = "open", int64(1000*(1+i/4)), 0
		path := filepath.Join(dir, fmt.Sprintf("%d.json", i))
		if err := record.Write(path, run); err != nil {
			b.Fatal(err)
		}
		paths = append(paths, path)
	}
	info, _ := os.Stat(paths[0])
	b.ReportMetric(float64(info.Size()), "bytes/record")
	for b.Loop() {
		all, err := ladder.Read(paths)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := zone.Of(all[0], zone.DefaultLimits()); err != nil {
			b.Fatal(err)
		}
		if _, err := zone.SensitivityOf(all[0], zone.DefaultLimits(), zone.Bounds()); err != nil {
			b.Fatal(err)
		}
	}
}
