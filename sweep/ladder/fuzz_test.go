package ladder

import (
	"errors"
	"math"
	"os"
	"testing"
)

// Whatever is in a file: rows that can be judged, or one line that names it.
func FuzzParseCSV(f *testing.F) {
	for _, product := range []string{"aeron", "braft", "openraft"} {
		data, err := os.ReadFile("../published/" + product + ".csv")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	const header = "product,mode,offered,achieved,p50_us,p99_us,dropped,measure_s,burst\n"
	f.Add([]byte(header + "p,open,10,0,,,10,1,\n"))
	f.Add([]byte("\"a\nb\"," + header + "\"x\ny\",p,closed,,1,1,1,0,1,\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := parseCSV("a.csv", data)
		if err == nil {
			err = Check(rows)
		}
		if err != nil {
			if input := new(InputError); !errors.As(err, &input) || input.File != "a.csv" || input.Line < 1 {
				t.Fatalf("%v", err)
			}
			return
		}
		for _, r := range rows {
			if r.Product == "" || r.Line < 2 || !(r.MeasureS > 0) || r.Mode == "open" && (r.Offered < 1 || math.IsNaN(r.DropShare())) {
				t.Fatalf("%+v", r)
			}
		}
	})
}
