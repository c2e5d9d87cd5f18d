package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/rogpeppe/go-internal/testscript"

	"raftrig/record"
)

// The programs run in processes of their own: this binary, started anew under
// their names.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sweep":       main,
		"fake-client": func() { os.Exit(fakeClient(os.Args[1:])) },
		"fake-record": func() { os.Exit(fakeRecord(os.Args[1:])) },
	})
}

func TestScripts(t *testing.T) {
	published, err := filepath.Abs("../../published")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("PUBLISHED", published)
			e.Setenv("TMPDIR", e.WorkDir)
			return nil
		},
	})
}

// run of a product called fake.
func fakeRun(knobs map[string]string) *record.Run {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(knobs[name], 10, 64)
		return n
	}
	seed, _ := strconv.ParseUint(knobs["SEED"], 10, 64)
	rate := max(number("RATE"), 100)
	p50 := max(number("P50"), 500)
	if knobs["MODE"] == "open" && number("OPEN_P50") > 0 {
		p50 = number("OPEN_P50")
	}
	h := hdrhistogram.New(1, 1e12, 3)
	h.RecordValues(p50*1000, 10*rate)
	d := record.NewDistribution(h, p50*1000, 0, 0)
	run := &record.Run{
		Schema: record.Schema, Product: "fake", Started: time.Now(), MeasuredS: 10,
		Knobs: record.Knobs{
			Mode: knobs["MODE"], Rate: number("RATE"), Threads: int(number("THREADS")), Burst: int(number("BURST")),
			Arrival: "uniform", Size: 64, Lanes: 1, Seed: seed, MeasureS: 10, MaxInflight: 1000,
		},
		Cluster: record.Cluster{Topology: "local", LeaderBefore: 1, Versions: map[string]string{"fake": "fake " + knobs["VERSION"]}},
		Latency: d, Lag: d,
		Measured: record.Counters{Offered: 10 * rate, OK: 10 * rate},
		Verdict:  record.Verdict{Valid: true},
	}
	if limit := number("LIMIT"); limit > 0 && rate > limit {
		run.Measured.OK = 10 * limit
		run.Measured.DroppedCap = 10 * (rate - limit)
		run.Verdict = record.Verdict{Reasons: []record.Reason{{Code: "dropped"}, {Code: "achieved"}}}
	}
	return run
}

func knobsOf(args []string) map[string]string {
	knobs := map[string]string{}
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		knobs[name] = value
	}
	return knobs
}

// fakeClient is the client of a product that exists in its records only. HOLD
// is a rate at which it waits, after it has said so in the pipe held, for a
// word in the pipe go, or for Ctrl-C.
func fakeClient(args []string) int {
	knobs := knobsOf(args)
	if knobs["FAIL"] != "" && knobs["FAIL"] == knobs["RATE"] {
		fmt.Fprintln(os.Stderr, "fake-client: no node leads")
		return 1
	}
	run := fakeRun(knobs)
	fmt.Fprintln(os.Stderr, "fake open 10/s at qps=10 latency=1 t=1s measure")
	if root := knobs["ROOT"]; knobs["HOLD"] != "" && knobs["HOLD"] == knobs["RATE"] {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		released := make(chan struct{})
		go func() {
			os.WriteFile(filepath.Join(root, "held"), []byte("held\n"), 0)
			f, err := os.Open(filepath.Join(root, "go"))
			if err == nil {
				io.ReadAll(f)
			}
			close(released)
		}()
		select {
		case <-released:
		case <-ctx.Done():
			run.Rig.Interrupted = true
			run.Verdict = record.Verdict{Reasons: []record.Reason{{Code: "interrupted"}}}
		}
	}
	path, err := record.Create(knobs["OUT"], run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("record:  " + path)
	if !run.Verdict.Valid {
		return 3
	}
	return 0
}

// fakeRecord writes a record: fake-record FILE NAME=value...
func fakeRecord(args []string) int {
	if err := record.Write(args[0], fakeRun(knobsOf(args[1:]))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// What secondOf reads is what the client prints.
func TestSecondOf(t *testing.T) {
	for line, want := range map[string]int{
		"hashiraft open 1000/s at qps=1000 latency=600 max=1 lag_max=1 sent=1000 in_flight=0 t=12s measure": 12,
		"": -1, "fake at qps=1 t=s measure": -1,
	} {
		if got := secondOf(line); got != want {
			t.Errorf("%q: %d, want %d", line, got, want)
		}
	}
}
