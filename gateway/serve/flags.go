package serve

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// usageError is an error in the command line.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

type options struct {
	host   string
	port   int
	shared bool
	cfg    Config
}

// parse returns nil and no error when a flag has been answered already.
func parse(p Product, args []string, stdout io.Writer) (*options, error) {
	var o options
	fs := flag.NewFlagSet(p.Name+"-server", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	c := &o.cfg
	fs.IntVar(&c.ID, "id", 0, "this node's `number`, from 1")
	fs.StringVar(&o.host, "addr", "", "this node's own `host` or address; nothing else is listened on")
	fs.IntVar(&o.port, "port", p.Port, "port of the gateway, for clients")
	raftPort := fs.Int("raft-port", p.RaftPort, "port of Raft, for the other nodes")
	peers := fs.String("peers", "", "all `nodes` in the order of their numbers, as host,host,host or with the port of Raft host:port,...; 1=host,3=host,... numbers them")
	fs.StringVar(&c.DataDir, "data", "", "`directory` for the log, synced to disk; without it the log is in memory")
	fs.BoolVar(&o.shared, "shared", false, "other nodes run on this host: take half of its cores at most (GOMAXPROCS, where that is not set), and sleep in coarser steps")
	version := fs.Bool("version", false, "print the version of the library and exit")
	if p.Flags != nil {
		p.Flags(fs)
	}

	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(stdout, "usage: %s-server -id N -addr HOST -peers HOST,HOST,HOST [flags]\n", p.Name)
			fs.SetOutput(stdout)
			fs.PrintDefaults()
			return nil, nil
		}
		return nil, usage("%v (-help lists the flags)", err)
	}
	if *version {
		fmt.Fprintln(stdout, p.Version())
		return nil, nil
	}
	if fs.NArg() > 0 {
		return nil, usage("unexpected argument %q (-help lists the flags)", fs.Arg(0))
	}
	for name, port := range map[string]int{"port": o.port, "raft-port": *raftPort} {
		if port < 1 || port > 65535 {
			return nil, usage("-%s %d: a port is 1 to 65535", name, port)
		}
	}
	if o.host == "" {
		return nil, usage("-addr is missing: this node's own host or address")
	}
	if ip := net.ParseIP(o.host); ip != nil && ip.IsUnspecified() {
		return nil, usage("-addr %s: a node listens on its own address, not on all", o.host)
	}
	var err error
	if c.Peers, err = parsePeers(*peers, *raftPort); err != nil {
		return nil, err
	}
	own, ok := c.Peers[c.ID]
	if !ok {
		return nil, usage("-id %d: not one of -peers %s", c.ID, *peers)
	}
	if host, _, _ := net.SplitHostPort(own); host != o.host {
		return nil, usage("-addr %s: -peers has node %d on %s", o.host, c.ID, host)
	}
	if p.Check != nil {
		if err := p.Check(); err != nil {
			return nil, usageError{err}
		}
	}
	return &o, nil
}

// maxNodes bounds a cluster; Raft groups have a handful of members.
const maxNodes = 99

func parsePeers(text string, defaultPort int) (map[int]string, error) {
	if text == "" {
		return nil, usage("-peers is missing: all nodes in their order, as host,host,host")
	}
	peers := make(map[int]string)
	for entry := range strings.SplitSeq(text, ",") {
		name, addr, numbered := strings.Cut(entry, "=")
		if !strings.Contains(text, "=") {
			name, addr, numbered = strconv.Itoa(len(peers)+1), entry, true
		}
		id, err := strconv.Atoi(name)
		if !numbered || err != nil || id < 1 || id > maxNodes || addr == "" {
			return nil, usage("-peers %q: an entry is host, host:port, number=host or number=host:port, numbers are 1 to %d", entry, maxNodes)
		}
		host, port := addr, strconv.Itoa(defaultPort)
		if net.ParseIP(addr) == nil && strings.Contains(addr, ":") {
			if host, port, err = net.SplitHostPort(addr); err != nil {
				return nil, usage("-peers %q: %v", entry, err)
			}
		}
		if p, err := strconv.Atoi(port); err != nil || p < 1 || p > 65535 || host == "" {
			return nil, usage("-peers %q: wants a host and a port of 1 to 65535", entry)
		}
		if _, twice := peers[id]; twice {
			return nil, usage("-peers: node %d is there twice", id)
		}
		addr = net.JoinHostPort(host, port)
		for other, taken := range peers {
			if taken == addr {
				return nil, usage("-peers: nodes %d and %d have the same address %s", other, id, addr)
			}
		}
		peers[id] = addr
	}
	return peers, nil
}
