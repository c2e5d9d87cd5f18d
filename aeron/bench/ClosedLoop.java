import io.aeron.Publication;
import io.aeron.cluster.client.AeronCluster;
import io.aeron.cluster.client.EgressListener;
import io.aeron.logbuffer.BufferClaim;
import io.aeron.logbuffer.Header;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.agrona.DirectBuffer;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * The Java client that the Go client is held against: the same closed loop with Aeron's own cluster client, one thread,
 * payloads written in place. It is run from its source, with the server's jar on the class path, and prints one line of
 * key=value pairs. Latency runs from the send to the reply.
 */
final class ClosedLoop implements EgressListener {
    private static final long SEND_TIMEOUT_NS = TimeUnit.SECONDS.toNanos(10);
    private static final long KEEP_ALIVE_NS = TimeUnit.SECONDS.toNanos(1);
    /** Bytes of Aeron's header before the payload of a claim. */
    private static final int SESSION_HEADER = AeronCluster.SESSION_HEADER_LENGTH;

    private final long[] sentNs;
    private final int[] free;
    private int freeCount;
    private boolean measuring;
    private long answered;
    private final Histogram latency = new Histogram();

    /** Counts of values in ns, to one part in 1024. */
    private static final class Histogram {
        private static final int BITS = 10;
        private final long[] counts = new long[(64 - BITS) << BITS];
        private long total;
        private long max;

        void record(long v) {
            int shift = Math.max(0, 63 - Long.numberOfLeadingZeros(v | 1) - BITS);
            counts[(shift << BITS) + (int) (v >>> shift)]++;
            total++;
            max = Math.max(max, v);
        }

        double us(double percentile) {
            long rank = (long) Math.ceil(percentile / 100 * total);
            long seen = 0;
            for (int i = 0; i < counts.length; i++) {
                seen += counts[i];
                if (seen >= rank && seen > 0) {
                    // The index is (shift << BITS) + mantissa, and the mantissa has its top bit set from shift 1 on.
                    int shift = Math.max(0, (i >> BITS) - 1);
                    long mantissa = i - ((long) shift << BITS);
                    return (mantissa << shift) / 1e3;
                }
            }
            return 0;
        }
    }

    private ClosedLoop(int outstanding) {
        sentNs = new long[outstanding];
        free = new int[outstanding];
        for (int i = 0; i < outstanding; i++) {
            free[freeCount++] = outstanding - 1 - i;
        }
    }

    @Override
    public void onMessage(
        long sessionId, long timestamp, DirectBuffer buffer, int offset, int length, Header header) {
        long now = System.nanoTime();
        int id = (int) buffer.getLong(offset);
        if (measuring) {
            latency.record(now - sentNs[id]);
            answered++;
        }
        free[freeCount++] = id;
    }

    /** What was on its way is lost with its leader, so fewer than wanted would be outstanding from here on. */
    @Override
    public void onNewLeader(long sessionId, long leadershipTermId, int leaderMemberId, String ingressEndpoints) {
        throw new IllegalStateException("the leader changed in mid-run");
    }

    private void run(AeronCluster cluster, int size, int warmup, int measure, boolean spin) {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        var process = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        BufferClaim claim = new BufferClaim();
        long start = System.nanoTime();
        long from = start + TimeUnit.SECONDS.toNanos(warmup);
        long until = from + TimeUnit.SECONDS.toNanos(measure);
        long keepAlive = start;
        long lastReply = start;
        long threadCpu = 0;
        long processCpu = 0;
        long now = start;
        while (now < until) {
            if (!measuring && now >= from) {
                measuring = true;
                threadCpu = threads.getCurrentThreadCpuTime();
                processCpu = process.getProcessCpuTime();
                from = now;
            }
            int work = 0;
            while (freeCount > 0) {
                long position = cluster.tryClaim(size, claim);
                if (position <= 0) {
                    if (position == Publication.CLOSED || position == Publication.MAX_POSITION_EXCEEDED) {
                        throw new IllegalStateException("the ingress was lost");
                    }
                    break;
                }
                int id = free[--freeCount];
                claim.buffer().putLong(claim.offset() + SESSION_HEADER, id);
                sentNs[id] = System.nanoTime();
                claim.commit();
                work++;
            }
            work += cluster.pollEgress();
            now = System.nanoTime();
            if (work > 0) {
                lastReply = now;
            } else if (now - lastReply > SEND_TIMEOUT_NS) {
                throw new IllegalStateException("no reply for ten seconds");
            } else if (!spin) {
                LockSupport.parkNanos(50_000);
            }
            if (now - keepAlive > KEEP_ALIVE_NS) {
                cluster.sendKeepAlive();
                keepAlive = now;
            }
        }
        double requests = Math.max(1, answered);
        System.out.printf("client=java mode=closed outstanding=%d size=%d seconds=%.2f answered=%d rate=%.0f p50_us=%.1f "
                + "p99_us=%.1f max_us=%.1f thread_cpu_us=%.3f process_cpu_us=%.3f%n",
            sentNs.length, size, (now - from) / 1e9, answered, answered * 1e9 / (now - from), latency.us(50),
            latency.us(99), latency.max / 1e3, (threads.getCurrentThreadCpuTime() - threadCpu) / 1e3 / requests,
            (process.getProcessCpuTime() - processCpu) / 1e3 / requests);
    }

    private static int run(String[] args) {
        Map<String, String> flags = new HashMap<>(Map.of("aeron-dir", "/dev/shm/raftrig-aeron/client",
            "hosts", "127.0.0.11,127.0.0.12,127.0.0.13", "base-port", "9000", "addr", "127.0.0.14",
            "outstanding", "100", "size", "64", "warmup", "5", "measure", "10", "idle", "sleep"));
        for (int i = 0; i < args.length; i += 2) {
            String name = args[i].replaceFirst("^--", "");
            if (!flags.containsKey(name) || i + 1 == args.length) {
                System.err.println("aeron-bench: " + args[i] + ": want pairs of --name value, of " + flags);
                return 2;
            }
            flags.put(name, args[i + 1]);
        }
        int base = Integer.parseInt(flags.get("base-port"));
        int outstanding = Integer.parseInt(flags.get("outstanding"));
        int size = Integer.parseInt(flags.get("size"));
        if (outstanding < 1 || size < Long.BYTES) {
            System.err.println("aeron-bench: want --outstanding 1 at least and --size 8 at least");
            return 2;
        }
        StringBuilder endpoints = new StringBuilder();
        String[] hosts = flags.get("hosts").split(",");
        for (int i = 0; i < hosts.length; i++) {
            endpoints.append(i > 0 ? "," : "").append(i).append('=').append(hosts[i]).append(':')
                .append(base + 100 * i + 2);
        }
        ClosedLoop loop = new ClosedLoop(outstanding);
        AeronCluster.Context context = new AeronCluster.Context()
            .aeronDirectoryName(flags.get("aeron-dir"))
            .ingressChannel("aeron:udp")
            .ingressEndpoints(endpoints.toString())
            .isIngressExclusive(true)
            .egressChannel("aeron:udp?endpoint=" + flags.get("addr") + ":0")
            .egressListener(loop);
        try (AeronCluster cluster = AeronCluster.connect(context)) {
            loop.run(cluster, size, Integer.parseInt(flags.get("warmup")), Integer.parseInt(flags.get("measure")),
                flags.get("idle").equals("spin"));
        }
        return 0;
    }

    public static void main(String[] args) {
        int status = 1;
        try {
            status = run(args);
        } catch (RuntimeException e) {
            System.err.println("aeron-bench: " + String.valueOf(e.getMessage()).lines().findFirst().orElse(""));
        }
        System.out.flush();
        Runtime.getRuntime().halt(status);
    }
}
