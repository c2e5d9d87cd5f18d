package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Nodes is how many nodes a cluster has.
const Nodes = 3

// Transports, the values of TRANSPORT.
const (
	TransportLocal = "local" // processes on this host
	TransportSSH   = "ssh"   // hosts reached by ssh
)

// TopologyNetns is the topology of network namespaces on this host.
const TopologyNetns = "netns"

// maxEnvBytes bounds the size of an inventory file.
const maxEnvBytes = 1 << 20

// Host is one machine of the fleet.
type Host struct {
	// Addr is how this host reaches it: an IP address or a host name.
	Addr string
	// Private is how the fleet's hosts reach it among themselves.
	Private string
	// Zone is its availability zone; empty when not known.
	Zone string
}

// Node is a host that runs one member of the cluster.
type Node struct {
	// ID is the node's number, from 1; 0 is the client's host.
	ID int
	Host
}

// Title is "node N" for a node's number, and "client" for 0.
func Title(id int) string {
	if id == 0 {
		return "client"
	}
	return fmt.Sprintf("node %d", id)
}

// routerID is the delay router of a Netns among the nodes.
const routerID = -1

// name is what the node's files and output lines are named by.
func (n Node) name() string {
	switch n.ID {
	case 0:
		return "client"
	case routerID:
		return "delay"
	}
	return "node" + strconv.Itoa(n.ID)
}

// Inventory is what .env says: where things run.
type Inventory struct {
	// Nodes are the cluster's members in order of their numbers.
	Nodes []Node
	// Client is the host of the load generator.
	Client Host
	// SSHUser, SSHKey and SSHOpts are for TRANSPORT=ssh.
	SSHUser string
	SSHKey  string
	SSHOpts []string
	// RemoteDir is raftrig's folder on hosts reached by ssh; a relative one is
	// below the login's home.
	RemoteDir string
	// Transport is how nodes are reached: TransportLocal or TransportSSH.
	Transport string
	// Topology is the name of the fleet's shape, for records: "local" at home.
	Topology string
	// Netns begins the names of the namespaces of TOPOLOGY=netns.
	Netns string
	// NodeRTT is the JSON document of the last measurement of round trips
	// between the nodes; empty without one. See RTT.
	NodeRTT string
	// Extra holds the keys that this package does not know.
	Extra map[string]string
}

// shared says whether another node runs on n's host.
func (inv Inventory) shared(n Node) bool {
	return slices.ContainsFunc(inv.Nodes, func(o Node) bool {
		return o.ID != n.ID && (inv.Transport == TransportLocal || o.Addr == n.Addr)
	})
}

// Default is the inventory without a file: nodes on 127.0.0.11 to 127.0.0.13
// of this host, client on 127.0.0.14.
func Default() Inventory {
	inv, err := parseInventory("", nil)
	if err != nil {
		panic(err) // the defaults are constants
	}
	return inv
}

// Load reads an inventory from a file of KEY=VALUE lines, as Make's include
// reads them too: '#' starts a comment, spaces around key and value do not
// count. What Make would take otherwise than this package ('$', backslash, a
// leading tab) is refused; a pair of quotes around a value is tolerated here,
// though Make keeps it. A file that does not exist gives Default. Errors name
// file and line.
func Load(path string) (Inventory, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	if err != nil {
		return Inventory{}, fmt.Errorf("inventory: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxEnvBytes+1))
	if err != nil {
		return Inventory{}, fmt.Errorf("inventory: %w", err)
	}
	if len(text) > maxEnvBytes {
		return Inventory{}, fmt.Errorf("%s: longer than %d bytes: not an inventory", path, maxEnvBytes)
	}
	return parseInventory(path, text)
}

// Hosts are the nodes' addresses as this host reaches them.
func (inv Inventory) Hosts() []string { return addrs(inv.Nodes, false) }

// PrivateHosts are the nodes' addresses among themselves.
func (inv Inventory) PrivateHosts() []string { return addrs(inv.Nodes, true) }

func addrs(nodes []Node, private bool) []string {
	s := make([]string, len(nodes))
	for i, n := range nodes {
		s[i] = n.Addr
		if private {
			s[i] = n.Private
		}
	}
	return s
}

// setting is a value and where it was set.
type setting struct {
	value string
	line  int
}

var (
	keyRE      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	labelRE    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	pathRE     = regexp.MustCompile(`^/?[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)
	netnsRE    = regexp.MustCompile(`^[a-z][a-z0-9]{0,31}$`)
	wordRE     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	allDigitRE = regexp.MustCompile(`^[0-9]+$`)
)

// parseLines reads KEY=VALUE lines.
func parseLines(path string, text []byte) (map[string]setting, error) {
	settings := make(map[string]setting)
	line := 0
	for raw := range bytes.SplitSeq(text, []byte("\n")) {
		line++
		key, value, err := parseLine(string(raw))
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, line, err)
		}
		if key == "" {
			continue
		}
		if before, ok := settings[key]; ok {
			return nil, fmt.Errorf("%s:%d: %s is already set in line %d: remove one", path, line, key, before.line)
		}
		settings[key] = setting{value, line}
	}
	return settings, nil
}

// parseLine gives an empty key for a line that sets nothing.
func parseLine(s string) (key, value string, err error) {
	if !utf8.ValidString(s) {
		return "", "", errors.New("not UTF-8 text")
	}
	tabbed := strings.HasPrefix(s, "\t")
	s, _, _ = strings.Cut(s, "#")
	// Only blanks: a carriage return would stay in the value that Make reads.
	s = strings.Trim(s, " \t")
	if s == "" {
		return "", "", nil
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return r != '\t' && unicode.IsControl(r) }); i >= 0 {
		return "", "", fmt.Errorf("control character %q: save the file as plain text with Unix line ends", s[i])
	}
	if tabbed {
		return "", "", errors.New("starts with a tab, which Make takes for a recipe: remove it")
	}
	key, value, ok := strings.Cut(s, "=")
	key, value = strings.TrimRight(key, " \t"), strings.TrimLeft(value, " \t")
	if !ok || !keyRE.MatchString(key) {
		return "", "", fmt.Errorf("want KEY=VALUE, got %q", shorten(s))
	}
	if i := strings.IndexAny(value, `$\`); i >= 0 {
		return "", "", fmt.Errorf("%s: %q means something to Make: write the value out", key, value[i])
	}
	if value != "" && (value[0] == '"' || value[0] == '\'') {
		q := value[:1]
		if len(value) < 2 || !strings.HasSuffix(value, q) || strings.Contains(value[1:len(value)-1], q) {
			return "", "", fmt.Errorf("%s: unbalanced quote %s (values need none)", key, q)
		}
		value = value[1 : len(value)-1]
	}
	return key, value, nil
}

func parseInventory(path string, text []byte) (Inventory, error) {
	settings, err := parseLines(path, text)
	if err != nil {
		return Inventory{}, err
	}
	// take gives a known key's value; an empty value counts as not set.
	take := func(key, or string, check func(string) error) string {
		s := settings[key]
		delete(settings, key)
		if s.value == "" {
			return or
		}
		if e := check(s.value); e != nil && err == nil {
			err = fmt.Errorf("%s:%d: %s=%s: %w", path, s.line, key, shorten(s.value), e)
		}
		return s.value
	}

	inv := Inventory{
		Transport: take("TRANSPORT", TransportLocal, checkTransport),
		Topology:  take("TOPOLOGY", "local", checkWord),
		SSHUser:   take("SSH_USER", "", checkWord),
		SSHKey:    take("SSH_KEY", "", checkShell),
		SSHOpts:   strings.Fields(take("SSH_OPTS", "", checkShell)),
		RemoteDir: take("REMOTE_DIR", "raftrig", checkPath),
		Netns:     take("NETNS", "raftrig", checkNetns),
		NodeRTT:   take("NODE_RTT", "", checkRTT),
	}
	host := func(name string) Host {
		h := Host{Addr: take(name, "", checkHost)}
		h.Private = take(name+"_PRIVATE", h.Addr, checkHost)
		h.Zone = take(name+"_ZONE", "", checkWord)
		return h
	}
	set := 0
	for id := 1; id <= Nodes; id++ {
		n := Node{ID: id, Host: host("NODE" + strconv.Itoa(id))}
		if n.Addr != "" {
			set++
		}
		inv.Nodes = append(inv.Nodes, n)
	}
	inv.Client = host("CLIENT")
	if err != nil {
		return Inventory{}, err
	}

	home := inv.Transport == TransportLocal
	if set == 0 && home {
		for i := range inv.Nodes {
			inv.Nodes[i].setDefault(fmt.Sprintf("127.0.0.%d", 11+i))
		}
	}
	if inv.Client.Addr == "" && home {
		inv.Client.setDefault("127.0.0.14")
	}
	seen := make(map[string]int)
	for _, n := range inv.Nodes {
		if n.Addr == "" {
			return Inventory{}, fmt.Errorf("%s: NODE%d is not set: name all %d nodes", path, n.ID, Nodes)
		}
		for _, a := range []string{n.Addr, n.Private} {
			if other, ok := seen[a]; ok && other != n.ID {
				return Inventory{}, fmt.Errorf("%s: node %d and node %d are both %s: each needs an address of its own", path, other, n.ID, a)
			}
			seen[a] = n.ID
		}
	}
	if inv.Client.Addr == "" {
		return Inventory{}, fmt.Errorf("%s: CLIENT is not set: name the client's host", path)
	}
	if len(settings) > 0 {
		inv.Extra = make(map[string]string, len(settings))
		for k, s := range settings {
			inv.Extra[k] = s.value
		}
	}
	return inv, nil
}

func (h *Host) setDefault(addr string) {
	h.Addr = addr
	if h.Private == "" {
		h.Private = addr
	}
}

func checkTransport(s string) error {
	if s != TransportLocal && s != TransportSSH {
		return errors.New("want local or ssh")
	}
	return nil
}

func checkWord(s string) error {
	if !wordRE.MatchString(s) {
		return errors.New("want letters, digits, '_', '.' and '-' only")
	}
	return nil
}

func checkPath(s string) error {
	if !pathRE.MatchString(s) {
		return errors.New("want a path of letters, digits, '_', '.' and '-', without '..'")
	}
	return nil
}

func checkNetns(s string) error {
	if !netnsRE.MatchString(s) {
		return errors.New("want up to 32 of a-z and 0-9, a letter first")
	}
	return nil
}

func checkRTT(s string) error {
	if json.Unmarshal([]byte(s), new(RTT)) != nil {
		return errors.New("not what make node-rtt wrote: remove the line")
	}
	return nil
}

// checkShell refuses what a shell would act on: Make hands these values to one.
func checkShell(s string) error {
	if i := strings.IndexAny(s, ";&|<>()`'\"*?![]{}\n"); i >= 0 {
		return fmt.Errorf("shell metacharacter %q", s[i])
	}
	return nil
}

// checkHost accepts an IP address without zone or a host name (RFC 1123).
func checkHost(s string) error {
	if ip, err := netip.ParseAddr(s); err == nil {
		if ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() {
			return errors.New("want the address of one host, without zone")
		}
		return nil
	}
	labels := strings.Split(s, ".")
	ok := len(s) <= 253 && !allDigitRE.MatchString(labels[len(labels)-1])
	for _, l := range labels {
		ok = ok && labelRE.MatchString(l)
	}
	if !ok {
		return errors.New("want an IP address or a host name")
	}
	return nil
}

// HostPort puts a port behind an address; port 0 leaves it as it is.
func HostPort(addr string, port int) string {
	if port == 0 {
		return addr
	}
	return net.JoinHostPort(addr, strconv.Itoa(port))
}

// shorten bounds a value that is quoted in an error.
func shorten(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "..."
	}
	return s
}
