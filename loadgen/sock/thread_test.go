//go:build linux

package sock

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// tuneAndRead tunes a thread that ends with its goroutine and reads back.
func tuneAndRead() error {
	runtime.LockOSThread()
	if err := TuneThread(); err != nil {
		return err
	}
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return err
	}
	if slack != 1 {
		return fmt.Errorf("timer slack is %d ns", slack)
	}
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return err
	}
	// Older kernels answer 0: the slice is not a thread's to choose.
	if r := attr.Runtime; r != 0 && r != uint64(slice) {
		return fmt.Errorf("slice is %d ns", r)
	}
	return nil
}
