package raftrig.aeron;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.util.List;
import org.junit.jupiter.api.Test;

class PortsTest {
    @Test
    void members() {
        assertEquals("0,h0:9002,h0:9003,h0:9004,h0:9005,h0:9001|1,h1:9102,h1:9103,h1:9104,h1:9105,h1:9101",
            Ports.members(List.of("h0", "h1"), 9000));
        assertEquals("[::1]:9002", Ports.endpoint("::1", 9002));
    }

    @Test
    void namesTheUdpPortInUse() throws Exception {
        try (DatagramSocket holder = new DatagramSocket(0, InetAddress.getByName("127.0.0.1"))) {
            int port = holder.getLocalPort();
            for (int offset : new int[] {Ports.ARCHIVE, Ports.INGRESS, Ports.CONSENSUS, Ports.LOG, Ports.CATCHUP}) {
                // Ports before the held one may be in use as well, but not by this test.
                StartException e = assertThrows(StartException.class,
                    () -> Ports.check("127.0.0.1", port - offset, 1));
                assertTrue(e.getMessage().contains("port 127.0.0.1:"), e.getMessage());
            }
        }
    }

    @Test
    void namesTheTcpPortInUse() throws Exception {
        try (ServerSocket holder = new ServerSocket()) {
            holder.bind(new InetSocketAddress("127.0.0.1", 0));
            StartException e = assertThrows(StartException.class,
                () -> Ports.check("127.0.0.1", holder.getLocalPort() - Ports.STATUS, 1));
            assertTrue(e.getMessage().contains("in use"), e.getMessage());
        }
    }

    @Test
    void aForeignAddressIsNotThisHosts() {
        StartException e = assertThrows(StartException.class, () -> Ports.check("192.0.2.1", 20000, 1));
        assertTrue(e.getMessage().contains("is 192.0.2.1 an address of this host?"), e.getMessage());
        assertEquals(2, Ports.onThisHost(List.of("127.0.0.11", "192.0.2.1", "127.0.0.13")));
    }

    @Test
    void aFreeBlockPasses() throws Exception {
        int base;
        try (DatagramSocket probe = new DatagramSocket(0, InetAddress.getByName("127.77.1.2"))) {
            base = probe.getLocalPort() - 1;
        }
        assertDoesNotThrow(() -> Ports.check("127.77.1.2", base, 1)); // an address that nobody else uses
    }
}
