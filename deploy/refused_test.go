package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// testRefused has the verbs refuse what cannot be, before anything is made. l
// has the provider.
func testRefused(t *testing.T, prepared *lab, login []string) {
	l := newLab(t, prepared.ec2)
	lock, err := os.ReadFile(prepared.path("deploy/.terraform.lock.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	l.write("deploy/.terraform.lock.hcl", string(lock))
	if err := os.Symlink(prepared.path("deploy/.terraform"), l.path("deploy/.terraform")); err != nil {
		t.Fatal(err)
	}
	in := func(t *testing.T) *lab {
		l.t = t
		return l
	}
	t.Run("settings", func(t *testing.T) {
		l := in(t)
		l.write("deploy/terraform.tfvars", strings.Join([]string{
			`max_retries = 2`, `ssh_ingress_cidr = "0.0.0.0/0"`, `raft_port = 80`, `name = "It's"`,
			`node_azs = ["us-east-1a", "us-east-1a", "us-east-1b"]`, ``}, "\n"))
		l.fails(l.make("deploy", login...), "ssh_ingress_cidr is wider than /16: give your own address, as 203.0.113.7/32.",
			"node_azs wants three different zones", "raft_port is 1024 to 65535.", "name is up to 31 small letters")
		l.write("deploy/terraform.tfvars", "max_retries = 2\n")
		l.fails(l.make("plan", login...), "whence may the hosts be reached? SSH_CIDR=ADDRESS/32")
		l.write("deploy/terraform.tfvars", "max_retries = 2\nssh_ingress_cidr = \"192.0.2.7/32\"\n")
	})
	t.Run("type", func(t *testing.T) {
		l := in(t)
		l.fails(l.make("plan", append([]string{"NODE_TYPE=c9z.large"}, login...)...),
			"c9z.large is not offered in us-east-1a: choose another node_instance_type")
	})
	t.Run("no credentials", func(t *testing.T) {
		l := in(t)
		unset(t, "AWS_ACCESS_KEY_ID")
		unset(t, "AWS_SECRET_ACCESS_KEY")
		l.fails(l.make("deploy", login...), "no AWS credentials: name a profile (AWS_PROFILE=NAME")
		l.noEnv()
		l.fails(l.make("deploy", append([]string{"AWS_PROFILE=nobody"}, login...)...), "AWS_PROFILE=nobody: there is no such profile: aws configure --profile nobody makes it")
	})
	t.Run("expired token", func(t *testing.T) {
		l := in(t)
		l.fail(t, fault{Action: "*", Code: "ExpiredToken", Message: "The security token included in the request is expired"})
		defer l.fail(t)
		r := l.make("deploy", login...)
		l.fails(r, "the AWS token has expired: log in again (aws sso login, or new keys), then the same command once more")
		if strings.Count(r.stderr, "deploy: ") != 1 {
			t.Error("it is said more than once")
		}
		l.noEnv()
	})
	t.Run("region", func(t *testing.T) {
		l := in(t)
		l.write("deploy/terraform.tfvars", "max_retries = 2\nssh_ingress_cidr = \"192.0.2.7/32\"\nregion = \"atlantis-1\"\n")
		l.fails(l.make("plan", login...), "there is no AWS region atlantis-1: set region and node_azs in deploy/terraform.tfvars")
	})
}

// TestRefusedAtOnce is what is refused before terraform is asked.
func TestRefusedAtOnce(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("no ssh on this machine: install openssh-client")
	}
	if err := os.Mkdir(filepath.Join(dir, "deploy"), 0o755); err != nil {
		t.Fatal(err)
	}
	file("deploy/hosts.tf", "", 0o644)
	const private, public = "-----BEGIN OPENSSH PRIVATE KEY-----\n", "ssh-ed25519 AAAA me@here\n"
	open := file("open", private, 0o644)
	file("open.pub", public, 0o644)
	lone := file("lone", private, 0o600)
	good := file("good", private, 0o600)
	file("good.pub", public, 0o644)
	file(".env", envMark+"\n", 0o644)
	t.Setenv("HOME", t.TempDir())
	for _, c := range []struct {
		name   string
		change func(*Settings)
		want   string
	}{
		{"topology", func(s *Settings) { s.Topology = "three_az" }, "TOPOLOGY=three_az: want multi_az or single_az"},
		{"topology is no path", func(s *Settings) { s.Topology = "../multi_az" }, "TOPOLOGY=../multi_az: want"},
		{"folder", func(s *Settings) { s.Dir = dir }, dir + ": not the folder of the terraform files"},
		{"replace", func(s *Settings) { s.Replace = "node4" }, "REPLACE=node4: want node1, node2, node3, client"},
		{"wait", func(s *Settings) { s.Wait = -1 }, "WAIT=-1ns: want a time"},
		{"open key", func(s *Settings) { s.Key = open }, "SSH_KEY=" + open + ": its mode 0644 lets others read it, and ssh then refuses it: chmod 600 '" + open + "'"},
		{"absent key", func(s *Settings) { s.Key = dir + "/no" }, "no: no such file: ssh-keygen -t ed25519 -f "},
		{"lone key", func(s *Settings) { s.Key = lone }, "lone.pub is missing: ssh-keygen -y -f "},
		{"public key", func(s *Settings) { s.Key = good + ".pub" }, "good.pub: its public half "},
		{"no key", func(s *Settings) { s.Key = "" }, "no ssh key in ~/.ssh: SSH_KEY=FILE names one, ssh-keygen -t ed25519 makes one"},
		{"ssh options", func(s *Settings) { s.SSHOpts = "-o ProxyCommand=$(id)" }, "SSH_OPTS: '$' means something to Make"},
		{"user", func(s *Settings) { s.SSHUser = "a b" }, "SSH_USER=a b: want letters"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Rig{Settings: Settings{Dir: filepath.Join(dir, "deploy"), Topology: MultiAZ, Key: good, SSHUser: "ubuntu"}, Stderr: t.Output()}
			c.change(&r.Settings)
			err := r.Deploy(t.Context())
			if _, usage := err.(UsageError); !usage || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %s", err, c.want)
			}
			if _, err := os.Stat(filepath.Join(dir, ".env")); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, ".env.new")); err == nil {
				t.Error(".env.new is left")
			}
		})
	}
}
