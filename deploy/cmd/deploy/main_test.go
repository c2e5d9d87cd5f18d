package main

import (
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args, out, err string
		status         int
	}{
		{"help", "usage: deploy VERB [flags]", "", 0},
		{"--help", "usage: deploy VERB [flags]", "", 0},
		{"plan -h", "usage: deploy VERB [flags]", "", 0},
		{"", "", `deploy: no verb "": want plan, deploy, env or destroy (deploy help says more)`, 2},
		{"apply", "", `deploy: no verb "apply": want`, 2},
		{"plan -no", "", "deploy: flag provided but not defined: -no", 2},
		{"deploy -wait soon", "", `deploy: invalid value "soon" for flag -wait`, 2},
		{"env now", "", `deploy: argument "now" is one too many`, 2},
		{"plan -dir ../../../deploy -topology mars", "", "deploy: TOPOLOGY=mars: want multi_az or single_az", 2},
		{"destroy -dir ../../no-such", "", "no-such: not the folder of the terraform files", 2},
	} {
		var out, err strings.Builder
		status := run(t.Context(), strings.Fields(c.args), strings.NewReader(""), &out, &err)
		if status != c.status || !strings.Contains(out.String(), c.out) || !strings.Contains(err.String(), c.err) {
			t.Errorf("deploy %s: %d\n%s%s", c.args, status, out.String(), err.String())
		}
		if lines := strings.Count(err.String(), "\n"); lines > 1 {
			t.Errorf("deploy %s says %d lines", c.args, lines)
		}
	}
}
