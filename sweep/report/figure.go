package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"raftrig/sweep/ladder"
)

// figure is a drawing, in pixels from its top left corner.
type figure struct {
	width, height float64
	// title and desc are for readers who do not see it.
	title, desc string
	shapes      []shape
}

type point struct{ x, y float64 }

type kind int

const (
	line kind = iota // through all points
	area             // the polygon of all points
	mark             // a marker at the first point
	text             // at the first point, which is on the baseline
	band             // a comfort zone
)

// shape is one part of a figure.
type shape struct {
	kind   kind
	look   string // of looks
	colour string // of colours
	points []point
	// text of a text; of others, what pointing at them shows.
	text   string
	anchor anchor
	marker int
	// out: a mark of a rate outside the zone is hollow.
	out bool
	// of says which rung of which ladder a mark stands for.
	of   *rungRef
	band *zoneBand
}

type rungRef struct{ ladder, rung int }

type anchor int

const (
	start anchor = iota
	middle
	end
)

// zoneBand is a comfort zone, from left to the rung that is its edge.
type zoneBand struct {
	ladder int
	// look of the area.
	look, colour string
	left, right  float64
	top, bottom  float64
	// labelY is the baseline of the edge's label.
	labelY float64
	// xs of the rungs.
	xs []float64
	// edge among xs, -1 for no zone, and its label. name goes before it; without
	// one it says that it is the edge.
	edge        int
	name, label string
}

// edgeX is where the zone ends.
func (b zoneBand) edgeX() float64 {
	if b.edge < 0 {
		return b.left
	}
	return b.xs[b.edge]
}

// shapes of the band: its area, its edge, and its label, on the side that has
// more room. The page's script follows the same rule.
func (b zoneBand) shapes() (zone, edge, label shape) {
	x := b.edgeX()
	name := b.name
	if name == "" && b.edge >= 0 {
		name = "edge"
	}
	zone = shape{kind: area, look: b.look, colour: b.colour, points: []point{{b.left, b.top}, {x, b.top}, {x, b.bottom}, {b.left, b.bottom}}}
	edge = shape{kind: line, look: "edge", colour: b.colour, points: []point{{x, b.top}, {x, b.bottom}}}
	label = shape{kind: text, look: "label", colour: "ink", text: strings.TrimSpace(name + " " + b.label), points: []point{{x + labelGap, b.labelY}}}
	if x > (b.left+b.right)/2 {
		label.anchor, label.points[0].x = end, x-labelGap
	}
	return zone, edge, label
}

// labelGap between an edge and its label.
const labelGap = 6

func (f *figure) add(s ...shape) { f.shapes = append(f.shapes, s...) }

func (f *figure) line(look, colour string, points ...point) {
	f.add(shape{kind: line, look: look, colour: colour, points: points})
}

func (f *figure) text(look, colour string, x, y float64, a anchor, s string) {
	f.add(shape{kind: text, look: look, colour: colour, points: []point{{x, y}}, anchor: a, text: s})
}

// scale maps values to pixels.
type scale struct {
	min, max float64
	log      bool
	from, to float64
}

func (s scale) at(v float64) float64 {
	lo, hi := s.min, s.max
	if s.log {
		v, lo, hi = math.Log(v), math.Log(lo), math.Log(hi)
	}
	return s.from + (v-lo)/(hi-lo)*(s.to-s.from)
}

// ticks gives round values within the scale: at most n, of a logarithmic one at
// least n where it has as many.
func (s scale) ticks(n int) []float64 {
	if s.log {
		// From few ticks a decade to many, until there are enough.
		for _, digits := range [][]float64{{1}, {1, 3}, {1, 2, 5}, {1, 2, 3, 5, 7}, {1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9}} {
			var ticks []float64
			for e := math.Floor(math.Log10(s.min)); e <= math.Log10(s.max); e++ {
				for _, d := range digits {
					if v := d * math.Pow(10, e); v >= s.min*(1-1e-9) && v <= s.max*(1+1e-9) {
						ticks = append(ticks, v)
					}
				}
			}
			if len(ticks) >= n {
				return ticks
			}
		}
	}
	step := math.Pow(10, math.Floor(math.Log10((s.max-s.min)/float64(n))))
	for _, f := range []float64{1, 2, 5, 10} {
		if (s.max-s.min)/(step*f) <= float64(n) {
			step *= f
			break
		}
	}
	var ticks []float64
	for k := int(math.Ceil(s.min/step - 1e-9)); float64(k)*step <= s.max+1e-9*step; k++ {
		ticks = append(ticks, float64(k)*step)
	}
	return ticks
}

// panel is a part of a figure with axes.
type panel struct {
	x, y scale
}

func (p panel) at(x, y float64) point { return point{p.x.at(x), p.y.at(y)} }

// axes of a figure's panels in x, which they share.
type axis struct {
	scale  scale
	ticks  []float64
	format func(float64) string
	title  string
}

// grid draws the panel's frame and its ticks in y, and the grid in both.
func (f *figure) grid(p panel, x axis, yTicks []float64, format func(float64) string) {
	for _, v := range x.ticks {
		px := p.x.at(v)
		f.line("grid", "grid", point{px, p.y.to}, point{px, p.y.from})
	}
	for _, v := range yTicks {
		y := p.y.at(v)
		f.line("grid", "grid", point{p.x.from, y}, point{p.x.to, y})
		f.text("tick", "muted", p.x.from-8, y+4, end, format(v))
	}
	f.line("axis", "muted", point{p.x.from, p.y.to}, point{p.x.from, p.y.from}, point{p.x.to, p.y.from})
}

// under writes the ticks and the title below the lowest panel.
func (x axis) under(f *figure, bottom float64) {
	for _, v := range x.ticks {
		px := x.scale.at(v)
		f.line("axis", "muted", point{px, bottom}, point{px, bottom + 4})
		f.text("tick", "muted", px, bottom+17, middle, x.format(v))
	}
	f.text("tick", "ink", (x.scale.from+x.scale.to)/2, bottom+35, middle, x.title)
}

// heading of the figure.
func (f *figure) heading(s string) { f.text("title", "ink", 0, 14, start, fit("title", s, f.width)) }

// fit cuts s where it is too long for a width.
func fit(look, s string, width float64) string {
	runes := []rune(s)
	for n := len(runes) - 1; n > 0 && otherFonts*textWidth(look, s) > width; n-- {
		s = string(runes[:n]) + "…"
	}
	return s
}

// legendItem is a sample of a line, a mark or an area with its name.
type legendItem struct {
	look, colour string
	kind         kind
	marker       int // 0: none
	name         string
}

const (
	sample    = 30.0
	legendGap = 10.0
	// otherFonts may be so much wider than ours in a browser that has none of
	// its widths.
	otherFonts = 1.2
)

func (it legendItem) width() float64 { return sample + 6 + otherFonts*textWidth("tick", it.name) }

// legend sets items side by side from y on, in as many rows as they need, and
// returns the y below.
func (f *figure) legend(y float64, items []legendItem) float64 {
	const rowHeight = 18.0
	x := 0.0
	for _, it := range items {
		w := it.width() + legendGap
		if x > 0 && x+w-legendGap > f.width {
			x, y = 0, y+rowHeight
		}
		switch it.kind {
		case area:
			f.add(shape{kind: area, look: it.look, colour: it.colour, points: []point{{x, y - 5}, {x + sample, y - 5}, {x + sample, y + 5}, {x, y + 5}}})
		case line:
			f.line(it.look, it.colour, point{x, y}, point{x + sample, y})
		}
		if it.marker > 0 {
			f.add(shape{kind: mark, look: "mark", colour: it.colour, marker: it.marker, points: []point{{x + sample/2, y}}, out: it.kind == mark})
		}
		f.text("tick", "ink", x+sample+6, y+4, start, it.name)
		x += w
	}
	return y + rowHeight
}

// formatUS writes a time with its unit and three digits, which stay on one line:
// 537 µs, 1.40 ms.
func formatUS(us float64) string {
	switch {
	case us <= 0 || math.IsNaN(us):
		return "-"
	case us < 9.95:
		return fmt.Sprintf("%.1f\u00a0µs", us)
	case us < 999.5:
		return fmt.Sprintf("%.0f\u00a0µs", us)
	case us < 9.995e3:
		return fmt.Sprintf("%.2f\u00a0ms", us/1e3)
	case us < 99.95e3:
		return fmt.Sprintf("%.1f\u00a0ms", us/1e3)
	case us < 999.5e3:
		return fmt.Sprintf("%.0f\u00a0ms", us/1e3)
	}
	return fmt.Sprintf("%.2f\u00a0s", us/1e6)
}

// tickUS writes a round time: 500 µs, 1.5 ms.
func tickUS(us float64) string {
	switch {
	case us < 1e3-1e-6:
		return digits(us, 3) + " µs"
	case us < 1e6-1e-3:
		return digits(us/1e3, 3) + " ms"
	}
	return digits(us/1e6, 3) + " s"
}

// digits writes v with at most n decimals and no zeros at the end.
func digits(v float64, n int) string {
	p := math.Pow10(n)
	return strconv.FormatFloat(math.Round(v*p)/p, 'f', -1, 64)
}

func formatRate(v float64) string { return ladder.FormatRate(int64(math.Round(v))) }
