package report

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"regexp"
	"slices"
	"strings"

	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"raftrig/record"
	"raftrig/sweep/ladder"
	"raftrig/sweep/zone"
)

// syntheticRun of a product that is saturated at capacity.
func syntheticRun(product string, rate int64, capacity float64, seed uint64) *record.Run {
	rng := rand.New(rand.NewPCG(seed, uint64(rate)))
	load := min(float64(rate)/capacity, 1.1)
	histogram := func(medianUS, spread float64) record.Distribution {
		h := hdrhistogram.New(1, 10e9, 3)
		for range 5000 {
			h.RecordValue(int64(medianUS * math.Exp(spread*rng.NormFloat64()) * 1e3))
		}
		return record.NewDistribution(h, h.Max(), 0, 0)
	}
	const measureS = 30
	offered := rate * measureS
	run := &record.Run{
		Schema: record.Schema, Product: product, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(seed) * time.Minute), MeasuredS: measureS,
		Knobs: record.Knobs{
			Mode: "open", Rate: rate, Burst: 10, Arrival: "uniform", Size: 64, Lanes: 1, MaxInflight: int(max(1000, rate/10)),
			WarmupS: 10, MeasureS: measureS, DrainTimeoutS: 5, Pace: "spin", Seed: seed,
		},
		Cluster: record.Cluster{
			Topology: "local", Log: "in memory", LeaderBefore: 1, LeaderAfter: 1, Versions: map[string]string{product: "v1.2.3"},
			Nodes: []record.Node{{ID: 1, Addr: "10.0.0.11:7000", Zone: "a"}, {ID: 2, Addr: "10.0.0.12:7000", Zone: "b"}, {ID: 3, Addr: "10.0.0.13:7000", Zone: "c"}},
		},
		Environment: record.Environment{
			Hostname: "client-1", OS: "Debian GNU/Linux 12 (bookworm)", Kernel: "6.1.0-40-amd64", KernelCmdline: "quiet isolcpus=2,3",
			CPU: "AMD EPYC 9R14", Cores: 8, CoresAllowed: 8, ClockSource: "tsc", Governor: "performance", MemoryBytes: 16 << 30,
			LoadAverage: 0.1 * float64(seed), GoVersion: "go1.26.8 linux/amd64", GOMAXPROCS: 8, Commit: "0123456789ab",
		},
		Latency: histogram(400/(1.15-load), 0.2+0.35*load), Service: histogram(380/(1.15-load), 0.15+0.3*load), Lag: histogram(4, 0.5),
		Measured: record.Counters{Offered: offered, OK: offered},
		Rig:      record.Rig{CPUUSPerRequest: 3.25},
		Verdict:  record.Verdict{Valid: true, Limits: map[string]string{"min-achieved": "0.99"}},
	}
	for s := range 40 {
		run.Series = append(run.Series, record.Second{Second: s, Phase: "measure", Offered: rate, Sent: rate, OK: rate, MeanUS: 412.5, MaxUS: 1200.25, LagMaxUS: 33.5, InFlight: 120})
	}
	if over := float64(rate) - capacity; over > 0 {
		dropped := int64(over * measureS)
		run.Measured.DroppedCap, run.Measured.OK = dropped, offered-dropped
		run.Verdict.Valid = false
		run.Verdict.Reasons = []record.Reason{{Code: "dropped", Text: fmt.Sprintf("dropped %.1f %% of the offered, limit 0.1 %%: lower RATE or raise MAX_INFLIGHT", 100*over/float64(rate))}}
	}
	return run
}

// writeSweep puts a ladder with its records into dir, as a sweep does, and
// returns the path of its CSV file.
func writeSweep(t testing.TB, dir, product string, rates []int64, repeats int, capacity float64) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sweep.csv")
	seed := uint64(0)
	for _, rate := range rates {
		for repeat := range repeats {
			seed++
			run := syntheticRun(product, rate, capacity, seed)
			name := fmt.Sprintf("%d-%d.json", rate, repeat+1)
			if err := record.Write(filepath.Join(dir, name), run); err != nil {
				t.Fatal(err)
			}
			row := ladder.FromRun(run)
			row.Repeat, row.Record = repeat+1, name
			if err := ladder.Append(path, row); err != nil {
				t.Fatal(err)
			}
		}
	}
	return path
}

var published = []string{"../published/aeron.csv", "../published/braft.csv", "../published/openraft.csv"}

func build(t testing.TB, files []string, distributions ...string) *Report {
	t.Helper()
	ladders, err := ladder.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(ladders, Options{Limits: zone.DefaultLimits(), Distributions: distributions})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func html(t testing.TB, r *Report) string {
	t.Helper()
	page, err := r.HTML()
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

func TestPublished(t *testing.T) {
	r := build(t, published)
	page := strings.ReplaceAll(html(t, r), "\u00a0", " ")
	for _, want := range []string{
		`<td>400k</td><td>537 µs / 705 µs</td><td>473 µs at 50k</td>`,
		`<td>150k</td><td>1.40 ms / 3.15 ms</td>`,
		`92k: drops 0.15 % of the offered (limit 0.1 %)`,
		`data-bound="2.5"><th scope="row">2.5</th><td>400k</td><td>150k</td><td>60k</td></tr>`,
		`<meta name="viewport"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	// 290k of aeron is the one rate that is noise.
	if n := strings.Count(page, `data-state="n"`); n != 1 {
		t.Errorf("%d rates are noise, want 1", n)
	}
	if len(r.Notes) != 0 {
		t.Errorf("notes: %q", r.Notes)
	}
	for _, url := range regexp.MustCompile(`(?:https?:)?//[a-z][^"' ]*`).FindAllString(page, -1) {
		if url != "http://www.w3.org/2000/svg" {
			t.Errorf("the page names %s", url)
		}
	}
}

// shipped is the table of the slider, as a browser reads it.
func shipped(t *testing.T, page string) []step {
	t.Helper()
	_, rest, _ := strings.Cut(page, `id="steps">`)
	text, _, ok := strings.Cut(rest, "</script>")
	if !ok {
		t.Fatal("the page has no steps")
	}
	var steps []step
	if err := json.Unmarshal([]byte(text), &steps); err != nil {
		t.Fatal(err)
	}
	return steps
}

func TestSteps(t *testing.T) {
	steps := shipped(t, html(t, build(t, published)))
	if len(steps) != 46 || steps[0].Bound != "1.5" || steps[45].Bound != "6.0" {
		t.Fatalf("%d steps from %s to %s", len(steps), steps[0].Bound, steps[len(steps)-1].Bound)
	}
	labels := map[string]string{}
	for _, s := range steps {
		var edges []string
		for _, l := range s.Ladders {
			edges = append(edges, l.Label)
		}
		labels[s.Bound] = strings.Join(edges, " ")
	}
	for bound, want := range map[string]string{
		"2.0": "400k 140k 30k", "2.5": "400k 150k 60k", "3.0": "400k 150k 85k", "3.5": "400k 160k 85k", "6.0": "400k 160k 85k",
	} {
		if labels[bound] != want {
			t.Errorf("at %s: %s, want %s", bound, labels[bound], want)
		}
	}
	// At 3.0 openraft fails the ratio nowhere in its zone, aeron nowhere at all.
	at := steps[15].Ladders
	if strings.Contains(at[0].Ratio, "1") || at[0].State != "zzzzzzznzzzffff" {
		t.Errorf("aeron at 3.0: %s %s", at[0].State, at[0].Ratio)
	}
}

func TestBoundOffTheGrid(t *testing.T) {
	ladders, err := ladder.Read(published)
	if err != nil {
		t.Fatal(err)
	}
	for _, bound := range []float64{2.75, 1.2, 9} {
		l := zone.DefaultLimits()
		l.Ratio = bound
		steps, first, err := stepsOf(ladders, l)
		if err != nil || len(steps) != 47 || steps[first].Bound != boundText(bound) {
			t.Errorf("%v: %d steps, first %d, %v", bound, len(steps), first, err)
		}
	}
}

func TestRecords(t *testing.T) {
	dir := t.TempDir()
	file := writeSweep(t, dir, "hashiraft", []int64{2000, 5000, 8000, 12000}, 3, 11000)
	r := build(t, []string{file})
	page := html(t, r)
	for _, want := range []string{
		"12 of 12 runs, started from 2026-01-02 03:05:05 to 2026-01-02 03:16:05 UTC",
		"AMD EPYC 9R14, 8 cores, 8 allowed, 16.0 GiB", "raftrig 0123456789ab, go1.26.8 linux/amd64", "0.1 to 1.2",
		"quiet isolcpus=2,3", "hashiraft, hashiraft v1.2.3",
		"Of 12 runs, 9 VALID, 3 INVALID.",
		"12k, run 2: INVALID: dropped 8.3 % of the offered, limit 0.1 %: lower RATE or raise MAX_INFLIGHT",
		"2k (floor)", "8k (edge)", "12000-3.json",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(page, "No run records") || strings.Contains(page, "Lag is not in these rows") || len(r.Notes) > 0 {
		t.Errorf("records or lag were not found; notes %q", r.Notes)
	}
	// One ladder needs no overview.
	if len(r.figures) != 2 {
		t.Errorf("%d figures, want the ladder and its distributions", len(r.figures))
	}

	// Of the runs at the edge, the one with the middle p99 is charted.
	atEdge := r.page.Views[0].rungs[2].rows
	picked, err := chosenOf(r.page.Views[0])
	if err != nil {
		t.Fatal(err)
	}
	if p99, _ := picked[1].run.Latency.At(99); p99.US != median(atEdge, rowP99) {
		t.Errorf("the run at the edge has a p99 of %v us, the median is %v us", p99.US, median(atEdge, rowP99))
	}

	// The records alone say the same.
	records, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	alone := build(t, records)
	if got, want := alone.page.Views[0].Summary, r.page.Views[0].Summary; !slices.Equal(got, want) {
		t.Errorf("records: %q, rows: %q", got, want)
	}

	chosen := build(t, []string{file}, records[0], records[len(records)-1])
	if d := chosen.page.Distribution; d == nil || len(d.Rows) != 6 || chosen.page.Views[0].Distribution != nil {
		t.Error("the chosen runs are not the ones charted")
	}
}

func TestNotes(t *testing.T) {
	dir := t.TempDir()
	file := writeSweep(t, dir, "p", []int64{100, 200}, 2, 1000)
	if err := os.Remove(filepath.Join(dir, "100-1.json")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	fields := strings.Split(lines[4], ",")
	fields[4] = "1"
	lines[4] = strings.Join(fields, ",")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	r := build(t, []string{file})
	want := []string{file + ":5: its figures are not those of its record 200-2.json", file + ": 1 of the 4 records that it names are not there"}
	if !slices.Equal(r.Notes, want) {
		t.Errorf("notes %q, want %q", r.Notes, want)
	}
	if page := html(t, r); !strings.Contains(page, "records that it names are not there") {
		t.Error("the page does not show its notes")
	}
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	file := writeSweep(t, dir, "p", []int64{100, 200}, 1, 1000)
	path := filepath.Join(dir, "100-1.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		record string
		want   string
	}{
		"truncated": {string(whole[:len(whole)/2]), path + ":"},
		"histogram": {strings.Replace(string(whole), `"histogram": "H`, `"histogram": "!`, 1), path + ": histogram"},
	} {
		if err := os.WriteFile(path, []byte(c.record), 0o644); err != nil {
			t.Fatal(err)
		}
		ladders, err := ladder.Read([]string{file})
		if err != nil {
			t.Fatal(err)
		}
		_, err = New(ladders, Options{Limits: zone.DefaultLimits()})
		var input *ladder.InputError
		if !errors.As(err, &input) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want an InputError that begins with %s", name, err, c.want)
		}
	}
	ladders, err := ladder.Read(published)
	if err != nil {
		t.Fatal(err)
	}
	var input *ladder.InputError
	if _, err := New(ladders, Options{Limits: zone.DefaultLimits(), Distributions: []string{filepath.Join(dir, "none.json")}}); !errors.As(err, &input) {
		t.Errorf("a chosen record that is not there: %v", err)
	}
}

// What files say is text, wherever the page or a chart puts it.
func TestEscaping(t *testing.T) {
	dir := t.TempDir()
	const evil = `</title></script><script>alert(1)</script><img src=x onerror=alert(2)>"'&../../x`
	run := func(rate int64) *record.Run {
		r := syntheticRun(evil, rate, 1000, 1)
		r.Environment.Hostname, r.Cluster.Log = evil, evil
		r.Verdict = record.Verdict{Reasons: []record.Reason{{Code: "lag", Text: evil}}}
		return r
	}
	var files []string
	for _, rate := range []int64{100, 200} {
		path := filepath.Join(dir, fmt.Sprint(rate, ".json"))
		if err := record.Write(path, run(rate)); err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	r := build(t, append(files, published...))
	page := html(t, r)
	for _, bad := range []string{"<script>alert", "<img", "</title></script>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %s as it is", bad)
		}
	}
	if got := shipped(t, page); len(got) != 46 {
		t.Errorf("%d steps", len(got))
	}
	for _, f := range r.figures {
		wellFormed(t, f.name, strings.NewReader(f.figure.svgFile()))
	}
	if got := fileName(evil); got != "title-script-script-alert-1-script-img-src-x-onerror-alert-2-x" {
		t.Errorf("a chart's file is called %s", got)
	}
}

func wellFormed(t *testing.T, name string, r io.Reader) {
	t.Helper()
	for d := xml.NewDecoder(r); ; {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
	}
}

func TestCharts(t *testing.T) {
	dir := t.TempDir()
	file := writeSweep(t, filepath.Join(dir, "braft"), "braft", []int64{2000, 8000}, 2, 11000)
	out := filepath.Join(dir, "charts")
	paths, err := build(t, []string{file, "../published/braft.csv"}).Charts(out)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range paths {
		names = append(names, filepath.Base(path))
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(path) == ".svg" {
			wellFormed(t, path, f)
		} else if img, err := png.Decode(f); err != nil {
			t.Errorf("%s: %v", path, err)
		} else if img.Bounds().Dx() != 2*(wide+2*fileMargin) {
			t.Errorf("%s is %d pixels wide", path, img.Bounds().Dx())
		}
		f.Close()
	}
	want := []string{
		"overview.svg", "overview.png", "braft-sweep.svg", "braft-sweep.png", "braft-sweep-distribution.svg", "braft-sweep-distribution.png",
		"braft-published.svg", "braft-published.png",
	}
	if !slices.Equal(names, want) {
		t.Errorf("charts %q, want %q", names, want)
	}
}

// The page's script knows what rungStates and labelGap are.
func TestScriptAgrees(t *testing.T) {
	for state, text := range rungStates {
		if !strings.Contains(pageJS, fmt.Sprintf("%c: %q", state, text)) {
			t.Errorf("page.js does not say %q of %c", text, state)
		}
	}
	if !strings.Contains(pageJS, fmt.Sprintf("x - %d : x + %d", labelGap, labelGap)) {
		t.Errorf("page.js keeps another distance than %d from the edge", labelGap)
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		s    scale
		n    int
		want string
	}{
		{scale{min: 0, max: 145000}, 10, "[0 20000 40000 60000 80000 100000 120000 140000]"},
		{scale{min: 295, max: 405}, 5, "[300 350 400]"},
		{scale{min: 400, max: 14000, log: true}, 4, "[500 1000 2000 5000 10000]"},
		{scale{min: 300, max: 31000, log: true}, 4, "[300 1000 3000 10000 30000]"},
		{scale{min: 380, max: 1660, log: true}, 4, "[400 500 600 700 800 900 1000 1500]"},
		{scale{min: 1e-3, max: 1e6, log: true}, 4, "[0.001 0.01 0.1 1 10 100 1000 10000 100000 1e+06]"},
		// Too narrow for round digits.
		{scale{min: 501, max: 549, log: true}, 4, "[520 540]"},
	} {
		var got []float64
		for _, v := range c.s.ticks(c.n) {
			got = append(got, math.Round(v*1e6)/1e6)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%+v: %v, want %s", c.s, got, c.want)
		}
	}
}

// Requests without an answer lie above all others.
func TestPercentilesBeyond(t *testing.T) {
	h := hdrhistogram.New(1, 10e9, 3)
	for range 90 {
		h.RecordValue(1_000_000)
	}
	points := percentiles(h, record.NewDistribution(h, 1_000_000, 10, 5e9))
	for _, p := range points {
		want := 1000.0
		if p.x > 1+1e-9 {
			want = 5e6
		}
		if p.y != want {
			t.Errorf("at %v nines: %v us, want %v", p.x, p.y, want)
		}
	}
	if last := points[len(points)-1].x; last != 2 {
		t.Errorf("ends at %v nines, want 2", last)
	}
	if got := percentiles(hdrhistogram.New(1, 1000, 3), record.Distribution{}); got != nil {
		t.Errorf("nothing answered: %v", got)
	}
}

// 200 records: read, judged, drawn, written.
func BenchmarkReport200(b *testing.B) {
	dir := b.TempDir()
	rates := make([]int64, 20)
	for i := range rates {
		rates[i] = int64(1000 * (i + 1))
	}
	file := writeSweep(b, dir, "p", rates, 10, 15500)
	b.ResetTimer()
	for b.Loop() {
		html(b, build(b, []string{file}))
	}
}

// Texts have a contrast of 4.5 to the paper, and what is drawn one of 3, as WCAG
// 2 asks, in both schemes.
func TestContrast(t *testing.T) {
	luminance := func(rgb uint32) float64 {
		sum := 0.0
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
			v := float64(rgb>>(16-8*i)&0xff) / 255
			if v <= 0.04045 {
				v /= 12.92
			} else {
				v = math.Pow((v+0.055)/1.055, 2.4)
			}
			sum += weight * v
		}
		return sum
	}
	contrast := func(a, b uint32) float64 {
		x, y := luminance(a), luminance(b)
		return (max(x, y) + 0.05) / (min(x, y) + 0.05)
	}
	paper := colours[0]
	for _, c := range colours[1:] {
		least := 3.0
		switch c.name {
		case "ink", "muted":
			least = 4.5
		case "grid":
			continue
		}
		if light, dark := contrast(c.light, paper.light), contrast(c.dark, paper.dark); light < least || dark < least {
			t.Errorf("%s: contrast %.2f in the light scheme, %.2f in the dark one, want %v", c.name, light, dark, least)
		}
	}
}
