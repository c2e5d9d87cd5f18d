package deploy

import (
	"crypto/sha1"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var replacesTwo = map[string][]string{
	`aws_instance.host["node2"]`: {"delete", "create"},
	`aws_instance.host["node3"]`: {"delete", "create"},
}

// TestFleet is the life of a fleet, by the verbs of make, with the real
// terraform and the real provider. Its steps build on one another.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet's life takes minutes")
	}
	for _, tool := range []string{"terraform", "python3", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			lack(t, "%s is not on the PATH", tool)
		}
	}
	h := startHosts(t)
	e := startEC2(t)
	l := newLab(t, e)
	l.initialize()
	login := h.variables(t)
	deploy := func(variables ...string) result { return l.make("deploy", append(variables, login...)...) }

	// Refusals need folders of their own and no host, and share the rest.
	t.Run("refused", func(t *testing.T) { testRefused(t, l, login) })

	capacity := func(host string) []fault {
		return []fault{{Action: "RunInstances", Match: map[string]string{"Placement.AvailabilityZone": host},
			Code: "InsufficientInstanceCapacity", Message: "We currently do not have sufficient c6i.2xlarge capacity in the Availability Zone you requested."}}
	}
	step := func(name string, f func(t *testing.T)) {
		if !t.Failed() {
			t.Run(name, func(t *testing.T) {
				l.t = t
				f(t)
			})
		}
	}

	step("half a fleet", func(t *testing.T) {
		l.write(".env", "NODE1=127.0.0.21\nNODE2=127.0.0.22\nNODE3=127.0.0.23\n")
		// The token expires while the hosts are made.
		e.fail(t, fault{Action: "RunInstances", Match: map[string]string{"Placement.AvailabilityZone": "us-east-1b"},
			Code: "ExpiredToken", Message: "The security token included in the request is expired"})
		l.fails(deploy(), "the AWS token has expired: log in again", "make deploy goes on", ".env was not written by make deploy")
		l.noEnv()
		e.fail(t)
	})
	step("repaired", func(t *testing.T) {
		r := l.succeeds(deploy())
		if !strings.Contains(r.stdout, "plan: 1 to add, 0 to change, 0 to destroy\n") || !strings.Contains(r.stdout, "cost: about 1.39 $ an hour") {
			t.Error("not the plan that repairs")
		}
		l.inventory(MultiAZ)
		// The state keeps the digest of user data.
		text, err := l.terraform().output(t.Context(), "show", "-json")
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), fmt.Sprintf(`"user_data":"%x"`, sha1.Sum([]byte(userData(t))))); n != 4 {
			t.Errorf("%d hosts have the user data that is tested", n)
		}
		asked, err := os.ReadFile(filepath.Join(h.dir, "asked"))
		if err != nil || strings.Count(string(asked), "status --wait\n") != 4 {
			t.Errorf("cloud-init was asked %q, %v", asked, err)
		}
		if changes := l.changes(login...); len(changes) > 0 {
			t.Errorf("a second plan is not empty: %v", changes)
		}
	})
	before := map[string]host{}
	step("switch", func(t *testing.T) {
		single := append([]string{"TOPOLOGY=" + SingleAZ}, login...)
		for _, x := range l.state().hosts().list {
			before[x.name] = x
		}
		l.fails(deploy("TOPOLOGY="+SingleAZ), "the fleet is multi_az, not single_az: TOPOLOGY=multi_az keeps it; SWITCH=1 replaces nodes 2 and 3")
		l.inventory(MultiAZ)
		if changes := l.changes(single...); !reflect.DeepEqual(changes, replacesTwo) {
			t.Errorf("the switch does %v", changes)
		}
		// Capacity runs out when both are gone.
		e.fail(t, capacity("us-east-1a")...)
		l.fails(deploy("TOPOLOGY="+SingleAZ, "SWITCH=1"),
			"node2: AWS has no c6i.2xlarge left in us-east-1a: the same command again later, or another type (NODE_TYPE, CLIENT_TYPE)", "node3: AWS has no")
		l.noEnv()
		l.fails(l.make("env", login...), "node2, node3 are missing")
		e.fail(t)
		r := l.succeeds(deploy("TOPOLOGY=" + SingleAZ))
		if !strings.Contains(r.stdout, "plan: 2 to add, 0 to change, 0 to destroy\n") {
			t.Error("not the plan that repairs")
		}
		l.inventory(SingleAZ)
		if changes := l.changes(single...); len(changes) > 0 {
			t.Errorf("a second plan is not empty: %v", changes)
		}
	})
	step("switch back", func(t *testing.T) {
		l.fails(deploy(), "the fleet is single_az, not multi_az")
		// A host that stays is down now.
		down := "down-" + before["node1"].public
		h.write(t, down, "", 0o644)
		r := l.make("deploy", append([]string{"SWITCH=1", "WAIT=20s"}, login[:3]...)...)
		l.fails(r, "node1 ("+before["node1"].public+") does not come up: ", "make deploy REPLACE=node1 makes it anew")
		if strings.Count(r.stderr, "deploy: ") != 1 {
			t.Error("it says that of others too")
		}
		if !strings.Contains(r.stdout, "plan: 2 to add, 0 to change, 2 to destroy; it replaces node2, node3\n") {
			t.Error("the summary of the plan is not that of a switch")
		}
		l.noEnv()
		h.remove(t, down)
		l.succeeds(l.make("env", login...))
		l.inventory(MultiAZ)
		for _, x := range l.state().hosts().list {
			stays := x.name == "client" || x.name == "node1"
			if was := before[x.name]; stays != (x == was) {
				t.Errorf("%s was %+v, is %+v", x.name, was, x)
			}
		}
	})
	step("destroy", func(t *testing.T) {
		l.fails(l.make("destroy"), "not destroyed (YES=1 does not ask)")
		l.inventory(MultiAZ)
		e.fail(t, fault{Action: "*", Code: "ExpiredToken", Message: "The security token included in the request is expired"})
		l.fails(l.make("destroy", "YES=1"), "the AWS token has expired")
		l.noEnv()
		e.fail(t)
		l.succeeds(l.make("destroy", "YES=1"))
		if n := len(l.state().Values.Root.Resources); n > 0 {
			t.Errorf("%d resources are in the state", n)
		}
		if text := e.describe(t, "DescribeInstances"); strings.Count(text, "<instanceId>") != strings.Count(text, "<name>terminated</name>") {
			t.Errorf("instances are left: %s", text)
		}
		for action, name := range map[string]string{"DescribePlacementGroups": "raftrig", "DescribeKeyPairs": "raftrig", "DescribeVpcs": "10.77.", "DescribeSecurityGroups": "raftrig"} {
			if text := e.describe(t, action); strings.Contains(text, name) {
				t.Errorf("%s: %s", action, text)
			}
		}
		if r := l.succeeds(l.make("destroy", "YES=1")); !strings.Contains(r.stdout, "there is no fleet") {
			t.Error("a second destroy says something else")
		}
	})
}
