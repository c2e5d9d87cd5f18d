package main

import (
	"encoding/csv"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"raftrig/sweep/ladder"
	"raftrig/sweep/zone"
)

// limitFlags are the limits of the comfort zone.
func limitFlags(f *flag.FlagSet, ratio bool) *zone.Limits {
	l := zone.DefaultLimits()
	if ratio {
		f.Float64Var(&l.Ratio, "ratio", l.Ratio, "most that p99 may be, as a multiple of p50")
	}
	f.Float64Var(&l.Achieved, "achieved", l.Achieved, "least share of the offered rate that has to be achieved")
	f.Float64Var(&l.Drops, "drops", l.Drops, "share of the offered requests from which drops by the rig fail a rate")
	return &l
}

func readLadders(files []string, l *zone.Limits) ([]ladder.Ladder, error) {
	if err := l.Validate(); err != nil {
		return nil, usageError{err}
	}
	if len(files) == 0 {
		return nil, usagef("which files? want CSV files or run records")
	}
	return ladder.Read(files)
}

func zoneVerb(e env, f *flag.FlagSet, args []string) error {
	limits, format := limitFlags(f, true), formatFlag(f)
	files, err := parse(f, args)
	if err != nil {
		return err
	}
	if err := checkFormat(*format); err != nil {
		return err
	}
	ladders, err := readLadders(files, limits)
	if err != nil {
		return err
	}
	zones := []zone.Zone{}
	for _, l := range ladders {
		z, err := zone.Of(l, *limits)
		if err != nil {
			return err
		}
		zones = append(zones, z)
	}
	switch *format {
	case "json":
		return writeJSON(e.stdout, zones)
	case "csv":
		return zoneCSV(e.stdout, zones)
	case "md":
		return zoneMarkdown(e.stdout, zones)
	}
	for i, z := range zones {
		if i > 0 {
			fmt.Fprintln(e.stdout)
		}
		if err := zoneText(e.stdout, z); err != nil {
			return err
		}
	}
	return nil
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// rate writes a rate, - for none.
func rate(r *int64) string {
	if r == nil {
		return "-"
	}
	return ladder.FormatRate(*r)
}

// edge says that the edge is only a lower bound.
func edge(r *int64, lowerBound bool) string {
	if lowerBound {
		return ">= " + rate(r)
	}
	return rate(r)
}

func us(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func zoneText(w io.Writer, z zone.Zone) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-14s %s\n", name, fmt.Sprintf(format, args...))
	}
	switch {
	case z.Edge == nil:
		fmt.Fprintf(&b, "%s: no comfort zone: the lowest rate, %s, fails\n", z.Product, ladder.FormatRate(z.Points[0].Rate))
	case z.LowerBound:
		fmt.Fprintf(&b, "%s: comfort zone to %s at least: the ladder never left it\n", z.Product, rate(z.Edge))
	default:
		fmt.Fprintf(&b, "%s: comfort zone to %s\n", z.Product, rate(z.Edge))
	}
	if p := z.AtEdge; p != nil {
		line("at the edge", "p50 %s us, p99 %s us, ratio %.2f", us(p.P50US), us(p.P99US), p.Ratio)
	}
	if p := z.Floor; p != nil {
		line("p50 floor", "%s us at %s", us(p.P50US), ladder.FormatRate(p.Rate))
	}
	if k := z.Knee; k.Rate != nil {
		line("knee", "%s: p50 climbs from %s, the tail from %s, throughput falls behind from %s", rate(k.Rate), rate(k.P50), rate(k.Tail), rate(k.Throughput))
	} else {
		line("knee", "not on this ladder")
	}
	line("max sustained", "%.0f/s, at %s offered", z.MaxSustained.Achieved, ladder.FormatRate(z.MaxSustained.Rate))
	if p := z.FirstFailing; p != nil {
		line("first failing", "%s: %s", ladder.FormatRate(p.Rate), p.Why())
	}
	runs := 0
	for _, p := range z.Points {
		runs += p.Runs
		if p.Noise {
			line("noise", "%s: %s; one run, and both neighbours pass", ladder.FormatRate(p.Rate), p.Why())
		}
		if len(p.Distrust) > 0 {
			line("distrust", "%s: a run there is INVALID for %s", ladder.FormatRate(p.Rate), strings.Join(p.Distrust, ", "))
		}
	}
	line("ladder", "%s: %d rates from %s to %s, %d runs%s", z.File, len(z.Points), ladder.FormatRate(z.Points[0].Rate), ladder.FormatRate(z.Points[len(z.Points)-1].Rate), runs, settings(z))
	line("limits", "p99/p50 %g, achieved %g, drops %g", z.Limits.Ratio, z.Limits.Achieved, z.Limits.Drops)
	_, err := io.WriteString(w, b.String())
	return err
}

// settings that are known, in a fixed order.
func settings(z zone.Zone) string {
	text := ""
	for _, name := range ladder.Settings {
		if v := z.Settings[name]; v != "" {
			text += ", " + name + " " + v
		}
	}
	return text
}

func zoneMarkdown(w io.Writer, zones []zone.Zone) error {
	rows := [][]string{{"product", "comfort zone", "p50 / p99 there", "p50 floor", "knee", "max sustained", "first rate that fails, and why"}}
	for _, z := range zones {
		row := []string{z.Product, edge(z.Edge, z.LowerBound), "-", "-", rate(z.Knee.Rate), fmt.Sprintf("%.0f/s", z.MaxSustained.Achieved), "-"}
		if p := z.AtEdge; p != nil {
			row[2] = fmt.Sprintf("%s / %s us", us(p.P50US), us(p.P99US))
		}
		if p := z.Floor; p != nil {
			row[3] = fmt.Sprintf("%s us @ %s", us(p.P50US), ladder.FormatRate(p.Rate))
		}
		if p := z.FirstFailing; p != nil {
			row[6] = fmt.Sprintf("%s: %s", ladder.FormatRate(p.Rate), p.Why())
		}
		rows = append(rows, row)
	}
	return markdown(w, rows)
}

func zoneCSV(w io.Writer, zones []zone.Zone) error {
	c := csv.NewWriter(w)
	c.Write([]string{
		"file", "product", "edge", "lower_bound", "p50_us", "p99_us", "floor_us", "floor_rate",
		"knee", "knee_p50", "knee_tail", "knee_throughput", "max_sustained", "first_failing", "why",
	})
	whole := func(r *int64) string {
		if r == nil {
			return ""
		}
		return strconv.FormatInt(*r, 10)
	}
	real := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	for _, z := range zones {
		row := []string{z.File, z.Product, whole(z.Edge), strconv.FormatBool(z.LowerBound), "", "", "", "",
			whole(z.Knee.Rate), whole(z.Knee.P50), whole(z.Knee.Tail), whole(z.Knee.Throughput), real(z.MaxSustained.Achieved), "", ""}
		if p := z.AtEdge; p != nil {
			row[4], row[5] = real(p.P50US), real(p.P99US)
		}
		if p := z.Floor; p != nil {
			row[6], row[7] = real(p.P50US), whole(&p.Rate)
		}
		if p := z.FirstFailing; p != nil {
			row[13], row[14] = whole(&p.Rate), p.Why()
		}
		c.Write(row)
	}
	c.Flush()
	return c.Error()
}

func sensitivityVerb(e env, f *flag.FlagSet, args []string) error {
	limits, format := limitFlags(f, false), formatFlag(f)
	bounds := zone.Bounds()
	f.Func("ratios", "bounds of p99/p50 to try, with commas (default 2 to 6 by halves)", func(s string) error {
		bounds = nil
		for word := range strings.SplitSeq(s, ",") {
			v, err := strconv.ParseFloat(strings.TrimSpace(word), 64)
			if err != nil || !(v >= 1 && v <= 1e6) {
				return fmt.Errorf("want numbers from 1, with commas")
			}
			bounds = append(bounds, v)
		}
		return nil
	})
	files, err := parse(f, args)
	if err != nil {
		return err
	}
	if err := checkFormat(*format); err != nil {
		return err
	}
	ladders, err := readLadders(files, limits)
	if err != nil {
		return err
	}
	all := []zone.Sensitivity{}
	for _, l := range ladders {
		s, err := zone.SensitivityOf(l, *limits, bounds)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	if *format == "json" {
		return writeJSON(e.stdout, all)
	}
	rows := [][]string{{"p99/p50 bound"}}
	for _, s := range all {
		rows[0] = append(rows[0], s.Product)
	}
	for i, bound := range bounds {
		row := []string{strconv.FormatFloat(bound, 'f', max(1, decimals(bound)), 64) + "x"}
		for _, s := range all {
			row = append(row, edge(s.Edges[i].Edge, s.Edges[i].LowerBound))
		}
		rows = append(rows, row)
	}
	switch *format {
	case "md":
		return markdown(e.stdout, rows)
	case "csv":
		rows[0][0] = "ratio"
		for i := range bounds {
			rows[i+1][0] = strings.TrimSuffix(rows[i+1][0], "x")
			for j, s := range all {
				rows[i+1][j+1] = ""
				if s.Edges[i].Edge != nil {
					rows[i+1][j+1] = strconv.FormatInt(*s.Edges[i].Edge, 10)
				}
			}
		}
		c := csv.NewWriter(e.stdout)
		if err := c.WriteAll(rows); err != nil {
			return err
		}
		return c.Error()
	}
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if slices.ContainsFunc(all, func(s zone.Sensitivity) bool {
		return slices.ContainsFunc(s.Edges, func(e zone.EdgeAtBound) bool { return e.LowerBound })
	}) {
		fmt.Fprintln(w, ">= the ladder never left the zone")
	}
	return w.Flush()
}

// decimals that a number needs.
func decimals(v float64) int {
	_, behind, _ := strings.Cut(strconv.FormatFloat(v, 'f', -1, 64), ".")
	return len(behind)
}
