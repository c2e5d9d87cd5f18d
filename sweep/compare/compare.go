// Package compare sets two sets of runs side by side: for each load that both
// have, the medians of their figures, a 95 % interval of each, and whether the
// difference is one. It assumes nothing of the distributions: the interval is
// of the median by order statistics, the test is Mann and Whitney's U at 0.05,
// both from golang.org/x/perf/benchmath. Six runs give a finite interval, four
// a significant difference.
package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/perf/benchmath"

	"raftrig/sweep/ladder"
)

// Settings that have to agree before runs are compared; Allow lifts them one by
// one.
var Settings = append([]string{"product", "mode", "measure_s", "max_inflight"}, ladder.Settings...)

// Set is one side.
type Set struct {
	Name string
	Rows []ladder.Row
	// Invalid is how many rows were left out for their verdict.
	Invalid int
}

// NewSet takes the rows of the ladders of one side. Without invalid, runs whose
// verdict is INVALID are left out.
func NewSet(name string, ladders []ladder.Ladder, invalid bool) Set {
	s := Set{Name: name}
	for _, l := range ladders {
		for _, r := range l.Rows {
			if !invalid && r.Invalid() != nil {
				s.Invalid++
				continue
			}
			s.Rows = append(s.Rows, r)
		}
	}
	return s
}

// Figure is what is compared.
type Figure struct {
	Name, Unit string
	of         func(ladder.Row) float64
}

// Figures in the order they are shown.
func Figures() []Figure {
	return []Figure{
		{"achieved", "/s", func(r ladder.Row) float64 { return r.Achieved }},
		{"p50", "us", func(r ladder.Row) float64 { return r.P50US }},
		{"p99", "us", func(r ladder.Row) float64 { return r.P99US }},
		{"p99.9", "us", func(r ladder.Row) float64 { return r.P999US }},
	}
}

// Line is one figure at one load.
type Line struct {
	Load   string
	Figure Figure
	A, B   benchmath.Summary
	// Delta of the medians in percent, "~" where it is not significant.
	Delta      string
	Comparison benchmath.Comparison
}

// An Incomparable is the setting in which the two sides differ.
type Incomparable struct{ Text string }

func (e *Incomparable) Error() string { return e.Text }

// Compare the loads that both sides have; only are the loads of one side. Sides
// that differ in a setting are refused, except in those that allow names.
func Compare(a, b Set, allow []string) (lines []Line, only []string, err error) {
	for _, name := range allow {
		if !slices.Contains(Settings, name) {
			return nil, nil, fmt.Errorf("-allow %s: want some of %s", name, strings.Join(Settings, ","))
		}
	}
	names := slices.DeleteFunc(slices.Clone(Settings), func(n string) bool { return slices.Contains(allow, n) })
	for _, s := range []Set{a, b} {
		if len(s.Rows) == 0 {
			return nil, nil, &Incomparable{fmt.Sprintf("%s: no run to compare, %d were left out as INVALID (-invalid takes them in)", s.Name, s.Invalid)}
		}
	}
	byLoad := func(s Set) map[string][]ladder.Row {
		m := map[string][]ladder.Row{}
		for _, r := range s.Rows {
			m[r.Load()] = append(m[r.Load()], r)
		}
		return m
	}
	ofA, ofB := byLoad(a), byLoad(b)
	// What differs everywhere is told before what differs in a load.
	if d := ladder.Difference(a.Rows[0], b.Rows[0], slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return n == "mode" || n == "max_inflight" || n == "burst" || n == "arrival" // go with the load
	})); d != "" {
		return nil, nil, refuse(a, b, "", d)
	}
	for _, load := range loads(ofA, ofB) {
		x, y := ofA[load], ofB[load]
		if len(x) == 0 || len(y) == 0 {
			side := a.Name
			if len(x) == 0 {
				side = b.Name
			}
			only = append(only, fmt.Sprintf("%s in %s only", load, side))
			continue
		}
		for _, r := range append(slices.Clone(x), y...) {
			if d := ladder.Difference(x[0], r, names); d != "" {
				return nil, nil, refuse(a, b, " at "+load, d)
			}
		}
		for _, f := range Figures() {
			va, vb := values(x, f), values(y, f)
			if len(va) == 0 || len(vb) == 0 {
				continue
			}
			sa, sb := benchmath.NewSample(va, &benchmath.DefaultThresholds), benchmath.NewSample(vb, &benchmath.DefaultThresholds)
			l := Line{Load: load, Figure: f, Comparison: benchmath.AssumeNothing.Compare(sa, sb)}
			l.A, l.B = benchmath.AssumeNothing.Summary(sa, 0.95), benchmath.AssumeNothing.Summary(sb, 0.95)
			l.Delta = l.Comparison.FormatDelta(l.A.Center, l.B.Center)
			lines = append(lines, l)
		}
	}
	if len(lines) == 0 {
		return nil, nil, &Incomparable{fmt.Sprintf("%s and %s have no load in common: %s", a.Name, b.Name, strings.Join(only, ", "))}
	}
	return lines, only, nil
}

func refuse(a, b Set, where, difference string) error {
	name, _, _ := strings.Cut(difference, " ")
	return &Incomparable{fmt.Sprintf("%s and %s are not comparable%s: %s (-allow %s compares them all the same)", a.Name, b.Name, where, difference, name)}
}

func values(rows []ladder.Row, f Figure) []float64 {
	var v []float64
	for _, r := range rows {
		if x := f.of(r); !math.IsNaN(x) {
			v = append(v, x)
		}
	}
	return v
}

// loads of both sides: closed ones by threads, then open ones by rate.
func loads(sides ...map[string][]ladder.Row) []string {
	type key struct {
		load    string
		offered int64
		threads int
	}
	var keys []key
	for _, side := range sides {
		for load, rows := range side {
			keys = append(keys, key{load, rows[0].Offered, rows[0].Threads})
		}
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.offered, b.offered), cmp.Compare(a.threads, b.threads))
	})
	var names []string
	for _, k := range keys {
		names = append(names, k.load)
	}
	return slices.Compact(names)
}
