package fleet

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// netnsDir is where named network namespaces are mounted, by ip-netns(8).
const netnsDir = "/run/netns"

// namespaceOf is the network namespace of a host.
func namespaceOf(prefix string, n Node) string {
	if n.ID == 0 {
		return prefix + "-client"
	}
	return prefix + "-" + strconv.Itoa(n.ID)
}

// namespaces begins the names of the inventory's namespaces; empty when its
// hosts are in none.
func (inv Inventory) namespaces() string {
	if inv.Transport == TransportLocal && inv.Topology == TopologyNetns {
		return inv.Netns
	}
	return ""
}

// enter moves the calling thread, which has to be locked, into a namespace.
func enter(netns string) error {
	if netns == "" {
		return nil
	}
	f, err := os.Open(filepath.Join(netnsDir, netns))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no network namespace %s: make env TOPOLOGY=netns (fleet netns up)", netns)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w: TOPOLOGY=netns needs root", netns, err)
	}
	return nil
}

// inNetns runs f on a thread in the namespace, which ends with it.
func inNetns[T any](netns string, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	c := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread is of no further use
		var r result
		if r.err = enter(netns); r.err == nil {
			r.v, r.err = f()
		}
		c <- r
	}()
	r := <-c
	return r.v, r.err
}

// Who delays.
const (
	delayNone   = "none"   // nobody: no RTT was asked for
	delayNetem  = "netem"  // the kernel
	delayRouter = "router" // a process of this program
)

// Netns is a fleet of network namespaces on this host: one for each node and
// one for the client, and between them a network in a namespace of its own.
// It needs root and iproute2.
//
//	PREFIX-1, -2, -3, -client   eth0 with the host's address
//	PREFIX-net                  a bridge a zone, and what delays between them
//
// Each node is a zone. The client is in the zone of node 1, as in a fleet over
// several zones the client is placed beside the first node.
type Netns struct {
	Prefix string
	// RTT is added to each round trip between zones; 0 adds nothing.
	RTT time.Duration
	// Dir holds the delay router's pid file and log.
	Dir string
	// Router is the command that serves as delay router, when it is given the
	// one-way delay and its ports (see DelayRouter).
	Router []string
}

const (
	minRTT, maxRTT = time.Microsecond, 10 * time.Second
	// netemLimit is how many packets a delay may hold: 10 s at 100000/s.
	netemLimit = 1000000
	readyWait  = 30 * time.Second
)

// netHost is a host of the namespaces.
type netHost struct {
	node Node
	zone int // from 1
	port string
}

func netHosts() []netHost {
	var hosts []netHost
	for id := 0; id <= Nodes; id++ {
		last := 10 + id
		port := "p" + strconv.Itoa(id)
		if id == 0 {
			last, port = 11+Nodes, "pc"
		}
		addr := netip.AddrFrom4([4]byte{10, 77, 0, byte(last)}).String()
		zone := max(1, id)
		hosts = append(hosts, netHost{Node{id, Host{addr, addr, "zone-" + strconv.Itoa(zone)}}, zone, port})
	}
	return hosts
}

// macOf is the address of the host whose IP address ends in last.
func macOf(last byte) [6]byte { return [6]byte{0x02, 'r', 'a', 'f', 't', last} }

func (h netHost) lastByte() byte { return netip.MustParseAddr(h.node.Addr).As4()[3] }

func (n *Netns) net() string             { return n.Prefix + "-net" }
func (n *Netns) of(h netHost) string     { return namespaceOf(n.Prefix, h.node) }
func uplink(zone int) string             { return "u" + strconv.Itoa(zone) }
func bridge(zone int) string             { return "z" + strconv.Itoa(zone) }
func (n *Netns) router() (*local, error) { return newLocal(".", n.Dir, "") }

// routerNode stands for the delay router where a node is meant.
var routerNode = Node{ID: routerID}

func (n *Netns) all() []string {
	names := []string{n.net()}
	for _, h := range netHosts() {
		names = append(names, n.of(h))
	}
	return names
}

// ip runs iproute2's ip.
func ip(ctx context.Context, args ...string) ([]byte, error) { return tool(ctx, "ip", args...) }

func tool(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%s is not on the PATH: install iproute2", name)
	}
	if err != nil {
		if lines := lastLines(complaint.Bytes(), 1); len(lines) > 0 {
			err = errors.New(lines[0])
		}
		return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return out.Bytes(), nil
}

func (n *Netns) check() error {
	switch {
	case checkNetns(n.Prefix) != nil:
		return fmt.Errorf("netns: name %q: %w", n.Prefix, checkNetns(n.Prefix))
	case n.RTT != 0 && (n.RTT < minRTT || n.RTT > maxRTT):
		return fmt.Errorf("netns: RTT=%s: want %s to %s", DurationText(n.RTT), DurationText(minRTT), DurationText(maxRTT))
	case os.Geteuid() != 0:
		return errors.New("TOPOLOGY=netns needs root: run it as root, or take TOPOLOGY=local")
	}
	return nil
}

// NetnsUp is what Up made.
type NetnsUp struct {
	// Delay says who delays: "none", "netem" (the kernel) or "router" (a process
	// of this program).
	Delay string
	// RTTUS is the median of up to 200 round trips of a datagram between node 1
	// and node 2.
	RTTUS float64
	// Removed says what a former one had left.
	Removed []string
}

// Up makes the namespaces, anew if any of them is there. It refuses while
// processes run in them.
func (n *Netns) Up(ctx context.Context) (up NetnsUp, err error) {
	if err := n.check(); err != nil {
		return up, err
	}
	pids, err := n.processes()
	if err != nil {
		return up, err
	}
	if len(pids) > 0 {
		return up, fmt.Errorf("processes run in the namespaces %s-* (pid %d): stop the clusters first (make PRODUCT.stop)", n.Prefix, pids[0].PID)
	}
	if up.Removed, err = n.Down(ctx); err != nil {
		return up, err
	}
	defer func() {
		if err != nil {
			_, downErr := n.Down(context.WithoutCancel(ctx))
			err = errors.Join(err, downErr)
		}
	}()
	for _, name := range n.all() {
		if _, err := ip(ctx, "netns", "add", name); err != nil {
			return up, err
		}
		if _, err := ip(ctx, "-n", name, "link", "set", "lo", "up"); err != nil {
			return up, err
		}
	}
	zones := 1
	if n.RTT > 0 {
		zones = Nodes
	}
	steps := [][]string{}
	for z := 1; z <= zones; z++ {
		steps = append(steps,
			[]string{"-n", n.net(), "link", "add", bridge(z), "type", "bridge"},
			[]string{"-n", n.net(), "link", "set", bridge(z), "up"})
	}
	for _, h := range netHosts() {
		ns, mac := n.of(h), macOf(h.lastByte())
		steps = append(steps,
			[]string{"-n", ns, "link", "add", "eth0", "address", net.HardwareAddr(mac[:]).String(), "type", "veth", "peer", "name", h.port, "netns", n.net()},
			[]string{"-n", n.net(), "link", "set", h.port, "master", bridge(min(h.zone, zones)), "up"},
			[]string{"-n", ns, "addr", "add", h.node.Addr + "/24", "dev", "eth0"},
			[]string{"-n", ns, "link", "set", "eth0", "up"})
	}
	for _, s := range steps {
		if _, err := ip(ctx, s...); err != nil {
			return up, err
		}
	}
	up.Delay = delayNone
	if n.RTT > 0 {
		if up.Delay, err = n.delay(ctx); err != nil {
			return up, err
		}
	}
	us, err := n.roundTrips(1, 2, int(max(5, min(200, time.Second/max(1, n.RTT)))))
	if err != nil {
		return up, fmt.Errorf("netns: node 1 does not reach node 2: %w", err)
	}
	slices.Sort(us)
	up.RTTUS = us[len(us)/2]
	return up, nil
}

// delay puts RTT between the zones: half of it in each direction.
func (n *Netns) delay(ctx context.Context) (string, error) {
	oneWay := n.RTT / 2
	// Whether the kernel has netem shows when it is asked to use it.
	steps := [][]string{{"ip", "-n", n.net(), "link", "add", "core", "type", "bridge"}, {"ip", "-n", n.net(), "link", "set", "core", "up"}}
	for z := 1; z <= Nodes; z++ {
		inner := "c" + strconv.Itoa(z)
		steps = append(steps,
			[]string{"ip", "-n", n.net(), "link", "add", uplink(z), "type", "veth", "peer", "name", inner},
			[]string{"tc", "-n", n.net(), "qdisc", "add", "dev", uplink(z), "root", "netem", "delay", fmt.Sprintf("%dns", oneWay.Nanoseconds()), "limit", strconv.Itoa(netemLimit)},
			[]string{"ip", "-n", n.net(), "link", "set", uplink(z), "master", bridge(z), "up"},
			[]string{"ip", "-n", n.net(), "link", "set", inner, "master", "core", "up"})
	}
	var netem error
	for _, s := range steps {
		if _, netem = tool(ctx, s[0], s[1:]...); netem != nil {
			break
		}
	}
	if netem == nil {
		return delayNetem, nil
	}
	if _, err := ip(ctx, "-n", n.net(), "link", "del", "core"); err != nil {
		return "", errors.Join(netem, err)
	}
	for z := 1; z <= Nodes; z++ {
		_, _ = ip(ctx, "-n", n.net(), "link", "del", uplink(z)) // as far as it came
		if _, err := ip(ctx, "-n", n.net(), "tuntap", "add", "dev", uplink(z), "mode", "tap"); err != nil {
			return "", fmt.Errorf("RTT=%s: the kernel has neither netem (%w) nor TAP devices (%w): leave RTT out", DurationText(n.RTT), netem, err)
		}
		if _, err := ip(ctx, "-n", n.net(), "link", "set", uplink(z), "master", bridge(z), "up"); err != nil {
			return "", err
		}
	}
	l, err := n.router()
	if err != nil {
		return "", err
	}
	argv := append(slices.Clone(n.Router), n.net(), oneWay.String())
	if _, err := l.start(ctx, routerNode, Command{Argv: argv, Settle: time.Millisecond}, expander{}); err != nil {
		return "", fmt.Errorf("delay router: %w", err)
	}
	ready, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	found := false
	err = l.logs(ready, routerNode, -1, true, writeFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("ready")) {
			found = true
			cancel()
		}
		return len(b), nil
	}))
	if !found {
		return "", errors.Join(fmt.Errorf("delay router: not ready after %v", readyWait), err, l.exitError(routerNode, "it said"))
	}
	return delayRouter, nil
}

// Down ends what runs in the namespaces and removes them, as far as they are
// there, and says what it removed.
func (n *Netns) Down(ctx context.Context) (removed []string, err error) {
	if err := checkNetns(n.Prefix); err != nil {
		return nil, fmt.Errorf("netns: name %q: %w", n.Prefix, err)
	}
	l, err := n.router()
	if err != nil {
		return nil, err
	}
	if r, err := l.stop(ctx, routerNode, 2*time.Second); err != nil {
		return nil, fmt.Errorf("delay router: %w", err)
	} else if r.WasRunning {
		removed = append(removed, "delay router")
	}
	left, err := n.processes()
	if err != nil {
		return removed, err
	}
	defer closeAll(left)
	for _, p := range left {
		if err := p.signal(unix.SIGKILL); err != nil && !errors.Is(err, errGone) {
			return removed, fmt.Errorf("kill pid %d: %w", p.PID, err)
		}
	}
	wait, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	for _, p := range left {
		if err := p.wait(wait); err != nil {
			return removed, fmt.Errorf("pid %d does not end after SIGKILL: see /proc/%d/stack", p.PID, p.PID)
		}
		removed = append(removed, fmt.Sprintf("process %d", p.PID))
	}
	for _, name := range n.all() {
		if _, err := os.Stat(filepath.Join(netnsDir, name)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if _, err := ip(ctx, "netns", "del", name); err != nil {
			return removed, err
		}
		removed = append(removed, name)
	}
	return removed, nil
}

// processes takes hold of those in the namespaces, without the delay router
// that was started there. The caller closes them.
func (n *Netns) processes() ([]*process, error) {
	inodes := make(map[uint64]bool)
	for _, name := range n.all() {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(netnsDir, name), &st); err == nil {
			inodes[st.Ino] = true
		}
	}
	if len(inodes) == 0 {
		return nil, nil
	}
	l, err := n.router()
	if err != nil {
		return nil, err
	}
	router := 0
	if pf, err := readPIDFile(l.file(routerNode, ".pid")); err == nil {
		router = pf.PID
	}
	in := func(pid int) bool {
		var st unix.Stat_t
		return unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st) == nil && inodes[st.Ino]
	}
	names, err := readDirNames("/proc")
	if err != nil {
		return nil, err
	}
	var found []*process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == router || pid == os.Getpid() || !in(pid) {
			continue
		}
		id, err := identify(pid)
		if err != nil {
			continue
		}
		p, err := id.open()
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			closeAll(found)
			return nil, err
		}
		// The pid may have changed hands since: the pidfd holds this one.
		if !in(pid) || p.exited() {
			p.close()
			continue
		}
		found = append(found, p)
	}
	return found, nil
}

// Cut takes a host off the network: what it sends and what is sent to it is
// lost without a word. Join takes it back. Node 0 is the client.
func (n *Netns) Cut(ctx context.Context, node int) error { return n.link(ctx, node, "down") }

// Join undoes Cut.
func (n *Netns) Join(ctx context.Context, node int) error { return n.link(ctx, node, "up") }

func (n *Netns) link(ctx context.Context, node int, state string) error {
	if err := n.check(); err != nil {
		return err
	}
	if node < 0 || node > Nodes {
		return fmt.Errorf("there is no node %d: want 1 to %d", node, Nodes)
	}
	if _, err := os.Stat(filepath.Join(netnsDir, n.net())); err != nil {
		return fmt.Errorf("there is no network namespace %s: make env TOPOLOGY=netns (fleet netns up)", n.net())
	}
	_, err := ip(ctx, "-n", n.net(), "link", "set", netHosts()[node].port, state)
	return err
}

// DurationText is a duration in ASCII, as it is typed: 390us.
func DurationText(d time.Duration) string { return strings.ReplaceAll(d.String(), "µ", "u") }

// NetnsHost is the state of one namespace.
type NetnsHost struct {
	Node      Node
	Namespace string
	// State is "joined", "cut" or "absent".
	State string
}

// Status looks at each namespace. A delay router that has ended is an error.
func (n *Netns) Status(ctx context.Context) (hosts []NetnsHost, err error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	up := make(map[string]bool)
	if _, err := os.Stat(filepath.Join(netnsDir, n.net())); err == nil {
		out, err := ip(ctx, "-n", n.net(), "-json", "link", "show")
		if err != nil {
			return nil, err
		}
		var links []struct {
			Name  string   `json:"ifname"`
			Flags []string `json:"flags"`
		}
		if err := json.Unmarshal(out, &links); err != nil {
			return nil, fmt.Errorf("ip -json link show: %w", err)
		}
		for _, l := range links {
			up[l.Name] = slices.Contains(l.Flags, "UP")
		}
	}
	for _, h := range netHosts() {
		s := NetnsHost{Node: h.node, Namespace: n.of(h), State: "absent"}
		joined, there := up[h.port]
		if _, err := os.Stat(filepath.Join(netnsDir, s.Namespace)); err == nil && there {
			s.State = "cut"
			if joined {
				s.State = "joined"
			}
		}
		hosts = append(hosts, s)
	}
	l, err := n.router()
	if err != nil {
		return nil, err
	}
	if st, err := l.status(ctx, routerNode); err != nil || st.State == Dead {
		return hosts, errors.Join(errors.New("the delay router has ended: make env TOPOLOGY=netns (fleet netns up)"), err, l.exitError(routerNode, "it said"))
	}
	return hosts, nil
}

// Env is the inventory of the namespaces, as the text of its file.
func (n *Netns) Env(delay string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Network namespaces of this host; fleet netns down removes them and this file.\n")
	fmt.Fprintf(&b, "TRANSPORT=local\nTOPOLOGY=%s\nNETNS=%s\nRTT=%s\nDELAY=%s\n", TopologyNetns, n.Prefix, DurationText(n.RTT), delay)
	for _, h := range netHosts() {
		key := "CLIENT"
		if h.node.ID > 0 {
			key = "NODE" + strconv.Itoa(h.node.ID)
		}
		fmt.Fprintf(&b, "%s=%s\n%s_ZONE=%s\n", key, h.node.Addr, key, h.node.Zone)
	}
	return b.String()
}

// roundTrips measures count round trips of a datagram between two hosts, in
// microseconds, after one that is not counted.
func (n *Netns) roundTrips(from, to, count int) ([]float64, error) {
	hosts := netHosts()
	listen := func(h netHost) (*net.UDPConn, error) {
		return inNetns(n.of(h), func() (*net.UDPConn, error) {
			return net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(h.node.Addr)})
		})
	}
	a, err := listen(hosts[from])
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := listen(hosts[to])
	if err != nil {
		return nil, err
	}
	defer b.Close()
	go func() {
		buf := make([]byte, 8)
		for {
			k, peer, err := b.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = b.WriteToUDPAddrPort(buf[:k], peer)
		}
	}()
	var us []float64
	buf := make([]byte, 8)
	for i := range uint64(count + 1) {
		begun := time.Now()
		binary.BigEndian.PutUint64(buf, i)
		if _, err := a.WriteTo(buf, b.LocalAddr()); err != nil {
			return nil, err
		}
		if err := a.SetReadDeadline(begun.Add(2*maxRTT + n.RTT)); err != nil {
			return nil, err
		}
		for {
			if _, _, err := a.ReadFromUDPAddrPort(buf); err != nil {
				return nil, err
			}
			if binary.BigEndian.Uint64(buf) == i {
				break
			}
		}
		if i > 0 {
			us = append(us, float64(time.Since(begun))/1e3)
		}
	}
	return us, nil
}
