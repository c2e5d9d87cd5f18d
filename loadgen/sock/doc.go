// Package sock gives a lane TCP connections that it polls itself.
//
// A lane is one locked OS thread that sends on a schedule and reads replies in
// between. A net.Conn would hand each reply from the runtime's poller to a
// parked goroutine, which costs scheduling delays of many microseconds and,
// when the lane spins and no processor is free, milliseconds. Here the lane
// makes the system calls: one Poller (an epoll instance) a lane, non-blocking
// sockets, and buffers that are made once, so nothing is allocated and no
// other goroutine runs between a reply's arrival and its timestamp.
//
// The package knows bytes, not protocols. A protocol's client does this:
//
//	for _, c := range poller.Wait(timeout) {
//		n, err := c.Fill()       // one read
//		at := clock.Now()        // the replies in it arrived now
//		used := parse(c.In(), at)
//		c.Discard(used)
//	}
//	c.Write(request)             // into the out buffer
//	c.Flush()                    // to the socket, as far as it takes it
//
// What the socket does not take leaves when Wait finds it writable.
//
// Nothing here is safe for concurrent use: a Poller and its Conns belong to
// one goroutine. Linux only.
package sock
