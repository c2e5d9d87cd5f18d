package raftrig.aeron;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Waits for SIGTERM or SIGINT, or for a part that ended by itself, and then gives the process a bounded time to close.
 */
final class Stop {
    /** Shorter than the ten seconds after which a stop kills. */
    private static final long CLOSE_SECONDS = 8;

    private final CountDownLatch asked = new CountDownLatch(1);
    private final CountDownLatch closed = new CountDownLatch(1);
    private final AtomicReference<String> failure = new AtomicReference<>();

    /**
     * Takes the process's signals over.
     *
     * @param last what has to be done although closing hangs
     */
    void onSignal(Runnable last) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            asked.countDown();
            int status = 0;
            try {
                if (!closed.await(CLOSE_SECONDS, TimeUnit.SECONDS)) {
                    System.err.println("closing takes longer than " + CLOSE_SECONDS + " s: given up");
                    last.run();
                    status = 1;
                }
            } catch (InterruptedException e) {
                status = 1;
            }
            // The JVM's own status after a signal would be 143, or 130.
            Runtime.getRuntime().halt(failure.get() == null ? status : 1);
        }, "stop"));
    }

    /** Ends the process, which has failed; the first reason counts. */
    void fail(String why) {
        if (asked.getCount() > 0) {
            failure.compareAndSet(null, why);
            asked.countDown();
        }
    }

    void await() throws InterruptedException {
        asked.await();
    }

    /** Whether the process has to end, after that many milliseconds at most. */
    boolean await(long ms) throws InterruptedException {
        return asked.await(ms, TimeUnit.MILLISECONDS);
    }

    /** Why the process ends, or null when it was asked to. */
    String failure() {
        return failure.get();
    }

    /** Everything is closed. */
    void done() {
        closed.countDown();
    }
}
