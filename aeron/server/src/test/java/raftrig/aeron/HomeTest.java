package raftrig.aeron;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class HomeTest {
    @TempDir
    Path parent;

    @Test
    void oneHolderAtATime() {
        Path dir = parent.resolve("node1");
        Home home = Home.hold(dir);
        StartException e = assertThrows(StartException.class, () -> Home.hold(dir));
        assertTrue(e.getMessage().contains("in use by another process"), e.getMessage());
        home.close();
        Home.hold(dir).close();
    }

    @Test
    void leavesNothing() throws Exception {
        Path dir = parent.resolve("node1");
        try (Home home = Home.hold(dir)) {
            Files.createDirectories(dir.resolve("driver/images"));
            Files.writeString(dir.resolve("driver/images/1"), "x");
            home.removeAll();
        }
        try (var left = Files.list(parent)) {
            assertEquals(0, left.count());
        }
    }

    @Test
    void takesOverWhatAKilledProcessLeft() throws Exception {
        Path dir = parent.resolve("node1");
        Home killed = Home.hold(dir);
        Files.writeString(dir.resolve("old"), "x");
        killed.close(); // the files stay, and so does the lock's
        try (Home home = Home.hold(dir)) {
            home.empty();
            assertFalse(Files.exists(dir.resolve("old")));
        }
    }

    @Test
    void refusesFilesOfSomebodyElse() throws Exception {
        Path dir = Files.createDirectory(parent.resolve("photos"));
        Files.writeString(dir.resolve("one.jpg"), "x");
        StartException e = assertThrows(StartException.class, () -> Home.hold(dir));
        assertTrue(e.getMessage().contains("somebody else"), e.getMessage());
        assertTrue(Files.exists(dir.resolve("one.jpg")));
        assertFalse(Files.exists(parent.resolve("photos.lock")));
    }

    @Test
    void leavesNothingOfAStartThatFailed() throws Exception {
        Home.hold(parent.resolve("node1")).close();
        try (var left = Files.list(parent)) {
            assertEquals(0, left.count());
        }
    }

    @Test
    void doesNotFollowLinks() throws Exception {
        Path outside = Files.createDirectory(parent.resolve("outside"));
        Files.writeString(outside.resolve("precious"), "x");
        Path dir = parent.resolve("node1");
        try (Home home = Home.hold(dir)) {
            Files.createSymbolicLink(dir.resolve("link"), outside);
            home.empty();
        }
        assertTrue(Files.exists(outside.resolve("precious")));
    }
}
