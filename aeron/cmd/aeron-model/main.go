// Command aeron-model predicts the throughput and latency of Aeron Cluster's
// send path; package model has the formulas and their sources.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"raftrig/aeron/model"
	"raftrig/sweep/ladder"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// usageError is a wrong flag or value.
type usageError struct{ error }

// verb is one of the commands.
type verb struct {
	name, summary string
	run           func(*command) (any, error)
}

var verbs = []verb{
	{"peak", "what the send path carries, for client, leader and follower", (*command).peak},
	{"predict", "utilisation, regime and latency at a LOAD (-load)", (*command).predict},
	{"table", "the worked table, by the published parameters and by the driver's framing", (*command).table},
	{"advise", "MTU 1408 or 8192 at a LOAD (-load), and why", (*command).advise},
	{"sendrate", "measure S on this machine: sendmsg calls a second of one thread", (*command).sendrate},
	{"fit", "transit and capacity from a sweep's CSV file, measured beside predicted (FILE)", (*command).fit},
}

// command is one invocation.
type command struct {
	flags *flag.FlagSet
	args  []string
	json  bool
	text  bytes.Buffer      // what -json leaves away
	w     *tabwriter.Writer // to text

	path    model.Path
	framing string
	load    model.Load
	jumbo   string
	to      string
	sizes   string
	runs    int
	each    time.Duration
}

func run(args []string, stdout, stderr io.Writer) int {
	fail := func(err error) int {
		fmt.Fprintf(stderr, "aeron-model: %v\n", err)
		if errors.As(err, new(usageError)) {
			return exitUsage
		}
		return exitFailure
	}
	if len(args) == 0 || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" || args[0] == "help" {
		w, status := stdout, exitOK
		if len(args) == 0 {
			w, status = stderr, exitUsage
		}
		fmt.Fprintln(w, "aeron-model VERB [flags]; aeron-model VERB -help lists the flags")
		for _, v := range verbs {
			fmt.Fprintf(w, "  %-9s %s\n", v.name, v.summary)
		}
		return status
	}
	for _, v := range verbs {
		if v.name != args[0] {
			continue
		}
		c := newCommand(v.name)
		switch err := c.flags.Parse(args[1:]); {
		case errors.Is(err, flag.ErrHelp):
			fmt.Fprintf(stdout, "aeron-model %s: %s\n", v.name, v.summary)
			c.flags.SetOutput(stdout)
			c.flags.PrintDefaults()
			return exitOK
		case err != nil:
			return fail(usageError{fmt.Errorf("%s: %w (see -help)", v.name, err)})
		}
		c.args = c.flags.Args()
		if v.name != "fit" && len(c.args) > 0 {
			return fail(usageError{fmt.Errorf("%s: unexpected argument %q: flags only (see -help)", v.name, c.args[0])})
		}
		switch c.framing {
		case "driver":
		case "reference":
			c.path.Frame = c.override(model.Reference)
		default:
			return fail(usageError{fmt.Errorf("-framing %q: want driver or reference", c.framing)})
		}
		result, err := v.run(c)
		if err != nil {
			return fail(err)
		}
		if c.json {
			e := json.NewEncoder(stdout)
			e.SetIndent("", "  ")
			err = e.Encode(result)
		} else if err = c.w.Flush(); err == nil {
			_, err = c.text.WriteTo(stdout)
		}
		if err != nil {
			return fail(err)
		}
		return exitOK
	}
	return fail(usageError{fmt.Errorf("unknown verb %q: want peak, predict, table, advise, sendrate or fit", args[0])})
}

func newCommand(name string) *command {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	c := &command{flags: f, framing: "driver"}
	c.w = tabwriter.NewWriter(&c.text, 0, 0, 2, ' ', 0)
	c.path = model.Leader(64, model.SmallMTU, model.Driver)
	f.BoolVar(&c.json, "json", false, "print JSON")
	if name == "sendrate" {
		f.StringVar(&c.to, "to", "", "UDP `address`, host IP:port; by default a socket on loopback that nobody reads")
		f.StringVar(&c.sizes, "sizes", "64,1408,8192", "datagram `bytes`, with commas")
		f.IntVar(&c.runs, "runs", 5, "runs of each size")
		f.DurationVar(&c.each, "each", time.Second, "time of a run")
		return c
	}
	f.Float64Var(&c.path.S, "S", c.path.S, "sendmsg calls a second of one thread (measure it: sendrate)")
	f.Float64Var(&c.path.C, "C", c.path.C, "of them for consensus control: about 160000 spinning, 75000 sleeping")
	f.IntVar(&c.path.D, "D", c.path.D, "destinations of the log: followers")
	f.StringVar(&c.framing, "framing", c.framing, "header and overhead: driver (64 and 0 bytes) or reference (32 and 40)")
	f.IntVar(&c.path.HeaderBytes, "header", c.path.HeaderBytes, "bytes before each payload, over -framing")
	f.IntVar(&c.path.OverheadBytes, "overhead", c.path.OverheadBytes, "bytes of the MTU that hold no message, over -framing")
	if name != "table" {
		f.IntVar(&c.path.Payload, "payload", c.path.Payload, "bytes of a message")
	}
	if name != "table" && name != "advise" {
		f.IntVar(&c.path.MTU, "mtu", c.path.MTU, "MTU in bytes")
	}
	if name == "predict" || name == "advise" {
		f.Func("load", "messages a second, as in 800k", func(s string) (err error) {
			c.load.Rate, err = rate(s)
			return err
		})
		f.DurationVar(&c.load.Transit, "transit", 150*time.Microsecond, "time through the pipeline when nothing queues")
		f.IntVar(&c.load.TermLength, "term-length", 64<<20, "bytes of a log term")
	}
	if name == "advise" {
		f.StringVar(&c.jumbo, "jumbo", "uncertain", "do frames of 9001 bytes pass on every hop: yes, uncertain or no")
	}
	return c
}

// override a framing by what was asked for explicitly.
func (c *command) override(f model.Frame) model.Frame {
	c.flags.Visit(func(g *flag.Flag) {
		switch g.Name {
		case "header":
			f.HeaderBytes = c.path.HeaderBytes
		case "overhead":
			f.OverheadBytes = c.path.OverheadBytes
		}
	})
	return f
}

// rate takes 5000, 150k, 1.5M.
func rate(s string) (float64, error) {
	digits, factor := s, 1.0
	if n := len(s); n > 0 {
		switch s[n-1] {
		case 'k', 'K':
			digits, factor = s[:n-1], 1e3
		case 'm', 'M':
			digits, factor = s[:n-1], 1e6
		}
	}
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || !(v > 0) || v*factor > 1e12 {
		return 0, errors.New("want messages a second, more than 0, as in 5000, 800k or 2M")
	}
	return v * factor, nil
}

func (c *command) valid() error {
	if err := c.path.Validate(); err != nil {
		return usageError{err}
	}
	return nil
}

// parameters in a line.
func (c *command) parameters(p model.Path) {
	fmt.Fprintf(c.w, "S %.0f/s, C %.0f/s, D %d, MTU %d, payload %d, header %d, overhead %d\n",
		p.S, p.C, p.D, p.MTU, p.Payload, p.HeaderBytes, p.OverheadBytes)
}

// role of a member, and what its sender does.
type role struct {
	Role string     `json:"role"`
	Path model.Path `json:"parameters"`
	// Carries says that the role sends messages at all.
	Carries     bool    `json:"carries_messages"`
	Framed      int     `json:"framed_bytes"`
	PerDatagram int     `json:"per_datagram"`
	Fragments   int     `json:"fragments"`
	Datagrams   float64 `json:"datagrams_per_s"`
	Peak        float64 `json:"peak_per_s"`
	BytesPerS   float64 `json:"bytes_per_s"`
	Note        string  `json:"note"`
}

func (c *command) peak() (any, error) {
	if err := c.valid(); err != nil {
		return nil, err
	}
	client, follower := model.Roles(c.path)
	roles := []role{
		{Role: "leader", Path: c.path, Carries: true, Note: "the log to each follower: this one binds"},
		{Role: "client", Path: client, Carries: true, Note: "ingress to the leader alone, no consensus"},
		{Role: "follower", Path: follower, Note: "control frames to the leader only; its receiver is its limit"},
	}
	c.parameters(c.path)
	fmt.Fprintln(c.w, "role\tC\tD\tframed\tmsgs/datagram\tdatagrams/s\tpeak msgs/s\tMB/s\t")
	for i := range roles {
		r := &roles[i]
		r.Framed, r.PerDatagram, r.Fragments = r.Path.Framed(), r.Path.PerDatagram(), r.Path.Fragments()
		r.Datagrams = r.Path.Datagrams()
		if !r.Carries {
			fmt.Fprintf(c.w, "%s\t%.0f\t%d\t-\t-\t%.0f\t-\t-\t%s\n", r.Role, r.Path.C, r.Path.D, r.Datagrams, r.Note)
			continue
		}
		r.Peak, r.BytesPerS = r.Path.Peak(), r.Path.Bytes()
		fmt.Fprintf(c.w, "%s\t%.0f\t%d\t%d\t%s\t%.0f\t%.0f\t%.1f\t%s\n", r.Role, r.Path.C, r.Path.D, r.Framed,
			perDatagram(r.PerDatagram, r.Fragments), r.Datagrams, r.Peak, r.BytesPerS/1e6, r.Note)
	}
	return roles, nil
}

func perDatagram(n, fragments int) string {
	if n == 0 {
		return fmt.Sprintf("1/%d (fragmented)", fragments)
	}
	return strconv.Itoa(n)
}

func (c *command) loaded() error {
	if c.load.Rate == 0 {
		return usageError{errors.New("-load is missing: messages a second, as in -load 800k")}
	}
	if err := c.load.Validate(); err != nil {
		return usageError{err}
	}
	return c.valid()
}

func (c *command) predict() (any, error) {
	if err := c.loaded(); err != nil {
		return nil, err
	}
	p, err := model.Predict(c.path, c.load)
	if err != nil {
		return nil, err
	}
	c.parameters(c.path)
	fmt.Fprintf(c.w, "load %.0f/s, transit %v, term length %d\n\n", c.load.Rate, c.load.Transit, c.load.TermLength)
	fmt.Fprintf(c.w, "framed\t%d B, %s a datagram\n", c.path.Framed(), perDatagram(c.path.PerDatagram(), c.path.Fragments()))
	fmt.Fprintf(c.w, "peak\t%.0f/s\n", c.path.Peak())
	fmt.Fprintf(c.w, "rho\t%.3f\n", p.Rho)
	fmt.Fprintf(c.w, "regime\t%s\n", p.Regime)
	fmt.Fprintf(c.w, "queueing\t%s\tservice %s x rho / (1 - rho), at most %s\n", round(p.Queueing), round(p.Service), round(p.Cap))
	fmt.Fprintf(c.w, "latency\t%s\n", round(p.Latency))
	return struct {
		Path model.Path `json:"parameters"`
		Load model.Load `json:"load"`
		Peak float64    `json:"peak_per_s"`
		model.Prediction
	}{c.path, c.load, c.path.Peak(), p}, nil
}

// round for reading: to three digits or so.
func round(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d/unit < 10000 {
			return d.Round(unit)
		}
	}
}

type worked struct {
	Name  string      `json:"name"`
	Frame model.Frame `json:"framing"`
	Rows  []model.Row `json:"rows"`
}

func (c *command) table() (any, error) {
	var tables []worked
	for _, t := range []worked{{"published framing", model.Reference, nil}, {"the driver's framing", model.Driver, nil}} {
		p := c.path
		p.Frame = c.override(t.Frame)
		rows, err := model.Table(p, model.TablePayloads)
		if err != nil {
			return nil, usageError{err}
		}
		t.Frame, t.Rows = p.Frame, rows
		tables = append(tables, t)
		fmt.Fprintf(c.w, "%s: S %.0f/s, C %.0f/s, D %d, header %d, overhead %d: %.0f datagrams/s\n",
			t.Name, p.S, p.C, p.D, p.HeaderBytes, p.OverheadBytes, p.Datagrams())
		fmt.Fprintf(c.w, "payload\tframed\tMTU %d\tpeak msgs/s\tMTU %d\tpeak msgs/s\n", model.SmallMTU, model.LargeMTU)
		for _, r := range rows {
			fmt.Fprintf(c.w, "%d\t%d\t%s\t%.0f\t%s\t%.0f\n", r.Payload, r.Framed,
				perDatagram(r.Small.PerDatagram, r.Small.Fragments), r.Small.Peak,
				perDatagram(r.Large.PerDatagram, r.Large.Fragments), r.Large.Peak)
		}
		fmt.Fprintln(c.w)
	}
	return tables, nil
}

func (c *command) advise() (any, error) {
	if err := c.loaded(); err != nil {
		return nil, err
	}
	a, err := model.Advise(c.path, c.load, model.Jumbo(c.jumbo))
	if err != nil {
		return nil, usageError{err}
	}
	fmt.Fprintf(c.w, "MTU %d\n", a.MTU)
	for _, r := range a.Reasons {
		fmt.Fprintf(c.w, "- %s\n", r)
	}
	return a, nil
}

func (c *command) sendrate() (any, error) {
	var to netip.AddrPort
	if c.to != "" {
		var err error
		if to, err = netip.ParseAddrPort(c.to); err != nil {
			return nil, usageError{fmt.Errorf("-to %q: want an IP address and a port, as in 10.0.1.12:9999", c.to)}
		}
	}
	var all []model.Rates
	fmt.Fprintln(c.w, "bytes\tS median/s\tmin\tmax\tspread\tus/call\trefused")
	for _, s := range strings.Split(c.sizes, ",") {
		size, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || size < 1 || size > model.MaxMTU || c.runs < 1 || c.each <= 0 {
			return nil, usageError{fmt.Errorf("-sizes %q -runs %d -each %v: want sizes of 1 to %d bytes, 1 run or more, a time above 0", c.sizes, c.runs, c.each, model.MaxMTU)}
		}
		r, err := model.SendRate(to, size, c.runs, c.each)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
		fmt.Fprintf(c.w, "%d\t%d\t%d\t%d\t%.0f %%\t%.2f\t%.1f %%\n", size, r.Median, r.Min, r.Max,
			100*float64(r.Max-r.Min)/float64(r.Median), 1e6/float64(r.Median), 100*r.Refused)
	}
	return all, nil
}

func (c *command) fit() (any, error) {
	if err := c.valid(); err != nil {
		return nil, err
	}
	if len(c.args) != 1 {
		return nil, usageError{fmt.Errorf("fit: %d files: want one CSV file of a sweep", len(c.args))}
	}
	ladders, err := ladder.Read(c.args)
	if err != nil {
		return nil, usageError{err}
	}
	var points []model.Point
	for _, l := range ladders {
		for _, r := range l.Rows {
			points = append(points, model.Point{Offered: float64(r.Offered), Achieved: r.Achieved, P50US: r.P50US})
		}
	}
	batch := max(1, c.path.PerDatagram())
	f, err := model.Fit(points, batch)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.args[0], err)
	}
	bound := "bounded by a run that did not carry its rate"
	if !f.Bounded {
		bound = "an extrapolation: every run carried its rate"
	}
	fmt.Fprintf(c.w, "transit %.1f us, capacity %.0f/s (%s), %d messages a datagram, error %.1f %% rms\n\n", f.TransitUS, f.Capacity, bound, batch, f.RMSPercent)
	fmt.Fprintln(c.w, "offered/s\tachieved/s\tp50 us\tpredicted us\terror\trho\tregime")
	for _, p := range f.Points {
		predicted, off := "-", "-"
		if p.Regime != model.Saturated {
			predicted, off = fmt.Sprintf("%.0f", p.PredictedUS), fmt.Sprintf("%+.0f %%", p.ErrorPercent)
		}
		fmt.Fprintf(c.w, "%.0f\t%.0f\t%.0f\t%s\t%s\t%.2f\t%s\n", p.Offered, p.Achieved, p.P50US, predicted, off, p.Rho, p.Regime)
	}
	return struct {
		Path model.Path `json:"parameters"`
		model.Fitted
	}{c.path, f}, nil
}
