package raftrig.aeron;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.aeron.driver.ThreadingMode;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class FlagsTest {
    private static NodeSettings parse(String... more) {
        List<String> args = new ArrayList<>(List.of(more));
        args.addAll(List.of("--peers", "127.0.0.11,127.0.0.12,127.0.0.13"));
        if (!args.contains("--id")) {
            args.addAll(List.of("--id", "2"));
        }
        return NodeSettings.parse(args);
    }

    @Test
    void standardValues() {
        NodeSettings s = parse();
        assertEquals("127.0.0.12", s.host());
        assertEquals(9102, s.port(Ports.INGRESS));
        assertEquals("/dev/shm/raftrig-aeron/node2", s.dir().toString());
        assertEquals(ThreadingMode.SHARED, s.threading());
        assertEquals(1408, s.mtu());
        assertEquals(16 << 20, s.termLength());
        assertEquals(0, s.appointedLeader());
    }

    @Test
    void spinTakesCores() {
        assertEquals(ThreadingMode.DEDICATED, parse("--spin", "1").threading());
        assertEquals(ThreadingMode.SHARED_NETWORK, parse("--spin", "1", "--threading", "SHARED_NETWORK").threading());
    }

    @Test
    void aSwitchMayStandAlone() {
        assertTrue(parse("--keep", "--mtu", "8192").keep());
        assertTrue(parse("--keep").keep());
        assertEquals(false, parse("--keep", "0").keep());
    }

    @Test
    void largeMtuWithLargeTerm() {
        assertEquals(65504, parse("--mtu", "65504", "--term-length", "512k").mtu());
    }

    // Each line: the flag, its value, and the words that the message must have.
    @ParameterizedTest
    @CsvSource(delimiter = '|', value = {
        "--id | 4 | --id 4: want a whole number from 1 to 3",
        "--id | x | --id x: want",
        "--mtu | 1400 | multiple of 32 (1376 or 1408)",
        "--mtu | 65536 | from 64 to 65504",
        "--mtu | 32 | from 64 to",
        "--term-length | 3m | power of two",
        "--term-length | 1g | from 64k to 512m",
        "--term-length | 16q | want bytes",
        "--term-length | 99999999999g | want bytes",
        "--fsync-level | 3 | from 0 to 2",
        "--threading | invoker | want shared",
        "--threading | many | want one of",
        "--spin | 2 | from 0 to 1",
        "--appointed-leader | 4 | from 0 to 3",
        "--idle-ns | -5 | from 1",
        "--addr | 127.0.0.99 | --peers has 127.0.0.12 for node 2",
        "--base-port | 65500 | from 1 to",
        "--heartbeat-timeout-ms | 150 | half of",
        "--archive-dir | /dev/shm/raftrig-aeron/node2/x | beside --dir",
        "--nothing | 1 | no such flag",
        "--peers | a | given twice",
    })
    void refuses(String flag, String value, String words) {
        String message = assertThrows(UsageException.class, () -> parse(flag, value)).getMessage();
        assertTrue(message.contains(words), message);
        assertEquals(1, message.lines().count());
    }

    @Test
    void mtuIsBoundedByTheTerm() {
        String message = assertThrows(UsageException.class,
            () -> parse("--mtu", "16384", "--term-length", "64k")).getMessage();
        assertTrue(message.contains("from 64 to 8192"), message);
    }

    @ParameterizedTest
    @CsvSource({"'a,,b'", "'a,b,a'", "''", "'a|b'"})
    void refusesPeers(String peers) {
        assertThrows(UsageException.class, () -> NodeSettings.parse(List.of("--id", "1", "--peers", peers)));
    }

    @Test
    void namesWhatIsMissing() {
        String message = assertThrows(UsageException.class, () -> NodeSettings.parse(List.of("--id", "1")))
            .getMessage();
        assertTrue(message.startsWith("--peers is not set"), message);
        assertThrows(UsageException.class, () -> parse("--mtu"));
    }

    @ParameterizedTest
    @CsvSource({"0,0", "1000,1000", "65536,64k", "16777216,16m", "1073741824,1g"})
    void size(long bytes, String text) {
        assertEquals(text, Flags.size(bytes));
    }
}
