package report

import (
	"bufio"
	"fmt"
	"io"

	"raftrig/record"
)

// Table writes runs side by side in Markdown, a row each, in the order given.
// Times are in microseconds.
func Table(out io.Writer, runs []*record.Run) error {
	w := bufio.NewWriter(out)
	fmt.Fprintln(w, "| product | log | load | answered/s | p50 us | p99 us | p99.9 us | max us | verdict |")
	fmt.Fprintln(w, "|---|---|---|--:|--:|--:|--:|--:|---|")
	for _, r := range runs {
		name := r.Cluster.Versions[r.Product]
		if name == "" {
			name = r.Product
		}
		load := fmt.Sprintf("%d outstanding", r.Knobs.Threads)
		if r.Knobs.Mode == "open" {
			load = fmt.Sprintf("%s %s", Target(r.Knobs), r.Knobs.Arrival)
			if r.Knobs.Burst > 1 {
				load += fmt.Sprintf(", burst %d", r.Knobs.Burst)
			}
		}
		rate := 0.0
		if r.MeasuredS > 0 {
			rate = float64(r.Measured.OK) / r.MeasuredS
		}
		fmt.Fprintf(w, "| %s | %s | %s, %s | %.0f |", name, r.Cluster.Log, r.Knobs.Mode, load, rate)
		for _, rank := range []float64{50, 99, 99.9, 100} {
			p, ok := r.Latency.At(rank)
			switch {
			case !ok:
				fmt.Fprint(w, " - |")
			case p.AtLeast:
				fmt.Fprintf(w, " >= %.0f |", p.US)
			default:
				fmt.Fprintf(w, " %.0f |", p.US)
			}
		}
		verdict := "VALID"
		if !r.Verdict.Valid {
			verdict = "INVALID:"
			for i, reason := range r.Verdict.Reasons {
				if i == 0 || reason.Code != r.Verdict.Reasons[i-1].Code {
					verdict += " " + reason.Code
				}
			}
		}
		fmt.Fprintf(w, " %s |\n", verdict)
	}
	return w.Flush()
}
