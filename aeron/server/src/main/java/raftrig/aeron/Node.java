package raftrig.aeron;

import io.aeron.Aeron;
import io.aeron.archive.Archive;
import io.aeron.archive.ArchiveMarkFile;
import io.aeron.archive.ArchiveThreadingMode;
import io.aeron.archive.client.AeronArchive;
import io.aeron.cluster.ClusteredMediaDriver;
import io.aeron.cluster.ConsensusModule;
import io.aeron.cluster.ElectionState;
import io.aeron.cluster.service.Cluster;
import io.aeron.cluster.service.ClusterMarkFile;
import io.aeron.cluster.service.ClusteredServiceContainer;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.Supplier;
import org.agrona.CloseHelper;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.NoOpLock;
import org.agrona.concurrent.SystemEpochClock;

/** One member of the cluster: media driver, archive, consensus module and echo service in this process. */
final class Node implements AutoCloseable {
    /** Bytes of a term of a session's ingress and egress, unless its client asks for another. */
    private static final int SESSION_TERM = 4 << 20;
    /** Busy sessions that space is kept for; the driver refuses those that do not fit. */
    private static final int SESSIONS_IN_MEMORY = 4;
    /** Logs that are mapped at once: the present one, that of the leader before, and one that is caught up from. */
    private static final int LOGS_IN_MEMORY = 3;
    /** Bytes for counters, error logs, and the control streams with terms of 64 and 128 KiB. */
    private static final long SMALL_BUFFERS = 32 << 20;
    /** The archive writes files of this many bytes, or of one term where that is more. */
    private static final int SEGMENT_LENGTH = 64 << 20;
    /** How often the space left is looked at, and how much has to be left: at 100 MB/s half a second's worth. */
    private static final long WATCH_MS = 100;
    private static final long SPACE_RESERVE = 64 << 20;
    private static final String IPC_CONTROL = "aeron:ipc?term-length=128k";

    private final NodeSettings settings;
    private final Say say;
    private final Progress progress = new Progress();
    private final EchoService service;
    private final String version = version();
    private final String log;
    private final ConsensusModule.Context consensus;
    private final ClusteredMediaDriver cluster;
    private final ClusteredServiceContainer container;
    private final StatusServer status;

    /**
     * Runs a node until it is told to stop, or a part of it ends by itself.
     *
     * @return the exit status
     */
    static int run(NodeSettings s, Say say, Stop stop) throws InterruptedException {
        if (s.spin()) {
            SocketBuffers.check(SocketBuffers.LOW_LATENCY);
        }
        Ports.check(s.host(), s.basePort(), s.node());
        try (Home home = Home.hold(s.dir());
            Home archiveHome = s.archiveDir() == null ? null : Home.hold(s.archiveDir())) {
            Runnable remove = () -> {
                if (!s.keep()) {
                    CloseHelper.close(archiveHome == null ? null : archiveHome::removeAll);
                    home.removeAll();
                } else {
                    home.remove("driver");
                }
            };
            stop.onSignal(remove);
            try {
                prepare(s, home, archiveHome);
                try (Node node = new Node(s, say, stop)) {
                    say.info("node %d runs on %s, ports %d to %d; %s; status http://%s/status", s.node(), s.host(),
                        s.port(Ports.ARCHIVE), s.port(Ports.CATCHUP), node.log,
                        Ports.endpoint(s.host(), s.port(Ports.STATUS)));
                    if (s.appointedLeader() != 0) {
                        say.info("warning: only node %d may lead: when it ends, nobody does", s.appointedLeader());
                    }
                    while (!stop.await(WATCH_MS)) {
                        watchSpace(home.dir(), stop);
                        watchSpace(archiveHolder(s), stop);
                    }
                }
            } finally {
                remove.run();
            }
        }
        if (stop.failure() != null) {
            say.info("ended: %s", stop.failure());
            return 1;
        }
        return 0;
    }

    /** Ends the node before the recorded log has filled its file system, and a write to a mapped file is a fault. */
    private static void watchSpace(Path dir, Stop stop) {
        long left = Space.left(dir);
        if (left < SPACE_RESERVE) {
            stop.fail(String.format("%s has %d MiB left: the recorded log, 128 bytes for a request of 64, has filled it;"
                + " start anew, or keep the log on a disk (--archive-dir)", dir, left >> 20));
        }
    }

    /** Empties the directories, or readies them for another start, and checks that there is room. */
    private static void prepare(NodeSettings s, Home home, Home archiveHome) {
        if (s.keep()) {
            home.remove("driver");
            expireMarks(s);
        } else {
            home.empty();
            if (archiveHome != null) {
                archiveHome.empty();
            }
        }
        // All that start together look at the same free space.
        int sharing = Ports.onThisHost(s.hosts());
        long buffers = LOGS_IN_MEMORY * Space.buffer(s.termLength())
            + SESSIONS_IN_MEMORY * 2 * Space.buffer(SESSION_TERM) + SMALL_BUFFERS;
        String each = String.format("%d on this host, each %d MiB of buffers with a log of %s terms", sharing,
            buffers >> 20, Flags.size(s.termLength()));
        String recorded = String.format("%s for the recorded log, --log-space", Flags.size(s.logSpace()));
        if (archiveHome == null) {
            Space.check(home.dir(), sharing * (buffers + s.logSpace()), "nodes: " + each + " and " + recorded);
        } else {
            Space.check(home.dir(), sharing * buffers, "nodes: " + each);
            Space.check(archiveHome.dir(), sharing * s.logSpace(), "nodes: " + sharing + ", each " + recorded);
        }
    }

    /**
     * Says in the files in which archive, consensus module and service show that they live that they do not. After a
     * kill they would keep a new start out for ten seconds; the lock on the directory is the better witness.
     */
    private static void expireMarks(NodeSettings s) {
        File archive = archiveDir(s);
        if (new File(archive, ArchiveMarkFile.FILENAME).exists()) {
            try (ArchiveMarkFile mark = new ArchiveMarkFile(
                archive, ArchiveMarkFile.FILENAME, SystemEpochClock.INSTANCE, 0, text -> {})) {
                mark.signalTerminated();
            }
        }
        File cluster = s.dir().resolve("cluster").toFile();
        for (String name : new String[] {ClusterMarkFile.FILENAME, ClusterMarkFile.markFilenameForService(0)}) {
            if (new File(cluster, name).exists()) {
                try (ClusterMarkFile mark = new ClusterMarkFile(
                    cluster, name, SystemEpochClock.INSTANCE, 0, text -> {})) {
                    mark.signalTerminated();
                }
            }
        }
    }

    private static File archiveDir(NodeSettings s) {
        return (s.archiveDir() == null ? s.dir() : s.archiveDir()).resolve("archive").toFile();
    }

    private Node(NodeSettings s, Say say, Stop stop) {
        settings = s;
        this.say = say;
        service = new EchoService(say, progress);
        log = String.format("archive %s, %s", Space.isMemory(archiveHolder(s)) ? "on tmpfs" : "on disk",
            new String[] {"not synced", "data synced", "data and metadata synced"}[s.fsyncLevel()]);
        String driverDir = s.dir().resolve("driver").toString();
        File clusterDir = s.dir().resolve("cluster").toFile();
        Supplier<IdleStrategy> idle = Idle.of(s.spin(), s.idleNs());
        AeronArchive.Context toArchive = new AeronArchive.Context()
            .aeronDirectoryName(driverDir)
            .lock(NoOpLock.INSTANCE)
            .controlRequestChannel(IPC_CONTROL)
            .controlResponseChannel(IPC_CONTROL);
        consensus = consensus(s, say, stop, driverDir, clusterDir, idle, toArchive);

        status = new StatusServer(s.host(), s.port(Ports.STATUS), this::json);
        ClusteredMediaDriver launched = null;
        try {
            launched = ClusteredMediaDriver.launch(
                driver(s, say, stop, driverDir, idle), archive(s, say, driverDir, idle), consensus);
            container = ClusteredServiceContainer.launch(new ClusteredServiceContainer.Context()
                .aeronDirectoryName(driverDir)
                .archiveContext(toArchive.clone())
                .clusterDir(clusterDir)
                .clusteredService(service)
                .idleStrategySupplier(idle)
                .errorHandler(say)
                .terminationHook(() -> stop.fail("the service ended by itself")));
        } catch (RuntimeException e) {
            CloseHelper.quietCloseAll(status, launched);
            throw e;
        }
        cluster = launched;
    }

    private static Path archiveHolder(NodeSettings s) {
        return s.archiveDir() == null ? s.dir() : s.archiveDir();
    }

    private static MediaDriver.Context driver(
        NodeSettings s, Say say, Stop stop, String driverDir, Supplier<IdleStrategy> idle) {
        MediaDriver.Context driver = new MediaDriver.Context()
            .aeronDirectoryName(driverDir)
            .threadingMode(s.threading())
            .conductorIdleStrategy(idle.get())
            .senderIdleStrategy(idle.get())
            .receiverIdleStrategy(idle.get())
            .sharedIdleStrategy(idle.get())
            .sharedNetworkIdleStrategy(idle.get())
            .publicationTermBufferLength(SESSION_TERM)
            .ipcTermBufferLength(SESSION_TERM)
            .mtuLength(Math.min(s.mtu(), Mtu.DRIVER_MAX))
            // A spinning node touches its memory before it is used; another takes it only where it writes.
            .termBufferSparseFile(!s.spin())
            .errorHandler(say)
            .terminationHook(() -> stop.fail("the media driver ended by itself"));
        if (s.spin()) {
            driver.socketSndbufLength(SocketBuffers.LOW_LATENCY)
                .socketRcvbufLength(SocketBuffers.LOW_LATENCY)
                .initialWindowLength(SocketBuffers.LOW_LATENCY);
        }
        return driver;
    }

    private static Archive.Context archive(NodeSettings s, Say say, String driverDir, Supplier<IdleStrategy> idle) {
        String anyPort = "aeron:udp?endpoint=" + Ports.endpoint(s.host(), 0);
        int segment = Math.max(SEGMENT_LENGTH, s.termLength());
        return new Archive.Context()
            .aeronDirectoryName(driverDir)
            .archiveDir(archiveDir(s))
            .controlChannel("aeron:udp?endpoint=" + Ports.endpoint(s.host(), s.port(Ports.ARCHIVE)))
            .localControlChannel(IPC_CONTROL)
            .replicationChannel(anyPort)
            .archiveClientContext(new AeronArchive.Context().controlResponseChannel(anyPort))
            .segmentFileLength(segment)
            .lowStorageSpaceThreshold(segment)
            .fileSyncLevel(s.fsyncLevel())
            .catalogFileSyncLevel(s.fsyncLevel())
            .threadingMode(s.threading() == ThreadingMode.DEDICATED
                ? ArchiveThreadingMode.DEDICATED : ArchiveThreadingMode.SHARED)
            .idleStrategySupplier(idle)
            .errorHandler(say);
    }

    private static ConsensusModule.Context consensus(NodeSettings s, Say say, Stop stop, String driverDir,
        File clusterDir, Supplier<IdleStrategy> idle, AeronArchive.Context toArchive) {
        return new ConsensusModule.Context()
            .aeronDirectoryName(driverDir)
            .clusterDir(clusterDir)
            .clusterMemberId(s.node() - 1)
            .clusterMembers(Ports.members(s.hosts(), s.basePort()))
            .appointedLeaderId(s.appointedLeader() == 0 ? Aeron.NULL_VALUE : s.appointedLeader() - 1)
            .ingressChannel("aeron:udp?term-length=" + SESSION_TERM)
            .logChannel("aeron:udp?term-length=" + s.termLength() + "|mtu=" + s.mtu())
            .replicationChannel("aeron:udp?endpoint=" + Ports.endpoint(s.host(), 0))
            .fileSyncLevel(s.fsyncLevel())
            .leaderHeartbeatTimeoutNs(s.heartbeatTimeoutNs())
            .leaderHeartbeatIntervalNs(s.heartbeatIntervalNs())
            .electionTimeoutNs(s.electionTimeoutNs())
            .startupCanvassTimeoutNs(s.canvassTimeoutNs())
            .sessionTimeoutNs(s.sessionTimeoutNs())
            .maxConcurrentSessions(s.maxSessions())
            .idleStrategySupplier(idle)
            .archiveContext(toArchive.clone())
            .errorHandler(say)
            .terminationHook(() -> stop.fail("the consensus module ended by itself"));
    }

    /** What the node says of itself; the names are those of the rig's node status. */
    private String json() {
        // The counters are there once the consensus module runs.
        boolean elected = consensus.electionStateCounter() != null && !consensus.electionStateCounter().isClosed()
            && ElectionState.get(consensus.electionStateCounter()) == ElectionState.CLOSED;
        boolean leads = elected && Cluster.Role.get(consensus.clusterNodeRoleCounter()) == Cluster.Role.LEADER;
        EchoService.Leadership says = service.leadership();
        // The log names a new leader only after the election; until then a node does not know it.
        boolean known = elected && leads == (says.leader() == settings.node());
        Progress.View view = progress.view();
        return String.format("{\"node\":%d,\"leads\":%b,\"leader\":%d,\"term\":%d,\"applied\":%d,\"count\":%d,"
            + "\"digest\":\"%s\",\"version\":\"%s\",\"log\":\"%s\"}", settings.node(), known && leads,
            known ? says.leader() : 0, says.term(), view.applied(), view.count(), Digest.text(view.digest()), version,
            log);
    }

    private static String version() {
        try (var in = Node.class.getResourceAsStream("version")) {
            return new String(in.readAllBytes(), StandardCharsets.UTF_8).trim();
        } catch (IOException e) {
            throw new IllegalStateException("the jar has no version", e);
        }
    }

    @Override
    public void close() {
        say.ending();
        // The consensus module first: the service then leaves whatever it is in, as a reply to a client that is gone.
        // The other way round each may wait for the other.
        CloseHelper.quietCloseAll(status, cluster.consensusModule(), container, cluster);
    }
}
