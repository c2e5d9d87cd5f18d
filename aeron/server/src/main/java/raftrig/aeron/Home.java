package raftrig.aeron;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.DirectoryNotEmptyException;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.List;
import java.util.stream.Stream;

/**
 * A directory that one process holds, by a lock on the file beside it that has its name and {@code .lock}. The kernel
 * frees the lock when the process ends, however it ends: whoever has it knows that what lies there belongs to nobody.
 */
final class Home implements AutoCloseable {
    private final Path dir;
    private final Path lockFile;
    private final FileChannel channel;
    private final FileLock lock;

    private Home(Path dir, Path lockFile, FileChannel channel, FileLock lock) {
        this.dir = dir;
        this.lockFile = lockFile;
        this.channel = channel;
        this.lock = lock;
    }

    /**
     * Makes the directory, or takes it over from a process that has ended. One that holds files and was not made here
     * is refused, for it will be emptied.
     *
     * @param dir is not the root
     */
    static Home hold(Path dir) {
        Path lockFile = dir.resolveSibling(dir.getFileName() + ".lock");
        try {
            Files.createDirectories(dir);
            if (!Files.exists(lockFile) && !list(dir).isEmpty()) {
                throw new StartException("%s holds files of somebody else: name another directory", dir);
            }
            FileChannel channel = FileChannel.open(lockFile, StandardOpenOption.CREATE, StandardOpenOption.WRITE);
            FileLock lock = tryLock(channel);
            if (lock == null) {
                channel.close();
                throw new StartException("%s is in use by another process: stop it first", dir);
            }
            return new Home(dir, lockFile, channel, lock);
        } catch (IOException e) {
            throw new StartException("%s cannot be used: %s", dir, e);
        }
    }

    private static FileLock tryLock(FileChannel channel) throws IOException {
        try {
            return channel.tryLock();
        } catch (OverlappingFileLockException e) {
            return null; // held by this process
        }
    }

    Path dir() {
        return dir;
    }

    /** Removes what is in the directory. */
    void empty() {
        try {
            for (Path p : list(dir)) {
                delete(p);
            }
        } catch (IOException e) {
            throw new StartException("%s cannot be emptied: %s", dir, e);
        }
    }

    /** Removes one entry of the directory with all that is in it. */
    void remove(String name) {
        try {
            delete(dir.resolve(name));
        } catch (IOException e) {
            throw new StartException("%s cannot be removed: %s", dir.resolve(name), e);
        }
    }

    /** Removes the directory and the lock's file, and the common one above when it was the last in it. */
    void removeAll() {
        try {
            delete(dir);
            Files.deleteIfExists(lockFile);
            if (dir.startsWith(NodeSettings.SHM)) {
                Files.deleteIfExists(Path.of(NodeSettings.SHM));
            }
        } catch (DirectoryNotEmptyException e) {
            // Others are in it.
        } catch (IOException e) {
            throw new StartException("%s cannot be removed: %s", dir, e);
        }
    }

    /** Gives the directory free, and removes one in which nothing was left. */
    @Override
    public void close() {
        try {
            if (Files.exists(dir) && list(dir).isEmpty()) {
                removeAll();
            }
            lock.release();
            channel.close();
        } catch (IOException e) {
            // The end of the process frees it.
        }
    }

    private static List<Path> list(Path dir) throws IOException {
        try (Stream<Path> entries = Files.list(dir)) {
            return entries.toList();
        }
    }

    private static void delete(Path path) throws IOException {
        if (!Files.exists(path, LinkOption.NOFOLLOW_LINKS)) {
            return;
        }
        Files.walkFileTree(path, new SimpleFileVisitor<>() {
            @Override
            public FileVisitResult visitFile(Path file, BasicFileAttributes attrs) throws IOException {
                Files.delete(file);
                return FileVisitResult.CONTINUE;
            }

            @Override
            public FileVisitResult postVisitDirectory(Path directory, IOException e) throws IOException {
                if (e != null) {
                    throw e;
                }
                Files.delete(directory);
                return FileVisitResult.CONTINUE;
            }
        });
    }
}
