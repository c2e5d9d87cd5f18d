package raftrig.aeron;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;

/**
 * What the state machine has applied, written by its thread after each request and read by others as one consistent
 * view. A version that is odd while values change takes the place of a lock, so the writer never waits.
 */
final class Progress {
    /**
     * One view.
     *
     * @param applied log position behind the last request, in bytes
     * @param count   requests applied since the cluster began
     * @param digest  of those requests
     */
    record View(long applied, long count, long digest) {}

    private static final VarHandle VERSION;
    private static final VarHandle APPLIED;
    private static final VarHandle COUNT;
    private static final VarHandle DIGEST;

    static {
        try {
            MethodHandles.Lookup lookup = MethodHandles.lookup();
            VERSION = lookup.findVarHandle(Progress.class, "version", long.class);
            APPLIED = lookup.findVarHandle(Progress.class, "applied", long.class);
            COUNT = lookup.findVarHandle(Progress.class, "count", long.class);
            DIGEST = lookup.findVarHandle(Progress.class, "digest", long.class);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    private long version;
    private long applied;
    private long count;
    private long digest = Digest.EMPTY;

    /** Called by one thread only. */
    void publish(long applied, long count, long digest) {
        long v = version;
        VERSION.setOpaque(this, v + 1);
        VarHandle.storeStoreFence();
        APPLIED.setOpaque(this, applied);
        COUNT.setOpaque(this, count);
        DIGEST.setOpaque(this, digest);
        VERSION.setRelease(this, v + 2);
    }

    /** Called by any thread. */
    View view() {
        while (true) {
            long before = (long) VERSION.getAcquire(this);
            View view = new View((long) APPLIED.getOpaque(this), (long) COUNT.getOpaque(this),
                (long) DIGEST.getOpaque(this));
            VarHandle.loadLoadFence();
            if (before % 2 == 0 && before == (long) VERSION.getOpaque(this)) {
                return view;
            }
            Thread.onSpinWait();
        }
    }
}
