// Package nodehttp asks servers what they are, where they say it as JSON over
// HTTP: those that are not written in Go. It is for questions beside a run,
// never for its requests.
//
// A node answers GET on its status path with
//
//	{"node": 1, "leads": true, "leader": 1, "term": 2, "applied": 123,
//	 "count": 120, "digest": "9f86d081884c7d65",
//	 "version": "library 1.2.3", "log": "in memory"}
//
// whose members mean what those of loadgen.NodeStatus do.
package nodehttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"raftrig/loadgen"
)

// maxBody bounds an answer.
const maxBody = 1 << 20

// A StatusError is an answer that is not 200.
type StatusError struct {
	Code int
	Text string // the first line of the answer
}

func (e *StatusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("HTTP status %d %s", e.Code, e.Text))
}

// client has a connection a question: they are rare, and a kept one would
// answer for a server that has been started anew.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}

// Get asks for http://addr/path and decodes the answer into v.
func Get(ctx context.Context, addr netip.AddrPort, path string, v any) error {
	return do(ctx, http.MethodGet, addr, path, nil, v)
}

// Post sends body as JSON to http://addr/path and decodes the answer into v;
// with a nil v, whatever it is will do.
func Post(ctx context.Context, addr netip.AddrPort, path string, body, v any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return do(ctx, http.MethodPost, addr, path, b, v)
}

func do(ctx context.Context, method string, addr netip.AddrPort, path string, body []byte, v any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr.String()+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return plain(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return plain(err)
	}
	if len(b) > maxBody {
		return fmt.Errorf("an answer of more than %d bytes", maxBody)
	}
	if resp.StatusCode != http.StatusOK {
		line, _, _ := strings.Cut(string(b), "\n")
		return &StatusError{resp.StatusCode, line[:min(len(line), 200)]}
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("its answer is not what a node of this product says: %w", err)
	}
	return nil
}

// plain takes the URL out of an error: the caller names the address.
func plain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Status asks every node at once. Node i is at addrs[i-1]; one that gives no
// answer, or says it is another, has Err set.
func Status(ctx context.Context, addrs []netip.AddrPort, path string) []loadgen.NodeStatus {
	nodes := make([]loadgen.NodeStatus, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() {
			nodes[i] = status(ctx, addr, path, i+1)
		})
	}
	wg.Wait()
	return nodes
}

func status(ctx context.Context, addr netip.AddrPort, path string, node int) loadgen.NodeStatus {
	n := loadgen.NodeStatus{Node: node, Addr: addr.String()}
	var says struct {
		Node    int    `json:"node"`
		Leads   bool   `json:"leads"`
		Leader  int    `json:"leader"`
		Term    uint64 `json:"term"`
		Applied uint64 `json:"applied"`
		Count   uint64 `json:"count"`
		Digest  string `json:"digest"`
		Version string `json:"version"`
		Log     string `json:"log"`
	}
	err := Get(ctx, addr, path, &says)
	if err == nil && says.Node != node {
		err = fmt.Errorf("it says it is node %d: name the hosts in the order of their nodes, and the port of this cluster", says.Node)
	}
	if err != nil {
		n.Err = fmt.Errorf("node %d at %s: %w", node, n.Addr, err)
		return n
	}
	n.Leads, n.Leader, n.Term = says.Leads, says.Leader, says.Term
	n.Applied, n.Count, n.Digest = says.Applied, says.Count, says.Digest
	n.Version, n.Log = says.Version, says.Log
	return n
}
