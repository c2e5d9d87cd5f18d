package raftrig.aeron;

/** A wrong flag or value: the program ends with status 2. The message is one line for the user. */
final class UsageException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    UsageException(String format, Object... args) {
        super(String.format(format, args));
    }
}
