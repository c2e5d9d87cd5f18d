package raftrig.aeron;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import io.aeron.Publication;
import io.aeron.cluster.service.ClientSession;
import io.aeron.cluster.service.Cluster;
import io.aeron.logbuffer.FrameDescriptor;
import io.aeron.logbuffer.Header;
import io.aeron.logbuffer.LogBufferDescriptor;
import io.aeron.protocol.DataHeaderFlyweight;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.agrona.DirectBuffer;
import org.agrona.concurrent.IdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class EchoServiceTest {
    private static final class CountingIdle implements IdleStrategy {
        int idles;

        @Override
        public void idle(int workCount) {
            idles++;
        }

        @Override
        public void idle() {
            idles++;
        }

        @Override
        public void reset() {
            // Nothing to forget.
        }
    }

    private final Progress progress = new Progress();
    private final EchoService service = new EchoService(
        new Say(new PrintStream(OutputStream.nullOutputStream()), System::nanoTime, why -> {}), progress);
    private final CountingIdle idle = new CountingIdle();
    private final List<String> echoed = new ArrayList<>();

    @BeforeEach
    void start() {
        Cluster cluster = (Cluster) Proxy.newProxyInstance(Cluster.class.getClassLoader(),
            new Class<?>[] {Cluster.class}, (proxy, method, args) -> {
                if (method.getName().equals("idleStrategy")) {
                    return idle;
                }
                throw new UnsupportedOperationException(method.getName());
            });
        service.onStart(cluster, null);
    }

    /** A session whose offers give these results, and the last one ever after. */
    private ClientSession session(long... results) {
        int[] offers = new int[1];
        return (ClientSession) Proxy.newProxyInstance(ClientSession.class.getClassLoader(),
            new Class<?>[] {ClientSession.class}, (proxy, method, args) -> {
                if (!method.getName().equals("offer")) {
                    throw new UnsupportedOperationException(method.getName());
                }
                long result = results[Math.min(offers[0]++, results.length - 1)];
                if (result > 0) {
                    byte[] bytes = new byte[(int) args[2]];
                    ((DirectBuffer) args[0]).getBytes((int) args[1], bytes);
                    echoed.add(new String(bytes, StandardCharsets.UTF_8));
                }
                return result;
            });
    }

    private void apply(ClientSession session, String request, int position) {
        UnsafeBuffer buffer = new UnsafeBuffer(("..." + request).getBytes(StandardCharsets.UTF_8));
        service.onSessionMessage(session, 0, buffer, 3, request.length(), headerAt(position));
    }

    /** The header of a frame that ends at the position. */
    private static Header headerAt(int position) {
        DataHeaderFlyweight frame =
            new DataHeaderFlyweight(new UnsafeBuffer(new byte[DataHeaderFlyweight.HEADER_LENGTH]));
        frame.termOffset(position - FrameDescriptor.FRAME_ALIGNMENT * 2);
        frame.frameLength(FrameDescriptor.FRAME_ALIGNMENT * 2);
        Header header = new Header(0, LogBufferDescriptor.positionBitsToShift(LogBufferDescriptor.TERM_MIN_LENGTH));
        header.buffer(frame);
        header.offset(0);
        return header;
    }

    @Test
    void echoesAtOnce() {
        apply(session(1), "hello", 128);
        assertEquals(List.of("hello"), echoed);
        assertEquals(0, idle.idles);
    }

    @Test
    void triesAgainUntilTaken() {
        apply(session(Publication.BACK_PRESSURED, Publication.ADMIN_ACTION, Publication.BACK_PRESSURED,
            Publication.BACK_PRESSURED, Publication.BACK_PRESSURED, 1), "hello", 128);
        assertEquals(List.of("hello"), echoed);
        assertEquals(5, idle.idles);
    }

    @Test
    void givesUpOnASessionThatIsGone() {
        for (long gone : new long[] {
            Publication.CLOSED, Publication.NOT_CONNECTED, Publication.MAX_POSITION_EXCEEDED}) {
            apply(session(Publication.BACK_PRESSURED, gone), "hello", 128);
            apply(session(gone, Publication.BACK_PRESSURED, gone), "hello", 256);
        }
        assertEquals(List.of(), echoed);
        assertEquals(3, idle.idles);
    }

    @Test
    void countsWhatItCannotEcho() {
        apply(null, "one", 128);
        apply(session(Publication.BACK_PRESSURED, Publication.CLOSED), "two", 256);
        Progress.View view = progress.view();
        assertEquals(256, view.applied());
        assertEquals(2, view.count());
        assertNotEquals(Digest.EMPTY, view.digest());
    }

    @Test
    void knowsTheLeader() {
        assertEquals(new EchoService.Leadership(0, 0), service.leadership());
        service.onNewLeadershipTermEvent(0, 96, 0, 0, 2, 0, TimeUnit.MILLISECONDS, 0);
        assertEquals(new EchoService.Leadership(3, 1), service.leadership());
    }
}
