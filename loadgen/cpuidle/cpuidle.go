// Package cpuidle keeps the processors of this host from sleeping.
//
// A processor without work goes to sleep, the deeper the longer, and takes from
// a microsecond to some hundred to wake up; a virtual one sleeps in the
// hypervisor, which on some hosts takes tens of microseconds to give it back.
// With few requests outstanding every reply waits for several such wake-ups,
// and they are the host's, not the system's under test.
package cpuidle

import (
	"encoding/binary"
	"fmt"
	"os"
)

// device takes the longest wake-up that is allowed, in microseconds as a 32-bit
// number in the machine's order, for as long as it is held open: the kernel's
// "PM Quality Of Service Interface".
const device = "/dev/cpu_dma_latency"

// Poll has idle processors poll until release is called or the process ends:
// they stay awake, at the cost of their power. It fails where the kernel has no
// say in that, or the user may not (it takes root).
func Poll() (release func(), err error) { return poll(device) }

func poll(device string) (release func(), err error) {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err == nil {
		if _, err = f.Write(binary.NativeEndian.AppendUint32(nil, 0)); err != nil {
			f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("keep idle CPUs awake: %w: it takes root, and a kernel with cpuidle", err)
	}
	return func() { f.Close() }, nil
}
