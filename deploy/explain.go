package deploy

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

// diagnostic is an error or a warning of terraform.
type diagnostic struct {
	Severity string `json:"severity"`
	Summary  string `json:"summary"`
	Detail   string `json:"detail"`
	Address  string `json:"address"`
}

// rule is a failure that is known, and what to do about it. $1 is a group of its
// expression; {host}, {type} and {zone} are those of the instance.
type rule struct {
	re    *regexp.Regexp
	say   string
	usage bool // a setting is at fault
}

func known(expr, say string) rule { return rule{regexp.MustCompile(expr), say, false} }
func wrong(expr, say string) rule { return rule{regexp.MustCompile(expr), say, true} }

var rules = []rule{
	wrong(`failed to get shared config profile, ([^\s:]+)`,
		"AWS_PROFILE=$1: there is no such profile: aws configure --profile $1 makes it, AWS_PROFILE=NAME chooses another"),
	known(`No valid credential sources found`,
		"no AWS credentials: name a profile (AWS_PROFILE=NAME, made by aws configure), or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
	known(`ExpiredToken|RequestExpired|TokenRefreshRequired|token (has|is) expired|SSO session has expired`,
		"the AWS token has expired: log in again (aws sso login, or new keys), then the same command once more"),
	known(`InvalidClientTokenId|AuthFailure|SignatureDoesNotMatch|UnrecognizedClientException`,
		"AWS does not know these credentials: check AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
	known(`(?:UnauthorizedOperation|AccessDenied)[A-Za-z]*:? *(.*)`,
		"AWS forbids it: the profile needs the permissions of EC2 (AmazonEC2FullAccess): $1"),
	wrong(`[iI]nvalid AWS Region: ([^\s]+)`,
		"there is no AWS region $1: set region and node_azs in deploy/terraform.tfvars"),
	known(`InsufficientInstanceCapacity|InsufficientHostCapacity`,
		"{host}: AWS has no {type} left in {zone}: the same command again later, or another type (NODE_TYPE, CLIENT_TYPE), or other zones or another order of them (node_azs in deploy/terraform.tfvars)"),
	known(`VcpuLimitExceeded|InstanceLimitExceeded`,
		"{host}: the account's quota of vCPUs is used up: raise it (Service Quotas, Running On-Demand Standard instances), or take smaller types (NODE_TYPE, CLIENT_TYPE)"),
	wrong(`InvalidParameterValue: Invalid value '([^']+)' for InstanceType`,
		"there is no instance type $1: see NODE_TYPE and CLIENT_TYPE"),
	known(`api error Unsupported: `,
		"{host}: {type} is not offered in {zone}: another type (NODE_TYPE, CLIENT_TYPE), or other zones (node_azs in deploy/terraform.tfvars)"),
	known(`Error acquiring the state lock`,
		"another command works on this fleet: wait for its end"),
	wrong(`input variable "ssh_ingress_cidr" is not set`,
		"whence may the hosts be reached? SSH_CIDR=ADDRESS/32 with your own public address, or ssh_ingress_cidr in deploy/terraform.tfvars"),
	known(`no such host|connection refused|i/o timeout|TLS handshake timeout`,
		"AWS cannot be reached from here: check the network and a proxy, then the same command once more"),
	known(`Failed to (query available provider packages|install provider)|Required plugins are not installed`,
		"the AWS provider cannot be fetched: terraform needs its registry, or TF_MIRROR=FOLDER with the provider in it"),
}

// apiErrorRE is what the AWS library puts around the words of an API.
var apiErrorRE = regexp.MustCompile(`operation error .*?, (?:.*api error )?`)

// explain makes one line of a diagnostic. p says where the resource was to be.
func (d diagnostic) explain(p *plan) error {
	text := d.Summary + "\n" + d.Detail
	for _, r := range rules {
		m := r.re.FindStringSubmatchIndex(text)
		if m == nil {
			continue
		}
		line := string(r.re.ExpandString(nil, r.say, text, m))
		zone, instanceType := p.zone(d.Address)
		line = strings.NewReplacer("{host}", hostOf(d.Address), "{type}", cmp.Or(instanceType, "such instance"),
			"{zone}", cmp.Or(zone, "its zone")).Replace(line)
		if r.usage {
			return usagef("%s", line)
		}
		return fmt.Errorf("%s", line)
	}
	switch d.Summary {
	case "Invalid value for variable", "Resource precondition failed":
		// The words are those of variables.tf, hosts.tf and network.tf.
		return usagef("%s", cmp.Or(firstParagraph(d.Detail), d.Summary))
	}
	line := apiErrorRE.ReplaceAllString(d.Summary, "")
	if first := firstParagraph(d.Detail); first != "" {
		line += ": " + first
	}
	if d.Address != "" {
		line = d.Address + ": " + line
	}
	return fmt.Errorf("%s", cmp.Or(oneLine(line), "terraform failed without a word"))
}

var indexRE = regexp.MustCompile(`\["([a-z0-9]+)"\]$`)

// hostOf is the host's name in aws_instance.host["node2"].
func hostOf(address string) string {
	if m := indexRE.FindStringSubmatch(address); m != nil {
		return m[1]
	}
	return cmp.Or(address, "a host")
}

func firstParagraph(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n\n")
	return oneLine(s)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
