//! Runs single scripts from the files of the backend, without a session.

use std::sync::LazyLock;

use lockkit_core::{LockName, backend::ClaimId};
use lockkit_testbed::{Redis, Reply};

use crate::common::side;

macro_rules! scripts {
    ($($name:ident: $($file:literal),+;)+) => {$(
        #[allow(dead_code, reason = "tests do not run each of them")]
        pub(crate) static $name: LazyLock<&str> =
            LazyLock::new(|| concat!($(include_str!(concat!($file, ".lua"))),+));
    )+};
}

include!("../../src/scripts/list.rs");

/// Longer than any test.
pub(crate) const TTL: &str = "60000";

/// How long counters outlive their last use, and queues theirs, in ms.
pub(crate) const COUNTER_TTL: &str = "100000";
pub(crate) const LINGER: &str = "200000";

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
        let sides = ["fence", "queue", "deadlines"].map(|what| side(self.name, what));
        let mut arguments = vec!["EVAL", script, "4", self.name.as_str()];
        arguments.extend(sides.iter().map(String::as_str));
        let lifetime = if script == *RELEASE { COUNTER_TTL } else { self.ttl };
        arguments.extend([&*self.claim, LINGER, lifetime]);
        arguments.extend(more);
        self.redis.cli(&arguments)
    }

    pub(crate) fn acquire(&self) -> (String, i64) {
        claim_state(&self.run(*ACQUIRE, &["c0ffee", "wait", "{}"]))
    }

    pub(crate) fn try_once(&self) -> (String, i64) {
        claim_state(&self.run(*ACQUIRE, &["c0ffee", "try", "{}"]))
    }

    pub(crate) fn confirm(&self) -> (String, i64) {
        claim_state(&self.run(*CONFIRM, &["c0ffee"]))
    }

    /// Returns whether the claim held the lock.
    pub(crate) fn release(&self) -> i64 {
        self.release_once().0
    }

    /// Returns whether the claim held the lock, and whether the next waiter was not found yet.
    pub(crate) fn release_once(&self) -> (i64, i64) {
        let answer = self.run(*RELEASE, &[]);
        match answer.number() {
            Some(sum @ 0..=3) => (sum % 2, sum / 2),
            _ => panic!("{answer:?}"),
        }
    }

    /// Returns the token of a grant.
    pub(crate) fn token(answer: (String, i64)) -> i64 {
        assert_eq!(answer.0, "granted");
        answer.1
    }
}

pub(crate) fn claim_state(reply: &Reply) -> (String, i64) {
    match reply {
        Reply::Number(token) => ("granted".to_owned(), *token),
        reply => {
            let [state, number, ..] = reply.list() else { panic!("{reply:?}") };
            (state.text().to_owned(), number.number().unwrap())
        }
    }
}

pub(crate) fn remaining_keys(redis: &Redis, name: &LockName) -> Vec<String> {
    let mut keys = redis.keys(&format!("lockkit:{{{name}}}:*")).unwrap();
    keys.extend(redis.keys(name.as_str()).unwrap());
    keys
}

/// Sends the heartbeat of these waiters.
pub(crate) fn heartbeat(redis: &Redis, waiters: &[(&LockName, &str)]) -> Vec<i64> {
    let keys = waiters.iter().flat_map(|(name, _)| {
        let sides = ["fence", "queue", "deadlines"].map(|what| side(name, what));
        std::iter::once(name.to_string()).chain(sides)
    });
    let keys: Vec<String> = keys.collect();
    let count = keys.len().to_string();
    let mut arguments = vec!["EVAL", *HEARTBEAT, &count];
    arguments.extend(keys.iter().map(String::as_str));
    arguments.extend([TTL, "c0ffee", LINGER]);
    arguments.extend(waiters.iter().map(|(_, claim)| claim));
    let answer = redis.cli(&arguments).unwrap();
    answer.list().iter().filter_map(|answer| answer.list()[0].number()).collect()
}

/// Adds lapsed waiters at the head of the queue.
pub(crate) fn add_lapsed_waiters(redis: &Redis, name: &LockName, count: usize) {
    /// Bounds how long the server is busy with one script.
    const PER_SCRIPT: usize = 4096;
    const SEED: &str = "for n = ARGV[1], ARGV[2] do
        local claim = string.format('%032x', n)
        redis.call('ZADD', KEYS[1], -n, claim)
        redis.call('HSET', KEYS[2], claim, '1:1000:c0ffee', '@' .. claim, '{}')
    end";
    let keys = ["queue", "deadlines"].map(|what| side(name, what));
    let [queue, lapses] = keys.each_ref().map(String::as_str);
    for first in (1..=count).step_by(PER_SCRIPT) {
        let (first, last) = (first.to_string(), count.min(first + PER_SCRIPT - 1).to_string());
        redis.cli(&["EVAL", SEED, "2", queue, lapses, &first, &last]).unwrap();
    }
}
