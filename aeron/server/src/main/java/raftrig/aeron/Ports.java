package raftrig.aeron;

import java.io.IOException;
import java.net.BindException;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.NetworkInterface;
import java.net.ServerSocket;
import java.util.List;

/**
 * The ports of the nodes. Node i has the block of 100 that begins at base + 100 x (i - 1), on its own address; within
 * Aeron it is member i - 1.
 */
final class Ports {
    static final int ARCHIVE = 1;
    static final int INGRESS = 2;
    static final int CONSENSUS = 3;
    static final int LOG = 4;
    static final int CATCHUP = 5;
    /** TCP, where the others are UDP. */
    static final int STATUS = 9;

    static final int BLOCK = 100;

    private Ports() {}

    /** The port of a node, counted from 1. */
    static int port(int base, int node, int offset) {
        return base + BLOCK * (node - 1) + offset;
    }

    /** A node's host and port, with brackets around an IPv6 address. */
    static String endpoint(String host, int port) {
        return (host.indexOf(':') >= 0 ? "[" + host + "]" : host) + ":" + port;
    }

    /** The members in Aeron's notation: {@code id,ingress,consensus,log,catchup,archive|...}. */
    static String members(List<String> hosts, int base) {
        StringBuilder s = new StringBuilder();
        for (int node = 1; node <= hosts.size(); node++) {
            s.append(node > 1 ? "|" : "").append(node - 1);
            for (int offset : new int[] {INGRESS, CONSENSUS, LOG, CATCHUP, ARCHIVE}) {
                s.append(',').append(endpoint(hosts.get(node - 1), port(base, node, offset)));
            }
        }
        return s.toString();
    }

    /**
     * Refuses when a UDP port of the node's block is in use. Aeron finds that out only after it has made its
     * directories, and goes on running without the channel.
     */
    static void check(String host, int base, int node) {
        for (int offset : new int[] {ARCHIVE, INGRESS, CONSENSUS, LOG, CATCHUP}) {
            InetSocketAddress address = new InetSocketAddress(host, port(base, node, offset));
            try (DatagramSocket socket = new DatagramSocket(null)) {
                socket.setReuseAddress(false);
                socket.bind(address);
            } catch (IOException e) {
                throw refusal("UDP", host, address.getPort(), e);
            }
        }
        int port = port(base, node, STATUS);
        try (ServerSocket socket = new ServerSocket()) {
            socket.setReuseAddress(true); // connections that linger do not count
            socket.bind(new InetSocketAddress(host, port));
        } catch (IOException e) {
            throw refusal("TCP", host, port, e);
        }
    }

    private static StartException refusal(String kind, String host, int port, IOException e) {
        if (e instanceof BindException && String.valueOf(e.getMessage()).contains("in use")) {
            return new StartException("%s port %s is in use: stop what holds it, or choose another --base-port", kind,
                endpoint(host, port));
        }
        return new StartException("%s port %s cannot be bound: %s: is %s an address of this host?", kind,
            endpoint(host, port), e.getMessage(), host);
    }

    /** How many of the hosts are addresses of this one. */
    static int onThisHost(List<String> hosts) {
        int n = 0;
        for (String host : hosts) {
            try {
                InetAddress address = InetAddress.getByName(host);
                if (address.isLoopbackAddress() || NetworkInterface.getByInetAddress(address) != null) {
                    n++;
                }
            } catch (IOException e) {
                throw new StartException("--peers: %s cannot be resolved: %s", host, e.getMessage());
            }
        }
        return n;
    }
}
