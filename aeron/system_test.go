package aeron

import (
	"context"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"raftrig/loadgen"
)

// opened by flags, as the client program does it.
func opened(hosts []string, args ...string) (loadgen.System, error) {
	p := Product()
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	p.Flags(f)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	return p.Open(context.Background(), hosts)
}

func TestOpen(t *testing.T) {
	sys, err := opened([]string{"127.0.0.21", "127.0.0.22"}, "-base-port", "7000", "-mtu", "8192", "-term-length", "64k")
	if err != nil {
		t.Fatal(err)
	}
	s := sys.(*System)
	if got := strings.Join(s.ingress, " "); got != "127.0.0.21:7002 127.0.0.22:7102" {
		t.Errorf("ingress %s", got)
	}
	if got := s.status[1].String(); got != "127.0.0.22:7109" {
		t.Errorf("status of node 2 %s", got)
	}
	if !s.egress.IsLoopback() {
		t.Errorf("replies to %v", s.egress)
	}
	if err := s.TransferLeader(context.Background(), 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("transfer: %v", err)
	}
	sys, err = opened([]string{"127.0.0.21"}, "-client-addr", "127.0.0.9")
	if err != nil {
		t.Fatal(err)
	}
	if got := sys.(*System).egress.String(); got != "127.0.0.9" {
		t.Errorf("-client-addr: replies to %s", got)
	}
}

func TestOpenRefuses(t *testing.T) {
	one := []string{"127.0.0.21"}
	for _, test := range []struct {
		hosts []string
		args  string
		text  string
	}{
		{nil, "", "0 hosts"},
		{make([]string, 101), "", "101 hosts"},
		{one, "-base-port 0", "-base-port 0: 1 to 65526"},
		{one, "-base-port 65530", "-base-port 65530"},
		{one, "-mtu 1400", "-mtu 1400: want a multiple of 32 from 96 to 65504"},
		{one, "-mtu 64", "-mtu 64"},
		{one, "-mtu 65536", "-mtu 65536"},
		{one, "-mtu 8224 -term-length 64k", "-mtu 8224: want a multiple of 32 from 96 to 8192"},
		{one, "-term-length 32k", "-term-length 32k: want a power of two"},
		{one, "-term-length 1024m", "-term-length 1024m"},
		{one, "-term-length 100000", "-term-length 100000"},
		{one, "-term-length 4g", "-term-length: want a number of bytes"},
		{one, "-term-length 4096m", "-term-length: want a number of bytes"},
		{[]string{"no-such-host.invalid"}, "", "node 1: "},
		{one, "-client-addr no-such-host.invalid", "-client-addr: "},
	} {
		_, err := opened(test.hosts, strings.Fields(test.args)...)
		if err == nil || !strings.Contains(err.Error(), test.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", test.args, err, test.text)
		}
	}
}

func TestDialRefuses(t *testing.T) {
	for _, test := range []struct {
		size int
		args string
		text string
	}{
		{7, "", "SIZE 7: 8 to 1344 bytes"},
		{1345, "", "SIZE 1345: 8 to 1344 bytes"},
		{8129, "-mtu 8192", "SIZE 8129: 8 to 8128 bytes"},
		{1344, "", "no media driver in "},
	} {
		sys, err := opened([]string{"127.0.0.21"}, append(strings.Fields(test.args), "-aeron-dir", t.TempDir())...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sys.Dial(loadgen.Wiring{Size: test.size}); err == nil || !strings.Contains(err.Error(), test.text) {
			t.Errorf("size %d: %v, want %q", test.size, err, test.text)
		}
	}
}

func TestSizeFlag(t *testing.T) {
	for text, want := range map[string]string{"65536": "64k", "4194304": "4m", "1025": "1025", "16M": "16m", "1k": "1k"} {
		var s size
		if err := s.Set(text); err != nil || s.String() != want {
			t.Errorf("%s: %v, %v", text, &s, err)
		}
	}
}
