package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite testdata")

// sampleRun is a run with every field set.
func sampleRun(t testing.TB) *Run {
	t.Helper()
	rng := rand.New(rand.NewPCG(11, 12))
	distribution := func(meanNS float64, beyond int64) Distribution {
		h := newHistogram(t)
		var maxNS int64
		for range 2000 {
			v := int64(rng.ExpFloat64() * meanNS)
			maxNS = max(maxNS, v)
			h.RecordValue(v)
		}
		return NewDistribution(h, maxNS, beyond, 5_000_000_000)
	}
	return &Run{
		Schema:  Schema,
		Product: "hashiraft",
		Started: time.Date(2026, 1, 1, 12, 0, 0, 250_000_000, time.UTC),
		Knobs: Knobs{
			Mode: "open", Threads: 100, Rate: 1000, Burst: 10, Arrival: "uniform", MaxInflight: 1000,
			WarmupS: 1, MeasureS: 2, DrainTimeoutS: 5, Pace: "park", PaceReason: "no spare core: 2 allowed", Idle: "poll",
			Size: 64, Lanes: 1, Seed: 7, Product: map[string]string{"batch": "128"},
		},
		Cluster: Cluster{
			Topology: "local", Emulated: true,
			Nodes: []Node{
				{ID: 1, Addr: "127.0.0.11:7000", Zone: "a", Version: "hashicorp/raft v1.8.0"},
				{ID: 2, Addr: "127.0.0.12:7000", Zone: "b", Err: "connection refused"},
			},
			RTT: &RTT{
				At: time.Date(2026, 1, 1, 11, 0, 0, 0, time.UTC), IntervalMS: 10,
				Pairs: []RTTPair{{From: 1, To: 2, FromZone: "a", ToZone: "b", MinUS: 380, AvgUS: 391.5, P50US: 390, P99US: 420, N: 99, Lost: 1}},
			},
			LeaderBefore: 1, TermBefore: 2, LeaderAfter: 1, TermAfter: 2,
			Log: "in memory", Versions: map[string]string{"hashicorp/raft": "v1.8.0", "grpc": "v1.85.0"},
		},
		Environment: Environment{
			Hostname: "bench-1", OS: "Debian GNU/Linux 12 (bookworm)", Kernel: "6.1.0", KernelCmdline: "quiet isolcpus=1",
			Virtualization: "Amazon EC2 c5.large", CPU: "AMD EPYC", Cores: 2, CoresAllowed: 2, ClockSource: "tsc",
			Governor: "none", MemoryBytes: 8 << 30, LoadAverage: 0.25, GoVersion: "go1.26.0 linux/amd64", GOMAXPROCS: 2,
			Commit: "0123456789ab",
		},
		MeasuredS: 2, DrainedS: 0.25,
		Warmup:         Counters{Offered: 1000, OK: 1000},
		Measured:       Counters{Offered: 2010, OK: 1999, Failed: 1, Unanswered: 4, NoReply: 3, Lost: 1, DroppedCap: 4, DroppedNoLeader: 2},
		BacklogAtStart: 1, AckedTotal: 2999, AppliedBefore: 12,
		Latency: distribution(300_000, 4), Service: distribution(290_000, 4), Lag: distribution(10_000, 0),
		Little: 1.01,
		Rig: Rig{
			CPUUSPerRequest: 4.5, CPUShare: 0.2, LaneCPUShare: 0.99, RealTime: true, GCPauses: 1, GCPauseMaxUS: 20, Backpressure: 3,
			OutOfRange: 1, Violations: 1, Interrupted: true, InterruptedAtS: 2,
			Fault: "the media driver is gone",
		},
		Silence:       Silence{AtS: 1.25, S: 0.5},
		Events:        []Event{{AtS: 1.75, Lane: 1, Text: "node 2 leads, term 5"}},
		EventsLeftOff: 1,
		Series: []Second{
			{Second: 0, Phase: "warmup", Offered: 1000, Sent: 1000, OK: 990, MeanUS: 301.5, MaxUS: 900, LagMaxUS: 30, InFlight: 10},
			{Second: 1, Phase: "measure", Offered: 1000, Sent: 998, OK: 1000, Failed: 1, Lost: 1, Dropped: 2, MeanUS: 300, MaxUS: 950, LagMaxUS: 31, InFlight: 6},
		},
		Verdict: Verdict{
			Reasons: []Reason{{Code: "dropped", Text: "dropped 0.3 % >= 0.1 %: raise MAX_INFLIGHT", Value: 0.3, Limit: 0.1}},
			Limits:  map[string]string{"max-dropped": "0.1%"},
		},
	}
}

func TestSampleRunSetsEveryField(t *testing.T) {
	var visit func(name string, v reflect.Value)
	visit = func(name string, v reflect.Value) {
		if _, isTime := v.Interface().(time.Time); v.Kind() == reflect.Struct && !isTime {
			for i := range v.NumField() {
				visit(name+"."+v.Type().Field(i).Name, v.Field(i))
			}
			return
		}
		if v.IsZero() && !slices.Contains([]string{"Run.Warmup", "Run.Verdict.Valid", "Run.Lag.Beyond", "Run.Lag.BeyondUS"}, name) &&
			!strings.HasPrefix(name, "Run.Warmup.") {
			t.Errorf("%s is not set: the golden record does not show it", name)
		}
	}
	visit("Run", reflect.ValueOf(*sampleRun(t)))
}

func TestGoldenRecord(t *testing.T) {
	const golden = "testdata/run.json"
	r := sampleRun(t)
	path := filepath.Join(t.TempDir(), "run.json")
	if err := Write(path, r); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the record changed; if it should, run with -update\n%s", got)
	}
	if !bytes.HasSuffix(got, []byte("}\n")) {
		t.Error("no newline at the end")
	}
	var printed bytes.Buffer
	if err := Print(&printed, r); err != nil || !bytes.Equal(printed.Bytes(), want) {
		t.Errorf("printed, the record differs: %v", err)
	}
	back, err := Read(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, r) {
		t.Errorf("read back %+v\nwant %+v", back, r)
	}
	for name, d := range map[string]Distribution{"latency": back.Latency, "service": back.Service, "lag": back.Lag} {
		if _, err := d.Decode(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestReadRefuses(t *testing.T) {
	whole, err := encode(sampleRun(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "cut off after 0 bytes"},
		{"cut", string(whole[:len(whole)/2]), "cut off after"},
		{"text", "verdict: VALID\n", "not a run record"},
		{"list", "[1, 2]", "not a run record"},
		{"null", "null", "not a run record: it has no schema"},
		{"other", `{"name": "x"}`, "not a run record: it has no schema"},
		{"zero", `{"schema": 0, "product": "x"}`, "schema 0 is unknown"},
		{"negative", `{"schema": -1, "product": "x"}`, "schema -1 is unknown"},
		{"newer", `{"schema": 2, "product": "x"}`, "schema 2 is newer than 1"},
		{"type", `{"schema": 1, "product": "x", "measured": {"ok": "many"}}`, "measured.ok"},
		{"trailing", string(whole) + "{}", "not a run record"},
	} {
		path := filepath.Join(dir, c.name+".json")
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Read(path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}

	missing := filepath.Join(dir, "missing.json")
	if _, err := Read(missing); !errors.Is(err, fs.ErrNotExist) || strings.Count(err.Error(), missing) != 1 {
		t.Errorf("missing: %v", err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "not a file") {
		t.Errorf("directory: %v", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(pipe); err == nil || !strings.Contains(err.Error(), "not a file") {
		t.Errorf("pipe: %v", err)
	}
	large := filepath.Join(dir, "large.json")
	if err := os.WriteFile(large, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, maxRecordBytes+1); err != nil { // a hole: no disk is used
		t.Fatal(err)
	}
	if _, err := Read(large); err == nil || !strings.Contains(err.Error(), "larger than 64 MB") {
		t.Errorf("large: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	whole, err := encode(sampleRun(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:100])
	f.Add([]byte(`{"schema": 1, "product": "x"}`))
	f.Add([]byte(`{"schema": 1e0, "product": "", "started": "0001-01-01T00:00:00+23:59", "series": null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("more than one line: %q", err)
			}
			return
		}
		once, err := encode(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(once)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := encode(again)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%v\n%s\n%s", err, once, twice)
		}
		// What was read can be used.
		if name := FileName(r); strings.ContainsAny(name, "/\x00") {
			t.Fatalf("file name %q", name)
		}
		if line := BenchLine(r); strings.ContainsAny(line, "\n\r") {
			t.Fatalf("bench line %q", line)
		}
		if err := WriteBench(io.Discard, r); err != nil {
			t.Fatal(err)
		}
	})
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

func TestFailingWriteLeavesTheOlderFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "run.json")
	r := sampleRun(t)
	if err := Write(path, r); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if got := entries(t, dir); len(got) != 1 || got[0] != "run.json" {
			t.Errorf("%s: left %q", name, got)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
			t.Errorf("%s: the older file changed: %v", name, err)
		}
	}

	check("full disk", writeAtomic(path, os.Rename, func(w io.Writer) error {
		if _, err := w.Write(before[:len(before)/2]); err != nil {
			return err
		}
		return syscall.ENOSPC
	}), "no space left on device")
	check("rename", writeAtomic(path, func(string, string) error { return syscall.EXDEV }, func(io.Writer) error { return nil }), "cross-device")

	bad := *r
	bad.Little = math.NaN()
	check("not a number", Write(path, &bad), "write record "+path+": json: unsupported value: NaN")
}

func TestWriteErrorsNameThePath(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := sampleRun(t)
	for _, path := range []string{filepath.Join(dir, "missing", "run.json"), filepath.Join(file, "run.json")} {
		if err := Write(path, r); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("Write: %v", err)
		}
	}
	if _, err := Create(file, r); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("Create: %v", err)
	}
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o555); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 { // root may write anywhere
		if _, err := Create(sub, r); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("read-only directory: %v", err)
		}
	}
	// A directory under the record's name cannot be replaced.
	taken := filepath.Join(dir, "taken.json")
	if err := os.Mkdir(taken, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(taken, r); err == nil {
		t.Error("a directory was replaced")
	}
	if got := entries(t, dir); !slices.Equal(got, []string{"file", "sub", "taken.json"}) {
		t.Errorf("left %q", got)
	}
}

func TestFileName(t *testing.T) {
	r := &Run{Started: time.Date(2026, 1, 1, 13, 0, 0, 999, time.FixedZone("", 3600)), Knobs: Knobs{Mode: "open", Rate: 5000, Threads: 100}}
	if got := FileName(r); got != "20260101T120000-open-5000" {
		t.Error(got)
	}
	r.Knobs.Mode = "closed"
	if got := FileName(r); got != "20260101T120000-closed-100" {
		t.Error(got)
	}
	r.Knobs.Mode = "../../etc/x"
	if got := FileName(r); got != "20260101T120000-open-5000" {
		t.Error(got)
	}
}

func TestCreateNeverReplaces(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results", "hashiraft")
	const runs = 8
	var wg sync.WaitGroup
	paths := make([]string, runs)
	for i := range runs {
		r := sampleRun(t)
		r.Knobs.Seed = uint64(i)
		wg.Go(func() {
			path, err := Create(dir, r)
			if err != nil {
				t.Error(err)
			}
			paths[i] = path
		})
	}
	wg.Wait()
	for i, path := range paths {
		r, err := Read(path)
		if err != nil || r.Knobs.Seed != uint64(i) {
			t.Errorf("run %d at %s: %v", i, path, err)
		}
	}
	want := []string{"20260101T120000-open-1000-2.json", "20260101T120000-open-1000-3.json", "20260101T120000-open-1000-4.json",
		"20260101T120000-open-1000-5.json", "20260101T120000-open-1000-6.json", "20260101T120000-open-1000-7.json",
		"20260101T120000-open-1000-8.json", "20260101T120000-open-1000.json"}
	if got := entries(t, dir); !slices.Equal(got, want) {
		t.Errorf("files %q", got)
	}
}

// A reader made today takes what a later one adds.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	data, err := encode(sampleRun(t))
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	doc["added_later"] = 1
	if data, err = json.Marshal(doc); err != nil {
		t.Fatal(err)
	}
	if _, err := decode(data); err != nil {
		t.Error(err)
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	// A folder cannot be replaced by a file.
	path := filepath.Join(dir, "taken")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("x")); err == nil {
		t.Error("a folder was replaced")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%v is left", left)
	}
}
