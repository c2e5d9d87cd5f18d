package openraft

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestRequest(t *testing.T) {
	for _, c := range []struct {
		size int
		keys uint64
	}{{0, 1}, {1, 10}, {15, 11}, {16, 10000}, {64, 1_000_000}, {65536, 1 << 63}} {
		r := newRequest([]string{"127.0.0.11:21001", "[::1]:1"}, 1, 4, c.size, c.keys)
		for _, sequence := range []uint64{1, 5, 4*c.keys - 3, 4*c.keys + 1, 1<<64 - 1} {
			r.set(sequence)
			for i, host := range []string{"127.0.0.11:21001", "[::1]:1"} {
				text := string(r.heads[i]) + string(r.body)
				if len(text) > r.length {
					t.Fatalf("%d bytes, said to be %d at most", len(text), r.length)
				}
				req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
				if err != nil {
					t.Fatal(err)
				}
				if req.Method != "POST" || req.URL.Path != "/write" || req.Host != host {
					t.Errorf("%+v", req)
				}
				body, err := io.ReadAll(req.Body)
				if err != nil || int64(len(body)) != req.ContentLength {
					t.Fatal(err)
				}
				var set struct {
					Set struct{ Key, Value string }
				}
				if err := json.Unmarshal(body, &set); err != nil {
					t.Fatalf("%s: %v", body, err)
				}
				width := len(fmt.Sprint(c.keys - 1))
				if want := fmt.Sprintf("k%0*d", width, sequence/4%c.keys); set.Set.Key != want {
					t.Errorf("key %s, want %s", set.Set.Key, want)
				}
				if len(set.Set.Value) != c.size {
					t.Errorf("value of %d bytes, want %d", len(set.Set.Value), c.size)
				}
				if c.size >= stampLen && set.Set.Value[:stampLen] != fmt.Sprintf("%016x", sequence) {
					t.Errorf("value %.20s, want %016x", set.Set.Value, sequence)
				}
			}
		}
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   verdict
		leader int
	}{
		{200, okAnswer, applied, 0},
		{200, " {\t\"Ok\"\r\n: {", applied, 0},
		{201, okAnswer, unclear, 0},
		{200, `{"Ok`, unclear, 0},
		{200, `{"Okay":1}`, unclear, 0},
		{200, `{"no":{"Ok":1}}`, unclear, 0},
		{200, `"Ok"`, unclear, 0},
		{200, forward(2), redirected, 2},
		{503, forward(2), redirected, 2},
		{200, forward(0), redirected, 0},
		{200, `{"Err":{"APIError":{"ForwardToLeader":{"leader_id":`, redirected, 0},
		{200, `{"Err":{"APIError":{"ForwardToLeader":{"leader_id":9999999999999999999999}}}}`, redirected, 0},
		{200, `{"Err":{"APIError":{"ForwardToLeader":{"leader_node":null,"leader_id":2}}}}`, redirected, 0},
		{200, `{"Err":{"APIError":{"ChangeMembershipError":{}}}}`, unclear, 0},
		{200, `{"Err":{"Fatal":"Stopped"}}`, unclear, 0},
		{503, `{"Err":{"Unknown":"no quorum within 2 s"}}`, unclear, 0},
		{404, `{"Err":{"Unknown":""}}`, unclear, 0},
		{503, `{"Err":{"NoQuorum":"not written"}}`, refused, 0},
		{503, `{"Err":"takes no more"}`, refused, 0},
		{503, `busy`, unclear, 0},
		{500, `{"Err":"why"}`, unclear, 0},
		{400, `{"Err":"why"}`, refused, 0},
		{413, ``, refused, 0},
		{302, ``, unclear, 0},
	} {
		if v, leader := judge(c.status, []byte(c.body)); v != c.want || leader != c.leader {
			t.Errorf("%d %s: %d, %d; want %d, %d", c.status, c.body, v, leader, c.want, c.leader)
		}
	}
}

// A head is read alike however it is cut, and as net/http reads it.
func FuzzParseHead(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200\r\nContent-Length: 7\r\nContent-Length: 7\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\nContent-Length: 2\n\n\r\n\r\n",
		"HTTP/1.1 \r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\n",
		"HTTP/1.1 200 OK\r\n: x\r\nContent-Length\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1100),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, used, err := parseHead(b)
		switch {
		case err != nil:
			if used != 0 || strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("used %d, %q", used, err)
			}
		case used > len(b) || used > maxHead || used == 0 && len(b) >= maxHead:
			t.Errorf("used %d of %d", used, len(b))
		case used > 0 && (h.length < 0 || h.length > maxBody || h.status < 200 || h.status > 999):
			t.Errorf("%+v", h)
		}
		// What is not complete stays so for every shorter piece, and what is
		// complete does not depend on what follows.
		if used > 0 {
			if again, n, err := parseHead(b[:used]); again != h || n != used || err != nil {
				t.Errorf("%+v %d, alone %+v %d %v", h, used, again, n, err)
			}
			if _, n, err := parseHead(b[:used-1]); n != 0 || err != nil {
				t.Errorf("without its last byte: %d, %v", n, err)
			}
			// net/http takes less; what both take has one meaning.
			resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
			if err == nil {
				resp.Body.Close()
				if resp.StatusCode != h.status || resp.ContentLength >= 0 && resp.StatusCode != 204 && resp.StatusCode != 304 && resp.ContentLength != int64(h.length) {
					t.Errorf("%+v, net/http: %d, %d bytes", h, resp.StatusCode, resp.ContentLength)
				}
			}
		}
	})
}

// judge agrees with encoding/json wherever that has an opinion.
func FuzzJudge(f *testing.F) {
	for _, s := range []string{
		okAnswer, forward(0), forward(3), `{"Err":{"Unknown":"x"}}`, `{"Err":{"NoQuorum":""}}`, `{"Err":"x"}`, ` { "Ok" : 1 } `, `{"Ok"`,
	} {
		f.Add(uint16(200), []byte(s))
		f.Add(uint16(503), []byte(s))
	}
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		v, leader := judge(int(status), body)
		if leader < 0 || leader > 0 && v != redirected {
			t.Errorf("%d, leader %d", v, leader)
		}
		var members map[string]json.RawMessage
		if json.Unmarshal(body, &members) != nil || len(members) != 1 {
			return
		}
		for name := range members {
			// Duplicate names are one member here; the first decides there.
			if v == applied && (name != "Ok" || status != 200) {
				t.Errorf("applied, of %s", body)
			}
			if v == redirected && name != "Err" {
				t.Errorf("redirected, of %s", body)
			}
		}
	})
}

func FuzzMetrics(f *testing.F) {
	f.Add(200, []byte(`{"Ok":{"id":1,"state":"Leader","current_term":1,"current_leader":1,"membership_config":{"log_id":null,"membership":{"configs":[[1,2,3]],"nodes":{"1":{"addr":"127.0.0.11:21001"}}}}}}`))
	f.Add(200, []byte(`{"Ok":null}`))
	f.Add(200, []byte(`{"Ok":{"id":1,"state":"Learner","current_leader":null,"membership_config":{"membership":{"configs":[],"nodes":{}}}}}`))
	f.Add(404, []byte("no"))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		m, err := readMetrics(status, body, 1)
		if err == nil && m.ID != 1 || err != nil && strings.ContainsAny(err.Error(), "\r\n") {
			t.Errorf("%+v, %q", m, err)
		}
	})
}
