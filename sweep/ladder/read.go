package ladder

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"raftrig/record"
)

// maxFileBytes bounds a CSV file: half a million rows.
const maxFileBytes = 64 << 20

// Read reads files in the order given: each CSV file is a ladder, and the run
// records (*.json) make one ladder a product, named by their folder.
func Read(paths []string) ([]Ladder, error) {
	var ladders []Ladder
	ofRecords := map[string]int{}
	for _, path := range paths {
		if filepath.Ext(path) != ".json" {
			l, err := ReadCSV(path)
			if err != nil {
				return nil, err
			}
			ladders = append(ladders, l)
			continue
		}
		row, err := ReadRecord(path)
		if err != nil {
			return nil, err
		}
		i, ok := ofRecords[row.Product]
		if !ok {
			i = len(ladders)
			ofRecords[row.Product] = i
			ladders = append(ladders, Ladder{Name: filepath.Dir(path), Product: row.Product})
		}
		ladders[i].Rows = append(ladders[i].Rows, row)
	}
	for _, l := range ladders {
		if err := Check(l.Rows); err != nil {
			return nil, err
		}
	}
	return ladders, nil
}

// ReadRecord makes a row of a run record.
func ReadRecord(path string) (Row, error) {
	run, err := record.Read(path)
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			return Row{}, &InputError{path, 0, "cannot be read: " + pathErr.Err.Error()}
		}
		text := strings.TrimPrefix(err.Error(), "read record "+path+": ")
		return Row{}, &InputError{path, lineOfFault(path), text}
	}
	row := FromRun(run)
	row.File, row.Record = path, filepath.Base(path)
	if err := row.check(); err != nil {
		return Row{}, &InputError{path, 0, err.Error()}
	}
	return row, nil
}

// lineOfFault is where a JSON document stops making sense; 0 when it does not.
func lineOfFault(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	var syntax *json.SyntaxError
	if !errors.As(json.Unmarshal(data, new(json.RawMessage)), &syntax) {
		return 0
	}
	return 1 + bytes.Count(data[:min(int(syntax.Offset), len(data))], []byte("\n"))
}

// FromRun makes a row of a run.
func FromRun(run *record.Run) Row {
	k, m := run.Knobs, run.Measured
	percentile := func(d record.Distribution, rank float64) float64 {
		if p, ok := d.At(rank); ok {
			return p.US
		}
		return math.NaN()
	}
	row := Row{
		Product: run.Product, Mode: k.Mode, Dropped: m.Dropped(), MeasureS: run.MeasuredS,
		P50US: percentile(run.Latency, 50), P99US: percentile(run.Latency, 99),
		P999US: percentile(run.Latency, 99.9), MaxUS: percentile(run.Latency, 100),
		LagP50US: percentile(run.Lag, 50), LagP99US: percentile(run.Lag, 99),
		Failed: m.Failed, Unanswered: m.Unanswered, Verdict: verdict(run.Verdict),
	}
	if run.MeasuredS > 0 {
		row.Achieved = float64(m.OK) / run.MeasuredS
	}
	topology := run.Cluster.Topology
	if run.Cluster.Emulated {
		topology += " (emulated)"
	}
	row.Settings = map[string]string{
		"size": strconv.Itoa(k.Size), "lanes": strconv.Itoa(k.Lanes), "topology": topology,
		"version": version(run), "log": run.Cluster.Log, "keys": k.Product["keys"],
		"idle": k.Idle,
	}
	if k.Mode == "closed" {
		row.Threads = k.Threads
	} else {
		row.Offered = k.Rate
		row.Settings["burst"], row.Settings["arrival"] = strconv.Itoa(k.Burst), k.Arrival
		row.Settings["max_inflight"] = strconv.Itoa(k.MaxInflight)
	}
	for name, value := range row.Settings {
		if value = strings.Join(strings.Fields(value), " "); value == "" {
			delete(row.Settings, name)
		} else {
			row.Settings[name] = value
		}
	}
	return row
}

// version of the product: its own, or all components' where it has none.
func version(run *record.Run) string {
	if v := run.Cluster.Versions[run.Product]; v != "" {
		return v
	}
	var all []string
	for component, v := range run.Cluster.Versions {
		all = append(all, component+" "+v)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// verdict with the code of each reason, each once.
func verdict(v record.Verdict) string {
	if v.Valid {
		return "VALID"
	}
	words := []string{"INVALID"}
	for _, r := range v.Reasons {
		if code := strings.Join(strings.Fields(r.Code), "-"); !slices.Contains(words, code) {
			words = append(words, code)
		}
	}
	return strings.Join(words, " ")
}

// ReadCSV reads one file. It need not make one ladder: Check tells.
func ReadCSV(path string) (Ladder, error) {
	// Stat comes first: opening a pipe would wait for its writer.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return Ladder{}, &InputError{path, 0, "not a file: want a CSV file or a run record"}
	}
	var data []byte
	if err == nil && info.Size() <= maxFileBytes {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return Ladder{}, &InputError{path, 0, "cannot be read: " + err.Error()}
	}
	if info.Size() > maxFileBytes {
		return Ladder{}, &InputError{path, 0, fmt.Sprintf("larger than %d MB, the most that is read", maxFileBytes>>20)}
	}
	rows, err := parseCSV(path, data)
	if err != nil {
		return Ladder{}, err
	}
	return Ladder{Name: path, Product: rows[0].Product, Rows: rows}, nil
}

// parseCSV gives at least one row, or an error.
func parseCSV(path string, data []byte) ([]Row, error) {
	fail := func(line int, format string, args ...any) ([]Row, error) {
		return nil, &InputError{path, line, fmt.Sprintf(format, args...)}
	}
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff"))))
	r.ReuseRecord = true
	next := func() ([]string, int, error) {
		fields, err := r.Read()
		var parse *csv.ParseError
		switch {
		case errors.As(err, &parse) && errors.Is(err, csv.ErrFieldCount):
			return nil, 0, &InputError{path, parse.Line, fmt.Sprintf("%d fields where the header has %d: cut off, or a comma too many", len(fields), r.FieldsPerRecord)}
		case errors.As(err, &parse):
			return nil, 0, &InputError{path, parse.Line, parse.Err.Error()}
		case err != nil:
			return nil, 0, err
		}
		line, _ := r.FieldPos(0)
		return fields, line, nil
	}
	header, line, err := next()
	if errors.Is(err, io.EOF) {
		return fail(1, "empty: want a header with the columns %s", strings.Join(Columns, ","))
	}
	if err != nil {
		return nil, err
	}
	columns := map[string]int{}
	for i, name := range header {
		name = strings.TrimSpace(name)
		if _, twice := columns[name]; twice {
			return fail(line, "column %q is there twice", name)
		}
		columns[name] = i
	}
	var missing []string
	for _, name := range Columns {
		if _, ok := columns[name]; !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fail(line, "no column %s: the header needs %s", strings.Join(missing, ", "), strings.Join(Columns, ","))
	}
	var rows []Row
	for {
		fields, line, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		row, err := parseRow(columns, fields)
		if err != nil {
			return fail(line, "%v", err)
		}
		row.File, row.Line = path, line
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return fail(line, "a header without rows")
	}
	return rows, nil
}

// parseRow makes a row of the fields of a line.
func parseRow(columns map[string]int, fields []string) (Row, error) {
	var err error
	get := func(name string) string {
		i, ok := columns[name]
		if !ok {
			return ""
		}
		return strings.TrimSpace(fields[i])
	}
	// real is NaN when the field is empty.
	real := func(name string) float64 {
		s := get(name)
		if s == "" {
			return math.NaN()
		}
		v, e := strconv.ParseFloat(s, 64)
		if err == nil && (e != nil || !(v >= 0 && v <= 1e15)) {
			err = fmt.Errorf("%s %q: want a number from 0 up", name, s)
		}
		return v
	}
	// whole is 0 when the field is empty.
	whole := func(name string) int64 {
		v := real(name)
		if math.IsNaN(v) {
			return 0
		}
		if err == nil && v != math.Trunc(v) {
			err = fmt.Errorf("%s %q: want a whole number", name, get(name))
		}
		return int64(v)
	}
	row := Row{
		Product: get("product"), Mode: get("mode"),
		Offered: whole("offered"), Threads: int(whole("threads")),
		Achieved: real("achieved"), P50US: real("p50_us"), P99US: real("p99_us"),
		Dropped: whole("dropped"), MeasureS: real("measure_s"),
		P999US: real("p999_us"), MaxUS: real("max_us"), LagP50US: real("lag_p50_us"), LagP99US: real("lag_p99_us"),
		Failed: whole("failed"), Unanswered: whole("unanswered"),
		Verdict: get("verdict"), Repeat: int(whole("repeat")), Record: get("record"),
		Settings: map[string]string{},
	}
	for _, name := range append([]string{"max_inflight"}, Settings...) {
		if v := get(name); v != "" {
			row.Settings[name] = v
		}
	}
	for _, name := range []string{"burst", "size", "lanes", "max_inflight"} {
		whole(name)
	}
	if get("dropped") == "" && err == nil {
		err = errors.New("dropped is empty: want a count, 0 when nothing was")
	}
	if err == nil {
		err = row.check()
	}
	return row, err
}

// check what every row has to have.
func (r Row) check() error {
	switch {
	case r.Product == "":
		return errors.New("product is empty")
	case r.Mode != "open" && r.Mode != "closed":
		return fmt.Errorf("mode %q: want open or closed", r.Mode)
	case r.Mode == "open" && (r.Offered < 1 || r.Offered > MaxRate):
		return fmt.Errorf("offered %d: want a rate from 1 to %d", r.Offered, MaxRate)
	case math.IsNaN(r.Achieved):
		return errors.New("achieved is empty: want the rate of answered requests, 0 when there were none")
	case !(r.MeasureS > 0):
		return errors.New("measure_s: want the length of the measured window in seconds, above 0")
	case r.Achieved == 0 && math.IsNaN(r.P50US) && math.IsNaN(r.P99US):
		return nil // nothing was answered
	case !(r.P50US > 0):
		return errors.New("p50_us: want a latency above 0")
	case !(r.P99US >= r.P50US):
		return fmt.Errorf("p99_us %s is below p50_us %s", number(r.P99US), number(r.P50US))
	}
	return nil
}
