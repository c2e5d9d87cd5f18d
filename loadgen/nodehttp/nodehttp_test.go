package nodehttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"raftrig/loadgen"
	"raftrig/loadgen/nodehttp"
)

// node is a server that answers /status as told; it ends with the test.
func node(t *testing.T, answer http.HandlerFunc) netip.AddrPort {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", answer)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return netip.MustParseAddrPort(s.Listener.Addr().String())
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
}

func TestStatus(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := netip.MustParseAddrPort(free.Addr().String())
	free.Close()
	hangs := make(chan struct{})
	t.Cleanup(func() { close(hangs) })
	addrs := []netip.AddrPort{
		node(t, says(`{"node":1,"leads":true,"leader":1,"term":2,"applied":123,"count":120,"digest":"9f86","version":"library 1.2.3","log":"in memory"}`)),
		node(t, says(`{"node":7}`)),
		node(t, says(`<html>`)),
		node(t, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "not ready\nyet", http.StatusServiceUnavailable)
		}),
		nobody,
		node(t, func(w http.ResponseWriter, r *http.Request) { io.CopyN(w, zeros{}, 2<<20) }),
		node(t, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-hangs:
			case <-r.Context().Done():
			}
		}),
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	got := nodehttp.Status(ctx, addrs, "/status")
	if want := (loadgen.NodeStatus{
		Node: 1, Addr: addrs[0].String(), Leads: true, Leader: 1, Term: 2, Applied: 123, Count: 120,
		Digest: "9f86", Version: "library 1.2.3", Log: "in memory",
	}); got[0] != want {
		t.Errorf("node 1: %+v, want %+v", got[0], want)
	}
	for i, want := range map[int]string{
		2: "it says it is node 7",
		3: "its answer is not what a node of this product says",
		4: "HTTP status 503 not ready",
		5: "connection refused",
		6: "an answer of more than 1048576 bytes",
		7: "no answer in time",
	} {
		err := got[i-1].Err
		if prefix := fmt.Sprintf("node %d at %s: ", i, addrs[i-1]); err == nil || !strings.HasPrefix(err.Error(), prefix+want) && !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("node %d: %v, want %s%s", i, err, prefix, want)
		}
	}
}

func TestPostTellsTheStatus(t *testing.T) {
	var body string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		body = string(b)
		if r.URL.Path != "/init" {
			http.Error(w, "no such route", http.StatusNotFound)
			return
		}
		io.WriteString(w, `{"Ok":5}`)
	}))
	t.Cleanup(s.Close)
	addr := netip.MustParseAddrPort(s.Listener.Addr().String())
	var v struct{ Ok int }
	if err := nodehttp.Post(context.Background(), addr, "/init", []any{2, "a"}, &v); err != nil || v.Ok != 5 || body != `[2,"a"]` {
		t.Errorf("%v, %+v, body %s", err, v, body)
	}
	if err := nodehttp.Post(context.Background(), addr, "/init", 1, nil); err != nil {
		t.Errorf("an answer that nobody wants: %v", err)
	}
	var status *nodehttp.StatusError
	if err := nodehttp.Post(context.Background(), addr, "/other", 1, &v); !errors.As(err, &status) || status.Code != http.StatusNotFound || status.Text != "no such route" {
		t.Errorf("%v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
