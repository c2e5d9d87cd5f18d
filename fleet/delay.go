package fleet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// delaySlots is how many frames the router holds; above that the devices'
	// own queues fill.
	delaySlots = 8192
	// maxEthernetBytes is the largest Ethernet frame at an MTU of 1500, with a VLAN tag.
	maxEthernetBytes = 1518
	// delayBatch bounds how many frames are read from one port before the
	// others have their turn.
	delayBatch = 64
	// maxEarly bounds how long before its instant a frame is waited for without
	// sleep.
	maxEarly = 100 * time.Microsecond
)

// DelayRouter carries Ethernet frames between the zones of a Netns, each after
// oneWay, for kernels that have no netem. It serves until it is killed. It
// prints a line with "ready" when it carries frames.
//
// A frame's instant is counted from when it was read, and it is never written
// before: a round trip takes the delay and what the host itself needs for it.
// How late this host wakes up a sleeper is measured first, and so much earlier
// the router wakes up and polls.
func DelayRouter(netns string, oneWay time.Duration, stdout io.Writer) error {
	if oneWay <= 0 || oneWay > maxRTT {
		return fmt.Errorf("delay router: %v: want up to %v", oneWay, maxRTT)
	}
	runtime.LockOSThread()
	if err := enter(netns); err != nil {
		return err
	}
	d := &delayer{oneWay: oneWay, stop: -1}
	for z := 1; z <= Nodes; z++ {
		fd, err := openTap(uplink(z))
		if err != nil {
			return fmt.Errorf("delay router: %s: %w", uplink(z), err)
		}
		d.ports = append(d.ports, fd)
	}
	for _, h := range netHosts() {
		d.zones[h.lastByte()] = byte(h.zone)
	}
	realTime := tuneRouter()
	early, err := d.calibrate()
	if err != nil {
		return fmt.Errorf("delay router: %w", err)
	}
	fmt.Fprintf(stdout, "ready: %v each way, wakes up %v early, real-time priority %v\n", oneWay, early, realTime)
	return d.serve()
}

// openTap opens a TAP device of this thread's namespace.
func openTap(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("/dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// tuneRouter gives this thread exact timers, and real-time priority where it
// may have it.
func tuneRouter() (realTime bool) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	if runtime.NumCPU() < 2 {
		return false // it would keep the only core to itself while it polls
	}
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0) == nil
}

// held is a frame on its way.
type held struct {
	due  int64 // CLOCK_MONOTONIC in ns
	to   uint8 // bit i: port i
	size int
	data [maxEthernetBytes]byte
}

// delayer is the router proper: ports are file descriptors that give and take
// whole frames. The delay is the same for all, so one queue is in the order of
// the instants.
type delayer struct {
	ports  []int
	zones  [256]byte // by the last byte of a host's MAC address: its port + 1, 0 for none
	oneWay time.Duration
	early  int64
	stop   int // serve ends when this is readable; -1 for never

	queue       [delaySlots]held
	first, used int
	dropped     int64 // that a port did not take
}

func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has it
	}
	return t.Nano()
}

// calibrate measures how late a sleep ends, of which nine in ten are allowed
// for.
func (d *delayer) calibrate() (time.Duration, error) {
	const sleeps, each = 100, 200 * time.Microsecond
	late := make([]int64, sleeps)
	for i := range late {
		begun := monotonic()
		timeout := unix.NsecToTimespec(int64(each))
		if _, err := unix.Ppoll(nil, &timeout, nil); err != nil && err != unix.EINTR {
			return 0, fmt.Errorf("ppoll: %w", err)
		}
		late[i] = max(0, monotonic()-begun-int64(each))
	}
	slices.Sort(late)
	d.early = min(late[sleeps*9/10], int64(maxEarly))
	return time.Duration(d.early), nil
}

// route gives the ports that a frame from port from goes to: the one of its
// destination, all others for a group address, none when it is not known or on
// the side that it came from.
func (d *delayer) route(frame []byte, from int) (to uint8) {
	const header = 14
	if len(frame) < header {
		return 0
	}
	if frame[0]&1 != 0 {
		return (1<<len(d.ports) - 1) &^ (1 << from)
	}
	last := frame[5]
	if [6]byte(frame[:6]) != macOf(last) || d.zones[last] == 0 {
		return 0
	}
	return 1 << (d.zones[last] - 1) &^ (1 << from)
}

func (d *delayer) serve() error {
	polled := make([]unix.PollFd, 0, len(d.ports)+1)
	for _, fd := range d.ports {
		polled = append(polled, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	polled = append(polled, unix.PollFd{Fd: int32(d.stop), Events: unix.POLLIN})
	for {
		d.sendDue(monotonic())
		for i := range d.ports {
			polled[i].Events = unix.POLLIN
			if d.used == delaySlots {
				polled[i].Events = 0
			}
		}
		var timeout *unix.Timespec
		if d.used > 0 {
			t := unix.NsecToTimespec(max(0, d.queue[d.first].due-monotonic()-d.early))
			timeout = &t
		}
		if _, err := unix.Ppoll(polled, timeout, nil); err != nil && err != unix.EINTR {
			return fmt.Errorf("ppoll: %w", err)
		}
		if polled[len(d.ports)].Revents != 0 {
			return nil
		}
		for i, fd := range d.ports {
			if polled[i].Revents&^unix.POLLIN != 0 {
				return fmt.Errorf("port %d is gone", i+1)
			}
			if polled[i].Revents == 0 {
				continue
			}
			if err := d.read(i, fd); err != nil {
				return err
			}
		}
	}
}

// read takes frames from a port into the queue.
func (d *delayer) read(port, fd int) error {
	for range delayBatch {
		if d.used == delaySlots {
			return nil
		}
		h := &d.queue[(d.first+d.used)%delaySlots]
		n, err := unix.Read(fd, h.data[:])
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("port %d: %w", port+1, os.NewSyscallError("read", err))
		}
		if n == 0 {
			return fmt.Errorf("port %d is closed", port+1)
		}
		if h.to = d.route(h.data[:n], port); h.to == 0 {
			continue
		}
		h.size, h.due = n, monotonic()+int64(d.oneWay)
		d.used++
	}
	return nil
}

// sendDue writes the frames whose instant has come. One that a port does not
// take is lost, as on a wire.
func (d *delayer) sendDue(now int64) {
	for d.used > 0 && d.queue[d.first].due <= now {
		h := &d.queue[d.first]
		for i, fd := range d.ports {
			if h.to&(1<<i) == 0 {
				continue
			}
			if _, err := unix.Write(fd, h.data[:h.size]); err != nil {
				d.dropped++
			}
		}
		d.first = (d.first + 1) % delaySlots
		d.used--
	}
}
