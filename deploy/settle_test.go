package deploy

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSettle waits for hosts that are reached by a real ssh.
func TestSettle(t *testing.T) {
	h := startHosts(t)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	buildFleet(t, filepath.Join(root, "bin", "fleet"))
	settings := Settings{Dir: filepath.Join(root, "deploy"), Topology: MultiAZ, Wait: 2 * time.Minute}
	for _, kv := range h.variables(t) {
		switch key, value, _ := strings.Cut(kv, "="); key {
		case "SSH_USER":
			settings.SSHUser = value
		case "SSH_OPTS":
			settings.SSHOpts = value
		}
	}
	fleet := &hosts{topology: MultiAZ}
	for i, name := range hostNames {
		addr := "192.0.2.1" + string(rune('0'+i))
		fleet.list = append(fleet.list, host{name, addr, addr, "use1-az1"})
	}
	settle := func(wait time.Duration) error {
		r := Rig{Settings: settings, Stdout: t.Output(), Stderr: io.Discard}
		r.Wait = wait
		return r.settle(t.Context(), fleet, h.key)
	}
	if err := settle(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	asked, err := os.ReadFile(filepath.Join(h.dir, "asked"))
	if err != nil || strings.Count(string(asked), "status --wait\n") != 4 {
		t.Errorf("cloud-init was asked %q, %v", asked, err)
	}

	h.write(t, "unmounted", "", 0o644)
	want := "node3 (192.0.2.12) is up, but not as it should be: its local disks are not mounted at /data: see journalctl -u raftrig-boot there; make deploy REPLACE=node3 makes it anew"
	if err := settle(2 * time.Minute); err == nil || strings.Count(err.Error(), "\n") != 3 || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	h.remove(t, "by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS1")
	h.write(t, "cloud-init-status", "2", 0o644)
	if err := settle(2 * time.Minute); err != nil {
		t.Errorf("a host without local disks: %v", err)
	}

	h.write(t, "down-192.0.2.13", "", 0o644)
	h.write(t, "cloud-init-status", "1", 0o644)
	err = settle(5 * time.Second)
	for _, want := range []string{"client (192.0.2.13) does not come up: ssh: ", "make deploy REPLACE=client makes it anew",
		"node1 (192.0.2.10) is up, but not as it should be: its user data failed: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(root, ".env*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
