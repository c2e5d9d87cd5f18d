package raftrig.aeron;

import java.util.function.Supplier;
import org.agrona.concurrent.BusySpinIdleStrategy;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.SleepingIdleStrategy;

/** What an agent does when it finds no work. Each agent needs one of its own. */
final class Idle {
    private Idle() {}

    /** Spins, which wants a core for each thread, or sleeps that many nanoseconds. */
    static Supplier<IdleStrategy> of(boolean spin, long sleepNs) {
        return spin ? () -> BusySpinIdleStrategy.INSTANCE : () -> new SleepingIdleStrategy(sleepNs);
    }
}
