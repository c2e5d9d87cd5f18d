package model

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Point is one run of a sweep.
type Point struct {
	// Offered and Achieved in messages a second.
	Offered  float64 `json:"offered_per_s"`
	Achieved float64 `json:"achieved_per_s"`
	// P50US is the median latency in microseconds.
	P50US float64 `json:"p50_us"`
}

// Fitted is a latency curve put through a sweep.
type Fitted struct {
	// TransitUS is the latency without queueing, in microseconds.
	TransitUS float64 `json:"transit_us"`
	// Capacity in messages a second.
	Capacity float64 `json:"capacity_per_s"`
	// Bounded says that a run of the sweep was saturated. Without one the
	// capacity is an extrapolation.
	Bounded bool        `json:"bounded"`
	Points  []Predicted `json:"points"`
	// RMSPercent is the root mean square of the errors, of the runs that were
	// fitted.
	RMSPercent float64 `json:"rms_percent"`
}

// Predicted sets a point beside the curve.
type Predicted struct {
	Point
	Rho    float64 `json:"rho"`
	Regime Regime  `json:"regime"`
	// PredictedUS is the curve's latency, 0 where it is saturated: there a rig's
	// in-flight cap decides.
	PredictedUS  float64 `json:"predicted_us"`
	ErrorPercent float64 `json:"error_percent"`
	// Fitted says that the point went into the fit.
	Fitted bool `json:"fitted"`
}

// carried says whether the run held its rate.
func (p Point) carried() bool { return p.Achieved >= sustained*p.Offered }

// sustained is the share of the offered rate from which a run carried it.
const sustained = 0.99

// Fit puts latency = transit + batch/capacity x rho/(1-rho), rho =
// offered/capacity, through the runs that carried their rate; batch is messages
// a datagram (Path.PerDatagram). It minimises the squared relative errors: for a
// given capacity the best transit has a closed form, so only the capacity is
// searched. It lies above every rate that was carried; a run that did not carry
// its rate bounds it by what it achieved.
func Fit(points []Point, batch int) (Fitted, error) {
	if batch < 1 {
		return Fitted{}, fmt.Errorf("batch %d: want 1 or more messages a datagram", batch)
	}
	points = slices.Clone(points)
	slices.SortFunc(points, func(a, b Point) int { return cmp.Compare(a.Offered, b.Offered) })
	f := Fitted{}
	var used []Point
	var lowest, highest float64 // bounds of the capacity
	for _, p := range points {
		if !(p.Offered > 0) || !(p.P50US > 0) || !(p.Achieved >= 0) || math.IsInf(p.Offered+p.P50US+p.Achieved, 0) {
			return Fitted{}, fmt.Errorf("offered %g, achieved %g, p50 %g us: want figures above 0", p.Offered, p.Achieved, p.P50US)
		}
		if p.carried() {
			used = append(used, p)
			lowest = max(lowest, p.Offered)
		} else {
			f.Bounded = true
		}
		highest = max(highest, p.Achieved)
	}
	if len(used) < 3 {
		return Fitted{}, fmt.Errorf("%d runs carried their rate: want 3 or more for a fit", len(used))
	}
	if !f.Bounded {
		highest = 20 * lowest
	}
	// What a saturated run achieved may lie below a rate that was carried.
	highest = max(highest, 1.01*lowest)
	curve := func(capacity, transit, rate float64) float64 {
		rho := rate / capacity
		return transit + float64(batch)/capacity*1e6*rho/(1-rho)
	}
	// transit minimises sum(((transit + q) - y)^2 / y^2).
	fit := func(capacity float64) (transit, sum float64) {
		var num, den float64
		for _, p := range used {
			w := 1 / (p.P50US * p.P50US)
			num += w * (p.P50US - curve(capacity, 0, p.Offered))
			den += w
		}
		transit = max(0, num/den)
		for _, p := range used {
			e := curve(capacity, transit, p.Offered)/p.P50US - 1
			sum += e * e
		}
		return transit, sum
	}
	// The error has one valley on either side of which it grows, but is steep
	// just above the highest rate: a scan in equal ratios, then thirds.
	lo, hi := lowest*1.0001, highest
	const steps = 400
	best, at := math.Inf(1), 0
	ratio := math.Pow(hi/lo, 1.0/steps)
	for i := range steps + 1 {
		if _, e := fit(lo * math.Pow(ratio, float64(i))); e < best {
			best, at = e, i
		}
	}
	a, b := lo*math.Pow(ratio, float64(max(at-1, 0))), lo*math.Pow(ratio, float64(min(at+1, steps)))
	for range 100 {
		x, y := a+(b-a)/3, b-(b-a)/3
		_, ex := fit(x)
		if _, ey := fit(y); ex < ey {
			b = y
		} else {
			a = x
		}
	}
	f.Capacity = (a + b) / 2
	var sum float64
	f.TransitUS, sum = fit(f.Capacity)
	f.RMSPercent = 100 * math.Sqrt(sum/float64(len(used)))
	for _, p := range points {
		q := Predicted{Point: p, Rho: p.Offered / f.Capacity, Fitted: p.carried()}
		q.Regime = RegimeAt(q.Rho)
		if q.Regime != Saturated {
			q.PredictedUS = curve(f.Capacity, f.TransitUS, p.Offered)
			q.ErrorPercent = 100 * (q.PredictedUS/p.P50US - 1)
		}
		f.Points = append(f.Points, q)
	}
	return f, nil
}
