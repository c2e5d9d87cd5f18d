// Package model predicts what Aeron Cluster's send path carries and when its
// latency leaves the floor.
//
// The leader's driver sends the log with one thread, at most one MTU a system
// call, and one call for each follower. What that thread can do bounds the
// messages a second that the cluster commits:
//
//	peak = (S - C) / D * messages a datagram
//
// Latency follows from the utilisation rho = load / peak: below 0.7 it is the
// transit time, above it queueing is added, and from 1 on it is what the
// publisher's window holds. The model knows the send path only. Beyond it the
// receiver's window, the bytes a second of the network and the thread that
// appends to the log bind first, at one to two million messages a second where
// that was looked at.
//
// Two sets of framing parameters exist. Reference are those with which the
// published model's table was made. Driver are what the driver does: on
// ingress, log and egress a message carries the 32 bytes of a data frame's
// header (DataHeaderFlyweight.HEADER_LENGTH) and the 32 bytes of a cluster
// session header (8 of SBE header and a block of 24), and the MTU is the UDP
// payload, with nothing else inside it (NetworkPublication.sendData sends up to
// one MTU of whole frames).
package model

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Frame is what surrounds a message on the wire.
type Frame struct {
	// HeaderBytes precede the payload of each message.
	HeaderBytes int `json:"header_bytes"`
	// OverheadBytes of each datagram's MTU hold no message.
	OverheadBytes int `json:"overhead_bytes"`
}

var (
	// Reference framing is the published model's: one header of 32 bytes, and
	// about 40 bytes of UDP and Aeron header a datagram.
	Reference = Frame{HeaderBytes: 32, OverheadBytes: 40}
	// Driver framing is what the driver's source says.
	Driver = Frame{HeaderBytes: 64, OverheadBytes: 0}
)

// frameAlignment of every frame in a log buffer (FrameDescriptor.FRAME_ALIGNMENT).
const frameAlignment = 32

// Limits of an MTU in bytes (Configuration.MAX_UDP_PAYLOAD_LENGTH, and a frame
// with nothing in it).
const (
	MinMTU = 32
	MaxMTU = 65504
)

// Path is a sender thread and what it sends.
type Path struct {
	// S is how many sendmsg calls a second one thread makes; it belongs to a
	// CPU and a network stack, so measure it (SendRate).
	S float64 `json:"s_per_s"`
	// C is how many of them carry consensus control and no log.
	C float64 `json:"c_per_s"`
	// D is how many destinations each datagram goes to, a call for each.
	D int `json:"d"`
	// MTU in bytes.
	MTU int `json:"mtu_bytes"`
	// Payload of a message in bytes.
	Payload int `json:"payload_bytes"`
	Frame
}

// Leader is the path that the published model is about: 400,000 calls a second
// on an Intel m7i, 160,000 of them for consensus with a busy-spinning idle
// strategy, two followers.
func Leader(payload, mtu int, f Frame) Path {
	return Path{S: 400_000, C: 160_000, D: 2, MTU: mtu, Payload: payload, Frame: f}
}

// Roles gives the paths of a cluster's members by role, from its leader's: a
// client sends to the leader alone and takes no part in consensus; a follower
// sends small control frames, C of them, to the leader, and no messages.
func Roles(leader Path) (client, follower Path) {
	client = leader
	client.C, client.D = 0, 1
	follower = leader
	follower.D = 1
	return client, follower
}

// Validate says what cannot be computed.
func (p Path) Validate() error {
	switch {
	case !(p.S > 0) || math.IsInf(p.S, 0):
		return fmt.Errorf("send rate S %g: want calls a second, more than 0", p.S)
	case !(p.C >= 0) || p.C >= p.S:
		return fmt.Errorf("control rate C %g: want 0 to below S, %g calls a second", p.C, p.S)
	case p.D < 1 || p.D > 1000:
		return fmt.Errorf("destinations D %d: want 1 to 1000", p.D)
	case p.Payload < 0 || p.Payload > MaxMTU:
		return fmt.Errorf("payload %d: want 0 to %d bytes", p.Payload, MaxMTU)
	case p.HeaderBytes < 0 || p.HeaderBytes > 1024:
		return fmt.Errorf("header %d: want 0 to 1024 bytes", p.HeaderBytes)
	case p.MTU < MinMTU || p.MTU > MaxMTU || p.MTU%frameAlignment != 0:
		return fmt.Errorf("MTU %d: want a multiple of %d from %d to %d bytes", p.MTU, frameAlignment, MinMTU, MaxMTU)
	case p.OverheadBytes < 0 || p.OverheadBytes >= p.MTU:
		return fmt.Errorf("overhead %d: want 0 to below the MTU, %d bytes", p.OverheadBytes, p.MTU)
	}
	return nil
}

// Framed is the bytes of a message in the log: header and payload, aligned to
// 32 (FrameDescriptor.FRAME_ALIGNMENT).
func (p Path) Framed() int {
	n := p.Payload + p.HeaderBytes
	return (n + frameAlignment - 1) / frameAlignment * frameAlignment
}

// PerDatagram is how many whole messages one datagram holds: floor((MTU -
// overhead) / framed). 0 means that a message does not fit and is fragmented.
func (p Path) PerDatagram() int { return (p.MTU - p.OverheadBytes) / p.Framed() }

// Datagrams a second that the thread can send to all destinations: (S - C) / D.
func (p Path) Datagrams() float64 { return (p.S - p.C) / float64(p.D) }

// Fragments is how many frames a message takes: 1 unless it is larger than a
// datagram.
func (p Path) Fragments() int {
	if p.PerDatagram() > 0 {
		return 1
	}
	// Each frame repeats the data header; the session header counts as payload.
	room := p.MTU - p.OverheadBytes - min(p.HeaderBytes, frameAlignment)
	return max(1, int(math.Ceil(float64(p.Payload+p.HeaderBytes-min(p.HeaderBytes, frameAlignment))/float64(max(room, 1)))))
}

// Peak is the messages a second that the thread can send: datagrams a second
// times messages a datagram; for a fragmented message divided by its fragments.
// It is a ceiling of the send path, and no promise that the rest keeps up.
func (p Path) Peak() float64 {
	if n := p.PerDatagram(); n > 0 {
		return p.Datagrams() * float64(n)
	}
	return p.Datagrams() / float64(p.Fragments())
}

// Bytes a second of log that the thread drains at its peak: peak x framed.
func (p Path) Bytes() float64 { return p.Peak() * float64(p.Framed()) }

// Regime is what latency does at a utilisation.
type Regime string

const (
	// Safe: rho below 0.7, latency is the transit time.
	Safe Regime = "safe"
	// Knee: rho from 0.7 to below 1, queueing grows steeply.
	Knee Regime = "knee"
	// Saturated: rho 1 and more, every message waits for the full window.
	Saturated Regime = "saturated"
)

// kneeRho is where the safe regime ends.
const kneeRho = 0.7

// RegimeAt a utilisation.
func RegimeAt(rho float64) Regime {
	switch {
	case rho < kneeRho:
		return Safe
	case rho < 1:
		return Knee
	}
	return Saturated
}

// Load is what is asked of a path.
type Load struct {
	// Rate in messages a second.
	Rate float64 `json:"rate_per_s"`
	// Transit is the time of a message through the pipeline when nothing
	// queues.
	Transit time.Duration `json:"transit_ns"`
	// TermLength of the log in bytes; a publisher may be half of it ahead.
	TermLength int `json:"term_length_bytes"`
}

// Validate says what cannot be computed.
func (l Load) Validate() error {
	switch {
	case !(l.Rate > 0) || math.IsInf(l.Rate, 0):
		return fmt.Errorf("load %g: want messages a second, more than 0", l.Rate)
	case l.Transit < 0:
		return fmt.Errorf("transit %v: want 0 or more", l.Transit)
	case l.TermLength < 64<<10 || l.TermLength > 1<<30 || l.TermLength&(l.TermLength-1) != 0:
		return fmt.Errorf("term length %d: want a power of 2 from 64 KiB to 1 GiB", l.TermLength)
	}
	return nil
}

// Prediction of a load on a path.
type Prediction struct {
	Rho    float64 `json:"rho"`
	Regime Regime  `json:"regime"`
	// Service is the time of one datagram to all destinations: D / (S - C).
	Service time.Duration `json:"service_ns"`
	// Queueing is Service x rho / (1 - rho), the mean wait of an M/M/1 queue
	// (Kleinrock, Queueing Systems I, 3.2), at most Cap.
	Queueing time.Duration `json:"queueing_ns"`
	// Cap is what bounds the queue: half a term, the publisher's window, at the
	// rate at which the sender drains it.
	Cap time.Duration `json:"cap_ns"`
	// Latency is Transit + Queueing; saturated, it is Cap where that is more
	// than Transit.
	Latency time.Duration `json:"latency_ns"`
}

// Predict the utilisation, regime and mean latency of a load.
func Predict(p Path, l Load) (Prediction, error) {
	if err := errors.Join(p.Validate(), l.Validate()); err != nil {
		return Prediction{}, err
	}
	r := Prediction{
		Rho:     l.Rate / p.Peak(),
		Service: seconds(1 / p.Datagrams()),
		Cap:     seconds(float64(l.TermLength) / 2 / p.Bytes()),
	}
	r.Regime = RegimeAt(r.Rho)
	if r.Regime == Saturated {
		r.Queueing = r.Cap
		r.Latency = max(r.Cap, l.Transit)
		return r, nil
	}
	r.Queueing = min(time.Duration(float64(r.Service)*r.Rho/(1-r.Rho)), r.Cap)
	r.Latency = l.Transit + r.Queueing
	return r, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
