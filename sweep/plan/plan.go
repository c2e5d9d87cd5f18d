// Package plan carries out a ladder of runs, each an independent run through
// the product's own Makefile, and picks it up again where it was left.
//
// A plan with the name NAME has three things in its folder: NAME.plan says what
// was asked for, NAME.csv has a row for each finished run, and beside it lie the
// records of the runs. Rates and repeats are shuffled together from a seed, so
// that a drift of the host spreads over all rates; the order is in the plan's
// file by its seed. A run is finished when its row is in the CSV file or its
// record in the folder: each run has a seed of its own, by which its record is
// known again after a crash. What was interrupted is run again.
package plan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"raftrig/record"
	"raftrig/sweep/ladder"
	"raftrig/sweep/product"
)

// Plan is what was asked for: the document NAME.plan.
type Plan struct {
	Product string   `json:"product"`
	Rates   []int64  `json:"rates"`
	Repeats int      `json:"repeats"`
	Seed    uint64   `json:"seed"`
	Knobs   []string `json:"knobs"`
}

// Run is one run of a plan.
type Run struct {
	Rate int64
	// Repeat counts from 1.
	Repeat int
	// Seed of its arrivals, which no other run of the plan has.
	Seed uint64
}

// maxRuns of a plan.
const maxRuns = 10_000

// Validate says what cannot be run, naming the flag.
func (p Plan) Validate() error {
	if len(p.Rates) == 0 {
		return errors.New("-rates is missing: want a list as in 10k,25k,50k (RATES=10k,25k,50k)")
	}
	if p.Repeats < 1 || p.Repeats > maxRuns/len(p.Rates) {
		return fmt.Errorf("-repeats %d: want 1 to %d", p.Repeats, maxRuns/len(p.Rates))
	}
	return product.CheckKnobs(p.Knobs)
}

// Runs in the order of the plan's seed.
func (p Plan) Runs() []Run {
	random := rand.New(rand.NewPCG(p.Seed, 0))
	var runs []Run
	for repeat := 1; repeat <= p.Repeats; repeat++ {
		for _, rate := range p.Rates {
			runs = append(runs, Run{Rate: rate, Repeat: repeat})
		}
	}
	random.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
	for i := range runs {
		runs[i].Seed = random.Uint64()>>32<<16 | uint64(i+1)
	}
	return runs
}

// differs names what b asks for that a does not.
func (p Plan) differs(b Plan) string {
	list := func(rates []int64) string {
		var words []string
		for _, r := range rates {
			words = append(words, ladder.FormatRate(r))
		}
		return strings.Join(words, ",")
	}
	knobs := func(k []string) string {
		k = slices.Sorted(slices.Values(k))
		if len(k) == 0 {
			return "none"
		}
		return strings.Join(k, " ")
	}
	for _, x := range []struct{ name, old, new string }{
		{"product", p.Product, b.Product}, {"rates", list(p.Rates), list(b.Rates)},
		{"repeats", strconv.Itoa(p.Repeats), strconv.Itoa(b.Repeats)}, {"knobs", knobs(p.Knobs), knobs(b.Knobs)},
		{"seed", fmt.Sprint(p.Seed), fmt.Sprint(b.Seed)},
	} {
		if x.old != x.new {
			return fmt.Sprintf("%s %s, not %s", x.name, x.old, x.new)
		}
	}
	return ""
}

// Sweep is a plan that is under way.
type Sweep struct {
	Plan
	dir, name string
	file      *os.File
	done      map[Run]bool
}

var nameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Open begins a plan or takes it up again. A seed of 0 is that of the plan that
// is there, or a new one. A plan that differs from the one that is there is
// refused; nothing is overwritten.
func Open(dir, name string, p Plan) (*Sweep, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if !nameRE.MatchString(name) {
		return nil, &ladder.InputError{File: fmt.Sprintf("-name %q", name), Text: "want letters, digits, dots and dashes"}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("-out: %w", err)
	}
	s := &Sweep{Plan: p, dir: dir, name: name, done: map[Run]bool{}}
	if err := s.open(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// CSV is the path of the plan's rows.
func (s *Sweep) CSV() string { return filepath.Join(s.dir, s.name+".csv") }

func (s *Sweep) path() string { return filepath.Join(s.dir, s.name+".plan") }

// Close lets another process take the plan up.
func (s *Sweep) Close() {
	if s.file != nil {
		s.file.Close()
	}
}

func (s *Sweep) open() error {
	_, err := os.Stat(s.path())
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(s.CSV()); err == nil {
			return &ladder.InputError{File: s.CSV(), Text: "is there without its plan, " + s.path() + ": it is left as it is; choose another name (NAME=...)"}
		}
	}
	s.file, err = os.OpenFile(s.path(), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("-out: %w", err)
	}
	if err := unix.Flock(int(s.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%s is under way in another process: wait for it", s.path())
	}
	data, err := io.ReadAll(io.LimitReader(s.file, 1<<20))
	if err != nil {
		return err
	}
	if len(data) == 0 {
		// New, or a crash came before the first word.
		for s.Seed == 0 {
			s.Seed = rand.Uint64() >> 32 // short enough to type again
		}
		data, err := json.Marshal(s.Plan)
		if err == nil {
			_, err = s.file.WriteAt(append(data, '\n'), 0)
		}
		if err == nil {
			err = s.file.Sync()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.path(), err)
		}
		return nil
	}
	var old Plan
	if err := json.Unmarshal(data, &old); err != nil || old.Validate() != nil || old.Seed == 0 {
		return &ladder.InputError{File: s.path(), Line: 1, Text: "not a plan: it is left as it is; choose another name (NAME=...)"}
	}
	if s.Seed == 0 {
		s.Seed = old.Seed
	}
	if d := old.differs(s.Plan); d != "" {
		return &ladder.InputError{File: s.path(), Text: "holds another plan (" + d + "): go on with that one as it was, or choose another name (NAME=...)"}
	}
	return s.find()
}

// find what is finished: rows, and records that have no row yet.
func (s *Sweep) find() error {
	of := map[[2]int64]Run{}
	bySeed := map[uint64]Run{}
	for _, r := range s.Plan.Runs() {
		of[[2]int64{r.Rate, int64(r.Repeat)}] = r
		bySeed[r.Seed] = r
	}
	if _, err := os.Stat(s.CSV()); !errors.Is(err, fs.ErrNotExist) {
		l, err := ladder.ReadCSV(s.CSV())
		if err != nil {
			return err
		}
		for _, row := range l.Rows {
			r, ok := of[[2]int64{row.Offered, int64(row.Repeat)}]
			if !ok || s.done[r] {
				return &ladder.InputError{File: row.File, Line: row.Line, Text: fmt.Sprintf("rate %s, repeat %d is not of this plan, or there twice: the file is left as it is; choose another name (NAME=...)", ladder.FormatRate(row.Offered), row.Repeat)}
			}
			s.done[r] = true
		}
	}
	began, err := os.Stat(s.path())
	if err != nil {
		return err
	}
	paths, err := filepath.Glob(filepath.Join(s.dir, "*-open-*.json"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || info.ModTime().Before(began.ModTime()) || strings.HasSuffix(path, ".partial.json") {
			continue
		}
		run, err := record.Read(path)
		if err != nil {
			continue // not one that finished
		}
		if r, ok := bySeed[run.Knobs.Seed]; ok && !s.done[r] && run.Product == s.Product && run.Knobs.Rate == r.Rate && finished(run) {
			if _, err := s.add(r, run, path); err != nil {
				return err
			}
		}
	}
	return nil
}

// finished says whether a run came to its end, whatever came out.
func finished(run *record.Run) bool {
	return !run.Rig.Interrupted && !slices.ContainsFunc(run.Verdict.Reasons, func(r record.Reason) bool { return r.Code == "interrupted" })
}

func (s *Sweep) add(r Run, run *record.Run, path string) (ladder.Row, error) {
	row := ladder.FromRun(run)
	row.Repeat, row.Record = r.Repeat, filepath.Base(path)
	if err := ladder.Append(s.CSV(), row); err != nil {
		return row, err
	}
	s.done[r] = true
	return row, nil
}

// Left are the runs that are to be done, in order.
func (s *Sweep) Left() []Run {
	return slices.DeleteFunc(s.Plan.Runs(), func(r Run) bool { return s.done[r] })
}

// ErrInterrupted: ctx ended; what was finished is kept.
var ErrInterrupted = errors.New("interrupted")

// Options of Do.
type Options struct {
	// Settle bounds the wait for a cluster that is fit to be measured, before
	// each run.
	Settle time.Duration
	// Pause lies between two runs.
	Pause time.Duration
	// Begin is called before each run, with how many are left, it included,
	// and the time that they will take.
	Begin func(r Run, left int, remaining time.Duration)
	// End is called when its row is kept.
	End func(row ladder.Row, left int, remaining time.Duration)
}

// Do what is left. A run whose verdict is INVALID is a row like any other. An
// error stops the sweep, which can then be opened again.
func (s *Sweep) Do(ctx context.Context, p *product.Product, o Options) error {
	p.Knobs = s.Knobs
	left := s.Left()
	// Until a run has shown how long it takes: its windows, and some seconds.
	each := p.Seconds("WARMUP", 10*time.Second) + p.Seconds("MEASURE", 30*time.Second) + 5*time.Second
	var spent time.Duration
	for i, r := range left {
		began := time.Now()
		if i > 0 {
			if product.Sleep(ctx, o.Pause) != nil {
				return ErrInterrupted
			}
		}
		remaining := func(runs int) time.Duration { return time.Duration(runs) * each }
		o.Begin(r, len(left)-i, remaining(len(left)-i))
		if _, err := p.Settle(ctx, o.Settle); err != nil {
			if ctx.Err() != nil {
				return ErrInterrupted
			}
			return err
		}
		run, path, err := p.Client(ctx, s.dir, "MODE=open", "RATE="+strconv.FormatInt(r.Rate, 10), "SEED="+strconv.FormatUint(r.Seed, 10))
		switch {
		case err == nil && finished(run):
			// Also when Ctrl-C came in its last moment.
		case ctx.Err() != nil:
			return ErrInterrupted
		case err != nil:
			return fmt.Errorf("rate %s, repeat %d: %w", ladder.FormatRate(r.Rate), r.Repeat, err)
		default:
			return fmt.Errorf("rate %s, repeat %d: the client was interrupted: %s", ladder.FormatRate(r.Rate), r.Repeat, path)
		}
		row, err := s.add(r, run, path)
		if err != nil {
			return err
		}
		spent += time.Since(began)
		each = spent / time.Duration(i+1)
		o.End(row, len(left)-i-1, remaining(len(left)-i-1))
		if ctx.Err() != nil {
			return ErrInterrupted
		}
	}
	return nil
}
