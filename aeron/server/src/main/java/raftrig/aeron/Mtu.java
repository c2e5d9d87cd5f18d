package raftrig.aeron;

import io.aeron.driver.Configuration;
import io.aeron.logbuffer.FrameDescriptor;
import io.aeron.protocol.DataHeaderFlyweight;

/** The limits of an MTU, which is the UDP payload of a datagram with every header of Aeron inside it. */
final class Mtu {
    /**
     * The largest MTU of a whole driver in bytes. Control channels have terms of 64 KiB, and no MTU may be above an
     * eighth of its term.
     */
    static final int DRIVER_MAX = 8192;

    private Mtu() {}

    /** Reads --mtu for a channel with terms of that many bytes. */
    static int of(Flags flags, long termLength) {
        long max = Math.min(Configuration.MAX_UDP_PAYLOAD_LENGTH, termLength / 8);
        // One header and one aligned byte are the least that gets through.
        long min = DataHeaderFlyweight.HEADER_LENGTH + FrameDescriptor.FRAME_ALIGNMENT;
        long mtu = flags.number("mtu", min, max);
        if (mtu % FrameDescriptor.FRAME_ALIGNMENT != 0) {
            throw new UsageException("--mtu %d: want a multiple of %d (%d or %d)", mtu, FrameDescriptor.FRAME_ALIGNMENT,
                mtu / FrameDescriptor.FRAME_ALIGNMENT * FrameDescriptor.FRAME_ALIGNMENT,
                (mtu / FrameDescriptor.FRAME_ALIGNMENT + 1) * FrameDescriptor.FRAME_ALIGNMENT);
        }
        return (int) mtu;
    }
}
