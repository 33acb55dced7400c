// The lock of npm's redlock, as a row of the benchmark. `../README.md` has the job and the result.
'use strict';

const path = require('node:path');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');

// How long the tasks may take to end: after the time of the run, or in all if each acquires once.
const END_MS = 15_000;
const ONCE_END_MS = 60_000;

// How long the first client works before the run, so that the code is compiled.
const WARM_UP_MS = 1000;

const MISSING = 3;
const HOLDER = -1;

function fail(message, code = 1) {
  console.error(message);
  process.exit(code);
}

// Where `install` puts packages.
const installed = { paths: [path.join(__dirname, '../target/node')] };

function load(name) {
  try {
    return [require(require.resolve(name, installed)), require(require.resolve(`${name}/package.json`, installed)).version];
  } catch (error) {
    return fail(`package ${name} is not installed: ${error.code}`, MISSING);
  }
}

// A script that tries all servers, repeated after 100 to 300 ms, for ever.
class Client {
  constructor(job) {
    this.connections = job.servers.map((server) => {
      const [host, port] = server.split(':');
      return new Redis(Number(port), host);
    });
    this.ttl = job.ttl_ms;
    this.redlock = new Redlock(this.connections, { retryCount: -1 });
    // It repeats what failed; the last error of an attempt is the caller's.
    this.redlock.on('clientError', () => {});
  }

  acquire(name) {
    return this.redlock.lock(name, this.ttl);
  }

  close() {
    return this.redlock.quit();
  }
}

const now = () => process.hrtime.bigint();

// Counts of microseconds, rounded to three digits.
class Histogram {
  counts = new Map();

  add(nanos) {
    const value = Number(nanos / 1000n);
    let unit = 1;
    while (value / unit >= 1000) unit *= 10;
    const rounded = Math.round(value / unit) * unit;
    this.counts.set(rounded, (this.counts.get(rounded) ?? 0) + 1);
  }

  pairs() {
    return [...this.counts].sort(([left], [right]) => left - right);
  }
}

class Run {
  acquired = new Histogram();
  pairs = new Histogram();
  handoffs = new Histogram();
  toSelf = 0;
  inside = 0;
  violations = 0;
  // The task that released last, and when it called.
  released = null;
  started = 0n;

  constructor(job) {
    this.job = job;
    this.shares = new Array(job.clients * job.tasks).fill(0);
  }

  entered(task, when) {
    if (this.inside++ > 0) this.violations += 1;
    if (this.released === null) return;
    if (this.released.task === task) this.toSelf += 1;
    else this.handoffs.add(when - this.released.when);
  }

  leaves(task) {
    this.inside -= 1;
    this.released = { task, when: now() };
  }

  nameOf(task) {
    return this.job.names === 'shared' ? this.job.name : `${this.job.name}-${task}`;
  }

  async task(task, client) {
    const end = this.started + BigInt(this.job.millis) * 1_000_000n;
    const [low, high] = this.job.pause_us;
    while (now() < end) {
      await this.pair(task, client);
      if (high > 0) await sleep((low + Math.random() * (high - low)) / 1000);
    }
  }

  // Acquires the lock, holds it and releases it.
  async pair(task, client) {
    const shared = this.job.names === 'shared';
    const called = now();
    const lock = await client.acquire(this.nameOf(task));
    const granted = now();
    // With `once`, the time before the start is not the peer's.
    const acquire = granted - (called > this.started ? called : this.started);
    if (shared) this.entered(task, granted);
    if (this.job.hold_us > 0) await sleep(this.job.hold_us / 1000);
    const releases = now();
    if (shared) this.leaves(task);
    await lock.unlock();
    this.acquired.add(acquire);
    this.pairs.add(acquire + now() - releases);
    this.shares[task] += 1;
  }

  // Acquires and releases locks, so that connections and scripts are there.
  async warmUp(clients) {
    const end = now() + BigInt(WARM_UP_MS) * 1_000_000n;
    const pair = async (client, number) => (await client.acquire(`${this.job.name}-warm-${number}`)).unlock();
    await Promise.all(clients.map(pair));
    while (now() < end) await pair(clients[0], 0);
  }

  async run({ go, end }) {
    const { job } = this;
    const clients = Array.from({ length: job.clients + Number(job.once) }, () => new Client(job));
    await this.warmUp(clients);
    const held = job.once ? await clients.at(-1).acquire(job.name) : null;
    if (job.once) this.entered(HOLDER, now());
    const of = (task) => clients[task % job.clients];
    const waiters = job.once ? this.shares.map((_, task) => this.pair(task, of(task))) : [];
    if (job.once) await sleep(job.settle_ms ?? 1500);
    console.log('ready');
    await go();
    const cpu = process.cpuUsage();
    this.started = now();
    const bound = this.bound();
    if (job.once) this.leaves(HOLDER);
    const first = job.once ? held.unlock() : null;
    await Promise.all([first, ...(job.once ? waiters : this.shares.map((_, task) => this.task(task, of(task))))]);
    const elapsed = Number((now() - this.started) / 1000n);
    const { user, system } = process.cpuUsage(cpu);
    clearTimeout(bound);
    console.log(JSON.stringify(this.report(elapsed, user + system)));
    // The benchmark reads the servers' counters before it ends the input.
    await end();
    await Promise.all(clients.map((client) => client.close()));
  }

  bound() {
    const millis = this.job.once ? ONCE_END_MS : this.job.millis + END_MS;
    return setTimeout(() => fail(`tasks still wait for the lock ${millis / 1000} s after the start`), millis);
  }

  report(elapsed, cpu) {
    return {
      operations: this.shares.reduce((left, right) => left + right, 0),
      elapsed_us: elapsed,
      cpu_us: cpu,
      acquire_us: this.acquired.pairs(),
      pair_us: this.pairs.pairs(),
      handoff_us: this.handoffs.pairs(),
      shares: this.shares,
      to_self: this.toSelf,
      violations: this.violations,
      version: `redlock ${redlockVersion}, ioredis ${redisVersion}`,
    };
  }
}

const job = JSON.parse(process.argv[2]);
if (job.row !== 'node-redlock') fail(`no row ${job.row}`, MISSING);
const [Redlock, redlockVersion] = load('redlock');
const [Redis, redisVersion] = load('ioredis');

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const input = {
  go: async () => (await lines.next()).value === 'go' || fail('expected `go`'),
  end: () => lines.next(),
};
new Run(job).run(input).then(() => process.exit(0), (error) => fail(String(error)));
