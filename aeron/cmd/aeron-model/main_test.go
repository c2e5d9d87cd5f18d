package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sweepCSV = `product,mode,offered,achieved,p50_us,p99_us,dropped,measure_s,burst
aeron,open,100000,100000,500,600,0,30,10
aeron,open,200000,200000,510,600,0,30,10
aeron,open,300000,300000,525,600,0,30,10
aeron,open,400000,399000,560,700,0,30,10
aeron,open,600000,450000,2000,9000,9,30,10
`

// Every verb prints its parameters and figures, as text and as JSON.
func TestVerbs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sweep.csv")
	if err := os.WriteFile(file, []byte(sweepCSV), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		want []string
	}{
		{"peak -payload 128 -framing reference", []string{"S 400000/s, C 160000/s, D 2, MTU 1408, payload 128, header 32, overhead 40", "leader", "960000", "client", "3200000", "follower"}},
		{"peak -payload 4000", []string{"1/3 (fragmented)", "40000"}},
		{"peak -framing reference -overhead 0 -payload 512 -mtu 8192", []string{"header 32, overhead 0", "1800000"}},
		{"predict -load 800k -payload 128 -framing reference", []string{"rho       0.833", "regime    knee", "latency   191.7", "term length 67108864"}},
		{"table", []string{"header 32, overhead 40", "15240000", "the driver's framing", "header 64, overhead 0", "10200000"}},
		{"advise -load 800k -payload 128 -jumbo yes", []string{"MTU 8192\n- "}},
		{"sendrate -runs 2 -each 1ms -sizes 64,1408", []string{"S median/s", "\n64 ", "\n1408 "}},
		{"fit " + file, []string{"transit ", "bounded by a run", "11 messages a datagram", "saturated"}},
	} {
		args := strings.Fields(c.args)
		var out, errs bytes.Buffer
		if status := run(args, &out, &errs); status != exitOK || errs.Len() > 0 {
			t.Errorf("%s: exit status %d: %s", c.args, status, &errs)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in\n%s", c.args, want, &out)
			}
		}
		out.Reset()
		if status := run(append([]string{args[0], "-json"}, args[1:]...), &out, &errs); status != exitOK {
			t.Errorf("%s -json: exit status %d: %s", c.args, status, &errs)
		}
		var v any
		if err := json.Unmarshal(out.Bytes(), &v); err != nil {
			t.Errorf("%s -json: %v\n%s", c.args, err, &out)
		}
	}
}

func TestRefused(t *testing.T) {
	for args, want := range map[string]string{
		"dance":                          `unknown verb "dance"`,
		"peak -no":                       "peak: flag provided but not defined: -no",
		"peak 5":                         `peak: unexpected argument "5"`,
		"peak -mtu 1400":                 "MTU 1400: want a multiple of 32",
		"peak -framing mine":             `-framing "mine": want driver or reference`,
		"predict":                        "-load is missing",
		"predict -load fast":             "want messages a second",
		"predict -load 5 -transit -1s":   "transit -1s",
		"predict -load 5 -term-length 1": "term length 1: want a power of 2",
		"advise -load 5 -jumbo maybe":    `jumbo "maybe": want yes, uncertain or no`,
		"table -S 0":                     "send rate S 0: ",
		"sendrate -to here":              `-to "here": want an IP address and a port`,
		"sendrate -sizes 0":              `-sizes "0"`,
		"fit":                            "fit: 0 files",
		"fit no-such.csv":                "no-such.csv",
	} {
		var out, errs bytes.Buffer
		status := run(strings.Fields(args), &out, &errs)
		if status != exitUsage || !strings.Contains(errs.String(), want) || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
			t.Errorf("%s: exit status %d, %q, want %d and %q; stdout %q", args, status, &errs, exitUsage, want, &out)
		}
	}
}
