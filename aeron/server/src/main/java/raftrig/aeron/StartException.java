package raftrig.aeron;

/** What keeps the program from running on this host: it ends with status 1. The message is one line for the user. */
final class StartException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    StartException(String format, Object... args) {
        super(String.format(format, args));
    }
}
