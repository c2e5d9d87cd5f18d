package raftrig.aeron;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.aeron.cluster.client.ClusterEvent;
import io.aeron.exceptions.AeronException;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.agrona.concurrent.AgentTerminationException;
import org.junit.jupiter.api.Test;

class SayTest {
    private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    private final List<String> fatal = new ArrayList<>();
    private long now;
    private final Say say =
        new Say(new PrintStream(bytes, true, StandardCharsets.UTF_8), () -> now, fatal::add);

    private List<String> lines() {
        return bytes.toString(StandardCharsets.UTF_8).lines().toList();
    }

    @Test
    void warningsAreOneLine() {
        say.onError(new ClusterEvent("leader heartbeat timeout"));
        say.onError(new AeronException("it broke\nbadly"));
        assertEquals(List.of("warning: leader heartbeat timeout", "error: it broke"), lines());
        assertEquals(List.of(), fatal);
    }

    @Test
    void repeatsAreCounted() {
        for (int i = 0; i < 5; i++) {
            say.onError(new ClusterEvent("recording " + i + " is late"));
        }
        now += TimeUnit.SECONDS.toNanos(10);
        say.onError(new ClusterEvent("recording 6 is late"));
        assertEquals(List.of("warning: recording 0 is late",
            "warning: recording 6 is late (and 4 times since the last line of this kind)"), lines());
    }

    @Test
    void kindsAreBounded() {
        for (int i = 0; i < 1000; i++) {
            // Letters, for numbers do not make a kind.
            say.onError(new AeronException(Integer.toString(i, 26).chars()
                .mapToObj(c -> Character.toString(Character.digit(c, 26) + 'a')).reduce("", String::concat)));
        }
        assertTrue(lines().size() > 200 && lines().size() < 300, lines().size() + " lines");
    }

    @Test
    void lengthIsBounded() {
        say.onError(new AeronException("x".repeat(5000)));
        assertTrue(lines().get(0).length() < 300 && lines().get(0).endsWith("x..."), lines().get(0));
    }

    @Test
    void theEndIsQuiet() {
        say.ending();
        say.onError(new AgentTerminationException("unexpected Aeron close"));
        say.onEnd("archive-conductor", new IllegalStateException("closed"));
        assertEquals(List.of(), lines());
        assertEquals(List.of(), fatal);
    }

    @Test
    void othersSayWhere() {
        say.onError(new IllegalStateException("no"));
        assertTrue(lines().get(0).startsWith("error: IllegalStateException: no at raftrig.aeron.SayTest"),
            lines().get(0));
    }

    @Test
    void whatEndsAThreadEndsTheProcess() {
        say.onError(new AgentTerminationException("unexpected Aeron close"));
        say.onError(new OutOfMemoryError("heap"));
        say.onEnd("archive-conductor", new InternalError("a fault occurred in a recent unsafe memory access operation"));
        assertEquals(3, fatal.size());
        assertEquals("archive-conductor ended by an error: is /dev/shm, or the disk, full?", fatal.get(2));
    }
}
