package openraft

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
)

const (
	// maxHead bounds the head of an answer.
	maxHead = 1024
	// maxPrefix is how much of an answer's body decides what it means; the rest
	// is counted and thrown away.
	maxPrefix = 512
	// maxBody bounds the body of an answer.
	maxBody = 1 << 20
	// stampLen is how many bytes a value has to have to begin with the
	// request's number, in hexadecimal digits.
	stampLen = 16
)

// request is POST /write, made once and patched for each use: the head, which
// names a node, and the body.
type request struct {
	heads  [][]byte // node i's is heads[i-1]
	body   []byte
	key    []byte // the digits of the key, within body
	stamp  []byte // of the value, within body; empty when it is too short
	lanes  uint64
	keys   uint64
	length int // of the longest head and the body
}

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	digits  = "0123456789abcdef"
)

// newRequest makes the request for nodes that are called hosts, with values of
// size bytes that do not compress, the same in every run.
func newRequest(hosts []string, lane, lanes, size int, keys uint64) *request {
	width := len(strconv.FormatUint(keys-1, 10))
	before := `{"Set":{"key":"k`
	between := `","value":"`
	body := make([]byte, 0, len(before)+width+len(between)+size+3)
	body = append(body, before...)
	body = append(body, bytes.Repeat([]byte("0"), width)...)
	body = append(body, between...)
	rng := rand.New(rand.NewPCG(uint64(lane), 0))
	for range size {
		body = append(body, letters[rng.IntN(len(letters))])
	}
	body = append(body, `"}}`...)
	r := &request{body: body, lanes: uint64(max(lanes, 1)), keys: keys}
	r.key = body[len(before):][:width]
	if size >= stampLen {
		r.stamp = body[len(before)+width+len(between):][:stampLen]
	}
	for _, host := range hosts {
		head := fmt.Appendf(nil, "POST /write HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", host, len(body))
		r.heads = append(r.heads, head)
		r.length = max(r.length, len(head)+len(body))
	}
	return r
}

// set makes it the request of this number: its key is the number within its
// lane, modulo the number of keys; its value begins with it.
func (r *request) set(sequence uint64) {
	key := sequence / r.lanes % r.keys
	for i := len(r.key) - 1; i >= 0; i-- {
		r.key[i] = byte('0' + key%10)
		key /= 10
	}
	if len(r.stamp) == 0 {
		return
	}
	for i := stampLen - 1; i >= 0; i-- {
		r.stamp[i] = digits[sequence&15]
		sequence >>= 4
	}
}

// head of an HTTP/1.1 answer.
type head struct {
	status int
	length int  // of the body
	close  bool // the server closes the connection behind it
}

var (
	errNotHTTP  = errors.New("its answer is not HTTP/1.1")
	errLongHead = fmt.Errorf("the head of its answer has more than %d bytes", maxHead)
	errChunked  = errors.New("its answer is chunked: an answer has to have a Content-Length")
	errLength   = errors.New("its answer has no Content-Length, or none that makes sense")
	errLongBody = fmt.Errorf("its answer has more than %d bytes", maxBody)
)

var (
	version = []byte("HTTP/1.1 ")
	headEnd = []byte("\r\n\r\n")
)

// parseHead reads the head of an answer at the beginning of b. used is its
// length, 0 while it is not complete. It allocates nothing.
func parseHead(b []byte) (h head, used int, err error) {
	if n := min(len(b), len(version)); !bytes.Equal(b[:n], version[:n]) {
		return h, 0, errNotHTTP
	}
	end := bytes.Index(b[:min(len(b), maxHead)], headEnd)
	if end < 0 {
		if len(b) >= maxHead {
			return h, 0, errLongHead
		}
		return h, 0, nil
	}
	used = end + len(headEnd)
	line, rest := cutLine(b[len(version) : end+2])
	if len(line) < 3 || len(line) > 3 && line[3] != ' ' {
		return h, 0, errNotHTTP
	}
	if h.status = number(line[:3]); h.status < 200 { // 1xx answer what was not asked
		return h, 0, errNotHTTP
	}
	h.length = -1
	for len(rest) > 0 {
		line, rest = cutLine(rest)
		colon := bytes.IndexByte(line, ':')
		if colon <= 0 {
			return h, 0, errNotHTTP
		}
		name, value := line[:colon], bytes.Trim(line[colon+1:], " \t")
		switch {
		case is(name, "content-length"):
			n := number(value)
			if n < 0 || h.length >= 0 && n != h.length {
				return h, 0, errLength
			}
			h.length = n
		case is(name, "transfer-encoding"):
			return h, 0, errChunked
		case is(name, "connection"):
			h.close = h.close || is(value, "close")
		}
	}
	switch {
	case h.length < 0:
		return h, 0, errLength
	case h.length > maxBody:
		return h, 0, errLongBody
	}
	return h, used, nil
}

// cutLine cuts b, which ends with one, behind its first line end.
func cutLine(b []byte) (line, rest []byte) {
	i := bytes.IndexByte(b, '\n')
	return bytes.TrimSuffix(b[:i], []byte("\r")), b[i+1:]
}

// number is b as decimal digits; -1 when it is not a number below 1e9.
func number(b []byte) int {
	if len(b) == 0 || len(b) > 9 {
		return -1
	}
	n := 0
	for _, d := range b {
		if d < '0' || d > '9' {
			return -1
		}
		n = 10*n + int(d-'0')
	}
	return n
}

// is says whether b is the lower-case word, in whichever case.
func is(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i := range b {
		c := b[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// verdict is what an answer says of the request.
type verdict uint8

const (
	applied    verdict = iota
	redirected         // not applied; another node leads, or none
	refused            // not applied
	unclear            // perhaps applied
)

// judge says what an answer with this status means, of which body is at least
// the first maxPrefix bytes; leader is the node that a redirection names, 0
// when it names none. It allocates nothing.
//
// The library's results come with status 200. Beside them the server says
// Unknown of a write that may be applied, NoQuorum of one that it did not take
// because no majority answers it, and a plain string with status 4xx of a
// request that is wrong, with 503 of a connection that it did not take.
// Everything else may come from behind the log.
func judge(status int, body []byte) (v verdict, leader int) {
	if _, ok := enter(body, "Ok"); ok && status == 200 {
		return applied, 0
	}
	why, ok := enter(body, "Err")
	if !ok {
		why = nil
	}
	if e, ok := enter(why, "APIError"); ok {
		if e, ok = enter(e, "ForwardToLeader"); ok {
			if e, ok = enter(e, "leader_id"); ok {
				leader = leadingNumber(e)
			}
			return redirected, leader
		}
	}
	if _, ok := enter(why, "Unknown"); ok {
		return unclear, 0
	}
	if _, ok := enter(why, "NoQuorum"); ok || status >= 400 && status < 500 || status == 503 && len(why) > 0 && why[0] == '"' {
		return refused, 0
	}
	return unclear, 0
}

// enter goes into the JSON object at the beginning of b, whose first member has
// to be name, and returns what follows the colon.
func enter(b []byte, name string) (value []byte, ok bool) {
	if b = space(b); len(b) == 0 || b[0] != '{' {
		return nil, false
	}
	b = space(b[1:])
	if len(b) < len(name)+2 || b[0] != '"' || string(b[1:1+len(name)]) != name || b[1+len(name)] != '"' {
		return nil, false
	}
	if b = space(b[len(name)+2:]); len(b) == 0 || b[0] != ':' {
		return nil, false
	}
	return space(b[1:]), true
}

// space cuts the white space that b begins with.
func space(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\n' || b[0] == '\r') {
		b = b[1:]
	}
	return b
}

// leadingNumber is the number that b begins with; 0 when there is none.
func leadingNumber(b []byte) int {
	n := 0
	for n < len(b) && b[n] >= '0' && b[n] <= '9' {
		n++
	}
	return max(0, number(b[:n]))
}
