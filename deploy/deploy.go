package deploy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"raftrig/fleet"
)

// Rig is a fleet on EC2 and the verbs over it.
type Rig struct {
	Settings
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Mirror is a folder with the provider; "" is terraform's registry.
	Mirror string
}

func (r *Rig) terraform() *terraform {
	return &terraform{dir: r.Dir, mirror: r.Mirror, stderr: r.Stderr}
}

// begin checks the settings and reads the state.
func (r *Rig) begin(ctx context.Context) (*terraform, *hosts, error) {
	if err := r.check(); err != nil {
		return nil, nil, err
	}
	t := r.terraform()
	st, err := t.state(ctx)
	if err != nil {
		return nil, nil, err
	}
	return t, st.hosts(), nil
}

// login finds the ssh key, and sees that the fleet's commands will take it.
func (r *Rig) login(h *hosts) (key, public string, err error) {
	key, public, err = r.keyPair(h.key)
	if err == nil {
		err = r.try(key)
	}
	return key, public, err
}

// Plan prints what Deploy would do, and what the fleet then costs. Nothing is
// changed.
func (r *Rig) Plan(ctx context.Context) error {
	t, h, err := r.begin(ctx)
	if err != nil {
		return err
	}
	_, public, err := r.login(h)
	if err != nil {
		return err
	}
	p, file, err := r.plan(ctx, t, r.arguments(public))
	if err != nil {
		return err
	}
	defer os.Remove(file)
	if r.JSON {
		text, err := t.show(ctx, &plan{}, file)
		if err == nil {
			_, err = r.Stdout.Write(text)
		}
		return err
	}
	text, err := t.output(ctx, "show", "-no-color", file)
	if err != nil {
		return err
	}
	if _, err := r.Stdout.Write(text); err != nil {
		return err
	}
	p.estimate(r.Stdout)
	if h.topology != "" && h.topology != r.Topology {
		fmt.Fprintf(r.Stdout, "the fleet is %s now: make deploy wants SWITCH=1 for that\n", h.topology)
	}
	return nil
}

// Deploy makes the fleet what the settings say, waits until its hosts are up,
// and writes .env. A fleet of the other topology it leaves alone, unless
// Settings.Switch. Called again it completes what failed.
func (r *Rig) Deploy(ctx context.Context) error {
	t, h, err := r.begin(ctx)
	if err != nil {
		return err
	}
	if h.topology != "" && h.topology != r.Topology && !r.Switch {
		return usagef("the fleet is %s, not %s: TOPOLOGY=%s keeps it; SWITCH=1 replaces nodes 2 and 3",
			h.topology, r.Topology, map[string]string{MultiAZ: SingleAZ, SingleAZ: MultiAZ}[r.Topology])
	}
	key, public, err := r.login(h)
	if err != nil {
		return err
	}
	if err := r.removeEnv(); err != nil {
		return err
	}
	p, file, err := r.plan(ctx, t, r.arguments(public))
	if err != nil {
		if h.complete() == nil {
			err = errors.Join(err, errors.New("nothing was changed, and .env is gone: make env writes it again"))
		}
		return err
	}
	defer os.Remove(file)
	p.estimate(r.Stdout)
	p.summary(r.Stdout)
	if err := r.apply(ctx, t, p, file); err != nil {
		return errors.Join(err, errors.New("the fleet is not complete: make deploy goes on, make destroy removes what is there"))
	}
	st, err := t.state(ctx)
	if err != nil {
		return err
	}
	h = st.hosts()
	if err := h.complete(); err != nil {
		return err
	}
	r.forget(ctx, h)
	if r.Wait > 0 {
		if err := r.settle(ctx, h, key); err != nil {
			return err
		}
	}
	return r.writeEnv(h, key)
}

// Env writes .env from the state. It asks nothing of AWS.
func (r *Rig) Env(ctx context.Context) error {
	_, h, err := r.begin(ctx)
	if err != nil {
		return err
	}
	if err := h.complete(); err != nil {
		return err
	}
	key, public, err := r.login(h)
	if err != nil {
		return err
	}
	if public != h.key {
		return usagef("SSH_KEY=%s: not the key that the hosts know: name that one", r.Key)
	}
	if err := r.keepForeign(); err != nil {
		return err
	}
	return r.writeEnv(h, key)
}

// Destroy removes all that Deploy made, and .env, after it has asked.
func (r *Rig) Destroy(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	t := r.terraform()
	st, err := t.state(ctx)
	if err != nil {
		return err
	}
	n := len(st.Values.Root.Resources)
	if n == 0 {
		fmt.Fprintln(r.Stdout, "there is no fleet")
		return r.removeEnv()
	}
	if !r.Yes {
		fmt.Fprintf(r.Stdout, "destroy the fleet, %d resources with %d hosts? yes or no: ", n, len(st.hosts().list))
		answer, _ := bufio.NewReader(io.LimitReader(r.Stdin, 1<<10)).ReadString('\n') // its end is an answer too
		if strings.TrimSpace(answer) != "yes" {
			return errors.New("not destroyed (YES=1 does not ask)")
		}
	}
	if err := r.removeEnv(); err != nil {
		return err
	}
	// Terraform wants the variables that have no default; nothing is made of them.
	args := []string{"-destroy", "-var-file=" + r.Topology + ".tfvars", "-var=ssh_public_key=ssh-ed25519 none", "-var=ssh_ingress_cidr=192.0.2.0/24"}
	p, file, err := r.plan(ctx, t, args)
	if err != nil {
		return err
	}
	defer os.Remove(file)
	r.forget(ctx, st.hosts())
	if err := r.apply(ctx, t, p, file); err != nil {
		return errors.Join(err, errors.New("not all is destroyed, and the rest may cost money: make destroy goes on"))
	}
	if st, err = t.state(ctx); err != nil {
		return err
	}
	if n := len(st.Values.Root.Resources); n > 0 {
		return fmt.Errorf("%d resources are still there: make destroy goes on", n)
	}
	fmt.Fprintln(r.Stdout, "destroyed")
	return nil
}

// arguments are those of terraform plan that the settings ask for.
func (r *Rig) arguments(public string) []string {
	args := []string{"-var-file=" + r.Topology + ".tfvars", "-var=ssh_public_key=" + public}
	for name, value := range map[string]string{
		"ssh_ingress_cidr": r.CIDR, "node_instance_type": r.NodeType, "client_instance_type": r.ClientType,
	} {
		if value != "" {
			args = append(args, "-var="+name+"="+value)
		}
	}
	if r.Replace != "" {
		args = append(args, fmt.Sprintf("-replace=aws_instance.host[%q]", r.Replace))
	}
	return args
}

// plan makes a plan in a file of its own, which the caller removes: it holds
// what may be secret.
func (r *Rig) plan(ctx context.Context, t *terraform, args []string) (p *plan, file string, err error) {
	if err := t.init(ctx); err != nil {
		return nil, "", err
	}
	f, err := os.CreateTemp("", "raftrig-*.tfplan")
	if err != nil {
		return nil, "", err
	}
	f.Close()
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	args = append([]string{"plan", "-input=false", "-no-color", "-json", "-out=" + f.Name()}, args...)
	if err := t.run(ctx, &plan{}, io.Discard, args...); err != nil {
		return nil, "", err
	}
	p = &plan{}
	_, err = t.show(ctx, p, f.Name())
	return p, f.Name(), err
}

func (r *Rig) apply(ctx context.Context, t *terraform, p *plan, file string) error {
	return t.run(ctx, p, r.Stdout, "apply", "-input=false", "-no-color", "-json", file)
}

// envMark is the first line of an .env that this package wrote.
const envMark = "# Written by make deploy and make env, and removed by the next."

// removeEnv removes .env: what follows makes it untrue.
func (r *Rig) removeEnv() error {
	if err := r.keepForeign(); err != nil {
		return err
	}
	if err := os.Remove(r.env()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// keepForeign puts an .env aside that somebody else wrote.
func (r *Rig) keepForeign() error {
	text, err := os.ReadFile(r.env())
	if errors.Is(err, fs.ErrNotExist) || strings.HasPrefix(string(text), envMark) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Rename(r.env(), r.env()+".own"); err != nil {
		return err
	}
	fmt.Fprintln(r.Stderr, "deploy: .env was not written by make deploy: it is .env.own now")
	return nil
}

// inventory is the text of .env for these hosts.
func (s *Settings) inventory(h *hosts, key string) string {
	var b strings.Builder
	set := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s=%s\n", name, value)
		}
	}
	fmt.Fprintln(&b, envMark)
	set("TRANSPORT", fleet.TransportSSH)
	topology := h.topology
	if topology == "" {
		topology = s.Topology
	}
	set("TOPOLOGY", topology)
	for _, x := range h.list {
		name := strings.ToUpper(x.name)
		set(name, x.public)
		set(name+"_PRIVATE", x.private)
		set(name+"_ZONE", x.zone)
	}
	set("SSH_USER", s.SSHUser)
	set("SSH_KEY", key)
	set("SSH_OPTS", s.SSHOpts)
	set("REMOTE_DIR", s.RemoteDir)
	return b.String()
}

func (r *Rig) writeEnv(h *hosts, key string) error {
	if err := fleet.WriteEnv(r.env(), r.inventory(h, key)); err != nil {
		return err
	}
	where, err := filepath.Abs(r.env())
	if err != nil {
		where = r.env()
	}
	fmt.Fprintf(r.Stdout, "%s: four hosts, %s\n", where, h.topology)
	return nil
}
