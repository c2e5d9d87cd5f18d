package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"

	"raftrig/record"
	"raftrig/sweep/ladder"
	"raftrig/sweep/zone"
)

// Widths of a figure: for a page and a README, and for a phone.
const (
	wide   = 860
	narrow = 380
)

// rung of a ladder, as the charts and tables need it: the judged point with
// what the judgement does not use.
type rung struct {
	zone.Point
	rows []ladder.Row
	// Medians over the runs; NaN when not known.
	lagP50US, lagP99US float64
}

func rungsOf(l ladder.Ladder, z zone.Zone) []rung {
	rungs := make([]rung, len(z.Points))
	for i, r := range l.Rungs() {
		rungs[i] = rung{Point: z.Points[i], rows: r.Rows,
			lagP50US: median(r.Rows, func(r ladder.Row) float64 { return r.LagP50US }),
			lagP99US: median(r.Rows, func(r ladder.Row) float64 { return r.LagP99US })}
	}
	return rungs
}

func known(rows []ladder.Row, of func(ladder.Row) float64) []float64 {
	var values []float64
	for _, r := range rows {
		if v := of(r); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return values
}

func median(rows []ladder.Row, of func(ladder.Row) float64) float64 {
	values := known(rows, of)
	if len(values) == 0 {
		return math.NaN()
	}
	return zone.Median(values)
}

func rowP50(r ladder.Row) float64 { return r.P50US }
func rowP99(r ladder.Row) float64 { return r.P99US }

// around gives a logarithmic scale that holds all values above 0, with some
// room. Without any it holds 1 to 10.
func around(values []float64, from, to float64) scale {
	values = slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return !(v > 0) || math.IsInf(v, 1) })
	if len(values) == 0 {
		values = []float64{1, 10}
	}
	return scale{slices.Min(values) / 1.22, slices.Max(values) * 1.2, true, from, to}
}

// plotted says whether a value has a place on a logarithmic axis.
func plotted(v float64) bool { return v > 0 && !math.IsInf(v, 1) }

// edgeLabel of a zone, behind the name of what has it.
func edgeLabel(z zone.Zone) string {
	switch {
	case z.Edge == nil:
		return "no zone"
	case z.LowerBound:
		return "≥ " + ladder.FormatRate(*z.Edge)
	}
	return ladder.FormatRate(*z.Edge)
}

// edgeIndex among the points, -1 for none.
func edgeIndex(z zone.Zone) int {
	n := 0
	for n < len(z.Points) && z.Points[n].InZone {
		n++
	}
	return n - 1
}

// curve draws a line through the points, with marks for the rungs. Points
// without a value are left out.
func (f *figure) curve(p panel, look, colour string, marker, of, edge int, rungs []rung, value func(rung) float64, tip func(rung) string) {
	var points []point
	var marks []shape
	for i, r := range rungs {
		v := value(r)
		if !plotted(v) {
			continue
		}
		v = min(max(v, p.y.min), p.y.max)
		q := p.at(float64(r.Rate), v)
		points = append(points, q)
		marks = append(marks, shape{kind: mark, look: "mark", colour: colour, marker: marker, points: []point{q}, text: tip(r), out: i > edge, of: &rungRef{of, i}})
	}
	if len(points) > 1 {
		f.line(look, colour, points...)
	}
	f.add(marks...)
}

// spread draws the range of the runs of each rung.
func (f *figure) spread(p panel, colour string, rungs []rung, value func(ladder.Row) float64) {
	for _, r := range rungs {
		values := slices.DeleteFunc(known(r.rows, value), func(v float64) bool { return !plotted(v) })
		if len(values) > 1 {
			x := p.x.at(float64(r.Rate))
			f.line("thin", colour, point{x, p.y.at(slices.Min(values))}, point{x, p.y.at(slices.Max(values))})
		}
	}
}

func ratesOf(rungs []rung, x scale) []float64 {
	xs := make([]float64, len(rungs))
	for i, r := range rungs {
		xs[i] = x.at(float64(r.Rate))
	}
	return xs
}

const (
	marginLeft  = 70.0
	marginRight = 14.0
	// underAxis is the room of the ticks and the title in x.
	underAxis = 44.0
	// overPanel is the room of a panel's title.
	overPanel = 30.0
)

// xTicks that a figure of a width has room for.
func xTicks(width float64) int { return max(3, int(width/85)) }

// ladderFigure charts one ladder over its own range: latency, what was not
// served, lag.
func ladderFigure(v *view, width float64) *figure {
	f := &figure{width: width, title: v.Label + ": latency, drops, lag"}
	f.heading(f.title)
	y := f.legend(36, []legendItem{
		{"solid", "s0", line, 1, "p50"},
		{"dashed", "s1", line, 2, "p99"},
		{"zone", "zone", area, 0, "comfort zone"},
		{"mark", "muted", mark, 1, "hollow: outside it"},
	})
	rungs, edge := v.rungs, edgeIndex(v.zone)
	left, right := marginLeft, width-marginRight
	low, high := float64(rungs[0].Rate), float64(rungs[len(rungs)-1].Rate)
	x := scale{low - 0.04*(high-low), high + 0.04*(high-low), false, left, right}
	if low < 0.4*high {
		x.min = 0
	}
	shared := axis{x, x.ticks(xTicks(width)), formatRate, "offered rate, requests/s"}
	top := y + 18

	var us []float64
	for _, r := range rungs {
		us = append(us, known(r.rows, rowP50)...)
		us = append(us, known(r.rows, rowP99)...)
	}
	latency := panel{x, around(us, top+250, top)}
	f.grid(latency, shared, latency.y.ticks(4), tickUS)
	f.text("tick", "ink", 0, top-10, start, "latency (log)")

	// Shares below a ten-thousandth lie on the axis.
	const least = 1e-4
	dropTop := latency.y.from + overPanel
	shares := panel{x, scale{least, 1, true, dropTop + 92, dropTop}}
	var missing = func(r rung) float64 { return max(1-r.AchievedShare, least) }
	var drops = func(r rung) float64 { return max(r.DropShare, least) }
	f.grid(shares, shared, []float64{1e-4, 1e-3, 1e-2, 1e-1, 1}, func(v float64) string {
		if v == least {
			return "≤ 0.01 %"
		}
		return digits(100*v, 2) + " %"
	})
	items := []legendItem{
		{"solid", "s4", line, 3, "dropped"},
		{"dashed", "s3", line, 4, "not achieved"},
	}
	if width == wide { // there is no room elsewhere
		items = append(items, legendItem{"limit", "muted", line, 0, "limits"})
	}
	f.panelTitle(dropTop-10, "of offered (log)", items, width)
	bottom := shares.y.from
	if v.zone.Limits.Drops >= least && v.zone.Limits.Drops <= 1 {
		f.line("limit", "s4", shares.at(x.min, v.zone.Limits.Drops), shares.at(x.max, v.zone.Limits.Drops))
	}
	if short := 1 - v.zone.Limits.Achieved; short >= least {
		f.line("limit", "s3", shares.at(x.min, short), shares.at(x.max, short))
	}

	var lags []float64
	for _, r := range rungs {
		lags = append(lags, known(r.rows, func(r ladder.Row) float64 { return r.LagP50US })...)
		lags = append(lags, known(r.rows, func(r ladder.Row) float64 { return r.LagP99US })...)
	}
	var lag panel
	if len(lags) > 0 {
		lagTop := bottom + overPanel
		lag = panel{x, around(lags, lagTop+92, lagTop)}
		f.grid(lag, shared, lag.y.ticks(3), tickUS)
		f.panelTitle(lagTop-10, "lag (log)", []legendItem{
			{"solid", "s6", line, 1, "p50"},
			{"dashed", "s5", line, 2, "p99"},
		}, width)
		bottom = lag.y.from
	}
	shared.under(f, bottom)
	f.add(shape{kind: band, band: &zoneBand{
		ladder: v.Index, look: "zone", colour: "zone",
		left: max(left, x.at(low)-7), right: right, top: top, bottom: bottom, labelY: top - 10,
		xs: ratesOf(rungs, x), edge: edge, label: edgeLabel(v.zone),
	}})

	f.spread(latency, "s1", rungs, rowP99)
	f.spread(latency, "s0", rungs, rowP50)
	tip := func(r rung) string {
		return fmt.Sprintf("%s: p50 %s, p99 %s, ratio %s", ladder.FormatRate(r.Rate), formatUS(r.P50US), formatUS(r.P99US), digits(r.Ratio, 2))
	}
	f.curve(latency, "dashed", "s1", 2, v.Index, edge, rungs, func(r rung) float64 { return r.P99US }, tip)
	f.curve(latency, "solid", "s0", 1, v.Index, edge, rungs, func(r rung) float64 { return r.P50US }, tip)
	shareTip := func(r rung) string {
		return fmt.Sprintf("%s: dropped %s, achieved %s of the offered", ladder.FormatRate(r.Rate), zone.Percent(r.DropShare), zone.Percent(r.AchievedShare))
	}
	f.curve(shares, "dashed", "s3", 4, v.Index, edge, rungs, missing, shareTip)
	f.curve(shares, "solid", "s4", 3, v.Index, edge, rungs, drops, shareTip)
	if len(lags) > 0 {
		lagTip := func(r rung) string {
			return fmt.Sprintf("%s: lag p50 %s, p99 %s", ladder.FormatRate(r.Rate), formatUS(r.lagP50US), formatUS(r.lagP99US))
		}
		f.curve(lag, "dashed", "s5", 2, v.Index, edge, rungs, func(r rung) float64 { return r.lagP99US }, lagTip)
		f.curve(lag, "solid", "s6", 1, v.Index, edge, rungs, func(r rung) float64 { return r.lagP50US }, lagTip)
	}
	f.height = bottom + underAxis
	if len(lags) == 0 {
		f.height += 16
		f.text("tick", "muted", 0, f.height-4, start, "Lag is not in these rows.")
	}
	f.desc = fmt.Sprintf("%d rates from %s to %s requests a second. Comfort zone to: %s. The table below has the figures.",
		len(rungs), ladder.FormatRate(rungs[0].Rate), ladder.FormatRate(rungs[len(rungs)-1].Rate), edgeLabel(v.zone))
	return f
}

// panelTitle with the legend of the panel at its right.
func (f *figure) panelTitle(y float64, title string, items []legendItem, width float64) {
	f.text("tick", "ink", 0, y, start, title)
	sub := &figure{width: width}
	sub.legend(y-4, items)
	// The legend ends where the panel does.
	used := 0.0
	for _, it := range items {
		used += it.width() + legendGap
	}
	shift := width - marginRight - (used - legendGap)
	for _, s := range sub.shapes {
		for i := range s.points {
			s.points[i].x += shift
		}
		f.add(s)
	}
}

// overviewFigure charts all ladders together, with their zones as bars below.
func overviewFigure(views []*view, width float64) *figure {
	f := &figure{width: width, title: "Latency and comfort zones"}
	f.heading(f.title)
	var items []legendItem
	var us, rates []float64
	for i, v := range views {
		items = append(items, legendItem{"solid", series(i), line, markerOf(i), v.Label})
		for _, r := range v.rungs {
			us = append(us, r.P50US, r.P99US)
			rates = append(rates, float64(r.Rate))
		}
	}
	items = append(items, legendItem{"solid", "muted", line, 0, "p50"}, legendItem{"dashed", "muted", line, 0, "p99"},
		legendItem{"mark", "muted", mark, 1, "hollow: outside the zone"})
	y := f.legend(36, items)
	left, right := marginLeft, width-marginRight
	x := around(rates, left, right)
	top := y + 18
	latency := panel{x, around(us, top+300, top)}
	ticks := 5
	if width < wide {
		ticks = 4
	}
	shared := axis{x, x.ticks(ticks), formatRate, "offered rate, requests/s (log)"}
	f.grid(latency, shared, latency.y.ticks(4), tickUS)
	f.text("tick", "ink", 0, top-10, start, "latency (log)")
	const rowHeight = 22.0
	barTop := latency.y.from + overPanel
	f.text("tick", "ink", 0, barTop-9, start, "comfort zones")
	bottom := barTop + rowHeight*float64(len(views)) + 6
	f.grid(panel{x, scale{0, 1, false, bottom, barTop}}, shared, nil, nil)
	shared.under(f, bottom)
	var texts []string
	for i, v := range views {
		edge := edgeIndex(v.zone)
		rowTop := barTop + 4 + rowHeight*float64(i)
		low := x.at(float64(v.rungs[0].Rate))
		f.add(shape{kind: band, band: &zoneBand{
			ladder: v.Index, look: "bar", colour: series(i),
			left: low - 7, right: right, top: rowTop, bottom: rowTop + rowHeight - 6, labelY: rowTop + 12.5,
			xs: ratesOf(v.rungs, x), edge: edge, name: fit("label", v.Label, (right-left)/2-70), label: edgeLabel(v.zone),
		}})
		tip := func(r rung) string {
			return fmt.Sprintf("%s at %s: p50 %s, p99 %s", v.Label, ladder.FormatRate(r.Rate), formatUS(r.P50US), formatUS(r.P99US))
		}
		f.curve(latency, "dashed", series(i), markerOf(i), v.Index, edge, v.rungs, func(r rung) float64 { return r.P99US }, tip)
		f.curve(latency, "solid", series(i), markerOf(i), v.Index, edge, v.rungs, func(r rung) float64 { return r.P50US }, tip)
		texts = append(texts, v.Label+" "+edgeLabel(v.zone))
	}
	f.height = bottom + underAxis
	f.desc = "Comfort zones to: " + strings.Join(texts, ", ") + ". The table below has the figures."
	return f
}

// chosen is a run whose distributions are charted.
type chosen struct {
	Name string
	run  *record.Run
	// latency and service histograms, in nanoseconds.
	latency, service *hdrhistogram.Histogram
}

// MaxChosen runs fit one chart.
const MaxChosen = seriesColours

// distributionFigure charts the percentiles of runs: latency, and service
// time dashed. The axis in x counts nines.
func distributionFigure(title string, runs []chosen, width float64) *figure {
	f := &figure{width: width, title: title + ": latency by percentile"}
	f.heading(f.title)
	var items []legendItem
	var us []float64
	nines := 2.0
	type trace struct {
		look, colour string
		points       []point
	}
	var traces []trace
	for i, c := range runs {
		items = append(items, legendItem{"solid", series(i), line, 0, c.Name})
		for _, d := range []struct {
			look string
			h    *hdrhistogram.Histogram
			of   record.Distribution
		}{{"dashed", c.service, c.run.Service}, {"solid", c.latency, c.run.Latency}} {
			points := percentiles(d.h, d.of)
			if len(points) == 0 {
				continue
			}
			nines = max(nines, points[len(points)-1].x)
			for _, p := range points {
				us = append(us, p.y)
			}
			traces = append(traces, trace{d.look, series(i), points})
		}
	}
	items = append(items, legendItem{"solid", "muted", line, 0, "latency"}, legendItem{"dashed", "muted", line, 0, "service time"})
	y := f.legend(36, items)
	top := y + 18
	x := scale{0, nines, false, marginLeft, width - marginRight}
	p := panel{x, around(us, top+260, top)}
	ticks := []float64{0, math.Log10(2)}
	for n := 1.0; n <= nines; n++ {
		ticks = append(ticks, n)
	}
	if room := (x.to - x.from) / nines; room < 90 {
		ticks = slices.Delete(ticks, 1, 2)
	}
	shared := axis{x, ticks, func(v float64) string {
		return strconv.FormatFloat(100*(1-math.Pow(10, -v)), 'f', max(0, int(math.Ceil(v))-2), 64) + " %"
	}, "percentile"}
	f.grid(p, shared, p.y.ticks(4), tickUS)
	f.text("tick", "ink", 0, top-10, start, "time (log)")
	shared.under(f, p.y.from)
	for _, t := range traces {
		for i, q := range t.points {
			t.points[i] = p.at(q.x, max(q.y, p.y.min))
		}
		f.line(t.look, t.colour, t.points...)
	}
	f.height = p.y.from + underAxis
	f.desc = "Time within which a share of the requests was answered. The table below has the figures."
	return f
}

// percentiles of a distribution: x counts nines (1 is 90 %, 2 is 99 %), y is in
// microseconds. Requests without an answer rank above all others, with the
// least that they took.
func percentiles(h *hdrhistogram.Histogram, d record.Distribution) []point {
	total := h.TotalCount() + d.Beyond
	if total == 0 {
		return nil
	}
	const perNine = 40
	last := math.Log10(float64(total))
	var points []point
	var seen int64
	value := 0.0
	bars := h.Distribution()
	next := 0
	for i := 0; ; i++ {
		x := min(float64(i)/perNine, last)
		rank := max(1, int64(math.Ceil(float64(total)*(1-math.Pow(10, -x)))))
		if x == last {
			rank = total
		}
		for next < len(bars) && seen < rank {
			seen += bars[next].Count
			value = min(float64(bars[next].To)/1e3, d.MaxUS)
			next++
		}
		if rank > h.TotalCount() {
			value = d.BeyondUS
		}
		if value > 0 {
			points = append(points, point{x, value})
		}
		if x == last {
			return points
		}
	}
}
