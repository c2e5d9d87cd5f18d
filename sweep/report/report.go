package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"raftrig/record"
	"raftrig/sweep/ladder"
	"raftrig/sweep/zone"
)

// Options of a report.
type Options struct {
	// Limits of the comfort zone; the page's slider begins at its ratio.
	Limits zone.Limits
	// Distributions are records whose percentiles are charted; without any,
	// those of each ladder's edge and floor, where it has records.
	Distributions []string
}

// Report is made of ladders by New.
type Report struct {
	page    page
	figures []namedFigure
	// Notes say what the report could not use.
	Notes []string
}

type namedFigure struct {
	name   string
	figure *figure
}

// view is one ladder as the page shows it.
type view struct {
	Index int
	// Label is the product, with the file where several ladders have it.
	Label string
	File  string
	zone  zone.Zone
	rungs []rung
	runs  []measured

	Wide, Narrow template.HTML
	Summary      []string
	Rungs        []rungRow
	Runs         []runRow
	// Counts of verdicts, and why runs are INVALID.
	Counts       string
	Verdicts     []string
	Facts        []fact
	HasRecords   bool
	Distribution *distribution
}

// measured is a run with its record, nil when there is none.
type measured struct {
	row    ladder.Row
	record *record.Run
}

// page is what page.html is filled with.
type page struct {
	CSS           template.CSS
	JS            template.JS
	Policy        string
	Limits        zone.Limits
	Overview      *overview
	Views         []*view
	Sensitivity   []sensitivityRow
	AnyLowerBound bool
	Distribution  *distribution
	SummaryHead   []string
	Steps         []step
	FirstStep     int
	Notes         []string
	// SingleRuns: some rate has one run only, so that the noise rule holds.
	SingleRuns bool
}

type overview struct{ Wide, Narrow template.HTML }

type sensitivityRow struct {
	Bound string
	Cells []string
}

type distribution struct {
	Wide, Narrow template.HTML
	Head         []string
	Rows         []percentileRow
}

type percentileRow struct {
	Run, Figure string
	Cells       []string
}

// New judges the ladders and draws the report. What is wrong with an input is
// a ladder.InputError.
func New(ladders []ladder.Ladder, o Options) (*Report, error) {
	r := &Report{}
	records := map[string]*record.Run{}
	labels := labelsOf(ladders)
	var views []*view
	for i, l := range ladders {
		z, err := zone.Of(l, o.Limits)
		if err != nil {
			return nil, err
		}
		v := &view{Index: i, Label: labels[i], File: l.Name, zone: z, rungs: rungsOf(l, z)}
		if v.runs, err = r.withRecords(l, records); err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	steps, first, err := stepsOf(ladders, o.Limits)
	if err != nil {
		return nil, err
	}
	p := &r.page
	*p = page{Limits: o.Limits, Views: views, SummaryHead: summaryHead, Steps: steps, FirstStep: first}
	if err := r.draw(ladders, o); err != nil {
		return nil, err
	}
	for _, bound := range zone.Bounds() {
		p.Sensitivity = append(p.Sensitivity, sensitivityRow{Bound: boundText(bound)})
	}
	for _, l := range ladders {
		s, err := zone.SensitivityOf(l, o.Limits, zone.Bounds())
		if err != nil {
			return nil, err
		}
		for i, e := range s.Edges {
			z := zone.Zone{Edge: e.Edge, LowerBound: e.LowerBound}
			p.Sensitivity[i].Cells = append(p.Sensitivity[i].Cells, edgeLabel(z))
			p.AnyLowerBound = p.AnyLowerBound || e.LowerBound
		}
	}
	p.Notes = r.Notes
	p.CSS, p.JS = template.CSS(chartCSS()+pageCSS), template.JS(pageJS)
	sum := sha256.Sum256([]byte(pageJS))
	// The page may run its own script and use its own styles, and nothing else.
	p.Policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	return r, nil
}

// labelsOf ladders are their products. Where several have one product, the
// folders and names of their files tell them apart, as far as they differ.
func labelsOf(ladders []ladder.Ladder) []string {
	count := map[string]int{}
	for _, l := range ladders {
		count[l.Product]++
	}
	labels := make([]string, len(ladders))
	seen := map[string]int{}
	for i, l := range ladders {
		labels[i] = l.Product
		if count[l.Product] > 1 {
			name := strings.TrimSuffix(filepath.Base(l.Name), ".csv")
			if folder := filepath.Base(filepath.Dir(l.Name)); name == l.Product && folder != "." {
				name = folder
			}
			labels[i] += " (" + name + ")"
		}
		seen[labels[i]]++
		if n := seen[labels[i]]; n > 1 {
			labels[i] += fmt.Sprintf(" %d", n)
		}
	}
	return labels
}

// withRecords reads the records that the ladder's rows name.
func (r *Report) withRecords(l ladder.Ladder, records map[string]*record.Run) ([]measured, error) {
	var runs []measured
	missing := 0
	for _, row := range l.Rows {
		m := measured{row: row}
		if row.Record != "" {
			path := recordPath(row)
			run, ok := records[path]
			if !ok {
				var err error
				if run, err = readRecord(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return nil, err
				}
				records[path] = run
			}
			if m.record = run; run == nil {
				missing++
			} else if other := ladder.FromRun(run); row.Line > 0 && differ(row, other) {
				r.Notes = append(r.Notes, fmt.Sprintf("%s:%d: its figures are not those of its record %s", row.File, row.Line, row.Record))
			}
		}
		runs = append(runs, m)
	}
	if missing > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%s: %d of the %d records that it names are not there", l.Name, missing, len(runs)))
	}
	return runs, nil
}

func recordPath(row ladder.Row) string {
	if filepath.IsAbs(row.Record) {
		return row.Record
	}
	return filepath.Join(filepath.Dir(row.File), row.Record)
}

// differ beyond what rounding in a CSV file explains.
func differ(a, b ladder.Row) bool {
	off := func(x, y float64) bool { return math.Abs(x-y) > 0.01+1e-6*math.Abs(y) }
	return a.Offered != b.Offered || a.Dropped != b.Dropped || off(a.Achieved, b.Achieved) || off(a.P50US, b.P50US) || off(a.P99US, b.P99US)
}

// readRecord gives a fs.ErrNotExist for one that is not there, and for what is
// wrong with it the ladder.InputError that reading it as a row gives.
func readRecord(path string) (*record.Run, error) {
	run, err := record.Read(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return run, err
	}
	if _, rowErr := ladder.ReadRecord(path); rowErr != nil {
		return nil, rowErr
	}
	return nil, &ladder.InputError{File: path, Text: err.Error()}
}

// draw the figures, and fill in the page's parts.
func (r *Report) draw(ladders []ladder.Ladder, o Options) error {
	p := &r.page
	both := func(name string, make func(width float64) *figure) (w, n template.HTML) {
		f := make(wide)
		r.figures = append(r.figures, namedFigure{name, f})
		return template.HTML(f.svg("wide")), template.HTML(make(narrow).svg("narrow"))
	}
	if len(p.Views) > 1 {
		w, n := both("overview", func(width float64) *figure { return overviewFigure(p.Views, width) })
		p.Overview = &overview{w, n}
	}
	if len(o.Distributions) > 0 {
		runs, err := chosenByName(o.Distributions)
		if err != nil {
			return err
		}
		p.Distribution = distributionOf(runs, "Chosen runs", "distribution", both)
	}
	for _, v := range p.Views {
		v.Wide, v.Narrow = both(v.Label, func(width float64) *figure { return ladderFigure(v, width) })
		if len(o.Distributions) == 0 {
			runs, err := chosenOf(v)
			if err != nil {
				return err
			}
			if len(runs) > 0 {
				v.Distribution = distributionOf(runs, v.Label, v.Label+"-distribution", both)
			}
		}
		v.fill()
		p.SingleRuns = p.SingleRuns || slices.ContainsFunc(v.zone.Points, func(p zone.Point) bool { return p.Runs == 1 })
	}
	return nil
}

func distributionOf(runs []chosen, title, name string, both func(string, func(float64) *figure) (w, n template.HTML)) *distribution {
	d := &distribution{}
	for _, rank := range percentileRanks {
		head := fmt.Sprintf("p%v", rank)
		if rank == 100 {
			head = "max"
		}
		d.Head = append(d.Head, head)
	}
	d.Wide, d.Narrow = both(name, func(width float64) *figure { return distributionFigure(title, runs, width) })
	for _, c := range runs {
		for _, of := range []struct {
			name string
			d    record.Distribution
		}{{"latency", c.run.Latency}, {"service time", c.run.Service}, {"lag", c.run.Lag}} {
			row := percentileRow{Run: c.Name, Figure: of.name}
			for _, rank := range percentileRanks {
				cell := "-"
				if q, ok := of.d.At(rank); ok {
					cell = formatUS(q.US)
					if q.AtLeast {
						cell = "≥ " + cell
					}
				}
				row.Cells = append(row.Cells, cell)
			}
			d.Rows = append(d.Rows, row)
		}
	}
	return d
}

var percentileRanks = []float64{50, 90, 99, 99.9, 99.99, 100}

func chosenByName(paths []string) ([]chosen, error) {
	var runs []chosen
	for _, path := range paths {
		run, err := readRecord(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &ladder.InputError{File: path, Text: "cannot be read: no such file or directory"}
		}
		if err != nil {
			return nil, err
		}
		c, err := newChosen(run, path, fmt.Sprintf("%s %s", run.Product, record.FileName(run)))
		if err != nil {
			return nil, err
		}
		runs = append(runs, c)
	}
	return runs, nil
}

// chosenOf a ladder are its edge and its floor; of several runs there, the one
// with the middle p99.
func chosenOf(v *view) ([]chosen, error) {
	var runs []chosen
	for _, c := range []struct {
		point *zone.Point
		name  string
	}{{v.zone.Floor, "floor"}, {v.zone.AtEdge, "edge"}} {
		if c.point == nil {
			continue
		}
		var there []measured
		for _, m := range v.runs {
			if m.row.Offered == c.point.Rate && m.record != nil {
				there = append(there, m)
			}
		}
		if len(there) == 0 {
			continue
		}
		slices.SortStableFunc(there, func(a, b measured) int {
			switch {
			case a.row.P99US < b.row.P99US:
				return -1
			case a.row.P99US > b.row.P99US:
				return 1
			}
			return 0
		})
		m := there[(len(there)-1)/2]
		name := fmt.Sprintf("%s (%s)", ladder.FormatRate(c.point.Rate), c.name)
		if len(runs) > 0 && runs[0].run == m.record {
			runs[0].Name = fmt.Sprintf("%s (floor and edge)", ladder.FormatRate(c.point.Rate))
			continue
		}
		run, err := newChosen(m.record, recordPath(m.row), name)
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	return runs, nil
}

func newChosen(run *record.Run, path, name string) (chosen, error) {
	c := chosen{Name: name, run: run}
	var err error
	if c.latency, err = run.Latency.Decode(); err == nil {
		c.service, err = run.Service.Decode()
	}
	if err != nil {
		return c, &ladder.InputError{File: path, Text: err.Error()}
	}
	return c, nil
}

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"percent":  zone.Percent,
	"lastStep": func(s []step) int { return len(s) - 1 },
}).Parse(pageHTML))

// HTML of the page.
func (r *Report) HTML() ([]byte, error) {
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, &r.page); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	return b.Bytes(), nil
}

// Charts writes each chart into dir, which it makes if need be, as an SVG and a
// PNG file: overview, and each ladder's by its label. It returns their paths.
func (r *Report) Charts(dir string) ([]string, error) {
	type file struct {
		path string
		data []byte
	}
	var files []file
	taken := map[string]bool{}
	for _, f := range r.figures {
		name := fileName(f.name)
		for n := 2; taken[name]; n++ {
			name = fmt.Sprintf("%s-%d", fileName(f.name), n)
		}
		taken[name] = true
		png, err := f.figure.png()
		if err != nil {
			return nil, fmt.Errorf("chart %s: %w", name, err)
		}
		base := filepath.Join(dir, name)
		files = append(files, file{base + ".svg", []byte(f.figure.svgFile())}, file{base + ".png", png})
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var paths []string
	for _, f := range files {
		if err := record.WriteFile(f.path, f.data); err != nil {
			return nil, err
		}
		paths = append(paths, f.path)
	}
	return paths, nil
}

// fileName of a label: small letters, digits and dashes.
func fileName(label string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return ' '
	}, label)
	name = strings.Join(strings.Fields(name), "-")
	if name == "" {
		return "chart"
	}
	return name[:min(len(name), 80)]
}
