package aeron

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A media driver's command-and-control file begins with a header in the
// machine's byte order: the version of its layout, the lengths of the buffers
// behind it, and the driver's process id; the driver writes the version last.
// The first buffer takes commands. Behind its ring is the time of the driver's
// last heartbeat, in milliseconds since 1970, about once a second. (Source:
// CncFileDescriptor and RingBufferDescriptor of Aeron and Agrona.)
const (
	cncName = "cnc.dat"
	// cncVersion is what aeron-go takes, a semantic version as in
	// protocolVersion: 0.2.0.
	cncVersion = 2 << 8

	cncVersionAt   = 0
	cncRingLenAt   = 4
	cncPIDAt       = 40
	cncHeaderLen   = 128
	ringTrailerLen = 768
	ringBeatAt     = 640 // in the trailer

	// driverTimeout is how long a driver may go without a heartbeat, or an
	// answer; the default of Aeron's own clients.
	driverTimeout = 10 * time.Second
)

// cnc watches a media driver for its life: aeron-go notices its end after
// seconds, and takes requests until then.
type cnc struct {
	dir  string
	file []byte // mapped
	beat *int64
	pid  int // 0 where it is not visible from here
}

// openCnc finds a driver's file and checks that it is a living driver's.
func openCnc(dir string) (*cnc, error) {
	path := filepath.Join(dir, cncName)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no media driver in %s: start it beside the client (make driver), or name its folder by -aeron-dir", dir)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < cncHeaderLen || info.Size() > 1<<31 {
		return nil, fmt.Errorf("%s has %d bytes: it is no media driver's", path, info.Size())
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, os.NewSyscallError("mmap", err))
	}
	c := &cnc{dir: dir, file: b}
	if err := c.parse(); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *cnc) parse() error {
	path := filepath.Join(c.dir, cncName)
	version := atomic.LoadInt32((*int32)(unsafe.Pointer(&c.file[cncVersionAt])))
	if version == 0 {
		return fmt.Errorf("the media driver in %s is still starting: try again", c.dir)
	}
	if version != cncVersion {
		return fmt.Errorf("the media driver in %s is of another version: its %s has layout %d.%d.%d, this client reads 0.2.0",
			c.dir, cncName, version>>16, version>>8&0xff, version&0xff)
	}
	ring := int64(int32(binary.NativeEndian.Uint32(c.file[cncRingLenAt:])))
	if ring < ringTrailerLen || ring%8 != 0 || cncHeaderLen+ring > int64(len(c.file)) {
		return fmt.Errorf("%s is no media driver's: a command buffer of %d bytes", path, ring)
	}
	c.pid = int(binary.NativeEndian.Uint64(c.file[cncPIDAt:]))
	c.beat = (*int64)(unsafe.Pointer(&c.file[cncHeaderLen+ring-ringTrailerLen+ringBeatAt]))
	return c.check()
}

// check says whether the driver is alive: its process is there, and has had a
// heartbeat.
func (c *cnc) check() error {
	if age := time.Since(time.UnixMilli(atomic.LoadInt64(c.beat))); age > driverTimeout {
		return fmt.Errorf("the media driver in %s is gone: its last heartbeat was %.1f s ago", c.dir, age.Seconds())
	}
	if c.pid > 0 && unix.Kill(c.pid, 0) == unix.ESRCH {
		return fmt.Errorf("the media driver in %s is gone: its process %d has ended", c.dir, c.pid)
	}
	return nil
}

func (c *cnc) close() error {
	if c.file == nil {
		return nil
	}
	err := unix.Munmap(c.file)
	c.file, c.beat = nil, nil
	return os.NewSyscallError("munmap", err)
}
