package openraft

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"raftrig/loadgen"
	"raftrig/loadgen/sock"
)

// TestArrivals sends 10,000 requests a second for 6 s to an HTTP server that
// notes when they arrive, as the rig sends them to a cluster: the same lanes
// and the same client, only that nobody is asked who leads. What the server
// answers does not matter.
func TestArrivals(t *testing.T) {
	at := os.Getenv("ARRIVALS")
	if at == "" {
		t.Skip("ARRIVALS is not set: HOST:PORT of an HTTP server that notes when requests arrive")
	}
	addr, err := netip.ParseAddrPort(at)
	if err != nil {
		t.Fatal(err)
	}
	pace := loadgen.Spin
	if os.Getenv("PACE") == "park" {
		pace = loadgen.Park
	}
	rig, err := loadgen.New(loadgen.Config{
		Mode: loadgen.Open, Rate: 10_000, Burst: 1, MaxInflight: maxInflight, Lanes: 1, Size: 64, Pace: pace,
		Measure: 6 * time.Second, DrainTimeout: time.Second,
	}, func(w loadgen.Wiring) (loadgen.Client, error) {
		c, err := NewClient(w, []netip.AddrPort{addr}, defaultKeys)
		if err != nil {
			return nil, err
		}
		for i := range c.probes {
			c.probes[i].conn.Close()
		}
		c.probes = nil
		c.setTarget(1, 1, "")
		return c, nil
	}, loadgen.Options{Setup: func(int) error { return sock.TuneThread() }})
	if err != nil {
		t.Fatal(err)
	}
	res, err := rig.Run()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", res.Run.Measured)
	for _, p := range []float64{50, 90, 99} {
		lag, _ := res.Run.Lag.At(p)
		t.Logf("lag p%v %v us", p, lag.US)
	}
}
