package model

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		change func(*Path)
		want   string
	}{
		{func(p *Path) { p.MTU = 1400 }, "MTU 1400: want a multiple of 32 from 32 to 65504 bytes"},
		{func(p *Path) { p.MTU = 65536 }, "MTU 65536: "},
		{func(p *Path) { p.S = 0 }, "send rate S 0: "},
		{func(p *Path) { p.S = math.NaN() }, "send rate S NaN: "},
		{func(p *Path) { p.C = p.S }, "control rate C 400000: want 0 to below S"},
		{func(p *Path) { p.C = -1 }, "control rate C -1: "},
		{func(p *Path) { p.D = 0 }, "destinations D 0: "},
		{func(p *Path) { p.Payload = -1 }, "payload -1: "},
		{func(p *Path) { p.HeaderBytes = -1 }, "header -1: "},
		{func(p *Path) { p.OverheadBytes = p.MTU }, "overhead 1408: "},
	} {
		p := Leader(64, SmallMTU, Driver)
		c.change(&p)
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
		if _, err := Predict(p, load(1)); err == nil {
			t.Errorf("%s: predicted all the same", c.want)
		}
	}
	for _, l := range []Load{{0, 0, 64 << 20}, {1, -1, 64 << 20}, {1, 0, 1000}, {1, 0, 65 << 20}, {math.Inf(1), 0, 64 << 20}} {
		if _, err := Predict(Leader(64, SmallMTU, Driver), l); err == nil {
			t.Errorf("%+v was taken", l)
		}
	}
}

// Latency grows with load, never above the cap plus the transit, and is the
// cap when saturated.
func TestPredictIsMonotonous(t *testing.T) {
	p := Leader(128, SmallMTU, Reference)
	last := time.Duration(0)
	for rate := 10e3; rate < 2e6; rate *= 1.02 {
		r := predict(t, p, rate)
		if r.Latency < last {
			t.Fatalf("at %.0f/s latency falls from %v to %v", rate, last, r.Latency)
		}
		if r.Latency > r.Cap+150*time.Microsecond {
			t.Fatalf("at %.0f/s latency %v is above the cap %v", rate, r.Latency, r.Cap)
		}
		last = r.Latency
	}
	if r := predict(t, p, 2e6); r.Regime != Saturated || r.Latency != r.Cap {
		t.Errorf("%+v", r)
	}
}

// A message of several frames costs as many.
func TestFragmented(t *testing.T) {
	p := Leader(4000, SmallMTU, Driver)
	// 1408 - 32 = 1376 B a frame for payload and session header: 4032 B are 3.
	if p.PerDatagram() != 0 || p.Fragments() != 3 || p.Peak() != 40e3 {
		t.Errorf("%d a datagram, %d fragments, peak %.0f", p.PerDatagram(), p.Fragments(), p.Peak())
	}
}

func TestAdvise(t *testing.T) {
	for _, c := range []struct {
		rate   float64
		jumbo  Jumbo
		want   int
		reason string
	}{
		{100e3, JumboYes, LargeMTU, "costs nothing at low load"},
		{800e3, JumboYes, LargeMTU, "a lost datagram loses 50 messages instead of 8"},
		{100e3, JumboUncertain, SmallMTU, "utilisation is low"},
		{560e3, JumboUncertain, SmallMTU, "no answer between 0.5 and 0.7"},
		{800e3, JumboUncertain, LargeMTU, "ping -M do"},
		{800e3, JumboNo, SmallMTU, "do not pass"},
		{800e3, JumboNo, SmallMTU, "to lower rho otherwise"},
		{9e6, JumboYes, LargeMTU, "8192 is not safe at this load either"},
	} {
		a, err := Advise(Leader(128, 1, Reference), load(c.rate), c.jumbo)
		if err != nil {
			t.Fatal(err)
		}
		if a.MTU != c.want || !slices.ContainsFunc(a.Reasons, func(r string) bool { return strings.Contains(r, c.reason) }) {
			t.Errorf("%.0f/s, jumbo %s: MTU %d, %q; want %d, %q", c.rate, c.jumbo, a.MTU, a.Reasons, c.want, c.reason)
		}
	}
	if _, err := Advise(Leader(128, 1, Reference), load(1), "maybe"); err == nil {
		t.Error("jumbo maybe was taken")
	}
}

// curve makes a sweep of a known system.
func curve(transitUS, capacity float64, batch int, rates ...float64) (points []Point) {
	for _, r := range rates {
		p := Point{Offered: r, Achieved: min(r, capacity), P50US: 10_000}
		if rho := r / capacity; rho < 1 {
			p.P50US = transitUS + float64(batch)/capacity*1e6*rho/(1-rho)
		}
		points = append(points, p)
	}
	return points
}

func TestFitFindsAKnownSystem(t *testing.T) {
	for _, c := range []struct {
		transit, capacity float64
		batch             int
		bounded           bool
	}{{500, 640e3, 11, true}, {120, 150e3, 1, true}, {900, 1e6, 64, false}} {
		rates := []float64{25e3, 50e3, 100e3, 120e3, 140e3}
		for r := 200e3; r < c.capacity; r += 50e3 {
			rates = append(rates, r)
		}
		if c.bounded {
			rates = append(rates, 1.1*c.capacity, 1.5*c.capacity)
		}
		points := curve(c.transit, c.capacity, c.batch, rates...)
		slices.Reverse(points) // rows come in any order
		f, err := Fit(points, c.batch)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(f.TransitUS/c.transit-1) > 0.01 || math.Abs(f.Capacity/c.capacity-1) > 0.02 || f.Bounded != c.bounded || f.RMSPercent > 0.5 {
			t.Errorf("%+v: transit %.1f, capacity %.0f, bounded %v, error %.2f %%", c, f.TransitUS, f.Capacity, f.Bounded, f.RMSPercent)
		}
		if len(f.Points) != len(points) || f.Points[0].Offered != 25e3 {
			t.Errorf("%d points of %d, from %+v", len(f.Points), len(points), f.Points[0])
		}
		if last := f.Points[len(f.Points)-1]; c.bounded && (last.Regime != Saturated || last.Fitted) {
			t.Errorf("%+v", last)
		}
	}
}

func TestFitRefuses(t *testing.T) {
	good := curve(500, 640e3, 1, 1e3, 2e3, 3e3)
	for name, points := range map[string][]Point{
		"none": nil, "two": good[:2],
		"saturated": {{1e3, 500, 10}, {2e3, 500, 10}, {3e3, 500, 10}},
		"NaN":       append(slices.Clone(good), Point{4e3, 4e3, math.NaN()}),
		"zero":      append(slices.Clone(good), Point{0, 0, 5}),
	} {
		if f, err := Fit(points, 1); err == nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if _, err := Fit(good, 0); err == nil {
		t.Error("batch 0 was taken")
	}
}

func TestSendRate(t *testing.T) {
	for _, to := range []netip.AddrPort{{}, netip.MustParseAddrPort("127.0.0.1:9")} {
		r, err := SendRate(to, 64, 3, 5*time.Millisecond)
		// Nobody listens on port 9: every second call is refused, half go out.
		if err != nil || len(r.Runs) != 3 || r.Min <= 0 || r.Median < r.Min || r.Max < r.Median {
			t.Errorf("%v: %+v, %v", to, r, err)
		}
		if to.IsValid() != (r.Refused > 0) {
			t.Errorf("%v: %.2f refused", to, r.Refused)
		}
	}
	for _, f := range []func() (Rates, error){
		func() (Rates, error) { return SendRate(netip.AddrPort{}, 0, 1, time.Millisecond) },
		func() (Rates, error) { return SendRate(netip.AddrPort{}, 64, 0, time.Millisecond) },
		func() (Rates, error) { return SendRate(netip.MustParseAddrPort("127.0.0.1:9"), 65504, 1, 0) },
		// More than a datagram to a broadcast address takes: not allowed at all.
		func() (Rates, error) {
			return SendRate(netip.MustParseAddrPort("255.255.255.255:9"), 64, 1, time.Millisecond)
		},
	} {
		if r, err := f(); err == nil {
			t.Errorf("%+v", r)
		}
	}
}
