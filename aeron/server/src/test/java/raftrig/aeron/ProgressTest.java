package raftrig.aeron;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class ProgressTest {
    @Test
    void aViewIsOfOneInstant() throws Exception {
        Progress progress = new Progress();
        long last = 2_000_000;
        Thread writer = new Thread(() -> {
            for (long i = 1; i <= last; i++) {
                progress.publish(i * 128, i, ~i);
            }
        });
        writer.start();
        long before = 0;
        while (before < last) {
            Progress.View view = progress.view();
            if (view.count() > 0) {
                assertEquals(view.count() * 128, view.applied());
                assertEquals(~view.count(), view.digest());
            }
            assertEquals(true, view.count() >= before, "a view went back");
            before = view.count();
            if (!writer.isAlive()) {
                assertEquals(last, progress.view().count());
                break;
            }
        }
        writer.join();
    }
}
