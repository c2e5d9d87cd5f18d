package loadgen

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/HdrHistogram/hdrhistogram-go"

	"raftrig/record"
)

const second = int64(1e9)

// Histogram of durations in nanoseconds.
type Histogram = hdrhistogram.Histogram

// Histograms of one stretch of time, in nanoseconds. They hold requests of
// the measured window only.
type Histograms struct {
	Latency, Service, Lag *Histogram
}

func newHistograms(highest int64) Histograms {
	h := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, highest, 3) }
	return Histograms{h(), h(), h()}
}

func (h Histograms) merge(from Histograms) {
	h.Latency.Merge(from.Latency)
	h.Service.Merge(from.Service)
	h.Lag.Merge(from.Lag)
}

func (h Histograms) reset() {
	h.Latency.Reset()
	h.Service.Reset()
	h.Lag.Reset()
}

// tally is what a lane counts besides histograms. It is copied whole when an
// interval is handed over.
type tally struct {
	windows [2]record.Counters // by window: warmup, measure
	backlog int64

	latencyMax, serviceMax, lagMax int64 // exact, of the measured window

	// The longest time without a reply while requests were outstanding, and
	// when it began, counted from the run's first instant.
	silence, silentFrom int64

	backpressure int64
	outOfRange   int64
	violations   int64

	events        []record.Event // only ever appended to
	eventsLeftOff int64
}

const (
	warmup = iota
	measure
)

// row is one second of events.
type row struct {
	offered, sent, ok, failed, lost, dropped int64
	sum, max, lagMax                         int64 // of those answered: ok and failed
	inflight                                 int64
}

// interval is what a lane recorded since it handed over the one before.
type interval struct {
	Histograms
	tally tally
}

// recorder takes what one lane measures. One goroutine writes it; a reporter
// on another takes rows that are complete and intervals that were handed
// over. The request path has no lock: a handover is one exchange of pointers
// a second, and when the reporter is late the interval just grows.
type recorder struct {
	tally
	cur  *interval
	rows []row
	now  int  // index of the current second
	row  *row // its row

	complete atomic.Int64 // rows below it no longer change
	full     atomic.Pointer[interval]
	spare    atomic.Pointer[interval]
}

func newRecorder(c Config) *recorder {
	total := (c.Warmup + c.Measure + c.DrainTimeout).Nanoseconds()
	highest := max(60*second, total+total/10)
	r := &recorder{
		cur:  &interval{Histograms: newHistograms(highest)},
		rows: make([]row, total/second+3),
	}
	r.row = &r.rows[0]
	r.spare.Store(&interval{Histograms: newHistograms(highest)})
	return r
}

// roll closes every row before the given second and hands the interval over.
func (r *recorder) roll(to int, inflight int64) {
	to = min(to, len(r.rows)-1)
	for r.now < to {
		r.row.inflight = inflight
		r.now++
		r.row = &r.rows[r.now]
	}
	r.complete.Store(int64(r.now))
	if r.full.Load() != nil {
		return
	}
	if spare := r.spare.Swap(nil); spare != nil {
		r.cur.tally = r.tally
		r.full.Store(r.cur)
		r.cur = spare
	}
}

// record v in h.
func (r *recorder) record(h *Histogram, v int64, top *int64) {
	if v > *top {
		*top = v
	}
	if h.RecordValue(v) != nil {
		r.beyond(h, v)
	}
}

// beyond takes a value that h does not, and tells of it: one beyond its end
// counts there; one below 0 counts at 0, and only a completion stamped before
// its request was sent can be that.
func (r *recorder) beyond(h *Histogram, v int64) {
	if v < 0 {
		r.violations++
		_ = h.RecordValue(0)
		return
	}
	r.outOfRange++
	_ = h.RecordValue(h.HighestTrackableValue())
}

// collector gathers what the lanes recorded. One goroutine uses it.
type collector struct {
	cfg     Config
	lanes   []*recorder
	total   Histograms
	scratch Histograms
	tallies []tally
	rows    []record.Second
}

func newCollector(c Config, lanes []*recorder) *collector {
	highest := lanes[0].cur.Latency.HighestTrackableValue()
	return &collector{
		cfg: c, lanes: lanes,
		total: newHistograms(highest), scratch: newHistograms(highest),
		tallies: make([]tally, len(lanes)),
	}
}

// take merges the intervals handed over and returns them together, valid
// until the next call.
func (c *collector) take() Histograms {
	c.scratch.reset()
	for i, r := range c.lanes {
		iv := r.full.Swap(nil)
		if iv == nil {
			continue
		}
		c.scratch.merge(iv.Histograms)
		c.tallies[i] = iv.tally
		iv.reset()
		r.spare.Store(iv)
	}
	c.total.merge(c.scratch)
	return c.scratch
}

// last takes the rest when every lane has ended.
func (c *collector) last() Histograms {
	h := c.take()
	for i, r := range c.lanes {
		h.merge(r.cur.Histograms)
		c.total.merge(r.cur.Histograms)
		c.tallies[i] = r.tally
		r.complete.Store(int64(min(r.now+1, len(r.rows))))
	}
	return h
}

// seconds returns the rows that all lanes have completed since the last call.
func (c *collector) seconds() []record.Second {
	done := int64(len(c.lanes[0].rows))
	for _, r := range c.lanes {
		done = min(done, r.complete.Load())
	}
	from := len(c.rows)
	for s := from; s < int(done); s++ {
		var sum row
		for _, r := range c.lanes {
			x := &r.rows[s]
			sum.offered += x.offered
			sum.sent += x.sent
			sum.ok += x.ok
			sum.failed += x.failed
			sum.lost += x.lost
			sum.dropped += x.dropped
			sum.sum += x.sum
			sum.inflight += x.inflight
			sum.max = max(sum.max, x.max)
			sum.lagMax = max(sum.lagMax, x.lagMax)
		}
		out := record.Second{
			Second: s, Phase: c.phase(s),
			Offered: sum.offered, Sent: sum.sent, OK: sum.ok, Failed: sum.failed,
			Lost: sum.lost, Dropped: sum.dropped, InFlight: sum.inflight,
			MaxUS: us(sum.max), LagMaxUS: us(sum.lagMax),
		}
		if n := sum.ok + sum.failed; n > 0 {
			out.MeanUS = us(sum.sum) / float64(n)
		}
		c.rows = append(c.rows, out)
	}
	return c.rows[from:]
}

// phase of the second that begins at s.
func (c *collector) phase(s int) string {
	at := int64(s) * second
	switch {
	case at < c.cfg.Warmup.Nanoseconds():
		return "warmup"
	case at < (c.cfg.Warmup + c.cfg.Measure).Nanoseconds():
		return "measure"
	}
	return "drain"
}

// sum of the tallies of all lanes.
func (c *collector) sum() tally {
	var t tally
	for _, x := range c.tallies {
		for w := range t.windows {
			t.windows[w] = t.windows[w].Plus(x.windows[w])
		}
		t.backlog += x.backlog
		t.latencyMax = max(t.latencyMax, x.latencyMax)
		t.serviceMax = max(t.serviceMax, x.serviceMax)
		t.lagMax = max(t.lagMax, x.lagMax)
		t.backpressure += x.backpressure
		t.outOfRange += x.outOfRange
		t.violations += x.violations
		if x.silence > t.silence {
			t.silence, t.silentFrom = x.silence, x.silentFrom
		}
		t.events = append(t.events, x.events...)
		t.eventsLeftOff += x.eventsLeftOff
	}
	slices.SortStableFunc(t.events, func(a, b record.Event) int { return cmp.Compare(a.AtS, b.AtS) })
	return t
}

func us(ns int64) float64 { return float64(ns) / 1e3 }
