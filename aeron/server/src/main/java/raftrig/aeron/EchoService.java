package raftrig.aeron;

import io.aeron.ExclusivePublication;
import io.aeron.Image;
import io.aeron.Publication;
import io.aeron.cluster.codecs.CloseReason;
import io.aeron.cluster.service.ClientSession;
import io.aeron.cluster.service.Cluster;
import io.aeron.cluster.service.ClusteredService;
import io.aeron.logbuffer.FragmentHandler;
import io.aeron.logbuffer.Header;
import java.nio.ByteOrder;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import org.agrona.DirectBuffer;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * The replicated state machine: it counts requests, keeps a digest of them, and sends each back to its session. A reply
 * that the session does not take at once is tried again for as long as the session lives.
 */
final class EchoService implements ClusteredService {
    /** A snapshot is one message of four longs. */
    private static final int SNAPSHOT_BYTES = 4 * Long.BYTES;
    private static final long SNAPSHOT_MAGIC = 0x72616674726967L;

    private final Say say;
    private final Progress progress;
    private IdleStrategy idle;
    private long applied;
    private long count;
    private long digest = Digest.EMPTY;

    private volatile Leadership leadership = new Leadership(0, 0);

    /**
     * Who leads, as the log says.
     *
     * @param leader counted from 1, 0 when the log has named none
     * @param term   counted from 1, one above Aeron's leadership term id
     */
    record Leadership(int leader, long term) {}

    EchoService(Say say, Progress progress) {
        this.say = say;
        this.progress = progress;
    }

    Leadership leadership() {
        return leadership;
    }

    @Override
    public void onStart(Cluster cluster, Image snapshot) {
        idle = cluster.idleStrategy();
        if (snapshot != null) {
            load(snapshot);
        }
    }

    @Override
    public void onSessionMessage(
        ClientSession session, long timestamp, DirectBuffer buffer, int offset, int length, Header header) {
        applied = header.position();
        count++;
        digest = Digest.add(digest, buffer, offset, length);
        progress.publish(applied, count, digest);
        if (session != null) {
            echo(session, buffer, offset, length);
        }
    }

    private void echo(ClientSession session, DirectBuffer buffer, int offset, int length) {
        idle.reset();
        while (true) {
            // On a follower the offer does nothing and says that it went well.
            long result = session.offer(buffer, offset, length);
            if (result > 0 || result == Publication.CLOSED || result == Publication.NOT_CONNECTED
                || result == Publication.MAX_POSITION_EXCEEDED) {
                return;
            }
            // The cluster's own idle strategy also shows that the service lives, and ends the loop when the node stops.
            idle.idle();
        }
    }

    @Override
    public void onSessionOpen(ClientSession session, long timestamp) {
        say.info("session %d opened by %s", session.id(), session.responseChannel());
    }

    @Override
    public void onSessionClose(ClientSession session, long timestamp, CloseReason reason) {
        say.info("session %d closed (%s), %d requests applied", session.id(), reason, count);
    }

    @Override
    public void onNewLeadershipTermEvent(long leadershipTermId, long logPosition, long timestamp,
        long termBaseLogPosition, int leaderMemberId, int logSessionId, TimeUnit timeUnit, int appVersion) {
        leadership = new Leadership(leaderMemberId + 1, leadershipTermId + 1);
        say.info("term %d: node %d leads, from log position %d", leadershipTermId + 1, leaderMemberId + 1, logPosition);
    }

    @Override
    public void onTakeSnapshot(ExclusivePublication publication) {
        UnsafeBuffer buffer = new UnsafeBuffer(new byte[SNAPSHOT_BYTES]);
        buffer.putLong(0, SNAPSHOT_MAGIC, ByteOrder.LITTLE_ENDIAN);
        buffer.putLong(8, applied, ByteOrder.LITTLE_ENDIAN);
        buffer.putLong(16, count, ByteOrder.LITTLE_ENDIAN);
        buffer.putLong(24, digest, ByteOrder.LITTLE_ENDIAN);
        idle.reset();
        while (publication.offer(buffer, 0, SNAPSHOT_BYTES) <= 0) {
            if (publication.isClosed()) {
                throw new IllegalStateException("the snapshot's publication was closed");
            }
            idle.idle();
        }
    }

    private void load(Image snapshot) {
        boolean[] loaded = new boolean[1];
        FragmentHandler handler = (buffer, offset, length, header) -> {
            restore(buffer, offset, length);
            loaded[0] = true;
        };
        idle.reset();
        while (!loaded[0]) {
            if (snapshot.poll(handler, 1) == 0) {
                if (snapshot.isClosed() || snapshot.isEndOfStream()) {
                    throw new IllegalStateException("the snapshot ends before its message");
                }
                idle.idle();
            }
        }
    }

    private void restore(DirectBuffer buffer, int offset, int length) {
        if (length != SNAPSHOT_BYTES || buffer.getLong(offset, ByteOrder.LITTLE_ENDIAN) != SNAPSHOT_MAGIC) {
            throw new IllegalStateException("the snapshot is not this service's");
        }
        applied = buffer.getLong(offset + 8, ByteOrder.LITTLE_ENDIAN);
        count = buffer.getLong(offset + 16, ByteOrder.LITTLE_ENDIAN);
        digest = buffer.getLong(offset + 24, ByteOrder.LITTLE_ENDIAN);
        progress.publish(applied, count, digest);
    }

    @Override
    public void onTimerEvent(long correlationId, long timestamp) {
        // No timers are scheduled.
    }

    @Override
    public void onRoleChange(Cluster.Role role) {
        say.info("role: %s", role.name().toLowerCase(Locale.ROOT));
    }

    @Override
    public void onTerminate(Cluster cluster) {
        // The consensus module's end is told where it is seen.
    }
}
