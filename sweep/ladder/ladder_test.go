package ladder_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"raftrig/record"
	"raftrig/sweep/ladder"
)

const header = "product,mode,offered,achieved,p50_us,p99_us,dropped,measure_s,burst\n"

func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.csv")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A row of a record comes back from the file as it went in.
func TestAppendAndRead(t *testing.T) {
	run, err := record.Read("../../record/testdata/run.json")
	if err != nil {
		t.Fatal(err)
	}
	run.Knobs.Mode, run.Knobs.Rate, run.Knobs.Burst, run.Knobs.Arrival = "open", 1000, 10, "uniform"
	run.Knobs.Product = map[string]string{"keys": "10000", "port": "1"}
	path := filepath.Join(t.TempDir(), "a.csv")
	var want []ladder.Row
	for i := range 3 {
		run.Knobs.Rate = int64(1000 * (i + 1))
		row := ladder.FromRun(run)
		row.Repeat, row.Record = i+1, fmt.Sprintf("%d.json", i)
		if err := ladder.Append(path, row); err != nil {
			t.Fatal(err)
		}
		row.File, row.Line = path, i+2
		want = append(want, row)
	}
	got, err := ladder.Read([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Product != run.Product || !reflect.DeepEqual(got[0].Rows, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	r := want[0]
	if r.Settings["version"] == "" || r.Settings["burst"] != "10" || r.Settings["keys"] != "10000" || r.Settings["topology"] == "" {
		t.Errorf("settings %v", r.Settings)
	}
	if rungs := got[0].Rungs(); len(rungs) != 3 || rungs[0].Rate != 1000 || rungs[2].Rate != 3000 {
		t.Errorf("rungs %+v", rungs)
	}
	// Nothing but the file is left.
	if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 1 {
		t.Errorf("%d files", len(names))
	}
}

// A run without an answer has no percentiles, and is a row all the same.
func TestNothingAnswered(t *testing.T) {
	run := &record.Run{Product: "p", MeasuredS: 10, Knobs: record.Knobs{Mode: "open", Rate: 100}, Measured: record.Counters{Offered: 1000, Unanswered: 1000}}
	path := filepath.Join(t.TempDir(), "a.csv")
	if err := ladder.Append(path, ladder.FromRun(run)); err != nil {
		t.Fatal(err)
	}
	l, err := ladder.ReadCSV(path)
	if err != nil {
		t.Fatal(err)
	}
	if r := l.Rows[0]; !math.IsNaN(r.P50US) || r.Unanswered != 1000 || r.Verdict != "INVALID" || r.Invalid() == nil {
		t.Errorf("%+v", r)
	}
}

// What Append does not take leaves the file as it was.
func TestAppendRefuses(t *testing.T) {
	row := ladder.Row{Product: "p", Mode: "open", Offered: 10, Achieved: 10, P50US: 1, P99US: 2, MeasureS: 1, Settings: map[string]string{"burst": "10"}}
	own := filepath.Join(t.TempDir(), "own.csv")
	if err := ladder.Append(own, row); err != nil {
		t.Fatal(err)
	}
	whole, _ := os.ReadFile(own)
	other := row
	other.Offered, other.Settings = 20, map[string]string{"burst": "1"}
	second := row
	second.MeasureS = 2
	for name, c := range map[string]struct {
		text string
		row  ladder.Row
		want string
	}{
		"foreign":         {header + "p,open,10,10,1,2,0,1,10\n", row, ":1: not a file of this program's own"},
		"cut":             {string(whole[:len(whole)-3]), row, ":1: not a file of this program's own"},
		"cut in the head": {string(whole[:20]), row, ":1: not a file of this program's own"},
		"damaged":         {strings.Replace(string(whole), ",10,", ",x,", 1), row, `:2: offered "x"`},
		"other settings":  {string(whole), other, ":3: burst is 1, not 10 as in line 2"},
		"other window":    {string(whole), second, ":3: rate 10 is there twice with different settings: measure_s is 2, not 1"},
	} {
		path := write(t, c.text)
		err := ladder.Append(path, c.row)
		if input := new(ladder.InputError); !errors.As(err, &input) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if now, _ := os.ReadFile(path); string(now) != c.text {
			t.Errorf("%s: the file was changed", name)
		}
	}
	if err := ladder.Append(filepath.Join(t.TempDir(), "no/such/folder.csv"), row); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

// Files as they come from elsewhere.
func TestForeignFiles(t *testing.T) {
	for name, text := range map[string]string{
		"CRLF":            strings.ReplaceAll(header, "\n", "\r\n") + "p,open,10,10,1,2,0,1,10\r\n",
		"no newline":      header + "p,open,10,10,1,2,0,1,10",
		"byte order mark": "\ufeff" + header + "p,open,10,10,1,2,0,1,10\n",
		"spaces":          strings.ReplaceAll(header, ",", ", ") + " p, open, 10, 10.0, 1, 2, 0, 1, 10\n",
		"blank lines":     header + "\np,open,1e1,10,1,2,0,1,10\n\n",
	} {
		l, err := ladder.ReadCSV(write(t, text))
		if err != nil || len(l.Rows) != 1 || l.Rows[0].Offered != 10 || l.Rows[0].Settings["burst"] != "10" || l.Rows[0].Product != "p" {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	for _, c := range []struct{ row, want string }{
		{"p,fast,10,10,1,2,0,1,10", `mode "fast": want open or closed`},
		{",open,10,10,1,2,0,1,10", "product is empty"},
		{"p,open,0,10,1,2,0,1,10", "offered 0: want a rate"},
		{"p,open,10.5,10,1,2,0,1,10", `offered "10.5": want a whole number`},
		{"p,open,-10,10,1,2,0,1,10", `offered "-10": want a number from 0 up`},
		{"p,open,1e18,10,1,2,0,1,10", "want a number"},
		{"p,open,10,,1,2,0,1,10", "achieved is empty"},
		{"p,open,10,10,1,2,,1,10", "dropped is empty"},
		{"p,open,10,10,1,2,0,0,10", "measure_s: want"},
		{"p,open,10,10,1,2,0,,10", "measure_s: want"},
		{"p,open,10,10,,2,0,1,10", "p50_us: want"},
		{"p,open,10,10,1,,0,1,10", "p99_us  is below"},
		{"p,open,10,NaN,1,2,0,1,10", `achieved "NaN"`},
		{"p,open,10,Inf,1,2,0,1,10", `achieved "Inf"`},
		{"p,open,10,10,1,2,0,1,ten", `burst "ten"`},
		{`p,open,10,10,1,2,0,1,"10`, "quote"},
	} {
		path := write(t, header+c.row+"\n")
		_, err := ladder.ReadCSV(path)
		if err == nil || !strings.HasPrefix(err.Error(), path+":2: ") && !strings.HasPrefix(err.Error(), path+":3: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.row, err, c.want)
		}
	}
}

func TestRates(t *testing.T) {
	for s, want := range map[string]int64{"1": 1, "5000": 5000, "150k": 150_000, "1.5k": 1500, "92.5K": 92_500, "2M": 2_000_000, "1.005k": 1005, "100m": 100_000_000} {
		got, err := ladder.ParseRate(s)
		if err != nil || got != want {
			t.Errorf("%q: %d, %v", s, got, err)
		}
		if again, err := ladder.ParseRate(ladder.FormatRate(got)); err != nil || again != got {
			t.Errorf("%d is written %q", got, ladder.FormatRate(got))
		}
	}
	for _, s := range []string{"", "0", "-1", "abc", "1.5", "k", "1e3", "0x10", "1_000", "101M", "NaN", "Inf", ".", " 1", "1kk", "1.0005k"} {
		if got, err := ladder.ParseRate(s); err == nil {
			t.Errorf("%q was taken, as %d", s, got)
		}
	}
	if got, err := ladder.ParseRates("10k, 25k"); err != nil || !reflect.DeepEqual(got, []int64{10_000, 25_000}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", "10k,", "10k,10000"} {
		if _, err := ladder.ParseRates(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}

func TestInvalid(t *testing.T) {
	for verdict, want := range map[string][]string{"": nil, "VALID": nil, "INVALID": {"unknown"}, "INVALID lag gc": {"lag", "gc"}} {
		if got := (ladder.Row{Verdict: verdict}).Invalid(); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q", verdict, got)
		}
	}
}
