package report

import (
	"bytes"
	"image/color"
	"math"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/vgimg"
)

// pngDPI draws two pixels for one of the figure's, which is a point here.
const pngDPI = 144

// png draws the figure in the light scheme.
func (f *figure) png() ([]byte, error) {
	c := vgimg.NewWith(
		vgimg.UseWH(vg.Length(f.width+2*fileMargin), vg.Length(f.height+2*fileMargin)),
		vgimg.UseDPI(pngDPI), vgimg.UseBackgroundColor(light("paper")))
	p := painter{c, f.height + fileMargin}
	for _, s := range f.shapes {
		p.paint(s)
	}
	var b bytes.Buffer
	_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(&b)
	return b.Bytes(), err
}

// painter turns a figure's pixels, which count from the top, to the canvas,
// which counts from the bottom.
type painter struct {
	canvas *vgimg.Canvas
	height float64
}

func (p painter) at(q point) vg.Point {
	return vg.Point{X: vg.Length(q.x + fileMargin), Y: vg.Length(p.height - q.y)}
}

func (p painter) path(points []point, closed bool) vg.Path {
	var path vg.Path
	for i, q := range points {
		if i == 0 {
			path.Move(p.at(q))
		} else {
			path.Line(p.at(q))
		}
	}
	if closed {
		path.Close()
	}
	return path
}

func (p painter) paint(s shape) {
	switch s.kind {
	case line:
		p.draw(s, p.path(s.points, false))
	case area:
		p.draw(s, p.path(s.points, true))
	case mark:
		at := s.points[0]
		if corners := markers[s.marker]; corners != nil {
			moved := make([]point, len(corners))
			for i, c := range corners {
				moved[i] = point{at.x + c.x, at.y + c.y}
			}
			p.draw(s, p.path(moved, true))
			return
		}
		var circle vg.Path
		circle.Move(p.at(point{at.x + circleRadius, at.y}))
		circle.Arc(p.at(at), circleRadius, 0, 2*math.Pi)
		circle.Close()
		p.draw(s, circle)
	case text:
		at := s.points[0]
		at.x -= [...]float64{start: 0, middle: 0.5, end: 1}[s.anchor] * textWidth(s.look, s.text)
		p.canvas.SetColor(light(s.colour))
		p.canvas.FillString(face(s.look), p.at(at), s.text)
	case band:
		zone, edge, label := s.band.shapes()
		if s.band.edge >= 0 {
			p.paint(zone)
			p.paint(edge)
		}
		p.paint(label)
	}
}

func (p painter) draw(s shape, path vg.Path) {
	l, fill := looks[s.look], light(s.colour)
	if s.out {
		l = looks["out"]
	}
	if l.surface {
		fill = light("paper")
		l.fill = 1
	}
	if l.fill > 0 {
		p.canvas.SetColor(color.NRGBA{fill.R, fill.G, fill.B, uint8(math.Round(255 * l.fill))})
		p.canvas.Fill(path)
	}
	if l.width > 0 {
		var dash []vg.Length
		for _, d := range l.dash {
			dash = append(dash, vg.Length(d))
		}
		p.canvas.SetColor(light(s.colour))
		p.canvas.SetLineWidth(vg.Length(l.width))
		p.canvas.SetLineDash(dash, 0)
		p.canvas.Stroke(path)
	}
}
