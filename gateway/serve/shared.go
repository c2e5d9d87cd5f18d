package serve

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// sharedSlack is how late the kernel may end a sleep of a server that shares its
// host; the default is 50 us. No timer of a node is as short as a millisecond.
const sharedSlack = time.Millisecond

// shareHost makes room for other nodes on the same cores: it keeps this process
// to half of them, and lets its timers be coarse. Of what three nodes use, the
// leader takes a little less than half; threads beyond would wake each other and
// find nothing to run.
func shareHost(args []string) error {
	if err := coarseTimers(args); err != nil {
		return err
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
	return nil
}

// coarseTimers lets the kernel put sleeps together. The Go runtime has a thread,
// sysmon, that looks after the others every 20 us from when an idle process gets
// something to do until it is idle again. In a node that serves a request at a
// time that is always: a quarter of the CPU of all nodes went there. Threads
// inherit their timer slack, and sysmon is older than main, so the process begins
// again with another.
func coarseTimers(args []string) error {
	if !slices.Equal(args, os.Args[1:]) {
		return nil // not the program itself: its caller would end as well
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slack := func() (int, error) { return unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0) }
	if now, err := slack(); err != nil || now >= int(sharedSlack) {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(sharedSlack), 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	if now, err := slack(); err != nil || now < int(sharedSlack) {
		return err // threads of real-time priority have none
	}
	return fmt.Errorf("begin again: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}
