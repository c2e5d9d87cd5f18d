package raftrig.aeron;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Supplier;

/** Answers GET /status with the node's JSON, on a TCP port of the node's own address. */
final class StatusServer implements AutoCloseable {
    private static final int BACKLOG = 16;
    private static final int THREADS = 2;

    static {
        // Seconds that one request and its answer may take, so that a client that hangs frees its thread.
        System.setProperty("sun.net.httpserver.maxReqTime", "5");
        System.setProperty("sun.net.httpserver.maxRspTime", "5");
    }

    private final HttpServer server;
    private final ExecutorService threads;
    private final Supplier<String> json;

    StatusServer(String host, int port, Supplier<String> json) {
        this.json = json;
        try {
            server = HttpServer.create(new InetSocketAddress(host, port), BACKLOG);
        } catch (IOException e) {
            throw new StartException("TCP port %s: %s", Ports.endpoint(host, port), e.getMessage());
        }
        threads = Executors.newFixedThreadPool(THREADS, task -> {
            Thread thread = new Thread(task, "status");
            thread.setDaemon(true);
            return thread;
        });
        server.setExecutor(threads);
        server.createContext("/", this::answer);
        server.start();
    }

    private void answer(HttpExchange exchange) throws IOException {
        try (exchange) {
            boolean known = exchange.getRequestURI().getPath().equals("/status");
            boolean get = exchange.getRequestMethod().equals("GET");
            String body = !known ? "there is only /status\n" : !get ? "want GET\n" : json.get() + "\n";
            byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", known && get ? "application/json" : "text/plain");
            exchange.sendResponseHeaders(!known ? 404 : !get ? 405 : 200, bytes.length);
            exchange.getResponseBody().write(bytes);
        }
    }

    @Override
    public void close() {
        server.stop(0);
        threads.shutdownNow();
    }
}
