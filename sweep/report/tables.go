package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"raftrig/record"
	"raftrig/sweep/ladder"
	"raftrig/sweep/zone"
)

// rungRow is one rate in the table of a ladder.
type rungRow struct {
	Rung                             int
	Rate, Runs                       string
	Achieved, Drops, P50, P99, Ratio string
	LagP99                           string
	BadAchieved, BadDrops, BadRatio  bool
	State                            string
	Judgement, Distrust              string
}

// runRow is one run.
type runRow struct {
	Rate, Repeat, Achieved, P50, P99, P999, Max, LagP50, LagP99 string
	Dropped, Failed, Unanswered                                 int64
	Verdict, Record                                             string
}

// fact is one line of the environment; more than one value means that the runs
// differ in it.
type fact struct{ Name, Value string }

// fill in the tables of the ladder.
func (v *view) fill() {
	z := v.zone
	v.Summary = summary(z)
	edge := edgeIndex(z)
	for i, r := range v.rungs {
		state := stateOf(r.Point, i, edge)
		row := rungRow{
			Rung: i, Rate: ladder.FormatRate(r.Rate), Runs: strconv.Itoa(r.Runs),
			Achieved: zone.Percent(r.AchievedShare), Drops: zone.Percent(r.DropShare),
			P50: formatUS(r.P50US), P99: formatUS(r.P99US), Ratio: "-", LagP99: formatUS(r.lagP99US),
			State: string(state), Judgement: rungStates[state], Distrust: strings.Join(r.Distrust, ", "),
		}
		if r.Ratio > 0 {
			row.Ratio = fmt.Sprintf("%.2f", r.Ratio)
		}
		for _, f := range r.Failures {
			row.BadAchieved = row.BadAchieved || f.Criterion == "achieved"
			row.BadDrops = row.BadDrops || f.Criterion == "drops"
			row.BadRatio = row.BadRatio || f.Criterion == "ratio"
		}
		v.Rungs = append(v.Rungs, row)
	}
	runs := slices.Clone(v.runs)
	slices.SortStableFunc(runs, func(a, b measured) int {
		if a.row.Offered != b.row.Offered {
			return int(a.row.Offered - b.row.Offered)
		}
		return a.row.Repeat - b.row.Repeat
	})
	for _, m := range runs {
		r := m.row
		row := runRow{
			Rate: ladder.FormatRate(r.Offered), Repeat: "-", Achieved: fmt.Sprintf("%.0f", r.Achieved),
			P50: formatUS(r.P50US), P99: formatUS(r.P99US), P999: formatUS(r.P999US), Max: formatUS(r.MaxUS),
			LagP50: formatUS(r.LagP50US), LagP99: formatUS(r.LagP99US),
			Dropped: r.Dropped, Failed: r.Failed, Unanswered: r.Unanswered, Verdict: r.Verdict, Record: r.Record,
		}
		if r.Repeat > 0 {
			row.Repeat = strconv.Itoa(r.Repeat)
		}
		if row.Verdict == "" {
			row.Verdict = "-"
		}
		v.Runs = append(v.Runs, row)
	}
	v.Counts, v.Verdicts = verdicts(runs)
	v.Facts = facts(v)
}

// verdicts says how many runs were judged how, and then why each INVALID one
// was.
func verdicts(runs []measured) (counted string, why []string) {
	valid, invalid, unknown := 0, 0, 0
	for _, m := range runs {
		codes := m.row.Invalid()
		switch {
		case codes != nil:
			invalid++
			reasons := codes
			if m.record != nil && len(m.record.Verdict.Reasons) > 0 {
				reasons = nil
				for _, r := range m.record.Verdict.Reasons {
					reasons = append(reasons, r.Text)
				}
			}
			name := ladder.FormatRate(m.row.Offered)
			if m.row.Repeat > 0 {
				name += fmt.Sprintf(", run %d", m.row.Repeat)
			}
			why = append(why, name+": INVALID: "+strings.Join(reasons, "; "))
		case m.row.Verdict == "":
			unknown++
		default:
			valid++
		}
	}
	var counts []string
	for _, c := range []struct {
		n    int
		text string
	}{{valid, "VALID"}, {invalid, "INVALID"}, {unknown, "without a verdict"}} {
		if c.n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", c.n, c.text))
		}
	}
	return fmt.Sprintf("Of %d runs, %s.", len(runs), strings.Join(counts, ", ")), why
}

// facts of where the ladder was run, and how.
func facts(v *view) []fact {
	var list []fact
	add := func(name, value string) {
		if value != "" {
			list = append(list, fact{name, value})
		}
	}
	var records []*record.Run
	for _, m := range v.runs {
		if m.record != nil {
			records = append(records, m.record)
		}
	}
	v.HasRecords = len(records) > 0
	if !v.HasRecords {
		for _, name := range ladder.Settings {
			add(name, v.zone.Settings[name])
		}
		return list
	}
	each := func(name string, of func(r *record.Run) string) {
		count := map[string]int{}
		var values []string
		for _, r := range records {
			s := of(r)
			if s == "" {
				continue
			}
			if count[s]++; count[s] == 1 {
				values = append(values, s)
			}
		}
		const most = 4
		if len(values) > 1 {
			for i, s := range values {
				values[i] = fmt.Sprintf("%s (%d runs)", s, count[s])
			}
		}
		if more := len(values) - most; more > 0 {
			values = append(values[:most], fmt.Sprintf("and %d further values", more))
		}
		add(name, strings.Join(values, "; "))
	}
	span := func(name, unit string, decimals int, of func(r *record.Run) float64) {
		lo, hi := math.Inf(1), math.Inf(-1)
		for _, r := range records {
			lo, hi = min(lo, of(r)), max(hi, of(r))
		}
		value := digits(lo, decimals)
		if s := digits(hi, decimals); s != value {
			value += " to " + s
		}
		add(name, value+unit)
	}
	seconds := func(s float64) string { return digits(s, 3) + " s" }

	first, last := records[0].Started, records[0].Started
	for _, r := range records {
		if r.Started.Before(first) {
			first = r.Started
		}
		if r.Started.After(last) {
			last = r.Started
		}
	}
	add("records", fmt.Sprintf("%d of %d runs, started from %s to %s", len(records), len(v.runs), first.UTC().Format(time.DateTime), last.UTC().Format(time.DateTime+" UTC")))
	each("product", func(r *record.Run) string { return pairs(r.Product, r.Cluster.Versions) })
	each("topology", func(r *record.Run) string {
		if r.Cluster.Emulated {
			return r.Cluster.Topology + ", delays emulated"
		}
		return r.Cluster.Topology
	})
	each("nodes", func(r *record.Run) string {
		var nodes []string
		for _, n := range r.Cluster.Nodes {
			s := fmt.Sprintf("%d at %s", n.ID, n.Addr)
			if n.Zone != "" {
				s += " in " + n.Zone
			}
			nodes = append(nodes, s)
		}
		return strings.Join(nodes, ", ")
	})
	each("leader", func(r *record.Run) string {
		if r.Cluster.LeaderAfter != r.Cluster.LeaderBefore {
			return fmt.Sprintf("%d, then %d", r.Cluster.LeaderBefore, r.Cluster.LeaderAfter)
		}
		return strconv.Itoa(r.Cluster.LeaderBefore)
	})
	each("log", func(r *record.Run) string { return r.Cluster.Log })
	each("load", func(r *record.Run) string {
		k := r.Knobs
		return fmt.Sprintf("%s, burst %d, arrival %s, size %d bytes, lanes %d", k.Mode, k.Burst, k.Arrival, k.Size, k.Lanes)
	})
	each("knobs of the product", func(r *record.Run) string { return pairs("", r.Knobs.Product) })
	each("windows", func(r *record.Run) string {
		k := r.Knobs
		return fmt.Sprintf("warm-up %s, measured %s, drain at most %s", seconds(k.WarmupS), seconds(k.MeasureS), seconds(k.DrainTimeoutS))
	})
	span("in-flight cap", "", 0, func(r *record.Run) float64 { return float64(r.Knobs.MaxInflight) })
	each("pace", func(r *record.Run) string { return r.Knobs.Pace })
	each("idle CPUs", func(r *record.Run) string { return r.Knobs.Idle })
	span("client CPU a request", " µs", 2, func(r *record.Run) float64 { return r.Rig.CPUUSPerRequest })
	env := func(name string, of func(e record.Environment) string) {
		each(name, func(r *record.Run) string { return of(r.Environment) })
	}
	env("client host", func(e record.Environment) string { return e.Hostname })
	env("machine", func(e record.Environment) string {
		s := fmt.Sprintf("%s, %d cores, %d allowed, %.1f GiB", e.CPU, e.Cores, e.CoresAllowed, float64(e.MemoryBytes)/(1<<30))
		if e.Virtualization != "" {
			s += ", " + e.Virtualization
		}
		return s
	})
	env("system", func(e record.Environment) string { return e.OS + ", kernel " + e.Kernel })
	env("kernel command line", func(e record.Environment) string { return e.KernelCmdline })
	env("clock and governor", func(e record.Environment) string { return e.ClockSource + ", " + e.Governor })
	span("load average before", "", 2, func(r *record.Run) float64 { return r.Environment.LoadAverage })
	env("client", func(e record.Environment) string {
		return fmt.Sprintf("raftrig %s, %s, GOMAXPROCS %d", e.Commit, e.GoVersion, e.GOMAXPROCS)
	})
	each("verdict limits", func(r *record.Run) string { return pairs("", r.Verdict.Limits) })
	return list
}

// pairs in the order of their names, behind a first word.
func pairs(first string, m map[string]string) string {
	var words []string
	for name, value := range m {
		words = append(words, name+" "+value)
	}
	slices.Sort(words)
	if first != "" {
		words = append([]string{first}, words...)
	}
	return strings.Join(words, ", ")
}
