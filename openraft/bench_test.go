package openraft

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"raftrig/loadgen"
	"raftrig/loadgen/clienttest"
	"raftrig/loadgen/sock"
)

// The test binary is its own helper: a node that leads and only answers, in a
// process of its own so that the client's CPU stands alone.
const childVariable = "OPENRAFT_TEST_CHILD"

// okAnswer is what the server says to a write.
const okAnswer = `{"Ok":{"log_id":{"leader_id":{"term":1,"node_id":1},"index":1234567},"data":{"value":null},"membership":null}}`

func init() {
	if os.Getenv(childVariable) == "" {
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	write, metrics := []byte(okAnswer), []byte(`{"Ok":{"id":1,"state":"Leader","current_term":1,"current_leader":1}}`)
	go (&fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		if ctx.IsPost() {
			ctx.SetBody(write)
		} else {
			ctx.SetBody(metrics)
		}
	}}).Serve(l)
	fmt.Println(l.Addr())
	io.Copy(io.Discard, os.Stdin) // ends with the parent
	os.Exit(0)
}

// answerOnly starts a node that only answers.
func answerOnly(tb testing.TB) netip.AddrPort {
	tb.Helper()
	child, _ := clienttest.Child(tb, childVariable+"=1")
	return clienttest.Addr(tb, child)
}

// cpu is what this process has used so far.
func cpu() time.Duration { return clienttest.CPU(unix.RUSAGE_SELF) }

type monotonic struct{}

var began = time.Now()

func (monotonic) Now() int64 { return int64(time.Since(began)) + 1 }

const outstanding = 100

// BenchmarkClosed keeps 100 requests of 64 bytes outstanding at a node that
// only answers, in turn through net/http, fasthttp and the lane's client, and
// reports the CPU that the client's process used for each.
func BenchmarkClosed(b *testing.B) {
	for _, way := range []struct {
		name string
		run  func(*testing.B, netip.AddrPort)
	}{
		{"net/http", closedNetHTTP},
		{"fasthttp", closedFastHTTP},
		{"lane", closedLane},
	} {
		b.Run(way.name, func(b *testing.B) { way.run(b, answerOnly(b)) })
	}
}

// measured resets the benchmark and returns what reports the CPU.
func measured(b *testing.B) (done func()) {
	b.ReportAllocs()
	runtime.GC()
	before := cpu()
	b.ResetTimer()
	return func() {
		b.StopTimer()
		b.ReportMetric(float64((cpu()-before).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
	}
}

// chains runs one goroutine an outstanding request until n were sent.
func chains(n int, send func(body []byte) error) error {
	var left atomic.Int64
	left.Store(int64(n))
	var first atomic.Pointer[error]
	var wg sync.WaitGroup
	for i := range outstanding {
		wg.Go(func() {
			r := newRequest([]string{"x"}, i, 1, 64, defaultKeys)
			for left.Add(-1) >= 0 {
				if err := send(r.body); err != nil {
					first.CompareAndSwap(nil, &err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}

func closedNetHTTP(b *testing.B, addr netip.AddrPort) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: outstanding, DisableCompression: true}}
	defer client.CloseIdleConnections()
	url := "http://" + addr.String() + "/write"
	send := func(body []byte) error {
		resp, err := client.Post(url, "application/json", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if v, _ := judge(resp.StatusCode, answer); v != applied {
			return fmt.Errorf("%s: %v", answer, err)
		}
		return nil
	}
	if err := chains(20*outstanding, send); err != nil {
		b.Fatal(err)
	}
	done := measured(b)
	if err := chains(b.N, send); err != nil {
		b.Fatal(err)
	}
	done()
}

func closedFastHTTP(b *testing.B, addr netip.AddrPort) {
	client := &fasthttp.HostClient{
		Addr: addr.String(), MaxConns: outstanding, MaxIdleConnDuration: time.Hour, MaxIdemponentCallAttempts: 1,
		NoDefaultUserAgentHeader: true, DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true,
	}
	defer client.CloseIdleConnections()
	url := "http://" + addr.String() + "/write"
	send := func(body []byte) error {
		req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
		defer fasthttp.ReleaseRequest(req)
		defer fasthttp.ReleaseResponse(resp)
		req.Header.SetMethod("POST")
		req.SetRequestURI(url)
		req.Header.SetContentType("application/json")
		req.SetBodyRaw(body)
		err := client.Do(req, resp)
		if v, _ := judge(resp.StatusCode(), resp.Body()); err != nil || v != applied {
			return fmt.Errorf("%s: %v", resp.Body(), err)
		}
		return nil
	}
	if err := chains(20*outstanding, send); err != nil {
		b.Fatal(err)
	}
	done := measured(b)
	if err := chains(b.N, send); err != nil {
		b.Fatal(err)
	}
	done()
}

func closedLane(b *testing.B, addr netip.AddrPort) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := sock.TuneThread(); err != nil {
		b.Fatal(err)
	}
	clock := monotonic{}
	free := make([]uint32, 0, outstanding)
	for id := range outstanding {
		free = append(free, uint32(id))
	}
	ended := 0
	c, err := NewClient(loadgen.Wiring{Slots: outstanding, Size: 64, Clock: clock,
		Complete: func(id uint32, outcome loadgen.Outcome, _ int64) {
			if outcome != loadgen.OK {
				b.Error(outcome)
			}
			free = append(free, id)
			ended++
		},
		Event: func(string) {},
		Fail:  func(err error) { b.Error(err) },
	}, []netip.AddrPort{addr}, defaultKeys)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	run := func(n int) {
		for sent, end := 0, ended+n; ended < end; {
			if c.Ready() {
				ids := len(free)
				for _, id := range free {
					if sent < n && c.Submit(id) {
						sent++
						ids--
					}
				}
				free = free[:0]
				if ids > 0 && sent < n {
					b.Fatal("refused")
				}
			}
			c.Wait(clock.Now() + int64(time.Second))
		}
		// All ids are free again.
		free = free[:0]
		for id := range outstanding {
			free = append(free, uint32(id))
		}
	}
	run(20 * outstanding)
	done := measured(b)
	run(b.N)
	done()
}

// BenchmarkLag sends 10,000 requests a second, each at its instant, and reports
// how long after it a request has been written to its socket: by the lane
// itself, or by one of 100 goroutines, each with a fasthttp client of its own,
// that the lane hands it to. The lane spins.
func BenchmarkLag(b *testing.B) {
	b.Run("fasthttp", func(b *testing.B) {
		url := "http://" + answerOnly(b).String() + "/write"
		late := make([]int64, b.N)
		work := make(chan int, outstanding)
		var wg sync.WaitGroup
		began := time.Now()
		due := func(i int) time.Duration { return time.Duration(i) * lagGap }
		for i := range outstanding {
			wg.Go(func() {
				n := -1 // the request that is being written
				client := &fasthttp.HostClient{Addr: url[len("http://") : len(url)-len("/write")], MaxConns: 1, MaxIdemponentCallAttempts: 1,
					Dial: func(addr string) (net.Conn, error) {
						c, err := net.Dial("tcp", addr)
						return &noted{c, func() {
							if n >= 0 {
								late[n] = int64(time.Since(began) - due(n))
							}
						}}, err
					}}
				body := newRequest([]string{"x"}, i, 1, 64, defaultKeys).body
				req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
				req.Header.SetMethod("POST")
				req.SetRequestURI(url)
				req.SetBodyRaw(body)
				for n = range work {
					if err := client.Do(req, resp); err != nil {
						b.Error(err)
					}
				}
			})
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for i := range b.N {
			for time.Since(began) < due(i) {
			}
			work <- i
		}
		close(work)
		wg.Wait()
		reportLag(b, late)
	})
	b.Run("lane", func(b *testing.B) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		late := make([]int64, b.N)
		clock := monotonic{}
		free := make([]uint32, 0, outstanding)
		for id := range outstanding {
			free = append(free, uint32(id))
		}
		c, err := NewClient(loadgen.Wiring{Slots: outstanding, Size: 64, Clock: clock,
			Complete: func(id uint32, _ loadgen.Outcome, _ int64) { free = append(free, id) },
			Event:    func(string) {},
			Fail:     func(err error) { b.Error(err) },
		}, []netip.AddrPort{answerOnly(b)}, defaultKeys)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		for c.up < outstanding {
			c.Poll()
		}
		began := clock.Now()
		for i := range b.N {
			due := began + int64(i)*int64(lagGap)
			for clock.Now() < due || len(free) == 0 {
				c.Poll()
			}
			id := free[len(free)-1]
			free = free[:len(free)-1]
			c.Submit(id)
			late[i] = clock.Now() - due
		}
		for len(free) < outstanding {
			c.Poll()
		}
		reportLag(b, late)
	})
}

// lagGap is between two requests of BenchmarkLag.
const lagGap = 100 * time.Microsecond

// noted is a connection that notes its writes when they have been made.
type noted struct {
	net.Conn
	wrote func()
}

func (c *noted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.wrote()
	return n, err
}

func reportLag(b *testing.B, late []int64) {
	slices.Sort(late)
	for _, p := range []struct {
		name string
		at   int
	}{{"p50-us", len(late) / 2}, {"p90-us", len(late) * 9 / 10}, {"p99-us", len(late) * 99 / 100}} {
		b.ReportMetric(float64(late[p.at])/1e3, p.name)
	}
}
