package raftrig.aeron;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import java.util.HashSet;
import java.util.Set;
import org.agrona.concurrent.UnsafeBuffer;
import org.junit.jupiter.api.Test;

class DigestTest {
    private static long of(byte[]... requests) {
        long digest = Digest.EMPTY;
        for (byte[] request : requests) {
            digest = Digest.add(digest, new UnsafeBuffer(request), 0, request.length);
        }
        return digest;
    }

    @Test
    void everyByteCounts() {
        Set<Long> seen = new HashSet<>();
        int lengths = 20;
        for (int length = 0; length <= lengths; length++) {
            byte[] request = new byte[length];
            seen.add(of(request));
            for (int i = 0; i < length; i++) {
                request[i] = 1;
                seen.add(of(request));
                request[i] = 0;
            }
        }
        assertEquals(lengths + 1 + lengths * (lengths + 1) / 2, seen.size());
    }

    @Test
    void orderAndNumberCount() {
        byte[] a = {1, 2, 3};
        byte[] b = {4};
        assertNotEquals(of(a, b), of(b, a));
        assertNotEquals(of(a), of(a, a));
        assertNotEquals(of(new byte[0]), of());
        assertEquals(of(a, b), of(a, b));
    }

    @Test
    void whereItLiesDoesNot() {
        byte[] request = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
        UnsafeBuffer moved = new UnsafeBuffer(new byte[32]);
        moved.putBytes(13, request);
        assertEquals(of(request), Digest.add(Digest.EMPTY, moved, 13, request.length));
    }

    @Test
    void text() {
        assertEquals("00000000000000ff", Digest.text(255));
        assertEquals("ffffffffffffffff", Digest.text(-1));
    }
}
