package raftrig.aeron;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Flags of the form {@code --name value}. A switch may stand alone, and is then 1. The getters check what they read and
 * throw a {@link UsageException} that names the flag, the value and what is allowed.
 */
final class Flags {
    private static final Pattern BYTES = Pattern.compile("([0-9]{1,12})([kmg]?)");

    private record Known(String standard, boolean isSwitch, String help) {}

    private final Map<String, Known> known = new LinkedHashMap<>();
    private final Map<String, String> values = new HashMap<>();

    /** Adds a flag; standard is its value when it is not given, and null makes it a must. */
    Flags flag(String name, String standard, String help) {
        known.put(name, new Known(standard, false, help));
        return this;
    }

    /** Adds a flag whose value is 0 or 1, and 0 when it is not given. */
    Flags toggle(String name, String help) {
        known.put(name, new Known("0", true, help));
        return this;
    }

    /** Reads the command line. */
    Flags parse(List<String> args) {
        for (int i = 0; i < args.size(); i++) {
            String arg = args.get(i);
            String name = arg.startsWith("--") ? arg.substring(2) : "";
            Known flag = known.get(name);
            if (flag == null) {
                throw new UsageException("%s: no such flag (--help lists them)", arg);
            }
            boolean valueFollows = i + 1 < args.size() && !args.get(i + 1).startsWith("--");
            if (!valueFollows && !flag.isSwitch) {
                throw new UsageException("--%s wants a value", name);
            }
            if (values.put(name, valueFollows ? args.get(++i) : "1") != null) {
                throw new UsageException("--%s is given twice", name);
            }
        }
        known.forEach((name, flag) -> {
            if (flag.standard == null && !isSet(name)) {
                throw new UsageException("--%s is not set: %s", name, flag.help);
            }
        });
        return this;
    }

    /** The flags and their standard values, a line each. */
    String help() {
        StringBuilder s = new StringBuilder();
        known.forEach((name, flag) -> {
            String standard = flag.standard == null || flag.standard.isEmpty() ? "" : " (" + flag.standard + ")";
            s.append(String.format("  --%-16s %s%s%n", name, flag.help, standard));
        });
        return s.toString();
    }

    /** Whether the flag was given, and not as an empty value. */
    boolean isSet(String name) {
        return !values.getOrDefault(name, "").isEmpty();
    }

    String text(String name) {
        return isSet(name) ? values.get(name) : known.get(name).standard;
    }

    /** A whole number from min to max. */
    long number(String name, long min, long max) {
        String value = text(name);
        try {
            long n = Long.parseLong(value);
            if (n >= min && n <= max) {
                return n;
            }
        } catch (NumberFormatException e) {
            // Reported below, as a number out of range is.
        }
        throw new UsageException("--%s %s: want a whole number from %d to %d", name, value, min, max);
    }

    boolean toggled(String name) {
        return number(name, 0, 1) == 1;
    }

    /** A number of bytes, with k, m or g behind it for powers of 1024. */
    long bytes(String name, long min, long max) {
        String value = text(name);
        Matcher m = BYTES.matcher(value.toLowerCase(Locale.ROOT));
        if (m.matches()) {
            int shift = 10 * (" kmg".indexOf(m.group(2).isEmpty() ? " " : m.group(2)));
            long n = Long.parseLong(m.group(1));
            if (n <= Long.MAX_VALUE >> shift && n << shift >= min && n << shift <= max) {
                return n << shift;
            }
        }
        throw new UsageException("--%s %s: want bytes from %s to %s, as in 64k or 16m",
            name, value, size(min), size(max));
    }

    /** A value of the enum, whatever its case, with - for _. */
    <E extends Enum<E>> E oneOf(String name, Class<E> type) {
        String value = text(name);
        StringBuilder all = new StringBuilder();
        for (E e : type.getEnumConstants()) {
            String word = e.name().toLowerCase(Locale.ROOT).replace('_', '-');
            if (word.equals(value.toLowerCase(Locale.ROOT).replace('_', '-'))) {
                return e;
            }
            all.append(all.isEmpty() ? "" : ", ").append(word);
        }
        throw new UsageException("--%s %s: want one of %s", name, value, all);
    }

    /** A number of bytes as people write it: whole k, m or g where it is that. */
    static String size(long bytes) {
        String[] units = {"", "k", "m", "g"};
        int unit = 0;
        while (unit < 3 && bytes != 0 && bytes % 1024 == 0) {
            bytes /= 1024;
            unit++;
        }
        return bytes + units[unit];
    }
}
