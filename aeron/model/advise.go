package model

import "fmt"

// The two MTUs of the published rule: what fits an Ethernet frame of 1500, and
// the largest that a driver takes for all its channels.
const (
	SmallMTU = 1408
	LargeMTU = 8192
)

// Jumbo says whether frames of 9001 bytes pass on every hop between members.
type Jumbo string

const (
	JumboYes       Jumbo = "yes"       // known to, as in one VPC or placement group
	JumboUncertain Jumbo = "uncertain" // peering, gateways, VPN, somebody else's network
	JumboNo        Jumbo = "no"        // known not to
)

// Advice is an MTU and why.
type Advice struct {
	MTU     int      `json:"mtu_bytes"`
	Reasons []string `json:"reasons"`
	// Small and Large are what the load does at either.
	Small Prediction `json:"at_1408"`
	Large Prediction `json:"at_8192"`
}

// lowRho is below what the published rule calls safe at 1408 without jumbo.
const lowRho = 0.5

// Advise chooses 1408 or 8192 by the published rule: 8192 where jumbo frames
// are reliable or the load is near the knee at 1408; 1408 where utilisation is
// below 0.5 and jumbo frames are uncertain. Where the rule is silent, between
// 0.5 and 0.7 with uncertain jumbo frames, it is 1408, and where jumbo frames
// are known not to pass it is always 1408: 8192 would be fragmented or lost.
func Advise(p Path, l Load, jumbo Jumbo) (Advice, error) {
	var a Advice
	var err error
	for mtu, at := range map[int]*Prediction{SmallMTU: &a.Small, LargeMTU: &a.Large} {
		p.MTU = mtu
		if *at, err = Predict(p, l); err != nil {
			return Advice{}, err
		}
	}
	say := func(format string, args ...any) { a.Reasons = append(a.Reasons, fmt.Sprintf(format, args...)) }
	say("rho is %.2f at %d (%s) and %.2f at %d (%s)", a.Small.Rho, SmallMTU, a.Small.Regime, a.Large.Rho, LargeMTU, a.Large.Regime)
	a.MTU = SmallMTU
	near := a.Small.Rho >= kneeRho
	switch jumbo {
	case JumboYes:
		a.MTU = LargeMTU
		say("jumbo frames pass on every hop: %d costs nothing at low load, for the driver sends what is there and does not wait for a full datagram", LargeMTU)
	case JumboUncertain:
		switch {
		case near:
			a.MTU = LargeMTU
			say("%d is at or beyond its knee: %d is the way down", SmallMTU, LargeMTU)
			say("see that frames of 9001 bytes pass on every hop first (ping -M do -s 8972): a hop of 1500 fragments or drops them without a word")
		case a.Small.Rho < lowRho:
			say("utilisation is low and jumbo frames are uncertain: the gain is small, a hop of 1500 would fragment or drop without a word")
		default:
			say("the published rule has no answer between %.1f and %.1f with uncertain jumbo frames: find out whether they pass, then %d", lowRho, kneeRho, LargeMTU)
		}
	case JumboNo:
		say("jumbo frames do not pass: %d would be fragmented or dropped", LargeMTU)
		if near {
			say("to lower rho otherwise: sleeping idle strategies (fewer control packets), more payload a message, a faster send path")
		}
	default:
		return Advice{}, fmt.Errorf("jumbo %q: want yes, uncertain or no", jumbo)
	}
	if a.MTU == LargeMTU {
		say("a lost datagram loses %d messages instead of %d", perDatagram(p, LargeMTU), perDatagram(p, SmallMTU))
		if a.Large.Regime != Safe {
			say("%d is not safe at this load either", LargeMTU)
		}
	}
	return a, nil
}

func perDatagram(p Path, mtu int) int {
	p.MTU = mtu
	return p.PerDatagram()
}
