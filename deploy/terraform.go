package deploy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// terraform runs terraform in the folder of its files.
type terraform struct {
	dir    string
	mirror string // a folder with the provider; "" is terraform's registry
	stderr io.Writer
}

// maxComplaintBytes is what is kept of what terraform says outside of its JSON.
const maxComplaintBytes = 64 << 10

// command does not end with the context: terraform is told, and then finishes
// what it began, so that its state stays true. It has a process group of its
// own, or Ctrl-C at the terminal would reach it twice, which it takes for an
// order to stop at once.
func (t *terraform) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "terraform", args...)
	cmd.Dir = t.dir
	cmd.Env = append(os.Environ(), "TF_IN_AUTOMATION=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd
}

// failed makes an error of how a command ended.
func failed(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return errors.New("terraform is not on the PATH: install terraform 1.5 or newer")
	case ctx.Err() != nil:
		return errors.New("interrupted: what terraform had begun is in its state, and the same command goes on from there")
	}
	return err
}

// output gives what a command prints.
func (t *terraform) output(ctx context.Context, args ...string) ([]byte, error) {
	cmd := t.command(ctx, args...)
	var out bytes.Buffer
	complaint := &limited{}
	cmd.Stdout, cmd.Stderr = &out, complaint
	if err := cmd.Run(); err != nil {
		if errors.As(err, new(*exec.ExitError)) && ctx.Err() == nil {
			return nil, complained(complaint.String())
		}
		return nil, failed(ctx, err)
	}
	return out.Bytes(), nil
}

// complained makes one line of what terraform says of an error to people.
func complained(text string) error {
	_, found, ok := strings.Cut(text, "Error: ")
	if !ok {
		return fmt.Errorf("terraform failed: %s", oneLine(text))
	}
	summary, detail, _ := strings.Cut(found, "\n")
	return diagnostic{Summary: summary, Detail: detail}.explain(&plan{})
}

// init fetches the provider, unless it is there already.
func (t *terraform) init(ctx context.Context) error {
	lock, err := os.Stat(filepath.Join(t.dir, ".terraform.lock.hcl"))
	if err == nil {
		_, err = os.Stat(filepath.Join(t.dir, ".terraform", "providers"))
	}
	if err == nil {
		var versions os.FileInfo
		if versions, err = os.Stat(filepath.Join(t.dir, "versions.tf")); err == nil && !lock.ModTime().Before(versions.ModTime()) {
			return nil
		}
	}
	args := []string{"init", "-input=false", "-no-color"}
	if t.mirror != "" {
		mirror, err := filepath.Abs(t.mirror)
		if err != nil {
			return err
		}
		args = append(args, "-plugin-dir="+mirror)
	}
	fmt.Fprintln(t.stderr, "deploy: terraform init")
	_, err = t.output(ctx, args...)
	return err
}

// show reads a plan, or the state when no file is given, as JSON.
func (t *terraform) show(ctx context.Context, v any, file ...string) ([]byte, error) {
	text, err := t.output(ctx, append([]string{"show", "-json", "-no-color"}, file...)...)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return nil, fmt.Errorf("terraform show: %w", err)
	}
	return text, nil
}

// state reads the state; without one it is empty, and no provider is needed.
func (t *terraform) state(ctx context.Context) (*state, error) {
	st := &state{}
	info, err := os.Stat(filepath.Join(t.dir, "terraform.tfstate"))
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return st, nil
	}
	if err != nil {
		return nil, err
	}
	if err := t.init(ctx); err != nil {
		return nil, err
	}
	_, err = t.show(ctx, st)
	return st, err
}

// run runs plan or apply, writes to progress what begins and ends, and gives the
// errors it met. p is the plan that is applied.
func (t *terraform) run(ctx context.Context, p *plan, progress io.Writer, args ...string) error {
	cmd := t.command(ctx, args...)
	complaint := &limited{}
	cmd.Stderr = complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return failed(ctx, err)
	}
	var errs []error
	seen := make(map[string]bool) // an expired token is met by each resource
	lines := bufio.NewReader(out)
	for {
		line, readErr := lines.ReadBytes('\n')
		var m struct {
			Type       string     `json:"type"`
			Message    string     `json:"@message"`
			Diagnostic diagnostic `json:"diagnostic"`
		}
		if json.Unmarshal(line, &m) == nil {
			switch m.Type {
			case "apply_start", "apply_complete", "apply_errored":
				fmt.Fprintln(progress, m.Message)
			case "diagnostic":
				e := m.Diagnostic.explain(p)
				if m.Diagnostic.Severity != "error" {
					fmt.Fprintf(t.stderr, "deploy: warning: %v\n", e)
				} else if !seen[e.Error()] {
					seen[e.Error()] = true
					errs = append(errs, e)
				}
			}
		}
		if readErr != nil {
			break // its end, which Wait explains
		}
	}
	err = cmd.Wait()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return failed(ctx, err)
	case len(errs) > 0:
		return errors.Join(errs...)
	}
	return complained(complaint.String())
}

// limited keeps the beginning of what is written.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	l.Buffer.Write(b[:min(len(b), maxComplaintBytes-l.Len())])
	return len(b), nil
}
