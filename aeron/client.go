package aeron

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"raftrig/loadgen"
)

const (
	// pollEvery is how long, in nanoseconds, Wait sleeps between two looks at
	// the log buffers while replies are due: they are shared memory, on which
	// nothing can be waited for. Half of it is added to a latency, on average.
	// A sleep costs some 10 us of CPU on a virtual machine that is busy, all
	// else of a request less than one.
	pollEvery = 100_000
	// pollIdle is the same while nothing is outstanding.
	pollIdle = 1_000_000
	// pollLimit bounds how many fragments one poll of the log reads.
	pollLimit = 32
	// tickPolls is after how many polls in a row the clock is read for the
	// session's timers.
	tickPolls = 64
)

// The first bytes of a payload say which request it is: its slot, and how often
// the slot has been used. The cluster sends the payload back as it is.
const correlationLen = 8

// Client sends one lane's requests to an Aeron cluster, in a session of its
// own. It writes them straight into the log buffer that it shares with the
// media driver, and reads the replies from one, all on the lane's thread;
// nothing is allocated on the path of a request. Beside it the library has one
// goroutine a client, which talks to the driver and takes no part in that path.
//
// The client is Ready when it has a session and the leader receives what is
// sent to it.
//
// How requests end:
//   - their payload comes back: OK.
//   - a new leader: Unknown, for all that are outstanding. The old one may have
//     committed them or not, and a leader drops what an older term sent.
//   - the session is lost: Unknown, and another is asked for.
//
// None ends as Failed: the cluster says nothing of a request that it did not
// take.
type Client struct {
	w       loadgen.Wiring
	session *session
	payload []byte // of every request, but for its first bytes
	slots   []slot

	completed int
	polls     uint // since the clock was read for the session's timers
	nap       unix.Timespec
	closed    bool
}

// slot is the state of one id.
type slot struct {
	use         uint32 // counts the requests that had this id
	outstanding bool
}

func newClient(w loadgen.Wiring, l link, endpoints []string, limit time.Duration) *Client {
	c := &Client{w: w, slots: make([]slot, w.Slots), payload: make([]byte, w.Size)}
	// Bytes that do not compress, the same in every run.
	rng := rand.New(rand.NewPCG(uint64(w.Lane), 0))
	for i := range c.payload {
		c.payload[i] = byte(rng.Uint32())
	}
	c.session = newSession(l, c, w.Clock, endpoints, limit)
	return c
}

// Ready implements loadgen.Client.
func (c *Client) Ready() bool { return c.session.ready }

// Leader returns the node that requests go to, from 1, and its term; 0 while
// there is no session.
func (c *Client) Leader() (node int, term uint64) {
	if c.session.state != stateOpen {
		return 0, 0
	}
	return c.session.leader + 1, uint64(c.session.term + 1)
}

// Submit implements loadgen.Client. It is false while the client is not Ready,
// and while the leader's window is full.
func (c *Client) Submit(id uint32) bool {
	s := &c.slots[id]
	if s.outstanding {
		panic(fmt.Sprintf("aeron: id %d submitted while outstanding", id))
	}
	b := c.session.claim(len(c.payload))
	if b == nil {
		return false
	}
	s.use++
	s.outstanding = true
	copy(b, c.payload)
	binary.LittleEndian.PutUint64(b, uint64(id)|uint64(s.use)<<32)
	c.session.commit()
	return true
}

// Flush implements loadgen.Client. A request that was submitted is the driver's
// already.
func (c *Client) Flush() error { return nil }

// Poll implements loadgen.Client.
func (c *Client) Poll() int {
	if c.closed {
		return 0
	}
	before := c.completed
	c.session.link.poll(pollLimit)
	if c.polls++; c.polls >= tickPolls {
		c.polls = 0
		c.session.tick(c.w.Clock.Now())
	}
	return c.completed - before
}

// Wait implements loadgen.Client. It looks for replies every 100 us.
func (c *Client) Wait(until int64) int {
	for {
		if n := c.Poll(); n > 0 || c.closed {
			return n
		}
		before, now := c.completed, c.w.Clock.Now()
		c.polls = 0
		c.session.tick(now)
		if n := c.completed - before; n > 0 || now >= until {
			return n
		}
		step := int64(pollEvery)
		if c.session.waiting == 0 && c.session.state == stateOpen {
			step = pollIdle
		}
		c.sleep(min(step, until-now))
	}
}

// sleep for ns nanoseconds; a signal may end it. It is a raw system call: for
// one that is announced, Go's scheduler wakes a thread to hand the processor to
// and takes it back, 20,000 times a second.
func (c *Client) sleep(ns int64) {
	c.nap = unix.NsecToTimespec(ns)
	syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&c.nap)), 0, 0)
}

// reply implements user.
func (c *Client) reply(payload []byte) (at int64) {
	// The read is what the fragment's length said; now is right after it.
	at = c.w.Clock.Now()
	if len(payload) != len(c.payload) {
		c.session.fail(fmt.Errorf("a reply of %d bytes to requests of %d: the service does not send back what it gets", len(payload), len(c.payload)))
		return 0
	}
	word := binary.LittleEndian.Uint64(payload)
	id, use := uint32(word), uint32(word>>32)
	if int(id) >= len(c.slots) {
		c.session.fail(fmt.Errorf("a reply to request %d of %d: the service does not send back what it gets", id, len(c.slots)))
		return 0
	}
	s := &c.slots[id]
	if !s.outstanding || s.use != use {
		return 0 // it has ended as unknown
	}
	c.complete(id, loadgen.OK, at)
	return at
}

func (c *Client) complete(id uint32, outcome loadgen.Outcome, at int64) {
	c.slots[id].outstanding = false
	c.completed++
	c.w.Complete(id, outcome, at)
}

// abandon implements user.
func (c *Client) abandon() int {
	before, now := c.completed, c.w.Clock.Now()
	for id := range c.slots {
		if c.slots[id].outstanding {
			c.complete(uint32(id), loadgen.Unknown, now)
		}
	}
	return c.completed - before
}

// event implements user.
func (c *Client) event(text string) { c.w.Event(text) }

// fail implements user. What is outstanding ends with Close.
func (c *Client) fail(err error) { c.w.Fail(err) }

// Close implements loadgen.Client. The cluster is told that the session ends.
func (c *Client) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	err := c.session.close()
	c.abandon()
	return err
}
