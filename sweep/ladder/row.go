package ladder

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Columns that every file has.
var Columns = []string{"product", "mode", "offered", "achieved", "p50_us", "p99_us", "dropped", "measure_s", "burst"}

// Settings are the columns that say what was set; a file need not have them
// all. Runs are comparable when these agree.
var Settings = []string{"burst", "arrival", "size", "lanes", "topology", "version", "log", "keys", "idle"}

// rateSettings may differ between the rates of a ladder, but not between the
// repeats of one rate.
var rateSettings = []string{"measure_s", "max_inflight"}

// Row is one run. A figure that is not known is NaN.
type Row struct {
	Product string
	// Mode is open or closed.
	Mode string
	// Offered rate of open mode in requests a second; 0 in closed mode.
	Offered int64
	// Threads outstanding in closed mode; 0 in open mode.
	Threads int
	// Achieved is the rate of answered requests.
	Achieved float64
	// P50US and P99US of the latency; NaN when nothing was answered. Where
	// requests stayed unanswered a percentile may be a lower bound.
	P50US, P99US float64
	// Dropped requests, not sent by the rig.
	Dropped int64
	// MeasureS is the length of the measured window in seconds.
	MeasureS float64
	// Settings by column; one that is not known is missing.
	Settings map[string]string

	P999US, MaxUS, LagP50US, LagP99US float64
	Failed, Unanswered                int64
	// Verdict is empty when nobody judged the run, VALID, or INVALID with the
	// codes of its reasons behind.
	Verdict string
	// Repeat counts the runs of a rate from 1; 0 when not known.
	Repeat int
	// Record is the path of the run's record as its CSV file names it: relative
	// to that file's folder.
	Record string

	// File and Line where the row was read; Line is 0 for a record.
	File string
	Line int
}

// DropShare of the offered requests.
func (r Row) DropShare() float64 { return float64(r.Dropped) / (float64(r.Offered) * r.MeasureS) }

// Invalid gives the reasons of an INVALID verdict, nil for any other.
func (r Row) Invalid() []string {
	rest, ok := strings.CutPrefix(r.Verdict, "INVALID")
	if !ok {
		return nil
	}
	if codes := strings.Fields(rest); len(codes) > 0 {
		return codes
	}
	return []string{"unknown"}
}

// Ladder is what one file holds, or all records of one product.
type Ladder struct {
	// Name of the file, or of the records' folder.
	Name    string
	Product string
	Rows    []Row
}

// Rung is one rate with its runs.
type Rung struct {
	Rate int64
	Rows []Row
}

// Rungs by ascending rate, repeats in the order of the rows.
func (l Ladder) Rungs() []Rung {
	byRate := map[int64][]Row{}
	for _, r := range l.Rows {
		byRate[r.Offered] = append(byRate[r.Offered], r)
	}
	var rungs []Rung
	for rate, rows := range byRate {
		rungs = append(rungs, Rung{rate, rows})
	}
	slices.SortFunc(rungs, func(a, b Rung) int { return cmp.Compare(a.Rate, b.Rate) })
	return rungs
}

// Difference names the first setting in which b is not as a, with both values;
// it is empty when they agree. A setting that is not known is a value too.
func Difference(a, b Row, names []string) string {
	show := func(s string) string {
		if s == "" {
			return "not known"
		}
		return s
	}
	for _, n := range names {
		if x, y := a.setting(n), b.setting(n); x != y {
			return fmt.Sprintf("%s is %s, not %s", n, show(y), show(x))
		}
	}
	return ""
}

func (r Row) setting(name string) string {
	switch name {
	case "product":
		return r.Product
	case "mode":
		return r.Mode
	case "measure_s":
		return number(r.MeasureS)
	}
	return r.Settings[name]
}

// Check that rows make one ladder: the error names the first row that does not
// belong.
func Check(rows []Row) error {
	all := append([]string{"product", "mode"}, Settings...)
	first := map[string]Row{}
	for i, r := range rows {
		if i > 0 {
			if d := Difference(rows[0], r, []string{"product"}); d != "" {
				return r.errorf("%s as in %s: a ladder has one product", d, rows[0].where(r))
			}
		}
		load := r.Load()
		before, ok := first[load]
		if !ok {
			first[load] = r
			before = rows[0]
		}
		if ok {
			if d := Difference(before, r, rateSettings); d != "" {
				return r.errorf("rate %s is there twice with different settings: %s as in %s", load, d, before.where(r))
			}
		}
		if d := Difference(before, r, all); d != "" {
			if ok {
				return r.errorf("rate %s is there twice with different settings: %s as in %s", load, d, before.where(r))
			}
			return r.errorf("%s as in %s: a ladder has one set of settings; keep another in a file of its own", d, before.where(r))
		}
	}
	return nil
}

// Load is what the run asked for: the rate in open mode, the threads in closed.
func (r Row) Load() string {
	if r.Mode == "closed" {
		return fmt.Sprintf("closed %d", r.Threads)
	}
	return FormatRate(r.Offered)
}

// where r was read, as seen from the row that an error is about.
func (r Row) where(from Row) string {
	if r.File == from.File && r.Line > 0 {
		return fmt.Sprintf("line %d", r.Line)
	}
	return at(r.File, r.Line)
}

func (r Row) errorf(format string, args ...any) error {
	return &InputError{r.File, r.Line, fmt.Sprintf(format, args...)}
}

// InputError is a file that cannot be used as it is. Programs exit with 2.
type InputError struct {
	File string
	// Line from 1; 0 when the file as a whole is meant.
	Line int
	Text string
}

func (e *InputError) Error() string { return at(e.File, e.Line) + ": " + e.Text }

func at(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// MaxRate that can be asked for, in requests a second; the rig's own bound.
const MaxRate = 100_000_000

// ParseRate takes 5000, 150k, 1.5M: requests a second, from 1 to MaxRate, whole.
func ParseRate(s string) (int64, error) {
	digits, factor := s, 1.0
	for suffix, f := range map[string]float64{"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6} {
		if d, ok := strings.CutSuffix(s, suffix); ok {
			digits, factor = d, f
		}
	}
	v, err := strconv.ParseFloat(digits, 64)
	v = math.Round(v*factor*1e3) / 1e3 // 1.005k is 1005
	// Digits and a point only: ParseFloat knows further notations.
	if err != nil || strings.Trim(digits, "0123456789.") != "" || v != math.Trunc(v) || v < 1 || v > MaxRate {
		return 0, fmt.Errorf("rate %q: want requests a second from 1 to %d, as in 5000, 150k or 2M", s, MaxRate)
	}
	return int64(v), nil
}

// ParseRates takes a list with commas. A rate that is there twice is an error.
func ParseRates(s string) ([]int64, error) {
	var rates []int64
	for word := range strings.SplitSeq(s, ",") {
		r, err := ParseRate(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		if slices.Contains(rates, r) {
			return nil, fmt.Errorf("rate %s is there twice: -repeats runs each rate several times", FormatRate(r))
		}
		rates = append(rates, r)
	}
	return rates, nil
}

// FormatRate writes a rate as ParseRate takes it: 400k, 92.5k, 850.
func FormatRate(r int64) string {
	if r < 1000 {
		return strconv.FormatInt(r, 10)
	}
	return strconv.FormatFloat(float64(r)/1000, 'f', -1, 64) + "k"
}

// number writes v with up to three decimals; NaN is empty.
func number(v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return strconv.FormatFloat(math.Round(v*1e3)/1e3, 'f', -1, 64)
}
