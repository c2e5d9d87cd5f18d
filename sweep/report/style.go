package report

import (
	"fmt"
	"image/color"
	"slices"
	"strings"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/font/liberation"
)

// colours by name, for light and for dark schemes, each as 0xRRGGBB.
var colours = []struct {
	name        string
	light, dark uint32
}{
	{"paper", 0xffffff, 0x15181c},
	{"ink", 0x1a1d21, 0xe8eaed},
	{"muted", 0x5b6470, 0xa5adb8},
	{"grid", 0xe3e6ea, 0x2d333b},
	{"zone", 0x009e73, 0x00b987},
	// Of the series: blue, vermilion, green, purple, orange, black and sky blue,
	// made darker or lighter where the paper asks for it.
	{"s0", 0x0072b2, 0x56b4e9},
	{"s1", 0xd55e00, 0xf0803c},
	{"s2", 0x009e73, 0x00b987},
	{"s3", 0xcc79a7, 0xd98cb8},
	{"s4", 0xb87f00, 0xe69f00},
	{"s5", 0x1a1d21, 0xe8eaed},
	{"s6", 0x2a8fcc, 0xf0e442},
}

const seriesColours = 7

func series(i int) string { return fmt.Sprintf("s%d", i%seriesColours) }

// light is the colour of a light scheme.
func light(name string) color.NRGBA {
	for _, c := range colours {
		if c.name == name {
			return color.NRGBA{uint8(c.light >> 16), uint8(c.light >> 8), uint8(c.light), 255}
		}
	}
	panic("report: no colour " + name)
}

// look is how a shape is drawn: a stroke, a fill, or a text.
type look struct {
	width   float64 // of the stroke; 0 for none
	dash    []float64
	fill    float64 // opacity; 0 for none
	size    float64 // of a text
	bold    bool
	surface bool // filled with the colour of the paper
}

var looks = map[string]look{
	"paper":  {fill: 1},
	"grid":   {width: 1},
	"axis":   {width: 1},
	"solid":  {width: 1.8},
	"dashed": {width: 1.8, dash: []float64{6, 4}},
	"dotted": {width: 1.8, dash: []float64{1.8, 3}},
	"thin":   {width: 1},
	"limit":  {width: 1, dash: []float64{2, 3}},
	"edge":   {width: 1.6},
	"zone":   {fill: 0.14},
	"bar":    {fill: 0.38},
	"mark":   {width: 1.5, fill: 1},
	"out":    {width: 1.5, surface: true},
	"title":  {size: 15, bold: true},
	"label":  {size: 12, bold: true},
	"tick":   {size: 12},
}

// fontFamily begins with the fonts that have the widths of the one that
// measures texts here.
const fontFamily = `"Liberation Sans",Arial,Helvetica,sans-serif`

// chartCSS is the style of every chart, as CSS.
func chartCSS() string {
	var b strings.Builder
	scheme := func(dark bool) {
		b.WriteString(":root{")
		for _, c := range colours {
			rgb := c.light
			if dark {
				rgb = c.dark
			}
			fmt.Fprintf(&b, "--%s:#%06x;", c.name, rgb)
		}
		b.WriteString("}")
	}
	scheme(false)
	b.WriteString("\n@media screen and (prefers-color-scheme:dark){")
	scheme(true)
	b.WriteString("}\n")
	for _, c := range colours {
		fmt.Fprintf(&b, ".in-%s{--c:var(--%s)}", c.name, c.name)
	}
	b.WriteString("\nsvg.chart{font-family:" + fontFamily + "}\n")
	var names []string
	for name := range looks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		l := looks[name]
		var rules []string
		rule := func(format string, args ...any) { rules = append(rules, fmt.Sprintf(format, args...)) }
		switch {
		case l.size > 0:
			rule("fill:var(--c);font-size:%gpx", l.size)
			if l.bold {
				rule("font-weight:bold")
			}
		case l.surface:
			rule("fill:var(--paper)")
		case l.fill > 0:
			rule("fill:var(--c);fill-opacity:%g", l.fill)
		default:
			rule("fill:none")
		}
		if l.width > 0 {
			rule("stroke:var(--c);stroke-width:%g", l.width)
		}
		if len(l.dash) > 0 {
			rule("stroke-dasharray:%g %g", l.dash[0], l.dash[1])
		}
		fmt.Fprintf(&b, "svg.chart .%s{%s}", name, strings.Join(rules, ";"))
	}
	// A mark that is out is a mark too: the later rule wins.
	fmt.Fprint(&b, "svg.chart .mark.out{fill:var(--paper)}\n")
	return b.String()
}

var fonts = font.NewCache(liberation.Collection())

// face of a text's look.
func face(name string) font.Face {
	l := looks[name]
	f := font.Font{Typeface: "Liberation", Variant: "Sans"}
	if l.bold {
		f.Weight = xfont.WeightBold
	}
	return fonts.Lookup(f, font.Length(l.size))
}

// textWidth in pixels.
func textWidth(look, s string) float64 {
	f := face(look)
	return float64(f.Width(s))
}
