package main

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"

	"raftrig/record"
	"raftrig/sweep/report"
)

func reportVerb(e env, f *flag.FlagSet, args []string) error {
	limits := limitFlags(f, true)
	out := f.String("o", "report.html", "the page; the name ends in .html")
	charts := f.String("charts", "", "folder for the charts as SVG and PNG files (default none)")
	var distributions []string
	f.Func("distribution", "run record whose percentiles are charted; may be repeated (default the edge and the floor of each ladder)", func(s string) error {
		distributions = append(distributions, s)
		return nil
	})
	files, err := parse(f, args)
	if err != nil {
		return err
	}
	// Any other name may be that of an input.
	if filepath.Ext(*out) != ".html" {
		return usagef("-o %q: want a name that ends in .html", *out)
	}
	if len(distributions) > report.MaxChosen {
		return usagef("-distribution is there %d times: at most %d runs fit the chart", len(distributions), report.MaxChosen)
	}
	ladders, err := readLadders(files, limits)
	if err != nil {
		return err
	}
	r, err := report.New(ladders, report.Options{Limits: *limits, Distributions: distributions})
	if err != nil {
		return err
	}
	page, err := r.HTML()
	if err != nil {
		return err
	}
	written := []string{*out}
	if err := record.WriteFile(*out, page); err != nil {
		return err
	}
	if *charts != "" {
		paths, err := r.Charts(*charts)
		if err != nil {
			return err
		}
		written = append(written, paths...)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(e.stderr, "note: %s\n", note)
	}
	_, err = fmt.Fprintf(e.stdout, "wrote %s\n", strings.Join(written, "\n      "))
	return err
}
