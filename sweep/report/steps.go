package report

import (
	"fmt"
	"slices"
	"strings"

	"raftrig/sweep/ladder"
	"raftrig/sweep/zone"
)

// The slider's bounds of p99/p50, in tenths.
const (
	firstTenths = 15
	lastTenths  = 60
)

// step is one position of the slider: everything on the page that the bound
// decides.
type step struct {
	Bound   string       `json:"bound"`
	Ladders []stepLadder `json:"ladders"`
}

type stepLadder struct {
	// Edge among the rungs, -1 for no zone.
	Edge  int    `json:"edge"`
	Label string `json:"label"`
	// Summary cells of the table of zones.
	Summary []string `json:"summary"`
	// State of each rung, one letter of rungStates.
	State string `json:"state"`
	// Ratio has a 1 for each rung that does not meet the bound, else a 0.
	Ratio string `json:"ratio"`
}

// stepsOf the slider. first is the one of the limits' own ratio, which is added
// where the slider does not have it.
func stepsOf(ladders []ladder.Ladder, l zone.Limits) (steps []step, first int, err error) {
	var bounds []float64
	for t := firstTenths; t <= lastTenths; t++ {
		bounds = append(bounds, float64(t)/10)
	}
	if !slices.Contains(bounds, l.Ratio) {
		bounds = append(bounds, l.Ratio)
		slices.Sort(bounds)
	}
	for i, bound := range bounds {
		if bound == l.Ratio {
			first = i
		}
		limits := l
		limits.Ratio = bound
		s := step{Bound: boundText(bound)}
		for _, lad := range ladders {
			z, err := zone.Of(lad, limits)
			if err != nil {
				return nil, 0, err
			}
			s.Ladders = append(s.Ladders, stepOf(z))
		}
		steps = append(steps, s)
	}
	return steps, first, nil
}

// boundText has at least one decimal: 3.0, 2.75.
func boundText(v float64) string {
	s := digits(v, 6)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func stepOf(z zone.Zone) stepLadder {
	s := stepLadder{Edge: edgeIndex(z), Label: edgeLabel(z), Summary: summary(z)}
	for i, p := range z.Points {
		s.State += string(stateOf(p, i, s.Edge))
		ratio := "0"
		if slices.ContainsFunc(p.Failures, func(f zone.Failure) bool { return f.Criterion == "ratio" }) {
			ratio = "1"
		}
		s.Ratio += ratio
	}
	return s
}

// rungStates are what a table says of a rung; page.js has the same.
var rungStates = map[byte]string{
	'z': "in the zone",
	'n': "noise",
	'f': "fails",
	'p': "passes, beyond the zone",
}

func stateOf(p zone.Point, i, edge int) byte {
	switch {
	case p.Noise && i <= edge:
		return 'n'
	case !p.Passes():
		return 'f'
	case i <= edge:
		return 'z'
	}
	return 'p'
}

var summaryHead = []string{"comfort zone to", "p50 / p99 there", "p50 floor", "knee", "max sustained", "first rate that fails, and why"}

// summary of a zone, by summaryHead.
func summary(z zone.Zone) []string {
	cells := []string{edgeLabel(z), "-", "-", "-", fmt.Sprintf("%.0f/s at %s", z.MaxSustained.Achieved, ladder.FormatRate(z.MaxSustained.Rate)), "-"}
	if p := z.AtEdge; p != nil {
		cells[1] = formatUS(p.P50US) + " / " + formatUS(p.P99US)
	}
	if p := z.Floor; p != nil {
		cells[2] = formatUS(p.P50US) + " at " + ladder.FormatRate(p.Rate)
	}
	if k := z.Knee; k.Rate != nil {
		cells[3] = ladder.FormatRate(*k.Rate) + " ("
		sep := ""
		for _, s := range []struct {
			name string
			rate *int64
		}{{"p50", k.P50}, {"tail", k.Tail}, {"throughput", k.Throughput}} {
			if s.rate != nil {
				cells[3] += sep + s.name + " " + ladder.FormatRate(*s.rate)
				sep = ", "
			}
		}
		cells[3] += ")"
	}
	if p := z.FirstFailing; p != nil {
		cells[5] = ladder.FormatRate(p.Rate) + ": " + p.Why()
	}
	return cells
}
