package deploy

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// resource is one of terraform's, in a state or in a plan.
type resource struct {
	Address string          `json:"address"`
	Type    string          `json:"type"`
	Index   json.RawMessage `json:"index"` // a string with for_each, else a number
	Tainted bool            `json:"tainted"`
	Values  struct {
		InstanceType     string `json:"instance_type"`
		PlacementGroup   string `json:"placement_group"`
		PublicIP         string `json:"public_ip"`
		PrivateIP        string `json:"private_ip"`
		PublicKey        string `json:"public_key"`
		AvailabilityZone string `json:"availability_zone"`
		ZoneID           string `json:"availability_zone_id"`
		Disks            []struct {
			Size float64 `json:"volume_size"`
		} `json:"root_block_device"`
	} `json:"values"`
}

// name is the key of a resource made with for_each.
func (r *resource) name() string {
	var s string
	_ = json.Unmarshal(r.Index, &s) // another kind of index is no name
	return s
}

type values struct {
	Root struct {
		Resources []resource `json:"resources"`
	} `json:"root_module"`
}

// state is what `terraform show -json` says of a state.
type state struct {
	Values values `json:"values"`
}

// plan is what it says of a plan.
type plan struct {
	Variables map[string]struct {
		Value json.RawMessage `json:"value"`
	} `json:"variables"`
	Planned values   `json:"planned_values"`
	Changes []change `json:"resource_changes"`
}

type change struct {
	Address string          `json:"address"`
	Mode    string          `json:"mode"`
	Type    string          `json:"type"`
	Index   json.RawMessage `json:"index"`
	Change  struct {
		Actions []string `json:"actions"`
	} `json:"change"`
}

// host is a machine of the fleet.
type host struct {
	name            string
	public, private string
	zone            string // by id
}

// hosts are those of a state that can be used.
type hosts struct {
	list     []host // in the order of hostNames
	missing  []string
	topology string // of nodes 2 and 3; "" without any, "mixed" between two
	key      string // the public half of what they know
}

// hosts reads the fleet from the resources, for a host whose making failed is
// not among them, or tainted, while the outputs still show the one before.
func (st *state) hosts() *hosts {
	zoneID := make(map[string]string)
	found := make(map[string]*resource)
	h := &hosts{}
	for i := range st.Values.Root.Resources {
		r := &st.Values.Root.Resources[i]
		switch r.Type {
		case "aws_subnet":
			zoneID[r.Values.AvailabilityZone] = r.Values.ZoneID
		case "aws_key_pair":
			h.key = strings.TrimSpace(r.Values.PublicKey)
		case "aws_instance":
			if !r.Tainted {
				found[r.name()] = r
			}
		}
	}
	for _, name := range hostNames {
		r := found[name]
		if r == nil {
			h.missing = append(h.missing, name)
			continue
		}
		h.list = append(h.list, host{name, r.Values.PublicIP, r.Values.PrivateIP, zoneID[r.Values.AvailabilityZone]})
		if name != "node2" && name != "node3" {
			continue
		}
		topology := MultiAZ
		if r.Values.PlacementGroup != "" { // it lies in the zone of node 1
			topology = SingleAZ
		}
		if h.topology != "" && h.topology != topology {
			topology = "mixed"
		}
		h.topology = topology
	}
	return h
}

// complete says what a fleet lacks.
func (h *hosts) complete() error {
	switch {
	case len(h.list) == 0:
		return fmt.Errorf("there is no fleet: make deploy")
	case len(h.missing) > 0:
		return fmt.Errorf("%s missing: make deploy completes the fleet", isAre(h.missing))
	}
	for _, x := range h.list {
		if x.public == "" || x.private == "" || x.zone == "" {
			return fmt.Errorf("%s has no address: is it stopped? Start it, then make deploy", x.name)
		}
	}
	return nil
}

func isAre(names []string) string {
	if len(names) == 1 {
		return names[0] + " is"
	}
	return strings.Join(names, ", ") + " are"
}

// does lists the hosts to which the plan does a thing: create, update, delete,
// or replace.
func (p *plan) does(what string) []string {
	var names []string
	for _, c := range p.Changes {
		r := resource{Index: c.Index}
		if c.Type == "aws_instance" && c.action() == what {
			names = append(names, r.name())
		}
	}
	slices.Sort(names)
	return names
}

// summary prints what the plan does, in a line.
func (p *plan) summary(w io.Writer) {
	add, change, destroy := p.counts()
	fmt.Fprintf(w, "plan: %d to add, %d to change, %d to destroy", add, change, destroy)
	for _, x := range []struct{ action, says string }{{"replace", "replaces"}, {"update", "changes"}, {"delete", "removes"}} {
		if names := p.does(x.action); len(names) > 0 {
			fmt.Fprintf(w, "; it %s %s", x.says, strings.Join(names, ", "))
		}
	}
	fmt.Fprintln(w)
}

// action is what happens to a resource: terraform replaces by two.
func (c *change) action() string {
	if len(c.Change.Actions) == 2 {
		return "replace"
	}
	return strings.Join(c.Change.Actions, "")
}

// counts are how many resources are added, changed and destroyed.
func (p *plan) counts() (add, change, destroy int) {
	for _, c := range p.Changes {
		if c.Mode != "managed" {
			continue
		}
		switch c.action() {
		case "create":
			add++
		case "update":
			change++
		case "delete":
			destroy++
		case "replace":
			add++
			destroy++
		}
	}
	return add, change, destroy
}

// variable is the value of a string variable.
func (p *plan) variable(name string) string {
	var s string
	_ = json.Unmarshal(p.Variables[name].Value, &s) // a number is no string
	return s
}

// zone is the zone of a resource, and its instance type.
func (p *plan) zone(address string) (zone, instanceType string) {
	for _, r := range p.Planned.Root.Resources {
		if r.Address == address {
			return r.Values.AvailabilityZone, r.Values.InstanceType
		}
	}
	return "", ""
}
