package raftrig.aeron;

import org.agrona.DirectBuffer;

/**
 * A rolling hash over requests in the order of the log: two state machines that applied the same requests in the same
 * order have the same digest, and others differ but for a chance of about 2^-64. It is a check against error, not
 * against attack. The step is that of FNV-1a, taken over eight bytes at a time.
 */
final class Digest {
    private static final long PRIME = 0x100000001b3L;
    private static final long SPREAD = 0x9e3779b97f4a7c15L;
    static final long EMPTY = 0xcbf29ce484222325L;

    private Digest() {}

    /** The digest after one more request; about a nanosecond for each eight bytes. */
    static long add(long digest, DirectBuffer buffer, int offset, int length) {
        long h = step(digest, length);
        int end = offset + length;
        int at = offset;
        for (; at + Long.BYTES <= end; at += Long.BYTES) {
            h = step(h, buffer.getLong(at));
        }
        for (; at < end; at++) {
            h = step(h, buffer.getByte(at));
        }
        return h;
    }

    private static long step(long h, long word) {
        h = (h ^ word * SPREAD) * PRIME;
        return h ^ h >>> 32;
    }

    /** Sixteen hexadecimal digits. */
    static String text(long digest) {
        return String.format("%016x", digest);
    }
}
