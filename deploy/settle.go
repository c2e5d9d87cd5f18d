package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"raftrig/fleet"
)

// settled is what a host has to do to count as up: its user data has run, and
// its local disks, where it has some, are mounted. cloud-init's status 2 is a
// warning about something else. A brace would be a placeholder of the fleet's.
const settled = `
cloud-init status --wait >/dev/null
case $? in
0 | 2) ;;
*)
  tail -n 5 /var/log/cloud-init-output.log
  echo "its user data failed: see /var/log/cloud-init-output.log there"
  exit 1
  ;;
esac
for disk in "$RAFTRIG_BY_ID"/nvme-Amazon_EC2_NVMe_Instance_Storage_* /dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_*; do
  if [ -e "$disk" ] && ! mountpoint -q /data; then
    echo "its local disks are not mounted at /data: see journalctl -u raftrig-boot there"
    exit 1
  fi
done
`

// retryPause is how long a host that does not answer is left in peace.
const retryPause = 2 * time.Second

// leaveWait is how long bin/fleet may take to end when it is told to.
const leaveWait = 10 * time.Second

// settle waits until all hosts answer by ssh and are settled. bin/fleet asks
// them, which also brings itself there. A host that does not come up is named,
// with its last words.
func (r *Rig) settle(ctx context.Context, h *hosts, key string) error {
	defer os.Remove(r.newEnv())
	if err := fleet.WriteEnv(r.newEnv(), r.inventory(h, key)); err != nil {
		return err
	}
	fmt.Fprintf(r.Stdout, "waiting for the hosts, for %s at most\n", r.Wait)
	whole := ctx
	ctx, cancel := context.WithTimeout(whole, r.Wait)
	defer cancel()
	errs := make([]error, len(h.list))
	var wg sync.WaitGroup
	for i, x := range h.list {
		wg.Go(func() { errs[i] = r.up(ctx, x) })
	}
	wg.Wait()
	// Commands with another inventory have no use for the connections.
	_, err := r.fleet(context.WithoutCancel(ctx), "disconnect")
	if whole.Err() != nil {
		return errors.New("interrupted: the fleet is there; make deploy waits for it again, make env does not")
	}
	return errors.Join(append(errs, err)...)
}

// fleet runs a verb of bin/fleet on the new hosts. Its output comes along with
// an error too.
func (r *Rig) fleet(ctx context.Context, verb string, args ...string) (string, error) {
	program := filepath.Join(r.root(), "bin", "fleet")
	cmd := exec.CommandContext(ctx, program, append([]string{verb, "-env", r.newEnv()}, args...)...)
	cmd.Dir = r.root()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = leaveWait
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New(lastLine(string(exit.Stderr)))
	}
	return string(out), err
}

// up waits for one host.
func (r *Rig) up(ctx context.Context, x host) error {
	id := strings.TrimPrefix(x.name, "node")
	title := strings.Replace(x.name, "node", "node ", 1) // as fleet has it
	last := errors.New("no answer")
	for ctx.Err() == nil {
		_, err := r.fleet(ctx, "push", "-nodes", id, "bin/fleet")
		if err == nil {
			var said string
			said, err = r.fleet(ctx, "exec", "-nodes", id, "-timeout", r.Wait.String(), "--", "/bin/sh", "-c", settled)
			if err == nil {
				fmt.Fprintf(r.Stdout, "%s is up\n", x.name)
				return nil
			}
			if said != "" { // waiting changes nothing
				_, line, _ := strings.Cut(lastLine(said), " | ") // fleet puts the host before it
				return fmt.Errorf("%s (%s) is up, but not as it should be: %s; make deploy REPLACE=%s makes it anew", x.name, x.public, line, x.name)
			}
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
	return fmt.Errorf("%s (%s) does not come up: %s; see that SSH_CIDR covers your address, and read its system log in the EC2 console: make deploy waits once more, make deploy REPLACE=%s makes it anew",
		x.name, x.public, strings.TrimPrefix(last.Error(), "fleet: "+title+": "), x.name)
}

// lastLine is the last line of a text.
func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// forget removes the host keys of these addresses from the fleet's own
// known_hosts: AWS gives an address to one host after the other.
func (r *Rig) forget(ctx context.Context, h *hosts) {
	file := filepath.Join(r.root(), "run", "ssh_known_hosts")
	if _, err := os.Stat(file); err != nil {
		return
	}
	for _, x := range h.list {
		// Where there is no ssh-keygen or no such line, nothing is to be removed.
		_ = exec.CommandContext(ctx, "ssh-keygen", "-q", "-R", x.public, "-f", file).Run()
	}
	os.Remove(file + ".old")
}
