package raftrig.aeron;

import io.aeron.driver.ThreadingMode;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * What a node's flags say, checked.
 *
 * @param node            this node's number, from 1
 * @param hosts           the nodes' addresses; node i is hosts[i - 1]
 * @param basePort        first port of node 1's block
 * @param dir             the node's directory, in memory
 * @param archiveDir      the recorded log's directory; null puts it below dir
 * @param keep            whether directories outlive a stop and are read at start
 * @param spin            whether every thread spins
 * @param idleNs          sleep of a thread that finds no work, in nanoseconds
 * @param appointedLeader the only node that may lead; 0 for an election
 * @param mtu             bytes, of log and ingress
 * @param termLength      bytes, of the log
 * @param logSpace        bytes for the recorded log that have to be free at start
 * @param fsyncLevel      0 none, 1 data, 2 data and metadata
 * @param threading       threads of the media driver, and of the archive
 */
record NodeSettings(int node, List<String> hosts, int basePort, Path dir, Path archiveDir, boolean keep, boolean spin,
    long idleNs, int appointedLeader, int mtu, int termLength, long logSpace, int fsyncLevel,
    ThreadingMode threading, long heartbeatTimeoutNs, long heartbeatIntervalNs, long electionTimeoutNs,
    long canvassTimeoutNs, long sessionTimeoutNs, int maxSessions) {

    static final String SHM = "/dev/shm/raftrig-aeron";
    private static final int TERM_MIN = 64 << 10;
    /** aeron-go clients take no longer ones. */
    private static final int TERM_MAX = 512 << 20;

    /** The flags of a node. */
    static Flags flags() {
        return new Flags()
            .flag("id", null, "this node's number, from 1")
            .flag("peers", null, "the nodes' addresses in order, with commas")
            .flag("addr", "", "this node's address, when it is not the one in --peers")
            .flag("base-port", "9000", "first port of node 1's block of 100; node 2 has the next block")
            .flag("dir", "", "the node's directory, in memory; by default " + SHM + "/nodeN")
            .flag("archive-dir", "", "directory of the recorded log; by default below --dir")
            .toggle("keep", "1 keeps the directories at stop, and goes on with what is there at start")
            .toggle("spin", "1 has every thread spin, and wants a core for each")
            .flag("idle-ns", "50000", "sleep of a thread that finds no work, in ns")
            .flag("threading", "", "threads of driver and archive: shared, shared-network, dedicated; by default"
                + " shared, with --spin 1 dedicated")
            .flag("mtu", "1408", "largest datagram of log and ingress, in bytes: a multiple of 32")
            .flag("term-length", "16m", "term of the log, a power of two from 64k to 512m")
            .flag("log-space", "512m", "room for the recorded log that has to be free at start")
            .flag("fsync-level", "0", "sync of the recorded log: 0 none, 1 data, 2 data and metadata")
            .flag("appointed-leader", "0", "the only node that may lead; removes failover")
            .flag("heartbeat-timeout-ms", "1500", "a follower stands for election after that long without its leader")
            .flag("heartbeat-interval-ms", "100", "time between a leader's heartbeats")
            .flag("election-timeout-ms", "500", "bound of one step of an election")
            .flag("canvass-timeout-ms", "10000", "how long the first election waits for a node that is not there")
            .flag("session-timeout-ms", "10000", "a session that is silent for that long is closed")
            .flag("max-sessions", "10", "sessions at the same time");
    }

    static NodeSettings parse(List<String> args) {
        Flags f = flags().parse(args);
        List<String> hosts = List.of(f.text("peers").split(",", -1));
        for (String host : hosts) {
            if (host.isBlank() || host.contains("|") || new HashSet<>(hosts).size() != hosts.size()) {
                throw new UsageException("--peers %s: want the address of each node once, with commas", f.text("peers"));
            }
        }
        int node = (int) f.number("id", 1, hosts.size());
        if (f.isSet("addr") && !f.text("addr").equals(hosts.get(node - 1))) {
            throw new UsageException("--addr %s: --peers has %s for node %d", f.text("addr"), hosts.get(node - 1), node);
        }
        int basePort = (int) f.number("base-port", 1, 65_536 - (long) Ports.BLOCK * hosts.size());
        Path dir = Path.of(f.isSet("dir") ? f.text("dir") : SHM + "/node" + node).toAbsolutePath().normalize();
        Path archiveDir = f.isSet("archive-dir") ? Path.of(f.text("archive-dir")).toAbsolutePath().normalize() : null;
        if (archiveDir != null && (archiveDir.startsWith(dir) || dir.startsWith(archiveDir))) {
            throw new UsageException("--archive-dir %s: want one beside --dir %s", archiveDir, dir);
        }

        long term = f.bytes("term-length", TERM_MIN, TERM_MAX);
        if (Long.bitCount(term) != 1) {
            throw new UsageException("--term-length %s: want a power of two", f.text("term-length"));
        }
        boolean spin = f.toggled("spin");
        ThreadingMode threading = spin ? ThreadingMode.DEDICATED : ThreadingMode.SHARED;
        if (f.isSet("threading")) {
            threading = f.oneOf("threading", ThreadingMode.class);
            if (threading == ThreadingMode.INVOKER) {
                throw new UsageException("--threading invoker: want shared, shared-network or dedicated");
            }
        }
        long timeout = ms(f, "heartbeat-timeout-ms", 100, 60_000);
        long interval = ms(f, "heartbeat-interval-ms", 1, 60_000);
        if (interval * 2 > timeout) {
            throw new UsageException("--heartbeat-interval-ms %s: want half of --heartbeat-timeout-ms %s at most",
                f.text("heartbeat-interval-ms"), f.text("heartbeat-timeout-ms"));
        }
        return new NodeSettings(node, hosts, basePort, dir, archiveDir, f.toggled("keep"), spin,
            f.number("idle-ns", 1, 100_000_000), (int) f.number("appointed-leader", 0, hosts.size()), Mtu.of(f, term),
            (int) term, f.bytes("log-space", 0, 1L << 50), (int) f.number("fsync-level", 0, 2), threading, timeout,
            interval, ms(f, "election-timeout-ms", 50, 60_000), ms(f, "canvass-timeout-ms", 100, 600_000),
            ms(f, "session-timeout-ms", 100, 3_600_000), (int) f.number("max-sessions", 1, 1000));
    }

    private static long ms(Flags f, String name, long min, long max) {
        return TimeUnit.MILLISECONDS.toNanos(f.number(name, min, max));
    }

    /** This node's address. */
    String host() {
        return hosts.get(node - 1);
    }

    int port(int offset) {
        return Ports.port(basePort, node, offset);
    }
}
