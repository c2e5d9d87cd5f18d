package etcdraft

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"go.etcd.io/raft/v3"
)

// logger writes lines of level error, and is quiet about the rest.
type logger struct {
	mu  sync.Mutex
	out io.Writer
}

var _ raft.Logger = (*logger)(nil)

// giveUp is a panic with which the library says that it cannot go on. The loop
// recovers from it, and the node halts.
type giveUp string

func (l *logger) line(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, "etcdraft: %s\n", strings.TrimSpace(text))
}

func (l *logger) Error(v ...any)                 { l.line(fmt.Sprint(v...)) }
func (l *logger) Errorf(format string, v ...any) { l.line(fmt.Sprintf(format, v...)) }

func (l *logger) Panic(v ...any)                 { panic(giveUp(fmt.Sprint(v...))) }
func (l *logger) Panicf(format string, v ...any) { panic(giveUp(fmt.Sprintf(format, v...))) }
func (l *logger) Fatal(v ...any)                 { panic(giveUp(fmt.Sprint(v...))) }
func (l *logger) Fatalf(format string, v ...any) { panic(giveUp(fmt.Sprintf(format, v...))) }

func (l *logger) Debug(...any)            {}
func (l *logger) Debugf(string, ...any)   {}
func (l *logger) Info(...any)             {}
func (l *logger) Infof(string, ...any)    {}
func (l *logger) Warning(...any)          {}
func (l *logger) Warningf(string, ...any) {}
