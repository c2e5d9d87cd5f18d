package plan

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestRuns(t *testing.T) {
	p := Plan{Product: "p", Rates: []int64{1, 2, 3, 4, 5}, Repeats: 4, Seed: 9}
	runs := p.Runs()
	if !reflect.DeepEqual(runs, p.Runs()) {
		t.Error("the order is not the seed's")
	}
	q := p
	q.Seed = 10
	if reflect.DeepEqual(runs, q.Runs()) {
		t.Error("another seed has the same order")
	}
	seen, seeds := map[[2]int64]bool{}, map[uint64]bool{}
	for _, r := range runs {
		seen[[2]int64{r.Rate, int64(r.Repeat)}], seeds[r.Seed] = true, true
	}
	if len(runs) != 20 || len(seen) != 20 || len(seeds) != 20 || seeds[0] {
		t.Errorf("%d runs, %d of them different, %d seeds", len(runs), len(seen), len(seeds))
	}
	// Not one repeat after the other.
	if slices.IsSortedFunc(runs, func(a, b Run) int { return a.Repeat - b.Repeat }) {
		t.Error("the repeats are in order")
	}
}

func TestValidate(t *testing.T) {
	good := Plan{Product: "p", Rates: []int64{1}, Repeats: 1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, spoil := range []func(*Plan){
		func(p *Plan) { p.Rates = nil }, func(p *Plan) { p.Repeats = 0 }, func(p *Plan) { p.Repeats = maxRuns + 1 }, func(p *Plan) { p.Knobs = []string{"RATE=1"} },
	} {
		p := good
		spoil(&p)
		if p.Validate() == nil {
			t.Errorf("%+v was taken", p)
		}
	}
}

func TestOpenAgain(t *testing.T) {
	dir := t.TempDir()
	p := Plan{Product: "p", Rates: []int64{10, 20}, Repeats: 2, Knobs: []string{"BURST=10", "SIZE=64"}}
	s, err := Open(dir, "a", p)
	if err != nil {
		t.Fatal(err)
	}
	if s.Seed == 0 || len(s.Left()) != 4 {
		t.Errorf("%+v", s)
	}
	if _, err := Open(dir, "a", p); err == nil || !strings.Contains(err.Error(), "in another process") {
		t.Errorf("opened twice: %v", err)
	}
	s.Close()
	p.Knobs = []string{"SIZE=64", "BURST=10"} // the order means nothing
	again, err := Open(dir, "a", p)
	if err != nil || again.Seed != s.Seed {
		t.Fatalf("%v", err)
	}
	again.Close()
	// A crash before the plan was written leaves an empty file.
	if err := os.WriteFile(filepath.Join(dir, "b.plan"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := Open(dir, "b", p)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	// A row that the plan does not have.
	text := "product,mode,offered,achieved,p50_us,p99_us,dropped,measure_s,burst,repeat\np,open,30,30,1,2,0,1,10,1\n"
	if err := os.WriteFile(b.CSV(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "b", p); err == nil || !strings.Contains(err.Error(), "b.csv:2: rate 30, repeat 1 is not of this plan") {
		t.Errorf("%v", err)
	}
	if now, _ := os.ReadFile(b.CSV()); string(now) != text {
		t.Error("the file was changed")
	}
}
