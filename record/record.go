// Package record holds the record of one run: what was asked, where it ran,
// what came out, and whether it can be trusted. loadgen writes it; sweep and
// other readers need nothing but this package, and it needs nothing of ours.
package record

import "time"

// Schema is the version of the document. A reader refuses a newer one. It
// grows when a field changes its meaning, not when one is added.
const Schema = 1

// Run is the record of one run, one JSON document. Times in it are
// nanoseconds where the name ends in _ns, seconds where it ends in _s, and
// microseconds where it ends in _us.
type Run struct {
	Schema  int    `json:"schema"`
	Product string `json:"product"`
	// Started is the wall-clock time of the first scheduled instant.
	Started time.Time `json:"started"`
	Knobs   Knobs     `json:"knobs"`
	Cluster Cluster   `json:"cluster"`
	// Environment is of the host that ran the client.
	Environment Environment `json:"environment"`

	// MeasuredS is the length of the measured window; shorter than
	// Knobs.MeasureS when the run was interrupted.
	MeasuredS float64 `json:"measured_s"`
	DrainedS  float64 `json:"drained_s"`
	// Warmup and Measured are decided by each request's scheduled instant (by
	// its send in closed mode).
	Warmup   Counters `json:"warmup"`
	Measured Counters `json:"measured"`
	// BacklogAtStart is how many requests of the warm-up were outstanding when
	// the measured window opened.
	BacklogAtStart int64 `json:"backlog_at_start"`
	// AckedTotal counts all acknowledged requests, warm-up included;
	// AppliedBefore is the cluster's applied count before the first. verify
	// holds one against the other.
	AckedTotal    int64  `json:"acked_total"`
	AppliedBefore uint64 `json:"applied_before"`

	// Latency runs from the scheduled instant (open) or the send (closed) to
	// the reply, Service from the send, Lag from the scheduled instant (open)
	// or the reply before (closed) to the send.
	Latency Distribution `json:"latency"`
	Service Distribution `json:"service"`
	Lag     Distribution `json:"lag"`

	// Little is throughput x mean latency / outstanding; closed mode only.
	Little float64  `json:"little,omitempty"`
	Rig    Rig      `json:"rig"`
	Series []Second `json:"series"`
	// Silence is the longest time in which requests were outstanding and none
	// was answered: where a leader was lost, what that cost. With several lanes
	// it is the longest of any lane.
	Silence Silence `json:"silence"`
	// Events are what the clients noted of connections and leaders, in order;
	// EventsLeftOff counts what was too much.
	Events        []Event `json:"events,omitempty"`
	EventsLeftOff int64   `json:"events_left_off,omitempty"`
	// Verdict is the rig's own judgement.
	Verdict Verdict `json:"verdict"`
}

// Knobs are the settings of the run, by the names of the Make variables.
type Knobs struct {
	Mode          string  `json:"mode"`
	Threads       int     `json:"threads,omitempty"`
	Rate          int64   `json:"rate,omitempty"`
	Burst         int     `json:"burst,omitempty"`
	Arrival       string  `json:"arrival,omitempty"`
	MaxInflight   int     `json:"max_inflight,omitempty"`
	WarmupS       float64 `json:"warmup_s"`
	MeasureS      float64 `json:"measure_s"`
	DrainTimeoutS float64 `json:"drain_timeout_s"`
	Pace          string  `json:"pace"`
	PaceReason    string  `json:"pace_reason"`
	// Idle is "poll" when idle CPUs of the client's host were kept awake.
	Idle    string            `json:"idle,omitempty"`
	Size    int               `json:"size"`
	Lanes   int               `json:"lanes"`
	Seed    uint64            `json:"seed"`
	Product map[string]string `json:"product,omitempty"`
}

// Cluster is what was under test.
type Cluster struct {
	// Topology is local, netns, single_az or multi_az; Emulated says that
	// delays between nodes were made, not found.
	Topology string `json:"topology"`
	Emulated bool   `json:"emulated,omitempty"`
	Nodes    []Node `json:"nodes"`
	// RTT is what make node-rtt last measured between the nodes; nil when it
	// did not.
	RTT *RTT `json:"rtt,omitempty"`
	// Leader and Term before the measured window and after it. 0: not known.
	LeaderBefore int    `json:"leader_before"`
	TermBefore   uint64 `json:"term_before"`
	LeaderAfter  int    `json:"leader_after"`
	TermAfter    uint64 `json:"term_after"`
	// Log says where the log is kept and whether it is synced.
	Log string `json:"log"`
	// Versions of the product, by component.
	Versions map[string]string `json:"versions,omitempty"`
}

// Node is one member of the cluster.
type Node struct {
	ID      int    `json:"id"`
	Addr    string `json:"addr"`
	Zone    string `json:"zone,omitempty"`
	Version string `json:"version,omitempty"`
	Err     string `json:"err,omitempty"`
}

// RTT holds round trips between the nodes, by ping over the addresses that they
// use among themselves.
type RTT struct {
	At         time.Time `json:"at"`
	IntervalMS float64   `json:"interval_ms"` // between two pings
	Pairs      []RTTPair `json:"pairs"`
}

// RTTPair is what one node measured of another, of N replies.
type RTTPair struct {
	From     int     `json:"from"`
	To       int     `json:"to"`
	FromZone string  `json:"from_zone,omitempty"`
	ToZone   string  `json:"to_zone,omitempty"`
	MinUS    float64 `json:"min_us"`
	AvgUS    float64 `json:"avg_us"`
	P50US    float64 `json:"p50_us"`
	P99US    float64 `json:"p99_us"`
	N        int     `json:"n"`
	Lost     int     `json:"lost"`
}

// Environment is the host that ran the client.
type Environment struct {
	Hostname       string  `json:"hostname"`
	OS             string  `json:"os"`
	Kernel         string  `json:"kernel"`
	KernelCmdline  string  `json:"kernel_cmdline"`
	Virtualization string  `json:"virtualization,omitempty"`
	CPU            string  `json:"cpu"`
	Cores          int     `json:"cores"`
	CoresAllowed   int     `json:"cores_allowed"`
	ClockSource    string  `json:"clock_source"`
	Governor       string  `json:"governor"`
	MemoryBytes    int64   `json:"memory_bytes"`
	LoadAverage    float64 `json:"load_average"`
	GoVersion      string  `json:"go_version"`
	GOMAXPROCS     int     `json:"gomaxprocs"`
	// Commit of raftrig, with "-dirty" when the tree had changes.
	Commit string `json:"commit"`
}

// Counters count requests of one window. Offered is always the sum of OK,
// Failed, Unanswered and the two causes of Dropped; a run where it is not says
// so in its verdict.
type Counters struct {
	Offered int64 `json:"offered"`
	OK      int64 `json:"ok"`
	// Failed: answered with an error, certainly not applied.
	Failed int64 `json:"failed"`
	// Unanswered: no answer when the drain ended (NoReply), or the answer was
	// lost with its connection or leader (Lost). Perhaps applied.
	Unanswered      int64 `json:"unanswered"`
	NoReply         int64 `json:"no_reply"`
	Lost            int64 `json:"lost"`
	DroppedCap      int64 `json:"dropped_cap"`
	DroppedNoLeader int64 `json:"dropped_no_leader"`
}

// Dropped is what the rig did not send, for either cause.
func (c Counters) Dropped() int64 { return c.DroppedCap + c.DroppedNoLeader }

// Plus adds two windows, or the same window of two lanes.
func (c Counters) Plus(d Counters) Counters {
	c.Offered += d.Offered
	c.OK += d.OK
	c.Failed += d.Failed
	c.Unanswered += d.Unanswered
	c.NoReply += d.NoReply
	c.Lost += d.Lost
	c.DroppedCap += d.DroppedCap
	c.DroppedNoLeader += d.DroppedNoLeader
	return c
}

// Balanced says whether every offered request is accounted for exactly once.
func (c Counters) Balanced() bool {
	return c.Offered == c.OK+c.Failed+c.Unanswered+c.Dropped() && c.Unanswered == c.NoReply+c.Lost
}

// Distribution is one histogram of the measured window.
type Distribution struct {
	// Count is how many values were recorded: for latency and service, the
	// requests that were answered.
	Count  int64   `json:"count"`
	MeanUS float64 `json:"mean_us"`
	MaxUS  float64 `json:"max_us"`
	// Beyond counts requests that rank above every recorded value: the
	// unanswered. A percentile that falls among them is at least BeyondUS.
	Beyond   int64   `json:"beyond"`
	BeyondUS float64 `json:"beyond_us,omitempty"`
	// Percentiles in ascending order of Rank.
	Percentiles []Percentile `json:"percentiles"`
	// Histogram is the HdrHistogram V2 compressed encoding in base64, values
	// in nanoseconds.
	Histogram string `json:"histogram"`
}

// Percentile is one point of a distribution.
type Percentile struct {
	// Rank in percent, 0 to 100.
	Rank float64 `json:"rank"`
	US   float64 `json:"us"`
	// AtLeast marks a percentile that falls among the unanswered: the true
	// value is US or more.
	AtLeast bool `json:"at_least,omitempty"`
}

// Second is one second of the run, counted from its first scheduled instant.
// Rows count events by when they happened: what was due, sent and completed
// within the second.
type Second struct {
	// Second counts from 0.
	Second int `json:"s"`
	// Phase is warmup, measure or drain.
	Phase    string  `json:"phase"`
	Offered  int64   `json:"offered"`
	Sent     int64   `json:"sent"`
	OK       int64   `json:"ok"`
	Failed   int64   `json:"failed"`
	Lost     int64   `json:"lost"`
	Dropped  int64   `json:"dropped"`
	MeanUS   float64 `json:"mean_us"`
	MaxUS    float64 `json:"max_us"`
	LagMaxUS float64 `json:"lag_max_us"`
	InFlight int64   `json:"in_flight"`
}

// Silence is a stretch of time without a reply.
type Silence struct {
	// AtS is when it began, in seconds from the run's first instant.
	AtS float64 `json:"at_s"`
	S   float64 `json:"s"`
}

// Event is something that a lane's client noted.
type Event struct {
	// AtS is when, in seconds from the run's first instant.
	AtS  float64 `json:"at_s"`
	Lane int     `json:"lane"`
	Text string  `json:"text"`
}

// Rig is what the rig measured of itself.
type Rig struct {
	// CPUUSPerRequest is the CPU time of the client process over the measured
	// window, user and system, divided by the requests completed in it.
	CPUUSPerRequest float64 `json:"cpu_us_per_request"`
	CPUShare        float64 `json:"cpu_share"`
	// LaneCPUShare is the smallest share of wall time that a lane's thread
	// spent on a CPU; with PACE=spin anything below 1 was taken from it.
	LaneCPUShare float64 `json:"lane_cpu_share"`
	// RealTime says that the lanes' threads ran at real-time priority, which
	// parked ones do where the user may.
	RealTime       bool    `json:"real_time"`
	GCPauses       int     `json:"gc_pauses"`
	GCPauseMaxUS   float64 `json:"gc_pause_max_us"`
	Backpressure   int64   `json:"backpressure"`
	OutOfRange     int64   `json:"out_of_range"`
	Violations     int64   `json:"violations"`
	Interrupted    bool    `json:"interrupted,omitempty"`
	InterruptedAtS float64 `json:"interrupted_at_s,omitempty"`
	// Fault is why a client ended the run: a wrong reply, or the loss of what
	// it cannot do without.
	Fault string `json:"fault,omitempty"`
}

// Verdict is VALID, or INVALID with every reason.
type Verdict struct {
	Valid   bool     `json:"valid"`
	Reasons []Reason `json:"reasons,omitempty"`
	// Limits the run was judged by, flag name to value.
	Limits map[string]string `json:"limits"`
}

// Reason is one cause of an INVALID verdict.
type Reason struct {
	// Code names the check: achieved, dropped, lag, little, errors,
	// unanswered, leader, spare-core, gc, interrupted, fault, accounting.
	Code string `json:"code"`
	// Text is the line printed: the figure, its limit, and what to do.
	Text  string  `json:"text"`
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
}
