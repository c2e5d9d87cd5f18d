package fleet

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func needPing(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("ping"); err != nil {
		t.Skip("no ping on this machine: install iputils-ping")
	}
}

const iputils = `PING 127.0.0.12 (127.0.0.12) from 127.0.0.11 : 56(84) bytes of data.
64 bytes from 127.0.0.12: icmp_seq=1 ttl=64 time=9.99 ms
64 bytes from 127.0.0.12: icmp_seq=2 ttl=64 time=0.390 ms
64 bytes from 127.0.0.12: icmp_seq=2 ttl=64 time=0.500 ms (DUP!)
From 127.0.0.1 icmp_seq=3 Destination Host Unreachable
64 bytes from 127.0.0.12: icmp_seq=4 ttl=64 time=0.410 ms

--- 127.0.0.12 ping statistics ---
4 packets transmitted, 3 received, 25% packet loss, time 39ms
rtt min/avg/max/mdev = 0.390/3.596/9.990/4.521 ms
`

func TestParsePing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		us   []float64
		sent int
	}{
		{iputils, []float64{9990, 390, 410}, 4},
		{"64 bytes from 10.0.0.1: seq=0 ttl=64 time=0.123 ms\n\n1 packets transmitted, 1 packets received, 0% packet loss\n", []float64{123}, 1}, // BusyBox
		{"64 bytes from 10.0.0.1: icmp_seq=7 ttl=64 time<1 ms\n", []float64{1000}, 0},
		{"ping: connect: Network is unreachable\n", nil, 0},
	} {
		us, sent := parsePing([]byte(c.text))
		if !reflect.DeepEqual(us, c.us) || sent != c.sent {
			t.Errorf("%q: %v of %d, want %v of %d", c.text, us, sent, c.us, c.sent)
		}
	}
}

func FuzzPing(f *testing.F) {
	f.Add([]byte(iputils))
	f.Add([]byte("seq=1 time=99999999999999999999999999999999 ms\nseq=2 time<.5 ms"))
	f.Fuzz(func(t *testing.T, b []byte) {
		us, sent := parsePing(b)
		if sent < 0 {
			t.Fatal(sent)
		}
		for _, v := range us {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				t.Fatal(v)
			}
		}
		if len(us) > 0 {
			p := pairOf(Node{ID: 1}, Node{ID: 2}, us, 0)
			if p.MinUS > p.P50US || p.P50US > p.P99US || p.N != len(us) {
				t.Fatalf("%+v of %v", p, us)
			}
			if _, err := json.Marshal(p); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestRTTPercentiles(t *testing.T) {
	t.Parallel()
	var us []float64
	for i := 200; i >= 1; i-- {
		us = append(us, float64(i))
	}
	got := pairOf(Node{ID: 1, Host: Host{Zone: "a"}}, Node{ID: 3}, us, 7)
	want := RTTPair{From: 1, To: 3, FromZone: "a", MinUS: 1, AvgUS: 100.5, P50US: 100, P99US: 198, N: 200, Lost: 7}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestRTTWrite(t *testing.T) {
	t.Parallel()
	m := &RTT{IntervalMS: 10, Pairs: []RTTPair{
		{From: 1, To: 2, MinUS: 380, AvgUS: 391.2, P50US: 390, P99US: 520, N: 200},
		{From: 2, To: 1, MinUS: 381, AvgUS: 400, P50US: 395, P99US: 530, N: 199, Lost: 1},
	}}
	var b bytes.Buffer
	if err := m.Write(&b, []Node{{ID: 1, Host: Host{Zone: "use1-az4"}}, {ID: 2}}); err != nil {
		t.Fatal(err)
	}
	want := `round trips in us between the nodes' private addresses: min/avg/p50/p99 (replies, lost)
from \ to        node 1 use1-az4           node 2
node 1 use1-az4  -                         380/391/390/520 (200, 0)
node 2           381/400/395/530 (199, 1)  -
a ping every 10 ms, one pair after the other, the first reply left out; worst: node 2 to node 1, p50 395 us
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestRTTAtHome(t *testing.T) {
	t.Parallel()
	needPing(t)
	f, err := Open(Default(), ".", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var progress bytes.Buffer
	m, err := f.MeasureRTT(t.Context(), 5, &progress)
	if err != nil || len(m.Pairs) != 6 || time.Since(m.At) > time.Hour {
		t.Fatalf("%+v, %v", m, err)
	}
	for _, p := range m.Pairs {
		if p.From == p.To || p.N != 5 || p.Lost != 0 || p.MinUS <= 0 || p.P99US < p.P50US {
			t.Errorf("%+v", p)
		}
	}
	if strings.Count(progress.String(), "\n") < 6 {
		t.Errorf("%q", progress.String())
	}
	if _, err := f.MeasureRTT(t.Context(), 0, io.Discard); err == nil {
		t.Error("no pings")
	}
}

// fakePing puts a ping of the test's own on the PATH, and nothing else.
func fakePing(t *testing.T, script string) *Fleet {
	t.Helper()
	dir := t.TempDir()
	if script != "" {
		if err := os.WriteFile(filepath.Join(dir, "ping"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	f, err := Open(Default(), ".", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRTTSlowInterval(t *testing.T) {
	// Node 3 is the one that refuses: what came before is measured again.
	f := fakePing(t, `
case "$*" in *"-i 0.01 "*"-I 127.0.0.13 "*) echo "ping: cannot flood; minimal interval allowed for user is 200ms" >&2; exit 2;; esac
test "$LC_ALL" = C || exit 3
echo "64 bytes from x: icmp_seq=1 ttl=64 time=7 ms"
echo "64 bytes from x: icmp_seq=2 ttl=64 time=0.5 ms"
echo "3 packets transmitted"`)
	m, err := f.MeasureRTT(t.Context(), 2, io.Discard)
	if err != nil || m.IntervalMS != 200 || len(m.Pairs) != 6 || m.Pairs[0].N != 1 || m.Pairs[0].P50US != 500 || m.Pairs[0].Lost != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
}

func TestRTTFailures(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"missing", "", "ping is not there: install iputils-ping"},
		{"no reply", "echo '3 packets transmitted, 0 received'; exit 1", "none of 3 answered"},
		{"refused", "echo 'ping: socket: Operation not permitted' >&2; exit 2", "exit status 2: ping: socket: Operation not permitted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := fakePing(t, c.script)
			m, err := f.MeasureRTT(t.Context(), 2, io.Discard)
			if len(NodeErrors(err)) != 6 || !strings.Contains(err.Error(), c.want) || len(m.Pairs) != 0 {
				t.Fatalf("%+v, %v", m, err)
			}
		})
	}
	// One pair that fails does not cost the others.
	f := fakePing(t, `case "$*" in *127.0.0.12) exit 1;; esac
echo "64 bytes from x: icmp_seq=1 ttl=64 time=7 ms"
echo "64 bytes from x: icmp_seq=2 ttl=64 time=0.5 ms"`)
	m, err := f.MeasureRTT(t.Context(), 1, io.Discard)
	if list := NodeErrors(err); len(list) != 2 || list[0].Node != 1 || list[1].Node != 3 || len(m.Pairs) != 4 {
		t.Fatalf("%+v, %v", m, err)
	}
}

func TestSetEnv(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), ".env")
	value := `{"at":"2026-01-02T03:04:05Z","interval_ms":10,"pairs":[]}`
	read := func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if err := SetEnv(file, "NODE_RTT", value); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != "NODE_RTT="+value+"\n" {
		t.Fatalf("%q", got)
	}
	if inv, err := Load(file); err != nil || inv.NodeRTT != value || inv.Nodes[0].Addr != "127.0.0.11" {
		t.Fatalf("%+v, %v", inv, err)
	}
	if err := os.WriteFile(file, []byte("# head\nNODE_RTT = {}  # old\nX=1 # keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SetEnv(file, "NODE_RTT", value); err != nil {
		t.Fatal(err)
	}
	if err := SetEnv(file, "Y", "2"); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != "# head\nNODE_RTT="+value+"\nX=1 # keep\nY=2\n" {
		t.Fatalf("%q", got)
	}
	for _, bad := range []string{"a#b", "$(x)", "a\nB=1", " a", `"a"`} {
		if err := SetEnv(file, "NODE_RTT", bad); err == nil {
			t.Errorf("%q was written", bad)
		}
	}
	if err := WriteEnv(file, "NODE1=;\n"); err == nil || !strings.HasSuffix(read(), "Y=2\n") {
		t.Error("an inventory that is none was written:", err)
	}
}

func FuzzSetLine(f *testing.F) {
	f.Add("A=1\nB=2", "A", "3")
	f.Add("# A=1\n A =  1 # x\nA=4\n", "A", "x y")
	f.Fuzz(func(t *testing.T, text, key, value string) {
		line := key + "=" + value
		if k, v, err := parseLine(line); err != nil || k != key || v != value || strings.Contains(line, "\n") {
			return
		}
		before, err := parseLines("f", []byte(text))
		if err != nil {
			return
		}
		after, err := parseLines("f", []byte(setLine(text, key, line)))
		if err != nil || after[key].value != value {
			t.Fatalf("%q became %v, %v", text, after, err)
		}
		for k, s := range before {
			if k != key && after[k].value != s.value {
				t.Fatalf("%s was %q, is %q", k, s.value, after[k].value)
			}
		}
	})
}
