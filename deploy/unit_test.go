package deploy

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// stateText is a state with all hosts in multi_az, which the cases change.
const stateText = `{"values": {"root_module": {"resources": [
	{"type": "aws_key_pair", "address": "aws_key_pair.fleet", "values": {"public_key": "ssh-ed25519 AAAA"}},
	{"type": "aws_subnet", "index": "us-east-1a", "values": {"availability_zone": "us-east-1a", "availability_zone_id": "use1-az4"}},
	{"type": "aws_subnet", "index": "us-east-1b", "values": {"availability_zone": "us-east-1b", "availability_zone_id": "use1-az6"}},
	{"type": "aws_instance", "index": "client", "values": {"availability_zone": "us-east-1a", "placement_group": "raftrig", "public_ip": "198.51.100.4", "private_ip": "10.77.1.4"}},
	{"type": "aws_instance", "index": "node3", "values": {"availability_zone": "us-east-1b", "placement_group": "", "public_ip": "198.51.100.3", "private_ip": "10.77.2.3"}},
	{"type": "aws_instance", "index": "node1", "values": {"availability_zone": "us-east-1a", "placement_group": "raftrig", "public_ip": "198.51.100.1", "private_ip": "10.77.1.1"}},
	{"type": "aws_instance", "index": "node2", "values": {"availability_zone": "us-east-1b", "placement_group": null, "public_ip": "198.51.100.2", "private_ip": "10.77.2.2"}}
]}, "outputs": {"topology": {"value": "single_az"}}}}`

func TestHosts(t *testing.T) {
	for _, c := range []struct {
		name               string
		change             []string // pairs, for strings.NewReplacer
		topology, complete string
	}{
		{"whole", nil, MultiAZ, ""},
		{"no state", []string{stateText, "{}"}, "", "there is no fleet: make deploy"},
		{"no hosts", []string{"aws_instance", "aws_eip"}, "", "there is no fleet: make deploy"},
		{"one missing", []string{`"node2"`, `"node9"`}, MultiAZ, "node2 is missing: make deploy completes the fleet"},
		{"two missing", []string{`"node2"`, `"node8"`, `"node3"`, `"node9"`}, "", "node2, node3 are missing: make deploy completes the fleet"},
		{"tainted", []string{`"index": "client"`, `"index": "client", "tainted": true`}, MultiAZ, "client is missing: make deploy completes the fleet"},
		{"stopped", []string{"198.51.100.3", ""}, MultiAZ, "node3 has no address: is it stopped? Start it, then make deploy"},
		{"mixed", []string{`"placement_group": null`, `"placement_group": "raftrig"`}, "mixed", ""},
		{"single", []string{`"placement_group": null`, `"placement_group": "raftrig"`, `"placement_group": ""`, `"placement_group": "raftrig"`}, SingleAZ, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var st state
			if err := json.Unmarshal([]byte(strings.NewReplacer(c.change...).Replace(stateText)), &st); err != nil {
				t.Fatal(err)
			}
			h := st.hosts()
			said := ""
			if err := h.complete(); err != nil {
				said = err.Error()
			}
			if h.topology != c.topology || said != c.complete {
				t.Errorf("topology %q, %q", h.topology, said)
			}
		})
	}
}

func TestInventory(t *testing.T) {
	var st state
	if err := json.Unmarshal([]byte(stateText), &st); err != nil {
		t.Fatal(err)
	}
	s := Settings{Topology: SingleAZ, SSHUser: "ubuntu", SSHOpts: "-p 2222"}
	want := envMark + `
TRANSPORT=ssh
TOPOLOGY=multi_az
NODE1=198.51.100.1
NODE1_PRIVATE=10.77.1.1
NODE1_ZONE=use1-az4
NODE2=198.51.100.2
NODE2_PRIVATE=10.77.2.2
NODE2_ZONE=use1-az6
NODE3=198.51.100.3
NODE3_PRIVATE=10.77.2.3
NODE3_ZONE=use1-az6
CLIENT=198.51.100.4
CLIENT_PRIVATE=10.77.1.4
CLIENT_ZONE=use1-az4
SSH_USER=ubuntu
SSH_KEY=/k
SSH_OPTS=-p 2222
`
	if got := s.inventory(st.hosts(), "/k"); got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestEstimate(t *testing.T) {
	const one = `{"type": "aws_instance", "address": "aws_instance.host[\"node1\"]", "values": {"instance_type": "TYPE", "root_block_device": [{"volume_size": 20}]}}`
	for _, c := range []struct{ region, types, want string }{
		{"us-east-1", "c6i.2xlarge c6i.2xlarge c6i.2xlarge c6i.2xlarge", "cost: about 1.39 $ an hour until make destroy (4 x c6i.2xlarge, with"},
		{"us-east-1", "c6id.2xlarge c6id.2xlarge c6id.2xlarge c6i.xlarge", "cost: about 1.41 $ an hour until make destroy (3 x c6id.2xlarge, 1 x c6i.xlarge, with"},
		{"us-east-1", "c6i.2xlarge x9.huge c6i.metal", "cost: not known for x9.huge, c6i.metal: see the price list of EC2\n"},
		{"eu-west-1", "c6i.2xlarge", "cost: not known for eu-west-1 (1 x c6i.2xlarge): see the price list of EC2\n"},
	} {
		var list []string
		for kind := range strings.FieldsSeq(c.types) {
			list = append(list, strings.Replace(one, "TYPE", kind, 1))
		}
		var p plan
		text := `{"variables": {"region": {"value": "` + c.region + `"}}, "planned_values": {"root_module": {"resources": [` + strings.Join(list, ",") + `]}}}`
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		p.estimate(&got)
		if !strings.HasPrefix(got.String(), c.want) {
			t.Errorf("%s: %s", c.types, got.String())
		}
	}
	// The price that was looked up, of four hosts without disks and addresses.
	if d, ok := instanceDollar("c6id.2xlarge"); !ok || d != 0.4032 {
		t.Errorf("c6id.2xlarge costs %v", d)
	}
}

func TestSummary(t *testing.T) {
	const text = `{"resource_changes": [
		{"mode": "managed", "type": "aws_instance", "index": "node3", "change": {"actions": ["delete", "create"]}},
		{"mode": "managed", "type": "aws_instance", "index": "node1", "change": {"actions": ["update"]}},
		{"mode": "managed", "type": "aws_instance", "index": "node2", "change": {"actions": ["create", "delete"]}},
		{"mode": "managed", "type": "aws_subnet", "index": "us-east-1a", "change": {"actions": ["create"]}},
		{"mode": "managed", "type": "aws_vpc", "index": 0, "change": {"actions": ["delete"]}},
		{"mode": "data", "type": "aws_ami", "change": {"actions": ["read"]}},
		{"mode": "managed", "type": "aws_instance", "index": "client", "change": {"actions": ["no-op"]}}]}`
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	p.summary(&got)
	if want := "plan: 3 to add, 1 to change, 3 to destroy; it replaces node2, node3; it changes node1\n"; got.String() != want {
		t.Errorf("got %s", got.String())
	}
	if got := p.does("replace"); !reflect.DeepEqual(got, []string{"node2", "node3"}) {
		t.Error(got)
	}
}

func TestExplain(t *testing.T) {
	var p plan
	if err := json.Unmarshal([]byte(`{"planned_values": {"root_module": {"resources": [
		{"type": "aws_instance", "address": "aws_instance.host[\"node2\"]", "values": {"instance_type": "c6i.2xlarge", "availability_zone": "us-east-1b"}}]}}}`), &p); err != nil {
		t.Fatal(err)
	}
	const node2, other = `aws_instance.host["node2"]`, "aws_vpc.fleet"
	ec2 := func(code, message string) string {
		return "creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 400, RequestID: 12-34, api error " + code + ": " + message
	}
	for _, c := range []struct {
		address, summary, detail, want string
		usage                          bool
	}{
		{node2, ec2("InsufficientInstanceCapacity", "none $1 ${x}"), "", "node2: AWS has no c6i.2xlarge left in us-east-1b: the same command again later, or another type", false},
		{other, ec2("InsufficientInstanceCapacity", ""), "", "aws_vpc.fleet: AWS has no such instance left in its zone: ", false},
		{node2, ec2("VcpuLimitExceeded", "You have requested more vCPU"), "", "node2: the account's quota of vCPUs is used up", false},
		{node2, ec2("Unsupported", "Your requested instance type"), "", "node2: c6i.2xlarge is not offered in us-east-1b: ", false},
		{node2, ec2("UnauthorizedOperation", "You are not authorized to perform ec2:RunInstances"), "", "AWS forbids it: the profile needs the permissions of EC2 (AmazonEC2FullAccess): You are not authorized to perform ec2:RunInstances", false},
		{node2, ec2("InvalidParameterValue", "Invalid value 'c6.huge' for InstanceType."), "", "there is no instance type c6.huge: see NODE_TYPE", true},
		{"", "Retrieving AWS account details: operation error STS: GetCallerIdentity, api error ExpiredToken: The security token included in the request is expired", "", "the AWS token has expired: log in again", false},
		{"", "configuring", "the SSO session has expired or is invalid", "the AWS token has expired: log in again", false},
		{"", "x: api error InvalidClientTokenId: The security token is invalid", "", "AWS does not know these credentials", false},
		{"", "Error acquiring the state lock", "Error message: resource temporarily unavailable\n\nLock Info: ...", "another command works on this fleet", false},
		{"", "failed to get shared config profile, bench", "", "AWS_PROFILE=bench: there is no such profile: aws configure --profile bench makes it", true},
		{"", "Invalid AWS Region: atlantis-1", "", "there is no AWS region atlantis-1: ", true},
		{"", "Failed to query available provider packages", "Could not retrieve the list", "the AWS provider cannot be fetched: ", false},
		{"", "Invalid value for variable", "name is\nlong.\n\nThis was checked by the validation rule at variables.tf:31", "name is long.", true},
		{other, ec2("VpcLimitExceeded", "The maximum number of VPCs has been reached."), "", "aws_vpc.fleet: creating EC2 Instance: VpcLimitExceeded: The maximum number of VPCs has been reached.", false},
		{"", "odd\nthing", "first\nline\n\nsecond", "odd thing: first line", false},
	} {
		err := diagnostic{Severity: "error", Summary: c.summary, Detail: c.detail, Address: c.address}.explain(&p)
		if _, usage := err.(UsageError); usage != c.usage || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

// FuzzMessages reads what terraform may print: whatever it says, an error is one line.
func FuzzMessages(f *testing.F) {
	f.Add(`{"type": "diagnostic", "diagnostic": {"severity": "error", "summary": "a", "detail": "b\n\nc", "address": "aws_instance.host[\"node2\"]"}}`)
	f.Add(`{"diagnostic": {"summary": "Invalid value for variable"}}`)
	f.Add(`{"diagnostic": {"summary": "api error InsufficientInstanceCapacity", "address": "["}}`)
	f.Add(`{"diagnostic": {"summary": "failed to get shared config profile, $1"}}`)
	f.Add(stateText)
	f.Fuzz(func(t *testing.T, text string) {
		var m struct {
			Diagnostic diagnostic `json:"diagnostic"`
		}
		if json.Unmarshal([]byte(text), &m) == nil {
			if line := m.Diagnostic.explain(&plan{}).Error(); line == "" || strings.Contains(line, "\n") {
				t.Errorf("%q", line)
			}
		}
		if err := complained(text).Error(); err == "" || strings.Contains(err, "\n") {
			t.Errorf("%q", err)
		}
		var st state
		if json.Unmarshal([]byte(text), &st) == nil {
			h := st.hosts()
			if len(h.list)+len(h.missing) != len(hostNames) {
				t.Errorf("%+v", h)
			}
			_ = h.complete()
		}
		var p plan
		if json.Unmarshal([]byte(text), &p) == nil {
			p.summary(&strings.Builder{})
			p.estimate(&strings.Builder{})
		}
	})
}
