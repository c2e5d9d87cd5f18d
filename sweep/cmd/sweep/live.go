package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/record"
	"raftrig/sweep/check"
	search "raftrig/sweep/edge"
	"raftrig/sweep/ladder"
	"raftrig/sweep/plan"
	"raftrig/sweep/product"
	"raftrig/sweep/zone"
)

// target is the product that a verb runs, by its flags.
type target struct {
	root, name, out string
	settle, pause   time.Duration
}

func (t *target) register(f *flag.FlagSet) {
	f.StringVar(&t.root, "root", ".", "`folder` of raftrig")
	f.StringVar(&t.name, "product", "", "`name` of the product: the folder of its Makefile")
	f.StringVar(&t.out, "out", "", "`folder` of the records (default results/PRODUCT)")
	f.DurationVar(&t.settle, "settle", 30*time.Second, "`time` for the cluster to be fit to be measured, before each run")
	f.DurationVar(&t.pause, "pause", 2*time.Second, "`time` between two runs")
}

func (t *target) open(e env, knobs []string) (*product.Product, error) {
	if t.name == "" {
		return nil, usagef("-product is missing")
	}
	if t.settle < 0 || t.pause < 0 {
		return nil, usagef("-settle and -pause: want times from 0")
	}
	if err := product.CheckKnobs(knobs); err != nil {
		return nil, usageError{err}
	}
	p, err := product.Open(t.root, t.name)
	if err != nil {
		return nil, usageError{err}
	}
	p.Knobs, p.Again = knobs, e.again
	if t.out == "" {
		t.out = filepath.Join("results", t.name)
	}
	if !filepath.IsAbs(t.out) {
		t.out = filepath.Join(t.root, t.out)
	}
	return p, nil
}

// screen shows the live line of a client in place, on a terminal only.
type screen struct {
	out      io.Writer
	terminal bool
	prefix   string
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if f, ok := out.(*os.File); ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		s.terminal = err == nil
	}
	return s
}

func (s *screen) live(line string) {
	if !s.terminal {
		return
	}
	line = s.prefix + line
	if size, err := unix.IoctlGetWinsize(int(s.out.(*os.File).Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 && len(line) >= int(size.Col) {
		line = line[:size.Col-1]
	}
	fmt.Fprintf(s.out, "\r\x1b[K%s", line)
}

func (s *screen) clear() {
	if s.terminal {
		fmt.Fprint(s.out, "\r\x1b[K")
	}
}

// result of a run in a line.
func result(row ladder.Row) string {
	figure := func(v float64) string {
		if math.IsNaN(v) {
			return "-"
		}
		return us(v)
	}
	text := fmt.Sprintf("%-7s achieved %.1f/s, p50 %s us, p99 %s us", row.Load(), row.Achieved, figure(row.P50US), figure(row.P99US))
	if row.Mode == "open" {
		text += fmt.Sprintf(", drops %s, lag p99 %s us", zone.Percent(row.DropShare()), figure(row.LagP99US))
	}
	return text + ", " + row.Verdict
}

func runVerb(e env, f *flag.FlagSet, args []string) error {
	var t target
	t.register(f)
	rates := f.String("rates", "", "rates to run, with commas, as in 10k,25k")
	repeats := f.Int("repeats", 3, "runs of each rate")
	name := f.String("name", "sweep", "`name` of the plan and its CSV file")
	seed := f.Uint64("seed", 0, "seed of the order; 0 draws one and prints it")
	knobs, err := parse(f, args)
	if err != nil {
		return err
	}
	p, err := t.open(e, knobs)
	if err != nil {
		return err
	}
	wanted := plan.Plan{Product: t.name, Repeats: *repeats, Seed: *seed, Knobs: knobs}
	if *rates != "" {
		if wanted.Rates, err = ladder.ParseRates(*rates); err != nil {
			return usagef("-rates: %v", err)
		}
	}
	if err := wanted.Validate(); err != nil {
		return usageError{err}
	}
	s, err := plan.Open(t.out, *name, wanted)
	if err != nil {
		return err
	}
	defer s.Close()

	left, total := len(s.Left()), len(s.Runs())
	var order []string
	for _, r := range s.Left() {
		order = append(order, ladder.FormatRate(r.Rate))
	}
	fmt.Fprintf(e.stdout, "%s: %d runs, %d done, seed %d\n", s.CSV(), total, total-left, s.Seed)
	if left > 0 {
		fmt.Fprintf(e.stdout, "order: %s\n", strings.Join(order, " "))
	}
	scr := newScreen(e.stderr)
	p.Live = scr.live
	err = s.Do(e.ctx, p, plan.Options{
		Settle: t.settle, Pause: t.pause,
		Begin: func(r plan.Run, left int, remaining time.Duration) {
			scr.prefix = progress(total-left, left, remaining) + "  "
			scr.live(fmt.Sprintf("%s, repeat %d: waiting for a settled cluster", ladder.FormatRate(r.Rate), r.Repeat))
		},
		End: func(row ladder.Row, left int, remaining time.Duration) {
			scr.clear()
			fmt.Fprintf(e.stdout, "%s  %s\n", progress(total-left, left, remaining), result(row))
		},
	})
	scr.clear()
	again := "the same command goes on with the rest"
	if errors.Is(err, plan.ErrInterrupted) {
		fmt.Fprintf(e.stderr, "sweep run: interrupted, %d of %d runs are done: %s\n", total-len(s.Left()), total, again)
		return errInterrupted
	}
	if err != nil {
		return fmt.Errorf("%w (%d of %d runs are done: %s)", err, total-len(s.Left()), total, again)
	}
	fmt.Fprintf(e.stdout, "done: sweep zone %s\n", s.CSV())
	return nil
}

// progress says what is done, what is left and when it ends.
func progress(done, left int, remaining time.Duration) string {
	if left == 0 {
		return fmt.Sprintf("%d done", done)
	}
	return fmt.Sprintf("%d done, %d left, ends %s (in %v)", done, left, time.Now().Add(remaining).Format("15:04:05"), remaining.Round(time.Second))
}

// client runs one load on a settled cluster.
func client(e env, t target, p *product.Product, vars ...string) (*record.Run, ladder.Row, error) {
	if _, err := p.Settle(e.ctx, t.settle); err != nil {
		return nil, ladder.Row{}, interrupted(e, err)
	}
	run, path, err := p.Client(e.ctx, t.out, vars...)
	if err == nil && e.ctx.Err() != nil {
		err = e.ctx.Err()
	}
	if err != nil {
		return nil, ladder.Row{}, interrupted(e, err)
	}
	row := ladder.FromRun(run)
	row.Record = path
	return run, row, nil
}

func interrupted(e env, err error) error {
	if e.ctx.Err() != nil {
		fmt.Fprintln(e.stderr, "sweep: interrupted")
		return errInterrupted
	}
	return err
}

func edgeVerb(e env, f *flag.FlagSet, args []string) error {
	var t target
	t.register(f)
	limits := limitFlags(f, true)
	c := search.Config{Max: 10_000_000, Resolution: 0.05, Repeats: 2, MaxRuns: 10}
	rateFlag(f, &c.Start, "start", "first `rate`; without it a closed run with 100 outstanding tells, and counts as a run")
	rateFlag(f, &c.Max, "max", "highest `rate` to try (default 10000k)")
	f.Float64Var(&c.Resolution, "resolution", c.Resolution, "how far the passing and the failing rate may lie apart, as a share")
	f.IntVar(&c.Repeats, "repeats", c.Repeats, "runs of each of the two")
	f.IntVar(&c.MaxRuns, "runs", c.MaxRuns, "most runs to make")
	knobs, err := parse(f, args)
	if err != nil {
		return err
	}
	if err := limits.Validate(); err != nil {
		return usageError{err}
	}
	p, err := t.open(e, knobs)
	if err != nil {
		return err
	}
	check := c
	check.Start = max(1, c.Start)
	if err := check.Validate(); err != nil {
		return usageError{err}
	}
	scr := newScreen(e.stderr)
	p.Live = scr.live
	n := 0
	one := func(vars ...string) (*record.Run, ladder.Row, error) {
		if n > 0 {
			if err := product.Sleep(e.ctx, t.pause); err != nil {
				return nil, ladder.Row{}, interrupted(e, err)
			}
		}
		n++
		scr.prefix = fmt.Sprintf("run %d of at most %d  ", n, c.MaxRuns)
		run, row, err := client(e, t, p, vars...)
		scr.clear()
		return run, row, err
	}
	if c.Start == 0 {
		_, row, err := one("MODE=closed", "THREADS=100")
		if err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "%2d  %s\n", n, result(row))
		if c.Start = min(int64(row.Achieved), c.Max); c.Start < 1 || c.MaxRuns < 2 {
			return fmt.Errorf("the closed run gives no rate to start from: say one by -start, and -runs of at least 2")
		}
	}
	budget := c
	budget.MaxRuns -= n
	distrust := map[int64][]string{}
	inflight := 0
	res, err := search.Search(budget, func(rate int64) (search.Run, error) {
		run, row, err := one("MODE=open", "RATE="+strconv.FormatInt(rate, 10))
		if err != nil {
			return search.Run{}, err
		}
		point := zone.Judge(rate, []ladder.Row{row}, *limits)
		word := "passes"
		if !point.Passes() {
			word = "fails: " + point.Why()
		}
		fmt.Fprintf(e.stdout, "%2d  %s  %s\n", n, result(row), word)
		distrust[rate] = append(distrust[rate], point.Distrust...)
		inflight = run.Knobs.MaxInflight
		return search.Run{Rate: rate, Pass: point.Passes(), Achieved: row.Achieved}, nil
	})
	if errors.Is(err, errInterrupted) {
		return err
	}
	how := "not confirmed: " + res.Why
	if res.Confirmed {
		how = fmt.Sprintf("confirmed by %d runs of each", c.Repeats)
	}
	optional := func(r int64) string {
		if r == 0 {
			return "none"
		}
		return ladder.FormatRate(r)
	}
	fmt.Fprintf(e.stdout, "edge: passing %s, failing %s, %d runs, %s\n", optional(res.Passing), optional(res.Failing), n, how)
	for _, r := range []int64{res.Passing, res.Failing} {
		if codes := distrust[r]; len(codes) > 0 {
			slices.Sort(codes)
			fmt.Fprintf(e.stdout, "note: a run of %s is INVALID for %s: the rig's own trouble, not the product's\n", ladder.FormatRate(r), strings.Join(slices.Compact(codes), ", "))
		}
	}
	window := p.Seconds("WARMUP", 10*time.Second) + p.Seconds("MEASURE", 30*time.Second)
	if res.Passing > 0 {
		if fill := search.FillTime(res.Passing, inflight, c.Resolution); fill > window {
			fmt.Fprintf(e.stdout, "note: %g %% of overload needs %v to fill the in-flight cap of %d and to show, more than WARMUP and MEASURE: lower MAX_INFLIGHT or raise MEASURE\n", 100*c.Resolution, fill.Round(time.Second), inflight)
		}
	}
	return err
}

func rateFlag(f *flag.FlagSet, p *int64, name, usage string) {
	f.Func(name, usage, func(s string) (err error) {
		*p, err = ladder.ParseRate(s)
		return err
	})
}

func agreeVerb(e env, f *flag.FlagSet, args []string) error {
	var t target
	t.register(f)
	threads := f.Int("threads", 28, "requests outstanding in the closed run")
	limit := f.Float64("limit", 0.15, "how far the open p50 may lie from the closed one, as a share")
	knobs, err := parse(f, args)
	if err != nil {
		return err
	}
	if *threads < 1 || !(*limit > 0) {
		return usagef("-threads and -limit: want values above 0")
	}
	p, err := t.open(e, knobs)
	if err != nil {
		return err
	}
	scr := newScreen(e.stderr)
	p.Live = scr.live
	closed, row, err := client(e, t, p, "MODE=closed", "THREADS="+strconv.Itoa(*threads))
	scr.clear()
	if err != nil {
		return err
	}
	fmt.Fprintf(e.stdout, "%s\n  %s\n", result(row), row.Record)
	rate := int64(math.Round(row.Achieved))
	if rate < 1 {
		return errors.New("the closed run reached no rate: nothing to compare")
	}
	if err := product.Sleep(e.ctx, t.pause); err != nil {
		return interrupted(e, err)
	}
	open, row, err := client(e, t, p, "MODE=open", "RATE="+strconv.FormatInt(rate, 10))
	scr.clear()
	if err != nil {
		return err
	}
	fmt.Fprintf(e.stdout, "%s\n  %s\n\n", result(row), row.Record)
	a, err := check.Agree(closed, open, *limit)
	if err != nil {
		return err
	}
	fmt.Fprintf(e.stdout, "closed p50 %s us @ %.0f/s   open p50 %s us @ %.0f/s   delta %+.1f %%   lag p50 %s us, max %s us\n",
		us(a.ClosedP50US), a.ClosedRate, us(a.OpenP50US), a.OpenRate, 100*a.Delta, us(a.LagP50US), us(a.LagMaxUS))
	fmt.Fprintln(e.stdout, a.Meaning())
	if !a.Within() {
		return fmt.Errorf("p50 differs by %+.1f %%, more than %g %%", 100*a.Delta, 100**limit)
	}
	return nil
}

func stallVerb(e env, f *flag.FlagSet, args []string) error {
	var t target
	t.register(f)
	ms := f.Int("ms", 500, "`milliseconds` that the leader stands still")
	rate := int64(1000)
	rateFlag(f, &rate, "rate", "`rate` of the open run (default 1000)")
	threads := f.Int("threads", 1, "requests outstanding in the closed run")
	knobs, err := parse(f, args)
	if err != nil {
		return err
	}
	p, err := t.open(e, knobs)
	if err != nil {
		return err
	}
	if *ms < 1 || *ms > 60_000 || *threads < 1 {
		return usagef("-ms %d, -threads %d: want 1 to 60000, and 1 or more", *ms, *threads)
	}
	stall := time.Duration(*ms) * time.Millisecond
	if least := stall + 8*time.Second; p.Seconds("MEASURE", 30*time.Second) < least {
		return usagef("MEASURE=%s: want at least %v, with some seconds before and after the stall", p.Knob("MEASURE"), least)
	}
	if p.Knob("MAX_INFLIGHT") == "" {
		// What falls due in the stall has to be sent: room for twice that.
		p.Knobs = append(p.Knobs, "MAX_INFLIGHT="+strconv.FormatInt(max(1000, rate/10, 2*int64(float64(rate)*(stall.Seconds()+1))), 10))
	}
	var faults []string
	for i, vars := range [][]string{{"MODE=open", "RATE=" + strconv.FormatInt(rate, 10)}, {"MODE=closed", "THREADS=" + strconv.Itoa(*threads)}} {
		if i > 0 {
			fmt.Fprintln(e.stdout)
			if err := product.Sleep(e.ctx, t.pause); err != nil {
				return interrupted(e, err)
			}
		}
		f, err := stallOne(e, t, p, stall, vars)
		if err != nil {
			return err
		}
		faults = append(faults, f...)
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	fmt.Fprintln(e.stdout, "\npasses: open mode went on sending and charged the stall, closed mode asked nothing")
	return nil
}

// stallOne runs one mode and stops the leader in its third measured second.
func stallOne(e env, t target, p *product.Product, stall time.Duration, vars []string) ([]string, error) {
	nodes, err := p.Settle(e.ctx, t.settle)
	if err != nil {
		return nil, interrupted(e, err)
	}
	// Whoever leads is stopped, unless LEADER names a node, which the client then
	// makes lead.
	leader := 0
	if l := p.Knob("LEADER"); l != "" {
		if leader, err = strconv.Atoi(l); err != nil || leader < 0 || leader > len(nodes) {
			return nil, usagef("LEADER=%s: want a node from 1 to %d, or 0", l, len(nodes))
		}
	}
	if leader == 0 {
		leader = product.Leader(nodes)
		vars = append(vars, "LEADER=0")
	}
	scr := newScreen(e.stderr)
	started := make(chan int, 1) // the second in which the load is
	measured := 0
	p.Live = func(line string) {
		scr.live(line)
		if strings.HasSuffix(line, " measure") {
			if measured++; measured == 2 {
				started <- secondOf(line)
			}
		}
	}
	type outcome struct {
		run *record.Run
		row ladder.Row
		err error
	}
	ended := make(chan outcome, 1)
	go func() {
		run, path, err := p.Client(e.ctx, t.out, vars...)
		o := outcome{run: run, err: err}
		if err == nil {
			o.row = ladder.FromRun(run)
			o.row.Record = path
		}
		ended <- o
	}()
	second := -1
	var halted error
	var o outcome
	select {
	case second = <-started:
		halted = halt(e, p, leader, stall)
		o = <-ended
	case o = <-ended:
	}
	scr.clear()
	switch {
	case e.ctx.Err() != nil:
		return nil, interrupted(e, e.ctx.Err())
	case o.err != nil:
		return nil, o.err
	case halted != nil:
		return nil, halted
	case second < 0:
		return nil, errors.New("the client's live line did not come: nothing was stopped")
	case o.run.Cluster.LeaderBefore != leader:
		return nil, fmt.Errorf("node %d was stopped, but node %d led: see make -C %s leader", leader, o.run.Cluster.LeaderBefore, p.Name())
	}
	fmt.Fprintf(e.stdout, "%s\n  %s\n", result(o.row), o.row.Record)
	s, err := check.Stalled(o.run, second, stall.Seconds())
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(e.stdout, "node %d, the leader, stood still for %v from second %d on; largest latency %.0f ms, %d answered\n", leader, stall, second, s.MaxUS/1e3, s.Answered)
	fmt.Fprintln(e.stdout, "  second   sent/s  answered/s   max us")
	for _, x := range s.Seconds {
		mark := ""
		if x.Second == second {
			mark = "  <- stopped"
		}
		fmt.Fprintf(e.stdout, "  %6d %8d %11d %8.0f%s\n", x.Second, x.Sent, x.OK, x.MaxUS, mark)
	}
	return s.Faults(), nil
}

// halt stops a node for a while. It always lets it go on, also when ctx ends.
func halt(e env, p *product.Product, node int, d time.Duration) error {
	err := p.Signal(e.ctx, node, "STOP")
	if err == nil {
		err = product.Sleep(e.ctx, d)
	}
	return errors.Join(err, p.Signal(context.WithoutCancel(e.ctx), node, "CONT"))
}

// secondOf a live line that ends in t=5s measure: the one that begins then.
func secondOf(line string) int {
	_, rest, _ := strings.Cut(line, " t=")
	digits, _, _ := strings.Cut(rest, "s ")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return n
}
