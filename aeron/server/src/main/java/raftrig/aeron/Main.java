package raftrig.aeron;

import java.io.PrintStream;
import java.util.List;

/** Starts a node, or with the first argument {@code driver} the client's media driver. */
public final class Main {
    private Main() {}

    /** Exit status: 0, 1 failure, 2 usage. */
    public static void main(String[] args) {
        int status = 1;
        try {
            status = run(List.of(args), System.out, System.err);
        } catch (Throwable t) {
            // Threads of Aeron's would keep the process alive.
            System.err.println("aeron-server: " + Say.oneLine(t));
        }
        System.out.flush();
        System.err.flush();
        Runtime.getRuntime().halt(status);
    }

    static int run(List<String> args, PrintStream out, PrintStream err) throws InterruptedException {
        boolean driver = !args.isEmpty() && args.get(0).equals("driver");
        if (args.contains("--help")) {
            out.print("usage: java -jar aeron-server.jar --id N --peers A,B,C [flags]    a node\n"
                + NodeSettings.flags().help()
                + "\nusage: java -jar aeron-server.jar driver [flags]    the client's media driver\n"
                + Driver.flags().help());
            return 0;
        }
        Stop stop = new Stop();
        Say say = new Say(out, System::nanoTime, stop::fail);
        // Without one of its threads the process would go on, and answer nobody.
        Thread.setDefaultUncaughtExceptionHandler((thread, t) -> say.onEnd(thread.getName(), t));
        try {
            return driver
                ? Driver.run(args.subList(1, args.size()), say, stop)
                : Node.run(NodeSettings.parse(args), say, stop);
        } catch (UsageException e) {
            err.println("aeron-server: " + e.getMessage());
            return 2;
        } catch (StartException e) {
            err.println("aeron-server: " + e.getMessage());
            return 1;
        } finally {
            stop.done();
        }
    }
}
