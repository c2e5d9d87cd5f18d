package raftrig.aeron;

import io.aeron.exceptions.AeronException;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import org.agrona.ErrorHandler;
import org.agrona.concurrent.AgentTerminationException;

/**
 * The log: one line an event, never a stack trace. What is said again within ten seconds is counted, and its next line
 * carries the count.
 */
final class Say implements ErrorHandler {
    private static final long QUIET_NS = TimeUnit.SECONDS.toNanos(10);
    /** More kinds than this are not told apart. */
    private static final int MAX_KINDS = 256;
    /** Aeron's own words may go on for pages: whole contexts are in them. */
    private static final int MAX_TEXT = 240;

    private static final class Kind {
        long saidNs;
        long since;
    }

    private final PrintStream out;
    private final LongSupplier nanoClock;
    private final Consumer<String> fatal;
    private final Map<String, Kind> kinds = new HashMap<>();
    private volatile boolean ending;

    /**
     * @param nanoClock as System.nanoTime
     * @param fatal     told in a few words what ended, when the process cannot go on
     */
    Say(PrintStream out, LongSupplier nanoClock, Consumer<String> fatal) {
        this.out = out;
        this.nanoClock = nanoClock;
        this.fatal = fatal;
    }

    void info(String format, Object... args) {
        out.println(String.format(format, args));
    }

    /** Everything is being closed: what its parts say of each other's end is no error. */
    void ending() {
        ending = true;
    }

    /** An error of Aeron's, from whichever of its threads. */
    @Override
    public void onError(Throwable t) {
        if (ending) {
            return;
        }
        boolean warning = t instanceof AeronException e && e.category() == AeronException.Category.WARN;
        count((warning ? "warning: " : "error: ") + oneLine(t));
        if (t instanceof Error || t instanceof AgentTerminationException) {
            fatal.accept(oneLine(t));
        }
    }

    /** The end of a thread by an error that it did not handle. */
    void onEnd(String thread, Throwable t) {
        if (ending) {
            return;
        }
        // What the JVM makes of a bus error: the file system behind a mapped file is full.
        String hint = t instanceof InternalError ? ": is /dev/shm, or the disk, full?" : "";
        count("error: " + thread + " ended: " + oneLine(t) + hint);
        fatal.accept(thread + " ended by an error" + hint);
    }

    private synchronized void count(String text) {
        long now = nanoClock.getAsLong();
        // Numbers differ from one occurrence to the next, and are the same kind.
        String key = text.replaceAll("-?[0-9]+", "#");
        if (kinds.size() >= MAX_KINDS && !kinds.containsKey(key)) {
            key = "";
        }
        Kind kind = kinds.get(key);
        if (kind != null && now - kind.saidNs < QUIET_NS) {
            kind.since++;
            return;
        }
        if (kind == null) {
            kind = new Kind();
            kinds.put(key, kind);
        }
        out.println(text + (kind.since > 0 ? " (and " + kind.since + " times since the last line of this kind)" : ""));
        kind.saidNs = now;
        kind.since = 0;
    }

    /** The error in one line: Aeron's own by its words, any other by its type and place too. */
    static String oneLine(Throwable t) {
        String text = String.valueOf(t.getMessage()).lines().findFirst().orElse("").trim();
        text = text.replaceFirst("^(WARN|ERROR|FATAL) - ", "");
        if (text.length() > MAX_TEXT) {
            text = text.substring(0, MAX_TEXT) + "...";
        }
        if (t instanceof AeronException || t instanceof UsageException || t instanceof StartException) {
            return text;
        }
        StackTraceElement[] trace = t.getStackTrace();
        return t.getClass().getSimpleName() + ": " + text + (trace.length > 0 ? " at " + trace[0] : "");
    }
}
