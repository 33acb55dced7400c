//! Single scripts, as the backend sends them: exactly its files, without a session.

use lockkit_core::{LockName, backend::ClaimId};
use lockkit_testbed::{Redis, Reply};

use crate::common::side;

pub(crate) const ACQUIRE: &str = concat!(
    include_str!("../../src/scripts/value.lua"),
    include_str!("../../src/scripts/lock.lua"),
    include_str!("../../src/scripts/acquire.lua")
);
pub(crate) const CONFIRM: &str = concat!(
    include_str!("../../src/scripts/value.lua"),
    include_str!("../../src/scripts/lock.lua"),
    include_str!("../../src/scripts/confirm.lua")
);
pub(crate) const RELEASE: &str = concat!(
    include_str!("../../src/scripts/value.lua"),
    include_str!("../../src/scripts/lock.lua"),
    include_str!("../../src/scripts/release.lua")
);
pub(crate) const RENEW: &str =
    concat!(include_str!("../../src/scripts/value.lua"), include_str!("../../src/scripts/renew.lua"));
pub(crate) const BEAT: &str = include_str!("../../src/scripts/beat.lua");

/// Longer than any test.
pub(crate) const TTL: &str = "60000";

/// One client's claim to one lock.
pub(crate) struct Claimant<'a> {
    pub(crate) redis: &'a Redis,
    pub(crate) name: &'a LockName,
    pub(crate) claim: String,
    pub(crate) ttl: &'a str,
}

impl<'a> Claimant<'a> {
    pub(crate) fn new(redis: &'a Redis, name: &'a LockName) -> Self {
        Self { redis, name, claim: ClaimId::random().to_string(), ttl: TTL }
    }

    pub(crate) fn dying(redis: &'a Redis, name: &'a LockName) -> Self {
        Self { ttl: "1", ..Self::new(redis, name) }
    }

    pub(crate) fn run(&self, script: &str, more: &[&str]) -> Reply {
        self.try_run(script, more).unwrap()
    }

    pub(crate) fn try_run(&self, script: &str, more: &[&str]) -> anyhow::Result<Reply> {
        let sides = ["fence", "queue", "deadlines", "metadata"].map(|what| side(self.name, what));
        let mut words = vec!["EVAL", script, "5", self.name.as_str()];
        words.extend(sides.iter().map(String::as_str));
        words.extend([&*self.claim, self.ttl, "100000", "lockkit:client:", "200000"]);
        words.extend(more);
        self.redis.cli(&words)
    }

    pub(crate) fn acquire(&self) -> (String, i64) {
        standing(&self.run(ACQUIRE, &["c0ffee", "wait", "{}"]))
    }

    pub(crate) fn try_once(&self) -> (String, i64) {
        standing(&self.run(ACQUIRE, &["c0ffee", "try", "{}"]))
    }

    pub(crate) fn confirm(&self) -> (String, i64) {
        standing(&self.run(CONFIRM, &["c0ffee"]))
    }

    /// Whether the claim had the lock.
    pub(crate) fn release(&self) -> i64 {
        self.release_once().0
    }

    /// The same, and whether the next one in the queue was not found yet.
    pub(crate) fn release_once(&self) -> (i64, i64) {
        let answer = self.run(RELEASE, &[]);
        let [had_it, is_unserved] = answer.list() else { panic!("{answer:?}") };
        (had_it.number().unwrap(), is_unserved.number().unwrap())
    }

    /// The token of a grant.
    pub(crate) fn token(answer: (String, i64)) -> i64 {
        assert_eq!(answer.0, "granted");
        answer.1
    }
}

pub(crate) fn standing(reply: &Reply) -> (String, i64) {
    let [word, number] = reply.list() else { panic!("{reply:?}") };
    (word.text().to_owned(), number.number().unwrap())
}

pub(crate) fn left(redis: &Redis, name: &LockName) -> Vec<String> {
    let mut keys = redis.keys(&format!("lockkit:{{{name}}}:*")).unwrap();
    keys.extend(redis.keys(name.as_str()).unwrap());
    keys
}

/// The heartbeat of these waiters.
pub(crate) fn beat(redis: &Redis, waiters: &[(&LockName, &str)]) -> Vec<i64> {
    let keys = waiters.iter().flat_map(|(name, _)| {
        let sides = ["queue", "deadlines", "metadata"].map(|what| side(name, what));
        std::iter::once(name.to_string()).chain(sides)
    });
    let keys: Vec<String> = keys.collect();
    let count = keys.len().to_string();
    let mut words = vec!["EVAL", BEAT, &count];
    words.extend(keys.iter().map(String::as_str));
    words.extend([TTL, "c0ffee", "200000"]);
    words.extend(waiters.iter().map(|(_, claim)| claim));
    let answer = redis.cli(&words).unwrap();
    answer.list().iter().filter_map(Reply::number).collect()
}

/// As many waiters that have lapsed, at the head of the queue.
pub(crate) fn lapsed(redis: &Redis, name: &LockName, count: usize) {
    /// A single script would be a long one.
    const PER_SCRIPT: usize = 4096;
    const SEED: &str = "for n = ARGV[1], ARGV[2] do
        local claim = string.format('%032x', n)
        redis.call('ZADD', KEYS[1], -n, claim)
        redis.call('HSET', KEYS[2], claim, '1:1000:c0ffee')
        redis.call('HSET', KEYS[3], claim, '{}')
    end";
    let keys = ["queue", "deadlines", "metadata"].map(|what| side(name, what));
    let [queue, deadlines, metadata] = keys.each_ref().map(String::as_str);
    for first in (1..=count).step_by(PER_SCRIPT) {
        let (first, last) = (first.to_string(), count.min(first + PER_SCRIPT - 1).to_string());
        redis.cli(&["EVAL", SEED, "3", queue, deadlines, metadata, &first, &last]).unwrap();
    }
}
