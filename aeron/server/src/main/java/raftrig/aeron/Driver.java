package raftrig.aeron;

import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import java.nio.file.Path;
import java.util.List;
import org.agrona.concurrent.BusySpinIdleStrategy;
import org.agrona.concurrent.NoOpIdleStrategy;
import org.agrona.concurrent.SleepingIdleStrategy;

/** The media driver beside the client, in a process of its own, so that its end does not end the client. */
final class Driver {
    /** Bytes of a term, unless a channel asks for another. */
    private static final int TERM_LENGTH = 4 << 20;
    /** Bytes: ingress and egress of some sessions, and the driver's own buffers. */
    private static final long SPACE = 8 * Space.buffer(TERM_LENGTH) + (32 << 20);

    /** How the driver runs. */
    enum Profile {
        /** One thread that sleeps when it finds no work. */
        LAPTOP,
        /** Three threads that spin, on cores of their own, with memory touched before its use and large socket buffers. */
        LOW_LATENCY
    }

    private Driver() {}

    static Flags flags() {
        return new Flags()
            .flag("dir", NodeSettings.SHM + "/client", "the driver's directory, in memory; clients name it")
            .flag("profile", "laptop", "laptop (one thread, sleeps) or low-latency (three threads that spin)")
            .flag("mtu", "1408", "largest datagram in bytes: a multiple of 32; above 8192 on channels that set mtu=")
            .flag("idle-ns", "50000", "laptop: sleep when there is no work, in ns");
    }

    /**
     * Runs the driver until it is told to stop.
     *
     * @return the exit status
     */
    static int run(List<String> args, Say say, Stop stop) throws InterruptedException {
        Flags f = flags().parse(args);
        Path dir = Path.of(f.text("dir")).toAbsolutePath().normalize();
        Profile profile = f.oneOf("profile", Profile.class);
        int mtu = Mtu.of(f, TERM_LENGTH);
        long idleNs = f.number("idle-ns", 1, 100_000_000);
        if (profile == Profile.LOW_LATENCY) {
            SocketBuffers.check(SocketBuffers.LOW_LATENCY);
        }
        try (Home home = Home.hold(dir)) {
            stop.onSignal(home::removeAll);
            try {
                home.empty();
                Space.check(dir, SPACE, "buffers of the client's driver");
                MediaDriver.Context context = context(profile, mtu, idleNs)
                    .aeronDirectoryName(dir.toString())
                    .warnIfDirectoryExists(false)
                    .errorHandler(say)
                    .terminationHook(() -> stop.fail("a client ended the driver"));
                try (MediaDriver driver = MediaDriver.launch(context)) {
                    say.info("aeron driver ready in %s (%s, mtu %d)", driver.aeronDirectoryName(), f.text("profile"),
                        context.mtuLength());
                    stop.await();
                }
            } finally {
                home.removeAll();
            }
        }
        if (stop.failure() != null) {
            say.info("ended: %s", stop.failure());
            return 1;
        }
        return 0;
    }

    private static MediaDriver.Context context(Profile profile, int mtu, long idleNs) {
        MediaDriver.Context context = new MediaDriver.Context()
            .publicationTermBufferLength(TERM_LENGTH)
            .ipcTermBufferLength(TERM_LENGTH)
            .mtuLength(Math.min(mtu, Mtu.DRIVER_MAX));
        return switch (profile) {
            case LAPTOP -> context
                .threadingMode(ThreadingMode.SHARED)
                .sharedIdleStrategy(new SleepingIdleStrategy(idleNs))
                .termBufferSparseFile(true);
            case LOW_LATENCY -> context
                .threadingMode(ThreadingMode.DEDICATED)
                .conductorIdleStrategy(BusySpinIdleStrategy.INSTANCE)
                .senderIdleStrategy(NoOpIdleStrategy.INSTANCE)
                .receiverIdleStrategy(NoOpIdleStrategy.INSTANCE)
                .termBufferSparseFile(false)
                .socketSndbufLength(SocketBuffers.LOW_LATENCY)
                .socketRcvbufLength(SocketBuffers.LOW_LATENCY)
                .initialWindowLength(SocketBuffers.LOW_LATENCY);
        };
    }
}
