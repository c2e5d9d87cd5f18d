// Command deploy makes a fleet on EC2 and removes it; see deploy help.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"raftrig/deploy"
)

const usage = `deploy makes a fleet on EC2, by terraform, and removes it.

usage: deploy VERB [flags]

  plan      say what deploy would do, and what the fleet costs
  deploy    make the fleet, wait for its hosts, write .env
  env       write .env again, from terraform's state
  destroy   remove the fleet and .env

flags, and the variables of make for them:
  -topology multi_az     TOPOLOGY     or single_az
  -switch                SWITCH=1     change a fleet of the other topology
  -replace HOST          REPLACE      make node1, node2, node3 or client anew
  -key FILE              SSH_KEY      private ssh key, with FILE.pub beside it;
                                      by default one in ~/.ssh
  -cidr ADDRESS/32       SSH_CIDR     whence the hosts can be reached
  -node-type TYPE        NODE_TYPE    instance type of the nodes
  -client-type TYPE      CLIENT_TYPE  and of the client's host
  -wait 10m              WAIT         for the hosts to come up; 0 does not wait
  -yes                   YES=1        destroy without a question
  -json                  JSON=1       plan as terraform's JSON document
  -user ubuntu           SSH_USER     the login on the hosts
  -ssh-opts OPTIONS      SSH_OPTS     further options of ssh
  -remote-dir DIR        REMOTE_DIR   raftrig's folder on the hosts
  -dir deploy            DEPLOY_DIR   the terraform files and their state

What stays the same belongs into deploy/terraform.tfvars; see
deploy/variables.tf. TF_MIRROR=FOLDER takes the AWS provider from a folder.

exit status: 0, 1 failure, 2 usage
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second Ctrl-C does not wait for terraform
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	r := &deploy.Rig{Stdin: stdin, Stdout: stdout, Stderr: stderr, Mirror: os.Getenv("TF_MIRROR")}
	verbs := map[string]func(context.Context) error{"plan": r.Plan, "deploy": r.Deploy, "env": r.Env, "destroy": r.Destroy}
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	verb, known := verbs[name]
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&r.Dir, "dir", "deploy", "")
	fs.StringVar(&r.Topology, "topology", deploy.MultiAZ, "")
	fs.BoolVar(&r.Switch, "switch", false, "")
	fs.StringVar(&r.Replace, "replace", "", "")
	fs.StringVar(&r.Key, "key", "", "")
	fs.StringVar(&r.CIDR, "cidr", "", "")
	fs.StringVar(&r.NodeType, "node-type", "", "")
	fs.StringVar(&r.ClientType, "client-type", "", "")
	fs.DurationVar(&r.Wait, "wait", 10*time.Minute, "")
	fs.BoolVar(&r.Yes, "yes", false, "")
	fs.BoolVar(&r.JSON, "json", false, "")
	fs.StringVar(&r.SSHUser, "user", "ubuntu", "")
	fs.StringVar(&r.SSHOpts, "ssh-opts", "", "")
	fs.StringVar(&r.RemoteDir, "remote-dir", "", "")

	var err error
	switch {
	case strings.TrimLeft(name, "-") == "help" || name == "-h":
		fmt.Fprint(stdout, usage)
		return 0
	case !known:
		err = fmt.Errorf("no verb %q: want plan, deploy, env or destroy (deploy help says more)", name)
	default:
		if err = fs.Parse(args); err == nil && fs.NArg() > 0 {
			err = fmt.Errorf("argument %q is one too many", fs.Arg(0))
		}
	}
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "deploy: %v\n", err)
		return 2
	}
	err = verb(ctx)
	if err == nil {
		return 0
	}
	for line := range strings.SplitSeq(err.Error(), "\n") { // errors.Join's lines
		fmt.Fprintf(stderr, "deploy: %s\n", line)
	}
	if errors.As(err, new(deploy.UsageError)) {
		return 2
	}
	return 1
}
