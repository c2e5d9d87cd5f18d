package deploy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"raftrig/fleet"
)

// lack skips a test for what the machine lacks, or fails it with TF_REQUIRED=1.
func lack(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("TF_REQUIRED") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// ec2 is an EC2 on loopback: testdata/ec2/double.py.
type ec2 struct{ url string }

// python gives an interpreter with moto, in bin/moto-venv, which is kept.
func python(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(repository(t), "bin", "moto-venv")
	interpreter := filepath.Join(dir, "bin", "python")
	want, err := os.ReadFile("testdata/ec2/requirements.txt")
	if err != nil {
		t.Fatal(err)
	}
	// What it was made of lies in it, when it was made completely.
	mark := filepath.Join(dir, "requirements.txt")
	if have, err := os.ReadFile(mark); err == nil && bytes.Equal(have, want) && exec.Command(interpreter, "-c", "import moto").Run() == nil {
		return interpreter
	}
	for _, argv := range [][]string{
		{"python3", "-m", "venv", "--clear", dir},
		{interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "testdata/ec2/requirements.txt"},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			lack(t, "no EC2 to test against: %s: %v: %s", strings.Join(argv[:3], " "), err, lastLine(string(out)))
		}
	}
	if err := os.WriteFile(mark, want, 0o644); err != nil {
		t.Fatal(err)
	}
	return interpreter
}

// child starts a command that does not outlive this process.
func child(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the kernel counts the thread as the parent
		err := cmd.Start()
		started <- err
		if err == nil {
			_, _ = cmd.Process.Wait()
		}
		runtime.UnlockOSThread()
	}()
	return <-started
}

func startEC2(t *testing.T) *ec2 {
	t.Helper()
	cmd := exec.Command(python(t), "testdata/ec2/double.py")
	in, inEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outEnd, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	complaint, err := os.Create(filepath.Join(t.TempDir(), "double"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, complaint
	err = child(cmd)
	in.Close()
	out.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		inEnd.Close()             // it ends with its input
		_, _ = io.ReadAll(outEnd) // which closes this
		outEnd.Close()
		complaint.Close()
	})
	port, err := bufio.NewReader(outEnd).ReadString('\n')
	if err != nil {
		text, _ := os.ReadFile(complaint.Name())
		t.Fatalf("the double does not start: %s", text)
	}
	return &ec2{"http://127.0.0.1:" + strings.TrimSpace(port)}
}

// fault is one that the double is told to commit.
type fault struct {
	Action  string            `json:"action"`
	Match   map[string]string `json:"match,omitempty"`
	Code    string            `json:"code"`
	Message string            `json:"message"`
}

// fail has calls fail from now on; without faults none does.
func (e *ec2) fail(t *testing.T, faults ...fault) {
	t.Helper()
	text, err := json.Marshal(append([]fault{}, faults...))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPut, e.url+"/faults", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	e.do(t, req)
}

func (e *ec2) do(t *testing.T, req *http.Request) string {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v: %s", resp.Status, err, text)
	}
	return string(text)
}

// describe asks the double itself.
func (e *ec2) describe(t *testing.T, action string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, e.url, strings.NewReader("Version=2016-11-15&Action="+action))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/ec2/aws4_request, SignedHeaders=host, Signature=none")
	return e.do(t, req)
}

// hostsByProxy makes ssh reach hosts that do not exist: it gives options by
// which ssh starts an sshd for each connection, as this user on this machine.
// What a host is asked to run runs in a folder of its own, with the programs of
// bin before others.
type hostsByProxy struct{ dir, key string }

func startHosts(t *testing.T) *hostsByProxy {
	t.Helper()
	for _, tool := range []string{"ssh", "ssh-keygen", "/usr/sbin/sshd"} {
		if _, err := exec.LookPath(tool); err != nil {
			lack(t, "no %s on this machine: install openssh-server and openssh-client", tool)
		}
	}
	h := &hostsByProxy{dir: t.TempDir()}
	h.key = filepath.Join(h.dir, "key")
	if os.Geteuid() == 0 {
		// sshd wants it, and a package that never started its service has not
		// made it.
		const separation = "/run/sshd"
		if err := os.Mkdir(separation, 0o755); err == nil {
			t.Cleanup(func() { os.Remove(separation) })
		} else if !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	for _, file := range []string{h.key, filepath.Join(h.dir, "host_key")} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	h.write(t, "sshd", fmt.Sprintf(`HostKey %[1]s/host_key
AuthorizedKeysFile %[1]s/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
ForceCommand PATH=%[1]s/bin:$PATH RAFTRIG_BY_ID=%[1]s/by-id && export PATH RAFTRIG_BY_ID && mkdir -p %[1]s/home-$HOST && cd %[1]s/home-$HOST && exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"
`, h.dir), 0o600)
	// A host is down when there is a file of its address.
	h.write(t, "proxy", fmt.Sprintf("#!/bin/sh\ntest ! -e %[1]s/down-$1 && exec /usr/sbin/sshd -i -f %[1]s/sshd -o SetEnv=HOST=$1\n", h.dir), 0o755)
	h.write(t, "ssh", fmt.Sprintf("Host *\n  ProxyCommand %s/proxy %%h\n", h.dir), 0o600)
	h.write(t, "bin/cloud-init", fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%[1]s/asked\nexit $(cat %[1]s/cloud-init-status 2>/dev/null || echo 0)\n", h.dir), 0o755)
	h.write(t, "bin/mountpoint", fmt.Sprintf("#!/bin/sh\ntest ! -e %s/unmounted\n", h.dir), 0o755)
	h.write(t, "by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS1", "", 0o644)
	return h
}

func (h *hostsByProxy) write(t *testing.T, name, text string, mode fs.FileMode) {
	t.Helper()
	file := filepath.Join(h.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode)); err != nil {
		t.Fatal(err)
	}
}

func (h *hostsByProxy) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(h.dir, name)); err != nil {
		t.Fatal(err)
	}
}

// lab is a raftrig of its own: deploy/ with its state, and .env, against an EC2.
type lab struct {
	t    *testing.T
	root string
	*ec2
}

// knobs are variables of make that this environment may hold.
var knobs = strings.Fields("TOPOLOGY SWITCH REPLACE SSH_KEY SSH_CIDR NODE_TYPE CLIENT_TYPE WAIT YES JSON SSH_USER SSH_OPTS REMOTE_DIR")

// newLab gives one whose commands have the environment of this process, with
// what leads to the EC2.
func newLab(t *testing.T, e *ec2) *lab {
	t.Helper()
	l := &lab{t: t, root: t.TempDir(), ec2: e}
	dir := l.path("deploy")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, pattern := range []string{"*.tf", "*_az.tfvars", "boot.sh", "user_data.sh"} {
		some, err := filepath.Glob(pattern)
		if err != nil || len(some) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, some...)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// bin/fleet, which make builds, goes to the hosts.
	if err := os.Symlink(filepath.Join(repository(t), "bin"), l.path("bin")); err != nil {
		t.Fatal(err)
	}
	l.write("deploy/terraform.tfvars", "max_retries = 2\nssh_ingress_cidr = \"192.0.2.7/32\"\n")
	l.write("aws", "")
	for _, kv := range os.Environ() {
		key, value, _ := strings.Cut(kv, "=")
		if slices.Contains(knobs, key) || strings.HasPrefix(key, "AWS_") || strings.HasPrefix(key, "TF_VAR_") || strings.HasPrefix(key, "MAKE") || key == "MFLAGS" ||
			key == "TF_CLI_CONFIG_FILE" && !isFile(value) {
			unset(t, key)
		}
	}
	for key, value := range map[string]string{
		"AWS_ENDPOINT_URL": e.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
		"AWS_EC2_METADATA_DISABLED": "true", "CHECKPOINT_DISABLE": "1",
		"AWS_CONFIG_FILE": l.path("aws"), "AWS_SHARED_CREDENTIALS_FILE": l.path("aws"),
	} {
		t.Setenv(key, value)
	}
	return l
}

// unset takes a variable out of the environment until the test's end.
func unset(t *testing.T, key string) {
	t.Helper()
	t.Setenv(key, "")
	os.Unsetenv(key)
}

// initialize has terraform take its provider, or skips.
func (l *lab) initialize() {
	l.t.Helper()
	if err := l.terraform().init(l.t.Context()); err != nil {
		lack(l.t, "no AWS provider: %v", err)
	}
}

func (l *lab) terraform() *terraform {
	return &terraform{dir: l.path("deploy"), mirror: os.Getenv("TF_MIRROR"), stderr: l.t.Output()}
}

func (l *lab) state() *state {
	l.t.Helper()
	st, err := l.terraform().state(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return st
}

func (l *lab) path(name string) string { return filepath.Join(l.root, name) }

func (l *lab) write(name, text string) {
	l.t.Helper()
	if err := os.WriteFile(l.path(name), []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// result is how a verb ended.
type result struct {
	stdout, stderr string
	ok             bool
}

// make runs a verb of the root's Makefile with variables, each KEY=VALUE.
func (l *lab) make(verb string, variables ...string) result {
	l.t.Helper()
	args := append([]string{"--no-print-directory", "-C", repository(l.t), verb, "DEPLOY_DIR=" + l.path("deploy")}, variables...)
	cmd := exec.Command("make", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begun := time.Now()
	err := cmd.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		l.t.Fatal(err)
	}
	l.t.Logf("make %s %s: %.0f s\n%s%s", verb, strings.Join(variables, " "), time.Since(begun).Seconds(), clip(stdout.String()), stderr.String())
	return result{stdout.String(), stderr.String(), err == nil}
}

func clip(s string) string { return s[:min(len(s), 2000)] }

// succeeds and fails hold a result against what it has to be.
func (l *lab) succeeds(r result) result {
	l.t.Helper()
	if !r.ok {
		l.t.Fatal("it failed")
	}
	return r
}

func (l *lab) fails(r result, want ...string) {
	l.t.Helper()
	if r.ok {
		l.t.Fatal("it succeeded")
	}
	for _, w := range want {
		if !slices.ContainsFunc(strings.Split(r.stderr, "\n"), func(line string) bool {
			return strings.HasPrefix(line, "deploy: ") && strings.Contains(line, w)
		}) {
			l.t.Errorf("no line of deploy says %q", w)
		}
	}
}

// inventory loads .env as the products' commands do, and requires a fleet of
// that topology.
func (l *lab) inventory(topology string) fleet.Inventory {
	l.t.Helper()
	if _, err := os.Stat(l.path(".env")); err != nil {
		l.t.Fatal(err)
	}
	inv, err := fleet.Load(l.path(".env"))
	if err != nil {
		l.t.Fatal(err)
	}
	zones := make(map[string]int)
	for _, h := range append([]fleet.Host{inv.Client}, inv.Nodes[0].Host, inv.Nodes[1].Host, inv.Nodes[2].Host) {
		if h.Addr == "" || !strings.HasPrefix(h.Private, "10.") || !strings.HasPrefix(h.Zone, "use1-az") {
			l.t.Errorf("host %+v", h)
		}
		zones[h.Zone]++
	}
	want := map[string]int{MultiAZ: 3, SingleAZ: 1}[topology]
	if len(zones) != want || zones[inv.Client.Zone] < 2 || inv.Client.Zone != inv.Nodes[0].Zone {
		l.t.Errorf("%s has zones %v", topology, zones)
	}
	if inv.Topology != topology || inv.Transport != fleet.TransportSSH || inv.SSHUser == "" || inv.SSHKey == "" {
		l.t.Errorf("%+v", inv)
	}
	return inv
}

func (l *lab) noEnv() {
	l.t.Helper()
	for _, name := range []string{".env", ".env.new"} {
		if _, err := os.Stat(l.path(name)); !errors.Is(err, fs.ErrNotExist) {
			l.t.Errorf("%s is there (%v)", name, err)
		}
	}
}

// changes gives what make plan would do, by address.
func (l *lab) changes(variables ...string) map[string][]string {
	l.t.Helper()
	r := l.succeeds(l.make("plan", append(variables, "JSON=1")...))
	var p plan
	if err := json.Unmarshal([]byte(r.stdout), &p); err != nil {
		l.t.Fatal(err)
	}
	if len(p.Changes) == 0 {
		l.t.Fatal("the plan names no resource")
	}
	changes := make(map[string][]string)
	for _, c := range p.Changes {
		if a := c.Change.Actions; !slices.Equal(a, []string{"no-op"}) {
			changes[c.Address] = a
		}
	}
	return changes
}

// buildFleet builds bin/fleet.
func buildFleet(t *testing.T, file string) {
	t.Helper()
	if out, err := exec.Command("go", "build", "-o", file, "raftrig/fleet/cmd/fleet").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
}

// variables lead to the hosts.
func (h *hostsByProxy) variables(t *testing.T) []string {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"SSH_USER=" + me.Username, "SSH_KEY=" + h.key, "SSH_OPTS=-F " + filepath.Join(h.dir, "ssh"), "WAIT=2m"}
}
