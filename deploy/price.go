package deploy

import (
	"fmt"
	"io"
	"strings"
)

// priceDate is when the prices below were noted.
const priceDate = "July 2026"

// Prices in us-east-1, on demand, Linux, in $ an hour.
const (
	priceRegion   = "us-east-1"
	addressDollar = 0.005 // a public IPv4 address

	// diskGBDollar is a GB of gp3, sold by the month of 730 hours.
	diskGBDollar = 0.08 / 730
)

// largeDollar is the price of a family's .large; the other sizes are multiples.
var largeDollar = map[string]float64{
	"c5": 0.085, "c5d": 0.096, "c5n": 0.108,
	"c6i": 0.085, "c6id": 0.1008, "c6in": 0.1134,
	"c7i": 0.08925,
	"m5":  0.096, "m6i": 0.096,
}

var sizeInLarge = map[string]float64{
	"large": 1, "xlarge": 2, "2xlarge": 4, "4xlarge": 8, "8xlarge": 16,
	"9xlarge": 18, "12xlarge": 24, "16xlarge": 32, "18xlarge": 36, "24xlarge": 48, "32xlarge": 64,
}

// instanceDollar is the price of an instance type an hour.
func instanceDollar(instanceType string) (dollars float64, ok bool) {
	family, size, _ := strings.Cut(instanceType, ".")
	dollars = largeDollar[family] * sizeInLarge[size]
	return dollars, dollars > 0
}

// estimate prints what the planned fleet costs an hour.
func (p *plan) estimate(w io.Writer) {
	region := p.variable("region")
	var dollars float64
	var types, unknown []string
	count := make(map[string]int)
	for _, r := range p.Planned.Root.Resources {
		if r.Type != "aws_instance" {
			continue
		}
		t := r.Values.InstanceType
		price, ok := instanceDollar(t)
		if count[t]++; count[t] == 1 {
			types = append(types, t)
			if !ok {
				unknown = append(unknown, t)
			}
		}
		dollars += price + addressDollar
		for _, d := range r.Values.Disks {
			dollars += d.Size * diskGBDollar
		}
	}
	for i, t := range types {
		types[i] = fmt.Sprintf("%d x %s", count[t], t)
	}
	fleet := strings.Join(types, ", ")
	switch {
	case region != priceRegion:
		fmt.Fprintf(w, "cost: not known for %s (%s): see the price list of EC2\n", region, fleet)
	case len(unknown) > 0:
		fmt.Fprintf(w, "cost: not known for %s: see the price list of EC2\n", strings.Join(unknown, ", "))
	default:
		fmt.Fprintf(w, "cost: about %.2f $ an hour until make destroy (%s, with disks and addresses; list prices of %s, %s; prices move), and 0.01 $ a GB and direction between zones\n",
			dollars, fleet, priceRegion, priceDate)
	}
}
