package zone

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"raftrig/sweep/ladder"
)

// Limits of the comfort zone.
type Limits struct {
	// Ratio that p99/p50 may reach.
	Ratio float64 `json:"ratio"`
	// Achieved is the least share of offered that has to be answered.
	Achieved float64 `json:"achieved"`
	// Drops is the share of offered from which drops by the rig fail a rate.
	Drops float64 `json:"drops"`
}

// DefaultLimits of the published zones.
func DefaultLimits() Limits { return Limits{Ratio: 3, Achieved: 0.99, Drops: 0.001} }

// Validate says what cannot be a limit, naming the flag.
func (l Limits) Validate() error {
	switch {
	case !(l.Ratio >= 1 && l.Ratio <= 1e6):
		return fmt.Errorf("-ratio %v: want a bound of p99/p50 from 1", l.Ratio)
	case !(l.Achieved >= 0 && l.Achieved <= 1):
		return fmt.Errorf("-achieved %v: want a share of the offered rate from 0 to 1", l.Achieved)
	case !(l.Drops > 0 && l.Drops <= 1):
		return fmt.Errorf("-drops %v: want a share of the offered requests above 0, up to 1", l.Drops)
	}
	return nil
}

// Point is one rate, each figure being the median over its runs.
type Point struct {
	Rate int64 `json:"rate"`
	Runs int   `json:"runs"`
	// Achieved in requests a second, and its share of the offered rate.
	Achieved      float64 `json:"achieved"`
	AchievedShare float64 `json:"achieved_share"`
	DropShare     float64 `json:"drop_share"`
	// P50US, P99US and their Ratio are 0 when nothing was answered.
	P50US float64 `json:"p50_us"`
	P99US float64 `json:"p99_us"`
	Ratio float64 `json:"ratio"`
	// Failures are the criteria that the rate does not meet.
	Failures []Failure `json:"failures"`
	// Noise: it fails, but as one of a kind; see the package.
	Noise bool `json:"noise"`
	// InZone: at the edge or below it.
	InZone bool `json:"in_zone"`
	// Distrust are the reasons of INVALID verdicts among its runs that speak
	// against the rig rather than the load: anything but achieved and dropped.
	Distrust []string `json:"distrust,omitempty"`
}

// Failure is one criterion that is not met.
type Failure struct {
	// Criterion is achieved, drops or ratio.
	Criterion string  `json:"criterion"`
	Value     float64 `json:"value"`
	Limit     float64 `json:"limit"`
}

func (f Failure) String() string {
	switch f.Criterion {
	case "achieved":
		return fmt.Sprintf("achieved %s of the offered (limit %s)", Percent(f.Value), Percent(f.Limit))
	case "drops":
		return fmt.Sprintf("drops %s of the offered (limit %s)", Percent(f.Value), Percent(f.Limit))
	}
	if f.Value == 0 {
		return "nothing was answered"
	}
	return fmt.Sprintf("p99/p50 %s (limit %s)", short(f.Value, 2), short(f.Limit, 2))
}

// Percent writes a share, with two digits behind the point below 10 %.
func Percent(share float64) string {
	if share < 0.1 {
		return short(100*share, 2) + " %"
	}
	return short(100*share, 1) + " %"
}

func short(v float64, decimals int) string {
	s := strconv.FormatFloat(v, 'f', decimals, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// Judge one rate. There is at least one run.
func Judge(rate int64, rows []ladder.Row, l Limits) Point {
	median := func(of func(ladder.Row) float64) float64 {
		var values []float64
		for _, r := range rows {
			if v := of(r); !math.IsNaN(v) {
				values = append(values, v)
			}
		}
		return Median(values)
	}
	p := Point{
		Rate: rate, Runs: len(rows), Failures: []Failure{},
		Achieved:  median(func(r ladder.Row) float64 { return r.Achieved }),
		DropShare: median(ladder.Row.DropShare),
		P50US:     median(func(r ladder.Row) float64 { return r.P50US }),
		P99US:     median(func(r ladder.Row) float64 { return r.P99US }),
	}
	p.AchievedShare = p.Achieved / float64(rate)
	if p.P50US > 0 {
		p.Ratio = p.P99US / p.P50US
	}
	if p.AchievedShare < l.Achieved {
		p.Failures = append(p.Failures, Failure{"achieved", p.AchievedShare, l.Achieved})
	}
	if p.DropShare >= l.Drops {
		p.Failures = append(p.Failures, Failure{"drops", p.DropShare, l.Drops})
	}
	if p.Ratio > l.Ratio || p.Ratio == 0 {
		p.Failures = append(p.Failures, Failure{"ratio", p.Ratio, l.Ratio})
	}
	for _, r := range rows {
		for _, code := range r.Invalid() {
			if code != "achieved" && code != "dropped" && !slices.Contains(p.Distrust, code) {
				p.Distrust = append(p.Distrust, code)
			}
		}
	}
	return p
}

// Median of values; 0 of none. It sorts them.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	slices.Sort(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// Passes says whether all criteria are met.
func (p Point) Passes() bool { return len(p.Failures) == 0 }

// Why the point fails, in words.
func (p Point) Why() string {
	var texts []string
	for _, f := range p.Failures {
		texts = append(texts, f.String())
	}
	return strings.Join(texts, ", ")
}

// Zone is the judgement of one ladder.
type Zone struct {
	File    string `json:"file"`
	Product string `json:"product"`
	// Edge of the comfort zone in requests a second; nil when the lowest rate
	// fails.
	Edge *int64 `json:"edge"`
	// LowerBound: the ladder never left the zone, the edge is at least this.
	LowerBound bool `json:"lower_bound"`
	// AtEdge has the figures there.
	AtEdge *Point `json:"at_edge"`
	// Floor is where p50 is lowest: in the zone, or anywhere when there is none.
	Floor *Point `json:"floor"`
	Knee  Knee   `json:"knee"`
	// MaxSustained is where most was achieved.
	MaxSustained Point `json:"max_sustained"`
	// FirstFailing is the lowest rate above the edge; nil with LowerBound.
	FirstFailing *Point `json:"first_failing"`
	// Points of the whole ladder by ascending rate.
	Points []Point `json:"points"`
	// Settings by column, of all runs.
	Settings map[string]string `json:"settings"`
	Limits   Limits            `json:"limits"`
}

// Knee has the rate at which each signal appears, nil for one that does not.
type Knee struct {
	// Rate is the lowest of the three.
	Rate       *int64 `json:"rate"`
	P50        *int64 `json:"p50"`
	Tail       *int64 `json:"tail"`
	Throughput *int64 `json:"throughput"`
}

// Of judges a ladder. One with a closed run, or with a single rate, is an
// InputError.
func Of(lad ladder.Ladder, l Limits) (Zone, error) {
	for _, r := range lad.Rows {
		if r.Mode != "open" {
			return Zone{}, &ladder.InputError{File: r.File, Line: r.Line, Text: "a closed run has no offered rate: a zone needs MODE=open"}
		}
	}
	rungs := lad.Rungs()
	if len(rungs) < 2 {
		r := lad.Rows[0]
		return Zone{}, &ladder.InputError{File: r.File, Line: r.Line, Text: fmt.Sprintf("a sweep with one rate, %s: a zone needs at least two", ladder.FormatRate(r.Offered))}
	}
	z := Zone{File: lad.Name, Product: lad.Product, Limits: l, Settings: lad.Rows[0].Settings}
	for _, r := range rungs {
		z.Points = append(z.Points, Judge(r.Rate, r.Rows, l))
	}
	z.judge()
	return z, nil
}

func (z *Zone) judge() {
	edge := -1
	for i := range z.Points {
		p := &z.Points[i]
		last := i == len(z.Points)-1
		p.Noise = !p.Passes() && p.Runs == 1 && i > 0 && !last && z.Points[i-1].Passes() && z.Points[i+1].Passes()
		if !p.Passes() && !p.Noise {
			break
		}
		if p.Passes() {
			edge = i
		}
	}
	for i := range z.Points {
		p := &z.Points[i]
		p.InZone = i <= edge
		if p.Achieved > z.MaxSustained.Achieved || i == 0 {
			z.MaxSustained = *p
		}
		if (i <= edge || edge < 0) && p.P50US > 0 && (z.Floor == nil || p.P50US < z.Floor.P50US) {
			z.Floor = p
		}
	}
	if edge >= 0 {
		z.AtEdge = &z.Points[edge]
		z.Edge = &z.AtEdge.Rate
	}
	if edge == len(z.Points)-1 {
		z.LowerBound = true
		return
	}
	z.FirstFailing = &z.Points[edge+1]
	z.Knee = knee(z.Points, edge, z.Limits)
}

// knee looks above the edge, which is not the last point; -1 is none.
func knee(points []Point, edge int, l Limits) Knee {
	var k Knee
	above := points[edge+1:]
	if edge >= 0 {
		from := points[edge]
		grown := func(of func(Point) float64) *int64 {
			for i := range above {
				if of(above[i])/of(from) > float64(above[i].Rate)/float64(from.Rate) {
					return &above[i].Rate
				}
			}
			return nil
		}
		k.P50 = grown(func(p Point) float64 { return p.P50US })
		k.Tail = grown(func(p Point) float64 { return p.P99US })
	}
	for i := len(above) - 1; i >= 0 && above[i].AchievedShare < l.Achieved; i-- {
		k.Throughput = &above[i].Rate
	}
	for _, r := range []*int64{k.P50, k.Tail, k.Throughput} {
		if r != nil && (k.Rate == nil || *r < *k.Rate) {
			k.Rate = r
		}
	}
	return k
}

// Bounds of p99/p50 that Sensitivity tries when none are asked for.
func Bounds() []float64 { return []float64{2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6} }

// Sensitivity is how far the choice of the ratio bound moves the edge.
type Sensitivity struct {
	File    string        `json:"file"`
	Product string        `json:"product"`
	Edges   []EdgeAtBound `json:"edges"`
}

// EdgeAtBound is the zone's edge for one bound of p99/p50.
type EdgeAtBound struct {
	Ratio      float64 `json:"ratio"`
	Edge       *int64  `json:"edge"`
	LowerBound bool    `json:"lower_bound"`
}

// SensitivityOf judges a ladder by each of the bounds in turn, with the other
// limits as they are.
func SensitivityOf(lad ladder.Ladder, l Limits, bounds []float64) (Sensitivity, error) {
	s := Sensitivity{File: lad.Name, Product: lad.Product}
	for _, bound := range bounds {
		l.Ratio = bound
		z, err := Of(lad, l)
		if err != nil {
			return s, err
		}
		s.Edges = append(s.Edges, EdgeAtBound{bound, z.Edge, z.LowerBound})
	}
	return s, nil
}
