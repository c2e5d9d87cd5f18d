package loadgen

// Client is one lane's connection to a system under test. The lane calls
// every method from one goroutine, on one locked OS thread.
//
// Ids are slots, 0 to Wiring.Slots-1, so a client keeps the state of a request
// in arrays and allocates nothing on its path. Each id that Submit accepted
// completes exactly once, through Wiring.Complete; after that the lane may
// submit it again.
type Client interface {
	// Ready says whether a leader is known. While it is not, open mode drops
	// the requests that fall due and counts them; closed mode waits.
	Ready() bool

	// Submit starts request id and returns at once. False means "not now"
	// (back-pressure): the lane polls and tries again, and the wait is charged
	// to the request.
	Submit(id uint32) bool

	// Flush sends what Submit buffered. The lane calls it after the last
	// request of an instant. It does not wait: what the socket does not take
	// now leaves with a later Poll. An error is for the log; the requests it
	// concerns are completed through Poll.
	Flush() error

	// Poll drives I/O without waiting and returns how many completions it
	// delivered.
	Poll() int

	// Wait is Poll that may block until I/O is ready or the lane's clock
	// reaches until (nanoseconds). It may return early.
	Wait(until int64) int

	// Close ends every outstanding id as Unknown and frees what the client
	// holds. Nothing completes after it.
	Close() error
}

// Wiring is what a lane gives to its client: who it is, how many requests it
// may have outstanding, and where completions go.
type Wiring struct {
	// Lane is the lane's number, from 0.
	Lane int
	// Lanes is how many lanes the run has.
	Lanes int
	// Slots bounds the ids: 0 to Slots-1.
	Slots int
	// Size is the request's payload in bytes.
	Size int
	// Clock is the lane's clock. A completion's time is read from it right
	// after the read that delivered the reply.
	Clock Clock
	// Complete ends request id. at is when its reply had been read, in
	// nanoseconds of Clock. It is called from within Poll, Wait, Submit, Flush
	// or Close, never from another goroutine.
	Complete func(id uint32, outcome Outcome, at int64)
	// Event notes for the record what happened to a connection or the leader:
	// rare things, in a few words. It is called where Complete may be.
	Event func(text string)
	// Fail ends the run, which is then a failure: a reply was wrong, or what
	// the client cannot do without is gone. The first error counts. It is
	// called where Complete may be; the lane goes on to use the client until
	// it calls Close.
	Fail func(err error)
}

// Outcome is how a request ended, as far as the client can know.
type Outcome uint8

const (
	// OK: acknowledged by the system.
	OK Outcome = iota
	// Failed: answered with an error, certainly not applied.
	Failed
	// Unknown: perhaps applied. The connection was lost, or the leader
	// lost its office with the request on its way.
	Unknown
)

func (o Outcome) String() string {
	switch o {
	case OK:
		return "ok"
	case Failed:
		return "failed"
	case Unknown:
		return "unknown"
	}
	return "invalid outcome"
}

// Clock tells the time in nanoseconds from an arbitrary origin; it never goes
// back.
type Clock interface {
	Now() int64
}
