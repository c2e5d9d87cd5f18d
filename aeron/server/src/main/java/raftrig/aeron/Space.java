package raftrig.aeron;

import java.io.IOException;
import java.nio.file.FileStore;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Room for memory-mapped files. A tmpfs that fills up under a mapping kills the process that writes, so there has to be
 * room for all of them before the first is made.
 */
final class Space {
    /** A log buffer has three terms. */
    static final int TERMS = 3;

    private Space() {}

    /** Bytes of a publication or an image with terms of that length. */
    static long buffer(long termLength) {
        return TERMS * termLength;
    }

    /**
     * Refuses when the directory has less than the given bytes left.
     *
     * @param dir  exists
     * @param need bytes
     * @param what the need, in words
     */
    static void check(Path dir, long need, String what) {
        check(dir, left(dir), need, what);
    }

    static void check(Path dir, long left, long need, String what) {
        if (left < need) {
            throw new StartException("%s has %d MiB left and %d MiB are needed (%s): make room, or mount it larger",
                dir, left >> 20, (need + (1 << 20) - 1) >> 20, what);
        }
    }

    /** Bytes left in the directory. */
    static long left(Path dir) {
        try {
            return store(dir).getUsableSpace();
        } catch (IOException e) {
            throw new StartException("%s: the space left is not known: %s", dir, e);
        }
    }

    /** Whether files in the directory are memory, and not on a disk. */
    static boolean isMemory(Path dir) {
        String type = store(dir).type();
        return type.equals("tmpfs") || type.equals("ramfs");
    }

    private static FileStore store(Path dir) {
        try {
            return Files.getFileStore(dir);
        } catch (IOException e) {
            throw new StartException("%s: %s", dir, e);
        }
    }
}
