package report

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// markers by number from 1: corners around the middle; a circle has none.
var markers = [][]point{
	1: nil,
	2: {{-3.6, -3.6}, {3.6, -3.6}, {3.6, 3.6}, {-3.6, 3.6}},
	3: {{0, -5}, {4.6, 3.6}, {-4.6, 3.6}},
	4: {{0, -5.2}, {5.2, 0}, {0, 5.2}, {-5.2, 0}},
	5: {{0, 5}, {4.6, -3.6}, {-4.6, -3.6}},
	6: {{-1.6, -4.8}, {1.6, -4.8}, {1.6, -1.6}, {4.8, -1.6}, {4.8, 1.6}, {1.6, 1.6}, {1.6, 4.8}, {-1.6, 4.8}, {-1.6, 1.6}, {-4.8, 1.6}, {-4.8, -1.6}, {-1.6, -1.6}},
}

const circleRadius = 3.9

// markerOf gives each series a marker of its own.
func markerOf(i int) int { return 1 + i%(len(markers)-1) }

// svg writes the figure for the page, which has the style; class goes on its
// root.
func (f *figure) svg(class string) string { return f.element("chart "+class, 0, "") }

// svgFile writes the figure as a file of its own: with its style, on paper,
// with a margin.
func (f *figure) svgFile() string {
	paper := fmt.Sprintf(`<rect class="paper in-paper" x="%d" y="%d" width="100%%" height="100%%"/>`, -fileMargin, -fileMargin)
	return f.element("chart", fileMargin, "<style>"+escape(chartCSS())+"</style>"+paper)
}

// fileMargin in pixels around a figure that is a file of its own.
const fileMargin = 12

func (f *figure) element(class string, margin float64, head string) string {
	var b strings.Builder
	w, h := px(f.width+2*margin), px(f.height+2*margin)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" class="%s" viewBox="%s %s %s %s" width="%s" height="%s" role="img">`,
		class, px(-margin), px(-margin), w, h, w, h)
	fmt.Fprintf(&b, "<title>%s</title><desc>%s</desc>%s", escape(f.title), escape(f.desc), head)
	for _, s := range f.shapes {
		s.svg(&b)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (s shape) svg(b *strings.Builder) {
	class := s.look + " in-" + s.colour
	if s.out {
		class += " out"
	}
	attributes := fmt.Sprintf(`class="%s"`, class)
	if s.of != nil {
		attributes += fmt.Sprintf(` data-l="%d" data-k="%d"`, s.of.ladder, s.of.rung)
	}
	element := func(name, geometry string) {
		if s.text == "" {
			fmt.Fprintf(b, "<%s %s %s/>", name, attributes, geometry)
		} else {
			fmt.Fprintf(b, "<%s %s %s><title>%s</title></%s>", name, attributes, geometry, escape(s.text), name)
		}
	}
	switch s.kind {
	case line:
		element("path", `d="`+path(s.points)+`"`)
	case area:
		element("path", `d="`+path(s.points)+`Z"`)
	case mark:
		at := s.points[0]
		if corners := markers[s.marker]; corners != nil {
			moved := make([]point, len(corners))
			for i, c := range corners {
				moved[i] = point{at.x + c.x, at.y + c.y}
			}
			element("path", `d="`+path(moved)+`Z"`)
		} else {
			element("circle", fmt.Sprintf(`cx="%s" cy="%s" r="%s"`, px(at.x), px(at.y), px(circleRadius)))
		}
	case text:
		anchor := [...]string{start: "", middle: ` text-anchor="middle"`, end: ` text-anchor="end"`}[s.anchor]
		fmt.Fprintf(b, `<text %s x="%s" y="%s"%s>%s</text>`, attributes, px(s.points[0].x), px(s.points[0].y), anchor, escape(s.text))
	case band:
		z := s.band
		xs := make([]string, len(z.xs))
		for i, x := range z.xs {
			xs[i] = px(x)
		}
		hidden := ""
		if z.edge < 0 {
			hidden = " none"
		}
		fmt.Fprintf(b, `<g class="band%s" data-l="%d" data-left="%s" data-right="%s" data-xs="%s" data-name="%s">`,
			hidden, z.ladder, px(z.left), px(z.right), strings.Join(xs, " "), escape(z.name))
		_, edge, label := z.shapes()
		// A rectangle, which the page's script can widen.
		fmt.Fprintf(b, `<rect class="%s in-%s" x="%s" y="%s" width="%s" height="%s"/>`, z.look, z.colour, px(z.left), px(z.top), px(z.edgeX()-z.left), px(z.bottom-z.top))
		x := edge.points[0].x
		fmt.Fprintf(b, `<line class="%s in-%s" x1="%s" x2="%s" y1="%s" y2="%s"/>`, edge.look, edge.colour, px(x), px(x), px(z.top), px(z.bottom))
		label.svg(b)
		b.WriteString("</g>")
	}
}

// path through points, each relative to the one before.
func path(points []point) string {
	var b strings.Builder
	var last point
	for i, p := range points {
		// Rounded before the difference is taken: errors do not add up.
		p = point{round(p.x), round(p.y)}
		if i == 0 {
			b.WriteString("M" + px(p.x) + "," + px(p.y))
		} else {
			b.WriteString("l" + px(p.x-last.x) + "," + px(p.y-last.y))
		}
		last = p
	}
	return b.String()
}

func round(v float64) float64 { return math.Round(v*10) / 10 }

// px writes a tenth of a pixel.
func px(v float64) string { return strconv.FormatFloat(round(v), 'f', -1, 64) }

func escape(s string) string { return template.HTMLEscapeString(s) }
