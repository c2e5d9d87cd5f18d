package fleet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// RTT is one measurement of the round trips between the nodes, by ping over
// their private addresses.
type RTT struct {
	At time.Time `json:"at"`
	// IntervalMS is the pause between two pings. It belongs to the result: a
	// host that slept longer takes longer to wake up.
	IntervalMS float64   `json:"interval_ms"`
	Pairs      []RTTPair `json:"pairs"`
}

// RTTPair is what one node measured of another: percentiles by nearest rank, of
// N replies. The first reply is left out, for addresses are resolved for it.
type RTTPair struct {
	From     int     `json:"from"`
	To       int     `json:"to"`
	FromZone string  `json:"from_zone,omitempty"`
	ToZone   string  `json:"to_zone,omitempty"`
	MinUS    float64 `json:"min_us"`
	AvgUS    float64 `json:"avg_us"`
	P50US    float64 `json:"p50_us"`
	P99US    float64 `json:"p99_us"`
	N        int     `json:"n"`
	Lost     int     `json:"lost"`
}

const (
	// pingInterval is what is asked for first, and slowInterval what a user who
	// is not root may have everywhere.
	pingInterval = 10 * time.Millisecond
	slowInterval = 200 * time.Millisecond
	// maxPings bounds a measurement of one pair.
	maxPings = 100000
)

// errInterval is ping's refusal of a short interval.
var errInterval = errors.New("ping allows no such interval")

// MeasureRTT pings from each node to each other, one pair after the other, so
// that they do not disturb each other. pings is how many replies are wanted, 1
// to 100000; progress gets a line a pair. A pair that cannot be measured is
// named in the error, and the others are kept.
func (f *Fleet) MeasureRTT(ctx context.Context, pings int, progress io.Writer) (*RTT, error) {
	if pings < 1 || pings > maxPings {
		return nil, fmt.Errorf("rtt: %d pings: want 1 to %d", pings, maxPings)
	}
	m, err := f.measureRTT(ctx, pings, pingInterval, progress)
	if errors.Is(err, errInterval) {
		// All pairs by the same interval, or they do not compare.
		fmt.Fprintf(progress, "pings every %v are for root there: beginning again with %v\n", pingInterval, slowInterval)
		m, err = f.measureRTT(ctx, pings, slowInterval, progress)
	}
	return m, err
}

func (f *Fleet) measureRTT(ctx context.Context, pings int, interval time.Duration, progress io.Writer) (*RTT, error) {
	m := &RTT{At: time.Now().UTC().Truncate(time.Second), IntervalMS: float64(interval) / 1e6}
	var errs []error
	for _, from := range f.Nodes {
		for _, to := range f.Nodes {
			if from.ID == to.ID {
				continue
			}
			fmt.Fprintf(progress, "ping from node %d to node %d\n", from.ID, to.ID)
			samples, lost, err := f.ping(ctx, from, to, pings, interval)
			switch {
			case errors.Is(err, errInterval) || ctx.Err() != nil:
				return m, errors.Join(append(errs, err)...)
			case err != nil:
				errs = append(errs, &NodeError{from.ID, err})
			default:
				m.Pairs = append(m.Pairs, pairOf(from, to, samples, lost))
			}
		}
	}
	return m, errors.Join(errs...)
}

// ping gives the round trips from one node to another in microseconds, without
// the first, and how many of the others were lost.
func (f *Fleet) ping(ctx context.Context, from, to Node, pings int, interval time.Duration) (samples []float64, lost int, err error) {
	count := pings + 1
	argv := []string{"ping", "-n", "-c", strconv.Itoa(count), "-i", strconv.FormatFloat(interval.Seconds(), 'f', -1, 64), "-W", "2"}
	if _, err := netip.ParseAddr(from.Private); err == nil {
		argv = append(argv, "-I", from.Private)
	}
	argv = append(argv, to.Private)
	const beside = 15 * time.Second // connection, start, and the wait for a last reply
	ctx, cancel := context.WithTimeout(ctx, time.Duration(count)*interval+beside)
	defer cancel()
	var out bytes.Buffer
	var complaint capped
	o, err := f.t.run(ctx, from, task{Argv: argv, Env: []string{"LC_ALL=C"}, stdout: &out, stderr: &complaint}, f.expander(from))
	said := strings.Join(lastLines(complaint.Bytes(), 1), "")
	switch {
	case errors.Is(err, errNotStarted):
		return nil, 0, errors.New("ping is not there: install iputils-ping")
	case err != nil:
		return nil, 0, fmt.Errorf("ping to node %d: %w", to.ID, err)
	case strings.Contains(said, "minimal interval"):
		return nil, 0, errInterval
	case o.Exit > 1:
		return nil, 0, fmt.Errorf("ping to node %d: exit status %d: %s", to.ID, o.Exit, said)
	}
	samples, sent := parsePing(out.Bytes())
	if sent == 0 {
		sent = count
	}
	if len(samples) == 0 {
		return nil, 0, fmt.Errorf("ping to node %d: none of %d answered: do the nodes reach each other?", to.ID, sent)
	}
	return samples[1:], max(0, sent-len(samples)), nil
}

var (
	pingReplyRE = regexp.MustCompile(`seq=([0-9]+) .*time[=<]([0-9]+(?:\.[0-9]+)?) ms`)
	pingSentRE  = regexp.MustCompile(`(?m)^([0-9]+) packets transmitted`)
)

// parsePing reads what ping prints in the C locale: the round trips of the
// replies in microseconds, each sequence number once, and how many pings were
// sent; 0 when it does not say.
func parsePing(out []byte) (us []float64, sent int) {
	seen := make(map[string]bool)
	for line := range bytes.Lines(out) {
		m := pingReplyRE.FindSubmatch(line)
		if m == nil || seen[string(m[1])] {
			continue
		}
		ms, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil || math.IsInf(ms*1e3, 0) {
			continue
		}
		seen[string(m[1])] = true
		us = append(us, ms*1e3)
	}
	if m := pingSentRE.FindSubmatch(out); m != nil {
		sent, _ = strconv.Atoi(string(m[1]))
	}
	return us, sent
}

func pairOf(from, to Node, us []float64, lost int) RTTPair {
	p := RTTPair{From: from.ID, To: to.ID, FromZone: from.Zone, ToZone: to.Zone, N: len(us), Lost: lost}
	if len(us) == 0 {
		return p
	}
	slices.Sort(us)
	sum := 0.0
	for _, v := range us {
		sum += v
	}
	rank := func(percent int) float64 { return us[(len(us)*percent+99)/100-1] }
	// ping prints three digits after the point of a millisecond, or fewer.
	p.MinUS, p.P50US, p.P99US = us[0], rank(50), rank(99)
	p.AvgUS = math.Round(sum/float64(len(us))*10) / 10
	return p
}

// Worst is the pair with the largest median.
func (m *RTT) Worst() RTTPair {
	return slices.MaxFunc(m.Pairs, func(a, b RTTPair) int { return cmp.Compare(a.P50US, b.P50US) })
}

// Write prints the matrix: a row for each node that pinged, a column for each
// that answered.
func (m *RTT) Write(w io.Writer, nodes []Node) error {
	fmt.Fprintf(w, "round trips in us between the nodes' private addresses: min/avg/p50/p99 (replies, lost)\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	title := func(n Node) string { return strings.TrimSpace(fmt.Sprintf("node %d %s", n.ID, n.Zone)) }
	fmt.Fprint(t, "from \\ to")
	for _, n := range nodes {
		fmt.Fprintf(t, "\t%s", title(n))
	}
	fmt.Fprintln(t)
	for _, from := range nodes {
		fmt.Fprint(t, title(from))
		for _, to := range nodes {
			cell := "-"
			for _, p := range m.Pairs {
				if p.From == from.ID && p.To == to.ID {
					cell = fmt.Sprintf("%.0f/%.0f/%.0f/%.0f (%d, %d)", p.MinUS, p.AvgUS, p.P50US, p.P99US, p.N, p.Lost)
				}
			}
			fmt.Fprintf(t, "\t%s", cell)
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	line := fmt.Sprintf("a ping every %g ms, one pair after the other, the first reply left out", m.IntervalMS)
	if len(m.Pairs) > 0 {
		p := m.Worst()
		line += fmt.Sprintf("; worst: node %d to node %d, p50 %.0f us", p.From, p.To, p.P50US)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
