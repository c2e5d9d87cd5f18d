package deploy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"raftrig/fleet"
)

// Topologies, the values of Settings.Topology.
const (
	MultiAZ  = "multi_az"  // a node a zone
	SingleAZ = "single_az" // all in one placement group
)

// Settings are what a fleet is made with, beside deploy/terraform.tfvars. Empty
// ones leave the choice to that file and to variables.tf.
type Settings struct {
	Dir      string // the terraform files and their state; .env is beside it
	Topology string // MultiAZ or SingleAZ
	// Key is the file of the private ssh key; its public half is Key.pub. Empty
	// is the key in ~/.ssh that the hosts know.
	Key        string
	CIDR       string // whence the hosts can be reached
	NodeType   string
	ClientType string
	// SSHUser, SSHOpts and RemoteDir go to .env as they are.
	SSHUser, SSHOpts, RemoteDir string

	Switch  bool          // a fleet of the other topology may change
	Replace string        // a host to make anew: node1 to node3, or client
	Wait    time.Duration // how long hosts may take to come up; 0 is not to wait
	Yes     bool          // Destroy does not ask
	JSON    bool          // Plan prints terraform's JSON document
}

// hostNames are the hosts of a fleet as terraform knows them, the nodes in their
// order.
var hostNames = []string{"node1", "node2", "node3", "client"}

// UsageError is a setting that cannot be.
type UsageError struct{ error }

func usagef(format string, args ...any) error {
	return UsageError{fmt.Errorf(format, args...)}
}

func (s *Settings) check() error {
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return err
	}
	if s.Dir = dir; !isFile(filepath.Join(dir, "hosts.tf")) {
		return usagef("%s: not the folder of the terraform files: run this in raftrig's folder, or name it (-dir)", dir)
	}
	if s.Topology != MultiAZ && s.Topology != SingleAZ {
		return usagef("TOPOLOGY=%s: want %s or %s", s.Topology, MultiAZ, SingleAZ)
	}
	if s.Wait < 0 {
		return usagef("WAIT=%s: want a time, or 0 not to wait", s.Wait)
	}
	for _, name := range hostNames {
		if s.Replace == name {
			return nil
		}
	}
	if s.Replace != "" {
		return usagef("REPLACE=%s: want %s", s.Replace, strings.Join(hostNames, ", "))
	}
	return nil
}

func isFile(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// root is raftrig's folder.
func (s *Settings) root() string { return filepath.Dir(s.Dir) }

// env is the inventory, newEnv what becomes it.
func (s *Settings) env() string    { return filepath.Join(s.root(), ".env") }
func (s *Settings) newEnv() string { return s.env() + ".new" }

// keyPair finds the ssh key: the private half's file and the public half. known
// is the public half that a fleet's hosts know, "" when there is none.
func (s *Settings) keyPair(known string) (file, public string, err error) {
	if s.Key != "" {
		file = s.Key
		if rest, ok := strings.CutPrefix(file, "~/"); ok {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", "", err
			}
			file = filepath.Join(home, rest)
		}
		if file, err = filepath.Abs(file); err != nil {
			return "", "", err
		}
		public, err = publicHalf(file)
		return file, public, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", "", err
	}
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		f := filepath.Join(home, ".ssh", name)
		p, err := publicHalf(f)
		if err == nil && (known == "" || p == known) {
			return f, p, nil
		}
	}
	if known != "" {
		return "", "", usagef("no key in ~/.ssh is the one that the hosts know: name its file, SSH_KEY=FILE")
	}
	return "", "", usagef("no ssh key in ~/.ssh: SSH_KEY=FILE names one, ssh-keygen -t ed25519 makes one")
}

// publicHalf gives kind and key, without the comment.
func publicHalf(file string) (string, error) {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return "", usagef("SSH_KEY=%s: no such file: ssh-keygen -t ed25519 -f %s makes it", file, file)
	}
	text, err := os.ReadFile(file + ".pub")
	if errors.Is(err, fs.ErrNotExist) {
		return "", usagef("SSH_KEY=%s: its public half %s.pub is missing: ssh-keygen -y -f %s >%s.pub", file, file, file, file)
	}
	if err != nil {
		return "", err
	}
	words := strings.Fields(string(text))
	if len(words) < 2 {
		return "", usagef("%s.pub: no public key: ssh-keygen -y -f %s >%s.pub", file, file, file)
	}
	return words[0] + " " + words[1], nil
}

// try sees that the settings make an inventory that the fleet's commands take,
// before anything is made that costs money. The addresses are for documentation
// (RFC 5737).
func (s *Settings) try(key string) error {
	nowhere := &hosts{}
	for i, name := range hostNames {
		addr := fmt.Sprintf("192.0.2.%d", i+1)
		nowhere.list = append(nowhere.list, host{name: name, public: addr, private: addr, zone: "none"})
	}
	defer os.Remove(s.newEnv())
	err := fleet.WriteEnv(s.newEnv(), s.inventory(nowhere, key))
	if err == nil {
		var inv fleet.Inventory
		if inv, err = fleet.Load(s.newEnv()); err == nil {
			_, err = fleet.Open(inv, s.root(), "run/deploy")
		}
	}
	if err != nil {
		return UsageError{err}
	}
	return nil
}
