package raftrig.aeron;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SpaceTest {
    @TempDir
    Path dir;

    @Test
    void saysWhatIsNeeded() {
        StartException e = assertThrows(StartException.class,
            () -> Space.check(dir, 64 << 20, (100 << 20) + 1, "two logs"));
        assertEquals(dir + " has 64 MiB left and 101 MiB are needed (two logs): make room, or mount it larger",
            e.getMessage());
        assertDoesNotThrow(() -> Space.check(dir, 64 << 20, 64 << 20, "just enough"));
        assertThrows(StartException.class, () -> Space.check(dir, (64 << 20) - 1, 64 << 20, "a byte too little"));
    }

    @Test
    void asksTheFileSystem() {
        assertDoesNotThrow(() -> Space.check(dir, 1, "a byte"));
        assertThrows(StartException.class, () -> Space.check(dir, Long.MAX_VALUE >> 1, "all there is"));
    }

    @Test
    void aLogBufferHasThreeTerms() {
        assertEquals(192 << 20, Space.buffer(64 << 20));
    }

    @Test
    void socketBuffers() throws Exception {
        Files.writeString(dir.resolve("rmem_max"), "212992\n");
        StartException e = assertThrows(StartException.class, () -> SocketBuffers.check(dir, 2 << 20));
        assertEquals("net.core.rmem_max is 212992 and 2097152 are needed: make provision, or sysctl -w "
            + "net.core.rmem_max=2097152", e.getMessage());
        assertDoesNotThrow(() -> SocketBuffers.check(dir, 212992));
    }

    @Test
    void theKernelsOwnLimits() {
        // Every Linux allows far more than the page that the kernel itself takes as the least.
        assertDoesNotThrow(() -> SocketBuffers.check(4096));
    }
}
