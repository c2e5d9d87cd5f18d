package ladder

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"raftrig/record"
)

// header of the files that Append writes.
var header = []string{
	"product", "mode", "offered", "achieved", "p50_us", "p99_us", "dropped", "measure_s", "burst",
	"p999_us", "max_us", "lag_p50_us", "lag_p99_us", "failed", "unanswered", "verdict", "repeat",
	"arrival", "max_inflight", "size", "lanes", "keys", "topology", "version", "log", "idle", "record",
}

// Append adds a row to a file that Append made; a file that is not there begins
// with the header. The file is replaced in one step and is on the disk when
// Append returns, so that it holds whole rows at any time. The row has to
// belong to those that are there.
func Append(path string, row Row) error {
	data, err := os.ReadFile(path)
	row.File, row.Line = path, bytes.Count(data, []byte("\n"))+1
	switch {
	case errors.Is(err, fs.ErrNotExist):
		data = []byte(strings.Join(header, ",") + "\n")
		row.Line = 2
	case err != nil:
		return err
	default:
		first, _, whole := strings.Cut(string(data), "\n")
		if first != strings.Join(header, ",") || !whole || data[len(data)-1] != '\n' {
			return &InputError{path, 1, "not a file of this program's own: it is left as it is; choose another name"}
		}
		rows, err := parseCSV(path, data)
		if err != nil {
			return err
		}
		if err := Check(append(rows, row)); err != nil {
			return err
		}
	}
	var line bytes.Buffer
	w := csv.NewWriter(&line)
	if err := w.Write(row.fields()); err != nil {
		return err
	}
	w.Flush()
	if err := record.WriteFile(path, append(data, line.Bytes()...)); err != nil {
		return fmt.Errorf("%s: the row was not added: %w", path, err)
	}
	return nil
}

func (r Row) fields() []string {
	integer := func(n int64) string { return strconv.FormatInt(n, 10) }
	values := map[string]string{
		"product": r.Product, "mode": r.Mode, "offered": integer(r.Offered), "achieved": number(r.Achieved),
		"p50_us": number(r.P50US), "p99_us": number(r.P99US), "dropped": integer(r.Dropped), "measure_s": number(r.MeasureS),
		"p999_us": number(r.P999US), "max_us": number(r.MaxUS), "lag_p50_us": number(r.LagP50US), "lag_p99_us": number(r.LagP99US),
		"failed": integer(r.Failed), "unanswered": integer(r.Unanswered), "verdict": r.Verdict,
		"repeat": strconv.Itoa(r.Repeat), "record": r.Record,
	}
	fields := make([]string, len(header))
	for i, name := range header {
		value, ok := values[name]
		if !ok {
			value = r.Settings[name]
		}
		fields[i] = value
	}
	return fields
}
