package main

import (
	"flag"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/perf/benchmath"

	"raftrig/sweep/compare"
	"raftrig/sweep/ladder"
)

func compareVerb(e env, f *flag.FlagSet, args []string) error {
	var allow []string
	f.Func("allow", "settings that may differ, with commas: some of "+strings.Join(compare.Settings, ","), func(s string) error {
		for name := range strings.SplitSeq(s, ",") {
			allow = append(allow, strings.TrimSpace(name))
		}
		return nil
	})
	invalid := f.Bool("invalid", false, "take in runs whose verdict is INVALID")
	paths, err := parse(f, args)
	if err != nil {
		return err
	}
	if len(paths) != 2 {
		return usagef("want two sets of runs, each a CSV file, a record, or a pattern of records in quotes ('a/*-open-*.json')")
	}
	for _, name := range allow {
		if !slices.Contains(compare.Settings, name) {
			return usagef("-allow %s: want some of %s", name, strings.Join(compare.Settings, ","))
		}
	}
	var sets []compare.Set
	for _, path := range paths {
		s, err := readSet(path, *invalid)
		if err != nil {
			return err
		}
		sets = append(sets, s)
	}
	lines, only, err := compare.Compare(sets[0], sets[1], allow)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(e.stdout, "A  %s\nB  %s\n\n", paths[0], paths[1])
	fmt.Fprintln(w, "load\tfigure\tA median\t95 %\tB median\t95 %\tB - A\tp, runs")
	warnings := map[string]bool{}
	for _, l := range lines {
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Load, l.Figure.Name, l.Figure.Unit,
			us(l.A.Center), interval(l.A), us(l.B.Center), interval(l.B), l.Delta, l.Comparison)
		for _, list := range [][]error{l.A.Warnings, l.B.Warnings, l.Comparison.Warnings} {
			for _, err := range list {
				warnings[err.Error()] = true
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(e.stdout, "\n~ no significant difference (Mann-Whitney U, p <= 0.05 would be one)")
	var notes []string
	for text := range warnings {
		notes = append(notes, text)
	}
	slices.Sort(notes)
	for _, s := range sets {
		if s.Invalid > 0 {
			notes = append(notes, fmt.Sprintf("%s: %d runs left out as INVALID", s.Name, s.Invalid))
		}
	}
	for _, text := range append(notes, only...) {
		fmt.Fprintf(e.stdout, "note: %s\n", text)
	}
	return nil
}

// readSet reads one side: a file or a pattern.
func readSet(path string, invalid bool) (compare.Set, error) {
	files := []string{path}
	if strings.ContainsAny(path, "*?[") {
		var err error
		files, err = filepath.Glob(path)
		if err != nil || len(files) == 0 {
			return compare.Set{}, usagef("%s: no file is called so", path)
		}
		files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, ".partial.json") })
	}
	var ladders []ladder.Ladder
	for _, file := range files {
		var l ladder.Ladder
		var err error
		if filepath.Ext(file) == ".json" {
			var row ladder.Row
			row, err = ladder.ReadRecord(file)
			l.Rows = []ladder.Row{row}
		} else if l, err = ladder.ReadCSV(file); err == nil {
			err = ladder.Check(l.Rows)
		}
		if err != nil {
			return compare.Set{}, err
		}
		ladders = append(ladders, l)
	}
	return compare.NewSet(path, ladders, invalid), nil
}

// interval of the median; too few runs have none.
func interval(s benchmath.Summary) string {
	if math.IsInf(s.Lo, 0) || math.IsInf(s.Hi, 0) {
		return "unbounded"
	}
	return us(s.Lo) + ".." + us(s.Hi)
}
