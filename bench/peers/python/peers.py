"""Locks of Python packages, as rows of the benchmark. `../README.md` has the job and the result."""

import json
import os
import random
import resource
import sys
import threading
import time
from collections import Counter
from importlib.metadata import PackageNotFoundError, version

# How long the tasks may take to end: after the time of the run, or in all if each acquires once. In seconds.
END, ONCE_END = 15, 60

# Until this, all tasks must have been seen in the queue. In seconds.
QUEUED = 30

# Connections of one client: each of its tasks needs one or two. The default of 100 is too few for 200 tasks.
CONNECTIONS_MAX = 4096

MISSING = 3
HOLDER = -1


def fail(message, code=1):
    print(message, file=sys.stderr, flush=True)
    # Not sys.exit: other threads may wait for ever.
    os._exit(code)


class Kazoo:
    """Waits for the deletion of the node of its predecessor."""

    packages = ["kazoo"]

    def __init__(self, job):
        from kazoo.client import KazooClient

        self.client = KazooClient(",".join(job["servers"]), timeout=job["ttl_ms"] / 1000)
        self.client.start(timeout=30)

    def lock(self, name):
        lock = self.client.Lock("/" + name)
        return lock.acquire, lock.release

    def queued(self, name):
        return len(self.client.get_children("/" + name))

    def close(self):
        self.client.stop()
        self.client.close()


class RedisPy:
    """`SET NX`, repeated each 100 ms."""

    packages = ["redis"]

    def __init__(self, job):
        import redis

        host, port = job["servers"][0].rsplit(":", 1)
        self.client = redis.Redis(host, int(port), max_connections=CONNECTIONS_MAX)
        self.ttl = job["ttl_ms"] / 1000

    def lock(self, name):
        lock = self.client.lock(name, timeout=self.ttl)
        return lock.acquire, lock.release

    def queued(self, name):
        return None

    def close(self):
        self.client.close()


class PythonRedisLock(RedisPy):
    """Waits with BLPOP."""

    packages = ["python-redis-lock", "redis"]

    def lock(self, name):
        import redis_lock

        lock = redis_lock.Lock(self.client, name, expire=max(1, round(self.ttl)))
        return lock.acquire, lock.release


ROWS = {"kazoo": Kazoo, "redis-py": RedisPy, "python-redis-lock": PythonRedisLock}


class Tally:
    """What one task has measured, in microseconds."""

    def __init__(self):
        self.acquire, self.pair, self.handoff = Counter(), Counter(), Counter()
        self.grants = self.to_self = 0


def rounded(nanos):
    """Returns microseconds of three digits."""
    value, unit = nanos // 1000, 1
    while value // unit >= 1000:
        unit *= 10
    return (value + unit // 2) // unit * unit


class Run:
    def __init__(self, job):
        self.job, self.row = job, ROWS[job["row"]]
        self.go = threading.Event()
        self.started = self.end = None
        self.called = self.inside = self.violations = 0
        # The task that released last, and when it called.
        self.released = None
        self.mutex = threading.Lock()
        self.errors = []

    def entered(self, task, now, tally):
        with self.mutex:
            self.violations += self.inside > 0
            self.inside += 1
            if self.released is None:
                return
            last, when = self.released
            if last == task:
                tally.to_self += 1
            else:
                tally.handoff[rounded(now - when)] += 1

    def leaves(self, task, now):
        with self.mutex:
            self.inside -= 1
            self.released = (task, now)

    def task(self, number, lock, tally):
        try:
            if not self.job["once"]:
                self.go.wait()
            low, high = self.job["pause_us"]
            while self.job["once"] or time.monotonic_ns() < self.end:
                self.pair(number, lock, tally)
                if self.job["once"]:
                    return
                if high:
                    time.sleep(random.randint(low, high) / 1e6)
        except Exception as error:
            self.errors.append(error)

    def pair(self, number, lock, tally):
        """Acquires the lock, holds it and releases it."""
        acquire, release = lock
        called = time.monotonic_ns()
        with self.mutex:
            self.called += 1
        acquire()
        granted = time.monotonic_ns()
        # With `once`, the time before the start is not the peer's.
        acquired_in = granted - max(called, self.started or 0)
        shared = self.job["names"] == "shared"
        if shared:
            self.entered(number, granted, tally)
        if self.job["hold_us"]:
            time.sleep(self.job["hold_us"] / 1e6)
        releases = time.monotonic_ns()
        if shared:
            self.leaves(number, releases)
        release()
        tally.acquire[rounded(acquired_in)] += 1
        tally.pair[rounded(acquired_in + time.monotonic_ns() - releases)] += 1
        tally.grants += 1

    def connect(self):
        """Connects a client that has acquired and released a lock, so that connections and scripts are there."""
        client = self.row(self.job)
        acquire, release = client.lock(f"{self.job['name']}-warm-{random.getrandbits(64):x}")
        acquire()
        release()
        return client

    def all_wait(self, client, count):
        """Waits until all tasks wait for the lock: until the store knows it, or some time after their calls."""
        bound = time.monotonic() + QUEUED
        while self.called < count:
            time.sleep(0.01)
        while (queued := client.queued(self.job["name"])) != count + 1:
            if queued is None:
                return time.sleep(self.job.get("settle_ms", 1500) / 1000)
            if time.monotonic() > bound:
                fail(f"{queued} of {count + 1} are in the queue")
            time.sleep(0.02)

    def run(self):
        job = self.job
        clients = [self.connect() for _ in range(job["clients"] + job["once"])]
        if job["once"]:
            acquire, release = clients[-1].lock(job["name"])
            acquire()
            self.entered(HOLDER, time.monotonic_ns(), Tally())
        tallies, threads = [], []
        for number in range(job["clients"] * job["tasks"]):
            name = job["name"] if job["names"] == "shared" else f"{job['name']}-{number}"
            tallies.append(Tally())
            work = (number, clients[number % job["clients"]].lock(name), tallies[-1])
            threads.append(threading.Thread(target=self.task, args=work, daemon=True))
            threads[-1].start()
        if job["once"]:
            self.all_wait(clients[0], len(threads))
        print("ready", flush=True)
        if sys.stdin.readline().strip() != "go":
            fail("expected `go`")
        cpu, self.started = own_cpu(), time.monotonic_ns()
        self.end = self.started + job.get("millis", 0) * 1_000_000
        self.go.set()
        if job["once"]:
            self.leaves(HOLDER, time.monotonic_ns())
            release()
        self.join(threads)
        elapsed, cpu = time.monotonic_ns() - self.started, own_cpu() - cpu
        print(json.dumps(self.report(tallies, elapsed, cpu)), flush=True)
        # The benchmark reads the servers' counters before it ends the input.
        sys.stdin.read()
        for client in clients:
            client.close()

    def join(self, threads):
        seconds = ONCE_END if self.job["once"] else self.job["millis"] / 1000 + END
        bound = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0, bound - time.monotonic()))
        if self.errors:
            fail(f"{type(self.errors[0]).__name__}: {self.errors[0]}")
        if late := sum(thread.is_alive() for thread in threads):
            fail(f"{late} tasks still wait for the lock {seconds:.0f} s after the start")

    def report(self, tallies, elapsed, cpu):
        merged = lambda part: sorted(sum((getattr(tally, part) for tally in tallies), Counter()).items())
        return {
            "operations": sum(tally.grants for tally in tallies),
            "elapsed_us": elapsed // 1000,
            "cpu_us": round(cpu * 1e6),
            "acquire_us": merged("acquire"),
            "pair_us": merged("pair"),
            "handoff_us": merged("handoff"),
            "shares": [tally.grants for tally in tallies],
            "to_self": sum(tally.to_self for tally in tallies),
            "violations": self.violations,
            "version": ", ".join(f"{name} {version(name)}" for name in self.row.packages),
        }


def own_cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main():
    job = json.loads(sys.argv[1])
    if job["row"] not in ROWS:
        fail(f"no row {job['row']}", MISSING)
    try:
        for package in ROWS[job["row"]].packages:
            version(package)
    except PackageNotFoundError as error:
        fail(f"package {error} is not installed", MISSING)
    Run(job).run()


main()
