package record

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// row is one line of a percentile distribution.
type row struct {
	us, percentile float64
	count          int64
}

func parseHGRM(t *testing.T, text string) (rows []row) {
	t.Helper()
	// The Java processor puts comments of its own before the header.
	lines := strings.Split(text, "\n")
	for strings.HasPrefix(lines[0], "#[") && len(lines) > 1 {
		lines = lines[1:]
	}
	if got := strings.Fields(lines[0]); strings.Join(got, " ") != "Value Percentile TotalCount 1/(1-Percentile)" {
		t.Fatalf("header %q", lines[0])
	}
	for _, line := range lines[1:] {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		var r row
		if n, err := fmt.Sscan(line, &r.us, &r.percentile, &r.count); n != 3 {
			t.Fatalf("row %q: %v", line, err)
		}
		if len(f) == 4 {
			// The percentile has twelve digits: what follows from it has fewer.
			inverse, err := strconv.ParseFloat(f[3], 64)
			if want := 1 / (1 - r.percentile); err != nil || r.percentile < 1 && math.Abs(inverse-want) > 0.01+want*want*1e-12 {
				t.Errorf("row %q: fourth column should be %.2f", line, want)
			}
		} else if r.percentile != 1 {
			t.Errorf("row %q: no fourth column", line)
		}
		rows = append(rows, r)
	}
	return rows
}

func hgrm(t *testing.T, h *hdrhistogram.Histogram, beyond, beyondNS int64) string {
	t.Helper()
	var b strings.Builder
	if err := WriteHGRM(&b, h, beyond, beyondNS); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestHGRMOfNothing(t *testing.T) {
	text := hgrm(t, newHistogram(t), 0, 0)
	if rows := parseHGRM(t, text); len(rows) != 0 || strings.Contains(text, "NaN") {
		t.Errorf("%s", text)
	}
}

func TestHGRMRowsAreTrue(t *testing.T) {
	h := newHistogram(t)
	h.RecordValues(1000, 99_999_999)
	h.RecordValues(2000, 1)
	rows := parseHGRM(t, hgrm(t, h, 0, 0))
	if last := rows[len(rows)-1]; last != (row{2, 1, 100_000_000}) {
		t.Errorf("last row %+v", last)
	}
	// The step at 1 in 100 million is there: six digits would hide it.
	var before row
	for _, r := range rows {
		if r.us == 1 {
			before = r
		}
	}
	if !(before.percentile > 0.9999998 && before.percentile <= 0.99999999) || before.count != 99_999_999 {
		t.Errorf("last row of the smaller value %+v", before)
	}
}

func TestHGRMBeyond(t *testing.T) {
	h := newHistogram(t)
	h.RecordValues(1000, 90)
	text := hgrm(t, h, 10, 5_000_000_000)
	rows := parseHGRM(t, text)
	for _, r := range rows {
		if answered := r.us == 1; answered != (r.percentile <= 0.9) {
			t.Errorf("row %+v", r)
		}
	}
	// The step shows where it is, not only in the last row, which plots leave
	// out as infinite.
	if r := rows[len(rows)-2]; r.us != 5e6 || r.percentile > 0.92 {
		t.Errorf("first row of the unanswered %+v", r)
	}
	if last := rows[len(rows)-1]; last != (row{5e6, 1, 100}) {
		t.Errorf("last row %+v", last)
	}
	if !strings.Contains(text, "# 10 of these were not answered") || !strings.Contains(text, "[Max     =  5000000.000, Total count    =          100]") {
		t.Errorf("footer of\n%s", text)
	}
}

type failingWriter struct{ after int }

var errFull = errors.New("no space left on device")

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.after -= len(p); w.after < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestHDRWritersReportAFullDisk(t *testing.T) {
	h := newHistogram(t, 1, 2, 3)
	if err := WriteHGRM(&failingWriter{}, h, 0, 0); !errors.Is(err, errFull) {
		t.Errorf("hgrm: %v", err)
	}
	if _, err := NewHLog(&failingWriter{}, time.Now(), ""); !errors.Is(err, errFull) {
		t.Errorf("log's head: %v", err)
	}
	l, err := NewHLog(&failingWriter{after: 300}, time.Now(), "")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err = l.Write("latency", time.Now(), time.Now(), h); err != nil {
			break
		}
	}
	if !errors.Is(err, errFull) {
		t.Errorf("log: %v", err)
	}
}

func TestHLogRefuses(t *testing.T) {
	now := time.Now()
	var b bytes.Buffer
	l, err := NewHLog(&b, now, "")
	if err != nil {
		t.Fatal(err)
	}
	head := b.Len()
	for _, tag := range []string{",a", "a,", "a b", "a\nb", " "} {
		if l.Write(tag, now, now, newHistogram(t)) == nil {
			t.Errorf("tag %q was taken", tag)
		}
	}
	if l.Write("", now, now.Add(-time.Second), newHistogram(t)) == nil {
		t.Error("an interval that ends before it starts was taken")
	}
	if b.Len() != head {
		t.Errorf("refused, yet written: %q", b.String()[head:])
	}
}

// interval is one histogram of a log.
type interval struct {
	tag        string
	start, end time.Duration // since the log's start
	h          *hdrhistogram.Histogram
}

// logOf makes a log of three tags, ten seconds each, and its intervals.
func logOf(t *testing.T) (text string, started time.Time, intervals []interval) {
	t.Helper()
	rng := rand.New(rand.NewPCG(9, 10))
	started = time.Date(2026, 1, 1, 12, 0, 0, 250_000_000, time.UTC)
	var b strings.Builder
	l, err := NewHLog(&b, started, "hashiraft open 5000/s\n[StartTime: 12 is no start time")
	if err != nil {
		t.Fatal(err)
	}
	for s := range 10 {
		for i, tag := range []string{"latency", "service", "lag"} {
			h := newHistogram(t)
			for range 5000 {
				h.RecordValue(int64(rng.ExpFloat64()*300_000) / int64(i+1))
			}
			if tag == "latency" && s == 7 {
				h.RecordValue(503_000_000)
			}
			start := time.Duration(s)*time.Second + 125*time.Millisecond
			if err := l.Write(tag, started.Add(start), started.Add(start+time.Second), h); err != nil {
				t.Fatal(err)
			}
			intervals = append(intervals, interval{tag, start, start + time.Second, h})
		}
	}
	return b.String(), started, intervals
}

func TestHLogIsReadableByItsOwnLibrary(t *testing.T) {
	text, started, want := logOf(t)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#[StartTime:") && line != "#[StartTime: 1767268800.250 (seconds since epoch), 2026-01-01T12:00:00.250Z]\n" {
			t.Errorf("%q", line)
		}
	}
	r := hdrhistogram.NewHistogramLogReader(strings.NewReader(text))
	for i, w := range want {
		h, err := r.NextIntervalHistogram()
		if err != nil {
			t.Fatalf("interval %d: %v", i, err)
		}
		if h.Tag() != w.tag || !h.Equals(w.h) {
			t.Fatalf("interval %d: tag %q, %d values; want %q, %d", i, h.Tag(), h.TotalCount(), w.tag, w.h.TotalCount())
		}
		if at := started.Add(w.start).UnixMilli(); h.StartTimeMs() != at {
			t.Errorf("interval %d starts at %d, want %d", i, h.StartTimeMs(), at)
		}
	}
}

// javaTools returns the class path of HdrHistogram's Java tools, fetched by
// Maven; the test is skipped where that cannot be done.
func javaTools(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("the Java tools take seconds: skipped by -short")
	}
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not on PATH", tool)
		}
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "mvn", "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy",
		"-Dartifact=org.hdrhistogram:HdrHistogram:2.2.2", "-DoutputDirectory="+dir)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		t.Skipf("mvn cannot fetch org.hdrhistogram:HdrHistogram:2.2.2: %v: %s", err, first)
	}
	return filepath.Join(dir, "HdrHistogram-2.2.2.jar")
}

func TestJavaToolsReadWhatWeWrite(t *testing.T) {
	jar := javaTools(t)
	dir := t.TempDir()
	text, started, intervals := logOf(t)
	logPath := filepath.Join(dir, "file.hlog")
	if err := os.WriteFile(logPath, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"latency", "service", "lag"} {
		sum := newHistogram(t)
		var sums []interval
		for _, i := range intervals {
			if i.tag == tag {
				sum.Merge(i.h)
				sums = append(sums, i)
			}
		}
		out := filepath.Join(dir, tag)
		cmd := exec.CommandContext(t.Context(), "java", "-cp", jar, "org.HdrHistogram.HistogramLogProcessor",
			"-i", logPath, "-o", out, "-tag", tag, "-outputValueUnitRatio", "1000")
		if output, err := cmd.CombinedOutput(); err != nil || len(output) != 0 {
			t.Fatalf("HistogramLogProcessor -tag %s: %v: %s", tag, err, output)
		}
		file, err := os.ReadFile(out + ".hgrm")
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := hgrm(t, sum, 0, 0), string(file)
		rows, theirRows := parseHGRM(t, ours), parseHGRM(t, theirs)
		if len(rows) != len(theirRows) {
			t.Fatalf("%s: %d rows, java's has %d", tag, len(rows), len(theirRows))
		}
		for i, r := range rows {
			// Java rounds the twelfth digit half up.
			if j := theirRows[i]; r.us != j.us || r.count != j.count || math.Abs(r.percentile-j.percentile) > 1.5e-12 {
				t.Errorf("%s: row %d is %+v, java's %+v", tag, i+1, r, j)
			}
		}
		if _, footer, _ := strings.Cut(ours, "#[Mean"); footer == "" || !strings.HasSuffix(theirs, footer) {
			t.Errorf("%s: footer\n%s\njava's\n%s", tag, footer, theirs[max(0, len(theirs)-len(footer)):])
		}

		// What the record says agrees with the Java tool's rows.
		d := NewDistribution(sum, 0, 0, 0)
		if last := theirRows[len(theirRows)-1]; last.count != d.Count || math.Abs(last.us-d.MaxUS) > 0.001 {
			t.Errorf("%s: java counts %d, max %v us; we %d, %v us", tag, last.count, last.us, d.Count, d.MaxUS)
		}
		p50, _ := d.At(50)
		for _, r := range theirRows {
			if r.percentile == 0.5 && math.Abs(r.us-p50.US) > 0.001 {
				t.Errorf("%s: java's p50 is %v us, ours %v us", tag, r.us, p50.US)
			}
		}

		// The interval lines: "end: I:count ( p50 p90 max ) T:count ( p50
		// p90 p99 p99.9 p99.99 max )".
		processed, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(processed), strconv.FormatInt(started.Unix(), 10)) {
			t.Errorf("%s: start time %d is not in\n%s", tag, started.Unix(), processed)
		}
		var seen []string
		for line := range strings.Lines(string(processed)) {
			if f := strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(" :()\n", c) }); strings.Contains(line, "I:") {
				seen = append(seen, line)
				i := sums[len(seen)-1]
				if f[0] != fmt.Sprintf("%.3f", i.end.Seconds()) || f[2] != strconv.FormatInt(i.h.TotalCount(), 10) {
					t.Errorf("%s: interval %d to %v with %d values reads %q", tag, len(seen)-1, i.end, i.h.TotalCount(), line)
				}
			}
		}
		if len(seen) != len(sums) {
			t.Fatalf("%s: %d interval lines of %d in\n%s", tag, len(seen), len(sums), processed)
		}
		p90, _ := d.At(90)
		p99, _ := d.At(99)
		p999, _ := d.At(99.9)
		p9999, _ := d.At(99.99)
		want := fmt.Sprintf("T:%d ( %.3f %.3f %.3f %.3f %.3f %.3f )", d.Count, p50.US, p90.US, p99.US, p999.US, p9999.US, d.MaxUS)
		if last := strings.Join(strings.Fields(seen[len(seen)-1]), " "); !strings.HasSuffix(last, want) {
			t.Errorf("%s: java's totals %q, ours %q", tag, last, want)
		}
	}
}
