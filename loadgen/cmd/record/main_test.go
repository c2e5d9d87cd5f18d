package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// golden is a record that has every field.
const golden = "../../../record/testdata/run.json"

func TestRun(t *testing.T) {
	for verb, want := range map[string]string{"show": "\nverdict: ", "table": "| product | log |", "bench": "\nBenchmark"} {
		var b bytes.Buffer
		if err := run([]string{verb, golden, golden}, &b); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s: no %q in %s", verb, want, b.String())
		}
	}
	if err := run([]string{"help"}, &bytes.Buffer{}); err != nil {
		t.Error(err)
	}
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"show"}, {"chart", golden}} {
		if err := run(args, &bytes.Buffer{}); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", args, err)
		}
	}
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte(`{"schema": 1, "prod`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"show", broken}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("%v", err)
	}
}
