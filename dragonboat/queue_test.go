package dragonboat

import (
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/lni/dragonboat/v4"

	"raftrig/gateway"
)

// The library's result codes, which it does not export.
const (
	timedOut = iota
	completed
	terminated
	rejected
	dropped
	aborted
)

func result(code int) (r dragonboat.RequestResult) {
	f := reflect.ValueOf(&r).Elem().FieldByName("code")
	reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem().SetInt(int64(code))
	return r
}

func TestEndOf(t *testing.T) {
	for _, c := range []struct {
		code int
		is   func(*dragonboat.RequestResult) bool
		want gateway.End
	}{
		{timedOut, (*dragonboat.RequestResult).Timeout, gateway.Uncertain},
		{completed, (*dragonboat.RequestResult).Completed, gateway.Applied},
		{terminated, (*dragonboat.RequestResult).Terminated, gateway.Uncertain},
		{rejected, (*dragonboat.RequestResult).Rejected, gateway.Uncertain},
		{dropped, (*dragonboat.RequestResult).Dropped, gateway.Rejected},
		{aborted, (*dragonboat.RequestResult).Aborted, gateway.Uncertain},
	} {
		r := result(c.code)
		if !c.is(&r) {
			t.Fatalf("code %d of the library means something else", c.code)
		}
		end, err := endOf(r)
		if end != c.want || (err == nil) != (end == gateway.Applied) {
			t.Errorf("code %d is %d, %v, want %d", c.code, end, err, c.want)
		}
	}
}

type scriptedRequest struct {
	results  chan dragonboat.RequestResult
	released atomic.Bool
}

func (r *scriptedRequest) ResultC() chan dragonboat.RequestResult { return r.results }
func (r *scriptedRequest) Release()                               { r.released.Store(true) }

func newRequest() *scriptedRequest {
	return &scriptedRequest{results: make(chan dragonboat.RequestResult, 1)}
}

type queueFixture struct {
	t    *testing.T
	q    *queue
	term atomic.Uint64 // led in; 0: none
	ends chan endSeen
	next uint32
	// again answers for what was dropped
	again func(*pending) error
}

type endSeen struct {
	id  uint32
	end gateway.End
	err error
}

// Done implements gateway.Sink.
func (f *queueFixture) Done(id uint32, e gateway.End, err error) { f.ends <- endSeen{id, e, err} }

func newQueueFixture(t *testing.T, grace time.Duration) *queueFixture {
	f := &queueFixture{t: t, ends: make(chan endSeen, 1000)}
	f.again = func(*pending) error { return errNotLeader }
	f.q = newQueue(func() (uint64, bool) { n := f.term.Load(); return n, n > 0 }, func(p *pending) error { return f.again(p) }, grace)
	f.term.Store(1)
	go f.q.run()
	t.Cleanup(func() {
		f.q.close()
		<-f.q.ended
		select {
		case e := <-f.ends:
			t.Errorf("one end too many: %+v", e)
		default:
		}
		if !f.q.empty() {
			t.Error("not empty")
		}
	})
	return f
}

func (f *queueFixture) add(n int, term uint64) (requests []*scriptedRequest) {
	var batch []pending
	for range n {
		r := newRequest()
		requests = append(requests, r)
		batch = append(batch, pending{r, f, f.next, term, nil})
		f.next++
	}
	f.q.add(batch)
	return requests
}

func (f *queueFixture) want(id uint32, end gateway.End) endSeen {
	f.t.Helper()
	select {
	case e := <-f.ends:
		if e.id != id || e.end != end {
			f.t.Fatalf("%+v, want proposal %d and %d", e, id, end)
		}
		return e
	case <-time.After(time.Minute):
		f.t.Fatalf("proposal %d has no end", id)
	}
	return endSeen{}
}

func TestQueueEndsInOrder(t *testing.T) {
	f := newQueueFixture(t, time.Hour)
	r := f.add(300, 1)
	for i := 299; i >= 0; i-- { // in whatever order the results come
		r[i].results <- result(completed)
	}
	for i := range r {
		f.want(uint32(i), gateway.Applied)
		if !r[i].released.Load() {
			t.Error("not released")
		}
	}
	more := f.add(2, 1)
	if f.q.empty() {
		t.Error("empty with two on their way")
	}
	more[0].results <- result(terminated)
	f.want(300, gateway.Uncertain)
	more[1].results <- result(timedOut)
	f.want(301, gateway.Uncertain)
}

func TestQueueGivesUpWhenTheOfficeIsLost(t *testing.T) {
	f := newQueueFixture(t, time.Millisecond)
	r := f.add(5, 1)
	r[3].results <- result(completed) // what the next leader has finished
	select {
	case e := <-f.ends:
		t.Fatalf("%+v while in office", e)
	case <-time.After(20 * time.Millisecond): // many times the grace
	}
	f.term.Store(0)
	f.q.leadershipChanged()
	for i := range uint32(3) {
		if e := f.want(i, gateway.Uncertain); e.err != errLeadershipLost || r[i].released.Load() {
			t.Errorf("%+v, released %v", e, r[i].released.Load())
		}
	}
	f.want(3, gateway.Applied)
	f.want(4, gateway.Uncertain)
	f.term.Store(7) // in office again: what comes now waits
	f.q.leadershipChanged()
	again := f.add(1, 7)
	again[0].results <- result(completed)
	f.want(5, gateway.Applied)
}

func TestQueueLetsTheNextLeaderFinish(t *testing.T) {
	f := newQueueFixture(t, time.Hour)
	r := f.add(3, 1)
	f.term.Store(0)
	f.q.leadershipChanged()
	f.term.Store(2)
	f.q.leadershipChanged()
	for i := range r {
		r[i].results <- result(completed)
		f.want(uint32(i), gateway.Applied)
	}
}

func TestQueueProposesAgain(t *testing.T) {
	f := newQueueFixture(t, time.Hour)
	second := newRequest()
	f.again = func(p *pending) error {
		if p.id > 0 {
			return errors.New("no")
		}
		p.request = second
		return nil
	}
	r := f.add(2, 1)
	r[0].results <- result(dropped)
	r[1].results <- result(dropped)
	second.results <- result(completed)
	f.want(0, gateway.Applied)
	f.want(1, gateway.Rejected)
	if !r[0].released.Load() || !second.released.Load() {
		t.Error("not released")
	}
}

func TestQueueQuiet(t *testing.T) {
	f := newQueueFixture(t, time.Hour)
	if !f.q.quietFor(time.Hour) {
		t.Error("not quiet before anything happened")
	}
	f.q.leadershipChanged()
	if f.q.quietFor(time.Hour) || !f.q.quietFor(0) {
		t.Error("quiet is not counted from a new leader's entry")
	}
	r := f.add(1, 1)
	if f.q.quietFor(0) {
		t.Error("quiet with a proposal on its way")
	}
	r[0].results <- result(completed)
	f.want(0, gateway.Applied)
}
