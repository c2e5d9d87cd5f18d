package aeron

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	aerongo "github.com/lirm/aeron-go/aeron"
	buffers "github.com/lirm/aeron-go/aeron/atomic"
	"github.com/lirm/aeron-go/aeron/logbuffer"
	"github.com/lirm/aeron-go/aeron/logbuffer/term"
	"github.com/lirm/aeron-go/aeron/logging"
)

// frameHeaderLen is what precedes every message in a log buffer, and its flags
// in there. (Source: DataHeaderFlyweight of Aeron.)
const (
	frameHeaderLen = 32
	frameFlagsAt   = 5
	// unfragmented: the frame begins a message and ends it.
	unfragmented = 0xc0
)

func init() {
	// The library logs to stderr, where the live line is. What it has to say
	// comes as errors too.
	for _, name := range []string{"aeron", "counters", "driver", "logbuffers", "memmap"} {
		logging.SetLevel(logging.CRITICAL, name)
	}
}

// channels are what a link opens.
type channels struct {
	egress  string // with port 0
	ingress func(endpoint string) string
}

// driverLink is a link to a media driver on this host, through aeron-go.
//
// The library's functions that are used here are safe to call beside its
// conductor goroutine: it hands over images by atomic pointers and guards the
// rest by a lock that is taken when something is opened or closed. Its waiting
// functions (AddPublication and the like) are not used, nor is its idling.
//
// Two things end the process, which the rig then finds as a record of up to ten
// seconds before: an event of the driver that the library does not know, of
// which the driver sends none to a client that only publishes and subscribes
// (hence a driver for the client alone), and a length in the shared files that
// exceeds them.
type driverLink struct {
	channels
	aeron    *aerongo.Aeron
	cnc      *cnc
	failure  atomic.Pointer[error] // of the conductor
	sub      *aerongo.Subscription
	subID    int64
	fragment term.FragmentHandler
}

// openDriver connects to the media driver in dir.
func openDriver(dir string, ch channels) (*driverLink, error) {
	c, err := openCnc(dir)
	if err != nil {
		return nil, err
	}
	d := &driverLink{channels: ch, cnc: c}
	ctx := aerongo.NewContext().AeronDir(dir).MediaDriverTimeout(driverTimeout).ErrorHandler(func(err error) {
		d.failure.CompareAndSwap(nil, &err)
	})
	if d.aeron, err = aerongo.Connect(ctx); err != nil {
		c.close()
		return nil, fmt.Errorf("the media driver in %s: %w", dir, err)
	}
	if d.subID, err = d.aeron.AsyncAddSubscription(ch.egress, egressStream); err != nil {
		d.close()
		return nil, fmt.Errorf("the media driver in %s: %w", dir, err)
	}
	return d, nil
}

// onFragment implements link.
func (d *driverLink) onFragment(f func(b []byte, whole bool)) {
	d.fragment = func(buf *buffers.Buffer, offset, length int32, _ *logbuffer.Header) {
		at := unsafe.Add(buf.Ptr(), offset)
		flags := *(*uint8)(unsafe.Add(at, frameFlagsAt-frameHeaderLen))
		f(unsafe.Slice((*byte)(at), length), flags&unfragmented == unfragmented)
	}
}

// poll implements link.
func (d *driverLink) poll(limit int) int {
	if d.sub == nil {
		return 0
	}
	return d.sub.Poll(d.fragment, limit)
}

// responseChannel implements link.
func (d *driverLink) responseChannel() (string, error) {
	if d.sub == nil {
		sub, err := d.aeron.GetSubscription(d.subID)
		if err != nil || sub == nil {
			return "", err
		}
		d.sub = sub
	}
	if d.sub.ChannelStatus() == aerongo.ChannelStatusErrored {
		return "", errors.New("the driver could not open " + d.egress)
	}
	if d.sub.ResolvedEndpoint() == "" {
		return "", nil
	}
	return d.sub.TryResolveChannelEndpointPort(), nil
}

// correlation implements link.
func (d *driverLink) correlation() int64 { return d.aeron.NextCorrelationID() }

// check implements link.
func (d *driverLink) check() error {
	if err := d.cnc.check(); err != nil {
		return err
	}
	if err := d.failure.Load(); err != nil {
		return fmt.Errorf("the media driver in %s: %w", d.cnc.dir, *err)
	}
	return nil
}

// close implements link.
func (d *driverLink) close() error {
	if d.sub != nil {
		_ = d.sub.Close()
		d.sub = nil
	}
	return errors.Join(d.aeron.Close(), d.cnc.close())
}

// dial implements link.
func (d *driverLink) dial(endpoint string) (ingress, error) {
	id, err := d.aeron.AsyncAddExclusivePublication(d.ingress(endpoint), ingressStream)
	if err != nil {
		return nil, err
	}
	return &publication{link: d, id: id}, nil
}

// publication is an ingress by aeron-go.
type publication struct {
	link  *driverLink
	id    int64
	pub   *aerongo.Publication // nil until the driver has made it
	space logbuffer.Claim
}

// connected implements ingress.
func (p *publication) connected() (bool, error) {
	if p.pub == nil {
		pub, err := p.link.aeron.GetExclusivePublication(p.id)
		if err != nil || pub == nil {
			return false, err
		}
		p.pub = pub
	}
	return p.pub.IsConnected(), nil
}

// claim implements ingress.
func (p *publication) claim(n int) ([]byte, int64) {
	if p.pub == nil {
		return nil, notConnected
	}
	if code := p.pub.TryClaim(int32(n), &p.space); code <= 0 {
		return nil, code
	}
	return unsafe.Slice((*byte)(unsafe.Add(p.space.Buffer().Ptr(), frameHeaderLen)), n), 0
}

// commit implements ingress.
func (p *publication) commit() { p.space.Commit() }

// close implements ingress. What the driver has not made yet goes with the
// link.
func (p *publication) close() {
	if _, err := p.connected(); err == nil && p.pub != nil {
		_ = p.pub.Close()
	}
}
