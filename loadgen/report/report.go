// Package report writes what a run prints: the live line once a second and the
// summary at its end. Both are functions of the record alone, so that a record
// read back prints as the run did.
package report

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"raftrig/record"
)

// Target names what a run aims at: "100 threads" or "5000/s".
func Target(k record.Knobs) string {
	if k.Mode == "open" {
		return fmt.Sprintf("%d/s", k.Rate)
	}
	return Plural(k.Threads, "thread")
}

// LiveLine is the report of one second: completions, and the mean latency of
// those answered, in microseconds.
func LiveLine(product string, k record.Knobs, s record.Second) string {
	var b strings.Builder
	target := Target(k)
	if k.Mode != "open" {
		target = fmt.Sprintf("threads=%d", k.Threads)
	}
	fmt.Fprintf(&b, "%s %s %s at qps=%d latency=%.0f", product, k.Mode, target, s.OK, s.MeanUS)
	fmt.Fprintf(&b, " max=%.0f lag_max=%.0f sent=%d in_flight=%d", s.MaxUS, s.LagMaxUS, s.Sent, s.InFlight)
	for _, x := range []struct {
		name string
		n    int64
	}{{"failed", s.Failed}, {"lost", s.Lost}, {"dropped", s.Dropped}} {
		if x.n > 0 {
			fmt.Fprintf(&b, " %s=%d", x.name, x.n)
		}
	}
	fmt.Fprintf(&b, " t=%ds %s", s.Second+1, s.Phase)
	return b.String()
}

// minSilence in seconds: a shorter one is what the maximum of the latency tells.
const minSilence = 0.2

// columns of the table of percentiles.
var columns = []float64{50, 90, 99, 99.9, 99.99}

// Summary of a run.
func Summary(out io.Writer, r *record.Run) error {
	w := bufio.NewWriter(out)
	p := func(format string, args ...any) { fmt.Fprintf(w, format, args...) }
	k, m := r.Knobs, r.Measured

	p("%s  %s  %s", r.Product, k.Mode, Target(k))
	if k.Mode == "open" {
		p(" %s, burst %d", k.Arrival, k.Burst)
		if k.Arrival == "poisson" {
			p(", seed %d", k.Seed)
		}
	}
	p("   %d B", k.Size)
	if c := cluster(r.Cluster); c != "" {
		p("   %s", c)
	}
	p("\nwarm-up %g s, measured %s s, drained %.1f s   %s, %s", k.WarmupS, trim(r.MeasuredS), r.DrainedS, Plural(k.Lanes, "lane"), k.Pace)
	if k.PaceReason != "" {
		p(" (%s)", k.PaceReason)
	}
	if k.Idle != "" {
		p(", idle CPUs %s", k.Idle)
	}
	if k.Mode == "open" {
		p(", in-flight cap %d", k.MaxInflight)
	}
	p("\n\n")

	count := func(name string, n int64, rest string) {
		p("%s\n", strings.TrimRight(fmt.Sprintf("  %-11s%10d%s", name, n, rest), " "))
	}
	rate := func(n int64) string {
		if r.MeasuredS <= 0 {
			return ""
		}
		return fmt.Sprintf("%11.1f/s", float64(n)/r.MeasuredS)
	}
	share := func(n int64) string {
		if m.Offered == 0 {
			return ""
		}
		return fmt.Sprintf("   %s", percent(float64(n)/float64(m.Offered)))
	}
	count("offered", m.Offered, rate(m.Offered))
	count("answered", m.OK, rate(m.OK)+share(m.OK))
	failed := ""
	if m.Failed > 0 {
		failed = "    certainly not applied" + share(m.Failed)
	}
	count("failed", m.Failed, failed)
	unanswered := ""
	if m.Unanswered > 0 {
		unanswered = fmt.Sprintf("    no reply %d, lost with connection or leader %d%s", m.NoReply, m.Lost, share(m.Unanswered))
	}
	count("unanswered", m.Unanswered, unanswered)
	if k.Mode == "open" {
		dropped := ""
		if m.Dropped() > 0 {
			dropped = fmt.Sprintf("    cap %d, no leader %d%s", m.DroppedCap, m.DroppedNoLeader, share(m.Dropped()))
		}
		count("dropped", m.Dropped(), dropped)
	}

	p("\n  %-8s", "us")
	for _, c := range columns {
		p("%13s", "p"+strconv.FormatFloat(c, 'f', -1, 64))
	}
	p("%13s\n", "max")
	what := map[bool][2]string{
		true:  {"from the scheduled instant", "scheduled to sent"},
		false: {"from the send", "reply to the chain's next send"},
	}[k.Mode == "open"]
	table(w, "latency", r.Latency, what[0])
	table(w, "service", r.Service, "from the send")
	table(w, "lag", r.Lag, what[1])

	p("\n  warm-up, apart from the above: offered %d, answered %d, failed %d, unanswered %d", r.Warmup.Offered, r.Warmup.OK, r.Warmup.Failed, r.Warmup.Unanswered)
	if k.Mode == "open" {
		p(", dropped %d (cap %d, no leader %d)", r.Warmup.Dropped(), r.Warmup.DroppedCap, r.Warmup.DroppedNoLeader)
	}
	if r.BacklogAtStart > 0 {
		p("; %d in flight when the window opened", r.BacklogAtStart)
	}
	p("\n")
	if k.Mode == "closed" && r.Little > 0 {
		p("  Little's ratio %.3f (throughput x mean latency / outstanding)\n", r.Little)
	}
	if g := r.Rig; g.CPUShare > 0 {
		p("  client")
		if g.CPUUSPerRequest > 0 {
			p(" %.1f us of CPU a request,", g.CPUUSPerRequest)
		}
		p(" %.2f cores; lane on its core %.0f %% of the time", g.CPUShare, 100*g.LaneCPUShare)
		if g.RealTime {
			p(", at real-time priority")
		}
		p("; GC pauses %d", g.GCPauses)
		if g.GCPauses > 0 {
			p(", longest %.0f us", g.GCPauseMaxUS)
		}
		p("\n")
	}
	if n := r.Rig.Backpressure; n > 0 {
		p("  back-pressure: the client refused %d times for lack of room, the wait is in the latency\n", n)
	}
	if n := r.Rig.OutOfRange; n > 0 {
		p("  %d values lay beyond the histogram's range and count at its end\n", n)
	}
	if s := r.Silence; s.S >= minSilence {
		p("  no reply for %s s from second %s on, with requests outstanding\n", trim(s.S), trim(s.AtS))
	}
	for _, e := range r.Events {
		p("  second %s: %s", trim(e.AtS), e.Text)
		if k.Lanes > 1 {
			p(" (lane %d)", e.Lane)
		}
		p("\n")
	}
	if n := r.EventsLeftOff; n > 0 {
		p("  and %d events more\n", n)
	}
	p("\n")
	verdict(w, r.Verdict)
	return w.Flush()
}

func table(w io.Writer, name string, d record.Distribution, meaning string) {
	fmt.Fprintf(w, "  %-8s", name)
	cell := func(p record.Percentile, ok bool) {
		s := "-"
		if ok {
			s = strconv.FormatFloat(p.US, 'f', 1, 64)
			if p.AtLeast {
				s = ">= " + s
			}
		}
		fmt.Fprintf(w, "%13s", s)
	}
	for _, c := range columns {
		cell(d.At(c))
	}
	cell(d.At(100))
	fmt.Fprintf(w, "   %s\n", meaning)
}

func verdict(w io.Writer, v record.Verdict) {
	if v.Valid {
		fmt.Fprintln(w, "verdict: VALID")
		return
	}
	fmt.Fprintln(w, "verdict: INVALID")
	for _, r := range v.Reasons {
		fmt.Fprintf(w, "  %s: %s\n", r.Code, r.Text)
	}
}

// cluster in a few words: where, who leads, where the log is.
func cluster(c record.Cluster) string {
	var parts []string
	if h := hosts(c.Nodes); h != "" {
		parts = append(parts, h)
	}
	if c.LeaderBefore > 0 {
		parts = append(parts, fmt.Sprintf("leader node %d term %d", c.LeaderBefore, c.TermBefore))
	}
	if c.Log != "" {
		parts = append(parts, "log "+c.Log)
	}
	if c.Emulated {
		parts = append(parts, "emulated network")
	}
	return strings.Join(parts, ", ")
}

// hosts shortens consecutive IPv4 addresses: 127.0.0.11-13.
func hosts(nodes []record.Node) string {
	var names []string
	last := make([]byte, 0, len(nodes))
	prefix := ""
	run := true
	for i, n := range nodes {
		h, _, err := net.SplitHostPort(n.Addr)
		if err != nil {
			h = n.Addr
		}
		names = append(names, h)
		ip := net.ParseIP(h).To4()
		if ip == nil {
			run = false
			continue
		}
		pre := fmt.Sprintf("%d.%d.%d.", ip[0], ip[1], ip[2])
		if i == 0 {
			prefix = pre
		}
		run = run && pre == prefix && (i == 0 || len(last) > 0 && ip[3] == last[len(last)-1]+1)
		last = append(last, ip[3])
	}
	if run && len(nodes) > 1 {
		return fmt.Sprintf("%s-%d", names[0], last[len(last)-1])
	}
	return strings.Join(names, ", ")
}

// Plural counts things: "1 lane", "2 lanes".
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// trim writes seconds without needless digits.
func trim(s float64) string {
	return strconv.FormatFloat(float64(int64(s*1000+0.5))/1000, 'g', -1, 64)
}

// percent with enough digits that a share near 0 or 1 does not round to it.
func percent(share float64) string {
	switch {
	case share >= 0.01 && share <= 0.99 || share == 0 || share == 1:
		return fmt.Sprintf("%.2f %%", 100*share)
	case share > 0.99:
		return strconv.FormatFloat(100-roundUp(100*(1-share)), 'f', -1, 64) + " %"
	}
	return strconv.FormatFloat(roundUp(100*share), 'f', -1, 64) + " %"
}

// roundUp to two significant digits, away from 0.
func roundUp(v float64) float64 {
	s, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 2, 64), 64)
	return s
}
