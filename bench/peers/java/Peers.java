import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.Version;

/** Curator's InterProcessMutex, as a row of the benchmark. ../README.md has the job and the result. */
class Peers {
    /** How long the tasks may take to end: after the time of the run, or in all if each acquires once. */
    static final long END_MS = 15_000, ONCE_END_MS = 60_000;

    /** Until this, all tasks must have been seen in the queue. */
    static final long QUEUED_MS = 30_000;

    /** How long the first client works before the run, so that the code is compiled. */
    static final long WARM_UP_MS = 1_000;

    static final int MISSING = 3, HOLDER = -1;

    final JsonNode job;
    final String name;
    final boolean once, isShared;
    final Shared shared = new Shared();
    final AtomicInteger called = new AtomicInteger();
    final CountDownLatch gone = new CountDownLatch(1);
    final AtomicReference<Exception> error = new AtomicReference<>();
    volatile long started = Long.MIN_VALUE;

    Peers(JsonNode job) {
        this.job = job;
        name = "/" + job.get("name").asText();
        once = job.get("once").asBoolean();
        isShared = job.get("names").asText().equals("shared");
    }

    /** Counts of microseconds, rounded to three digits. */
    static class Histogram {
        final TreeMap<Long, Long> counts = new TreeMap<>();

        void add(long nanos) {
            long value = nanos / 1000, unit = 1;
            while (value / unit >= 1000) {
                unit *= 10;
            }
            counts.merge((value + unit / 2) / unit * unit, 1L, Long::sum);
        }
    }

    /** What one task has measured. */
    static class Tally {
        final Histogram acquire = new Histogram(), pair = new Histogram(), handoff = new Histogram();
        long grants, toSelf;
    }

    /** The lock that all tasks want, as this process sees it. */
    static class Shared {
        int inside, violations;
        boolean isReleased;
        int last;
        long when;

        synchronized void entered(int task, long now, Tally tally) {
            violations += inside > 0 ? 1 : 0;
            inside++;
            if (isReleased && last == task) {
                tally.toSelf++;
            } else if (isReleased) {
                tally.handoff.add(now - when);
            }
        }

        synchronized void leaves(int task, long now) {
            inside--;
            isReleased = true;
            last = task;
            when = now;
        }
    }

    CuratorFramework connect() throws Exception {
        List<String> servers = new ArrayList<>();
        job.get("servers").forEach(server -> servers.add(server.asText()));
        int ttl = job.get("ttl_ms").asInt();
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                String.join(",", servers), ttl, ttl, new ExponentialBackoffRetry(1000, 3));
        client.start();
        client.blockUntilConnected();
        return client;
    }

    /** Acquires and releases a lock, so that code and connection are there. */
    void warmUp(CuratorFramework client, int number, long millis) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, name + "-warm-" + number);
        long end = System.nanoTime() + millis * 1_000_000;
        do {
            mutex.acquire();
            mutex.release();
        } while (System.nanoTime() < end);
    }

    void task(int number, InterProcessMutex mutex, Tally tally) {
        try {
            if (once) {
                pair(number, mutex, tally);
                return;
            }
            gone.await();
            long end = started + job.get("millis").asLong() * 1_000_000;
            long low = job.get("pause_us").get(0).asLong(), high = job.get("pause_us").get(1).asLong();
            while (System.nanoTime() < end) {
                pair(number, mutex, tally);
                pause(high > 0 ? ThreadLocalRandom.current().nextLong(low, high + 1) : 0);
            }
        } catch (Exception e) {
            error.compareAndSet(null, e);
        }
    }

    /** Acquires the lock, holds it and releases it. */
    void pair(int number, InterProcessMutex mutex, Tally tally) throws Exception {
        long call = System.nanoTime();
        called.incrementAndGet();
        mutex.acquire();
        long granted = System.nanoTime();
        // With `once`, the time before the start is not the peer's.
        long acquire = granted - (once ? started : call);
        if (isShared) {
            shared.entered(number, granted, tally);
        }
        pause(job.get("hold_us").asLong());
        long releases = System.nanoTime();
        if (isShared) {
            shared.leaves(number, releases);
        }
        mutex.release();
        tally.acquire.add(acquire);
        tally.pair.add(acquire + System.nanoTime() - releases);
        tally.grants++;
    }

    static void pause(long micros) throws InterruptedException {
        if (micros > 0) {
            Thread.sleep(micros / 1000, (int) (micros % 1000) * 1000);
        }
    }

    /** Waits until all tasks are in the queue. */
    void allWait(CuratorFramework client, int tasks) throws Exception {
        long bound = System.nanoTime() + QUEUED_MS * 1_000_000;
        while (true) {
            int queued = client.getChildren().forPath(name).size();
            if (called.get() == tasks && queued == tasks + 1) {
                return;
            }
            if (System.nanoTime() > bound) {
                fail(1, queued + " of " + (tasks + 1) + " are in the queue");
            }
            Thread.sleep(20);
        }
    }

    void run() throws Exception {
        int clientCount = job.get("clients").asInt(), tasks = clientCount * job.get("tasks").asInt();
        List<CuratorFramework> clients = new ArrayList<>();
        for (int number = 0; number < clientCount + (once ? 1 : 0); number++) {
            clients.add(connect());
            warmUp(clients.get(number), number, number == 0 ? WARM_UP_MS : 0);
        }
        InterProcessMutex held = new InterProcessMutex(clients.get(clients.size() - 1), name);
        if (once) {
            held.acquire();
            shared.entered(HOLDER, System.nanoTime(), new Tally());
        }
        List<Tally> tallies = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < tasks; i++) {
            int number = i;
            Tally tally = new Tally();
            CuratorFramework client = clients.get(number % clientCount);
            InterProcessMutex mutex = new InterProcessMutex(client, isShared ? name : name + "-" + number);
            Thread thread = new Thread(() -> task(number, mutex, tally));
            thread.setDaemon(true);
            thread.start();
            tallies.add(tally);
            threads.add(thread);
        }
        if (once) {
            allWait(clients.get(0), tasks);
        }
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        waitForGo(input);
        long cpu = ownCpu();
        started = System.nanoTime();
        gone.countDown();
        if (once) {
            shared.leaves(HOLDER, System.nanoTime());
            held.release();
        }
        join(threads);
        Map<String, Object> result = result(tallies, System.nanoTime() - started, ownCpu() - cpu);
        System.out.println(new ObjectMapper().writeValueAsString(result));
        // The benchmark reads the servers' counters before it ends the input.
        while (input.read() >= 0) {}
        clients.forEach(CuratorFramework::close);
    }

    static void waitForGo(BufferedReader input) throws IOException {
        if (!"go".equals(input.readLine())) {
            fail(1, "expected `go`");
        }
    }

    void join(List<Thread> threads) throws InterruptedException {
        long millis = once ? ONCE_END_MS : job.get("millis").asLong() + END_MS;
        long bound = System.nanoTime() + millis * 1_000_000, late = 0;
        for (Thread thread : threads) {
            thread.join(Math.max(1, (bound - System.nanoTime()) / 1_000_000));
            late += thread.isAlive() ? 1 : 0;
        }
        if (error.get() != null) {
            fail(1, error.get().toString());
        }
        if (late > 0) {
            fail(1, late + " tasks still wait for the lock " + millis / 1000 + " s after the start");
        }
    }

    Map<String, Object> result(List<Tally> tallies, long elapsed, long cpu) {
        long[] shares = tallies.stream().mapToLong(tally -> tally.grants).toArray();
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("operations", tallies.stream().mapToLong(tally -> tally.grants).sum());
        result.put("elapsed_us", elapsed / 1000);
        result.put("cpu_us", cpu / 1000);
        result.put("acquire_us", merged(tallies, tally -> tally.acquire));
        result.put("pair_us", merged(tallies, tally -> tally.pair));
        result.put("handoff_us", merged(tallies, tally -> tally.handoff));
        result.put("shares", shares);
        result.put("to_self", tallies.stream().mapToLong(tally -> tally.toSelf).sum());
        result.put("violations", shared.violations);
        result.put("version", version());
        return result;
    }

    static List<long[]> merged(List<Tally> tallies, Function<Tally, Histogram> part) {
        TreeMap<Long, Long> all = new TreeMap<>();
        tallies.forEach(tally -> part.apply(tally).counts.forEach((value, count) -> all.merge(value, count, Long::sum)));
        List<long[]> pairs = new ArrayList<>();
        all.forEach((value, count) -> pairs.add(new long[] {value, count}));
        return pairs;
    }

    static String version() {
        Properties properties = new Properties();
        String file = "/META-INF/maven/org.apache.curator/curator-recipes/pom.properties";
        try (InputStream input = InterProcessMutex.class.getResourceAsStream(file)) {
            if (input != null) {
                properties.load(input);
            }
        } catch (IOException e) {
            // Then it is not known.
        }
        String curator = properties.getProperty("version", "of an unknown version");
        return "Curator " + curator + ", ZooKeeper client " + Version.getVersion();
    }

    static long ownCpu() {
        return ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class).getProcessCpuTime();
    }

    static void fail(int code, String message) {
        System.err.println(message);
        // Not System.exit: other threads may hold what its hooks want.
        Runtime.getRuntime().halt(code);
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode job = new ObjectMapper().readTree(arguments[0]);
        if (!job.get("row").asText().equals("curator")) {
            fail(MISSING, "no row " + job.get("row").asText());
        }
        new Peers(job).run();
        System.exit(0);
    }
}
