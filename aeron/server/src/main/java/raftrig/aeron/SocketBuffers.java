package raftrig.aeron;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** The socket buffers and receiver window of a driver that has cores of its own. */
final class SocketBuffers {
    /** Bytes. Room for a receiver thread that is away for some milliseconds. */
    static final int LOW_LATENCY = 2 << 20;

    private static final Path LIMITS = Path.of("/proc/sys/net/core");

    private SocketBuffers() {}

    /** Refuses when the kernel would give less than it is asked for. */
    static void check(int bytes) {
        check(LIMITS, bytes);
    }

    static void check(Path limits, int bytes) {
        for (String name : new String[] {"rmem_max", "wmem_max"}) {
            long limit;
            // One read has to take all: the kernel answers a second one with the end of the file.
            try (BufferedReader in = Files.newBufferedReader(limits.resolve(name))) {
                limit = Long.parseLong(in.readLine());
            } catch (IOException | NumberFormatException e) {
                continue; // not told in this namespace; the driver asks the socket itself
            }
            if (limit < bytes) {
                throw new StartException("net.core.%s is %d and %d are needed: make provision, or sysctl -w net.core.%s=%d",
                    name, limit, bytes, name, bytes);
            }
        }
    }
}
