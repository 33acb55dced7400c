//! How long each key of a lock lives after each script: for the time that was asked for, and no longer. A key that lives
//! longer blocks its lock, or stays for ever; one that ends earlier loses a hold, a place in the queue, or a token.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use lockkit_core::{
    LockName, Metadata, Proposal,
    backend::{Claim, ClaimControl},
};
use lockkit_testbed::Redis;

use crate::{
    common::{SHORT, bounded, fresh_name, granted, session, session_on_set_clock, shared, side},
    raw::{COUNTER_TTL, Claimant, LINGER, TTL, add_lapsed_waiters, heartbeat},
};

/// The most that a busy machine delays the look at a key, in ms.
const DELAY_MAX: i64 = 30_000;

/// How long a key lives after it was checked, in ms: less than any script asks for, even after [`DELAY_MAX`].
const SHORTENED: &str = "10000";

/// The ttl of a waiter, in ms: longer than [`TTL`] by more than [`DELAY_MAX`].
const LONGER: &str = "150000";

/// Checks that a time is at most what was asked for, and that only a delay has shortened it.
#[track_caller]
fn assert_is(what: &str, left: i64, asked: &str) {
    let asked: i64 = asked.parse().unwrap();
    assert!((asked - DELAY_MAX..=asked).contains(&left), "{what}: {left} ms instead of {asked} ms");
}

/// Checks how long a key lives; then it lives for [`SHORTENED`], unless a later script extends it.
#[track_caller]
fn assert_lives(redis: &Redis, key: &str, asked: &str) {
    assert_is(key, redis.cli(&["PTTL", key]).unwrap().number().unwrap(), asked);
    redis.cli(&["PEXPIRE", key, SHORTENED]).unwrap();
}

fn waiter<'a>(redis: &'a Redis, name: &'a LockName) -> Claimant<'a> {
    Claimant { ttl: LONGER, ..Claimant::new(redis, name) }
}

#[test]
fn every_grant_has_the_ttl_of_its_claim() {
    let (redis, name) = (shared(), fresh_name());
    let lock = name.as_str();
    let holder = Claimant::new(redis, &name);
    Claimant::token(holder.acquire());
    assert_lives(redis, lock, TTL);
    Claimant::token(holder.acquire());
    assert_lives(redis, lock, TTL);
    Claimant::token(holder.confirm());
    assert_lives(redis, lock, TTL);
    // By each request that finds the lock free, or frees it.
    let [first, second, third] = [(); 3].map(|()| waiter(redis, &name));
    let leaving = Claimant::new(redis, &name);
    for claimant in [&first, &second, &leaving, &third] {
        assert_eq!(claimant.acquire().0, "queued");
    }
    holder.release();
    assert_lives(redis, lock, LONGER);
    redis.cli(&["DEL", lock]).unwrap();
    Claimant::token(second.confirm());
    assert_lives(redis, lock, LONGER);
    redis.cli(&["DEL", lock]).unwrap();
    redis.cli(&["ZREM", &side(&name, "queue"), &leaving.claim]).unwrap();
    assert_eq!(leaving.release(), 0);
    assert_lives(redis, lock, LONGER);
    // Behind waiters that have lapsed.
    redis.cli(&["DEL", lock]).unwrap();
    add_lapsed_waiters(redis, &name, 3);
    Claimant::token(Claimant::new(redis, &name).acquire());
    assert_lives(redis, lock, TTL);
}

/// Returns when a waiter lapses, in ms from now by the server's clock.
fn lapses_in(redis: &Redis, waiter: &Claimant<'_>) -> i64 {
    const LEFT: &str = "local time = redis.call('TIME')
        local lapses_at = string.match(redis.call('HGET', KEYS[1], ARGV[1]), '^%d+')
        return (tonumber(lapses_at) - time[1] * 1000000 - time[2]) / 1000";
    let lapses = side(waiter.name, "deadlines");
    redis.cli(&["EVAL", LEFT, "1", &lapses, &waiter.claim]).unwrap().number().unwrap()
}

#[test]
fn wait_lasts_for_one_ttl_after_every_request() {
    let (redis, name) = (shared(), fresh_name());
    let holder = Claimant::new(redis, &name);
    Claimant::token(holder.acquire());
    let waiter = Claimant::new(redis, &name);
    let requests: [(&str, &dyn Fn()); 3] = [
        ("acquire", &|| assert_eq!(waiter.acquire().0, "queued")),
        ("confirm", &|| assert_eq!(waiter.confirm().0, "queued")),
        ("heartbeat", &|| assert_eq!(heartbeat(redis, &[(&name, &waiter.claim)]).len(), 1)),
    ];
    for (request, send) in requests {
        send();
        assert_is(request, lapses_in(redis, &waiter), TTL);
        for what in ["queue", "deadlines"] {
            assert_lives(redis, &side(&name, what), LINGER);
        }
        redis.cli(&["HSET", &side(&name, "deadlines"), &waiter.claim, "1:60000:c0ffee"]).unwrap();
    }
}

#[test]
fn counter_outlives_the_hold_and_then_its_last_use() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other, counter) =
        (Claimant::new(redis, &name), Claimant::new(redis, &name), side(&name, "fence"));
    one.acquire();
    assert_lives(redis, &counter, LINGER);
    assert_eq!(other.acquire().0, "queued");
    one.release();
    assert_lives(redis, &counter, LINGER);
    other.release();
    assert_lives(redis, &counter, COUNTER_TTL);
    // Behind waiters that have lapsed.
    one.acquire();
    add_lapsed_waiters(redis, &name, 3);
    assert_eq!(one.release(), 1);
    assert_lives(redis, &counter, COUNTER_TTL);
}

/// What a client relies on is what its scripts ask for.
#[tokio::test(flavor = "multi_thread")]
async fn ttl_is_rounded_up_to_milliseconds_and_at_least_the_shortest() {
    for (asked, ttl) in [
        (Duration::from_millis(1), SHORT),
        (SHORT + Duration::from_nanos(1), SHORT + Duration::from_millis(1)),
        (SHORT + Duration::from_millis(7), SHORT + Duration::from_millis(7)),
    ] {
        assert_eq!(session(shared(), asked).await.ttl(), ttl, "{asked:?}");
    }
}

/// Renewals name only the locks. Observers would see a leader without its proposal.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_extends_the_metadata_of_a_leader_after_a_quarter_of_their_lifetime() {
    const QUARTER_MS: u64 = 2 * 24 * 60 * 60 * 1000;
    let (redis, name) = (shared(), fresh_name());
    let (counter, short) = (side(&name, "fence"), TTL.parse::<i64>().unwrap());
    let (session, now_ms) = session_on_set_clock(&format!("{}/?counter_ttl=8d", redis.url())).await;
    let metadata = Metadata::of_this_process(None).with_proposal(Proposal::new("value", 1));
    let claim = Claim::new(name, true, metadata, &ClaimControl::new());
    let held = granted(bounded(session.acquire(claim)).await);
    let is_extended_at = async |at_ms| {
        now_ms.store(at_ms, SeqCst);
        redis.cli(&["PEXPIRE", &counter, TTL]).unwrap();
        bounded(session.renew(std::slice::from_ref(&held))).await;
        redis.cli(&["PTTL", &counter]).unwrap().number().unwrap() > short
    };
    for (at_ms, is_extended) in
        [(0, false), (QUARTER_MS, false), (QUARTER_MS + 1, true), (QUARTER_MS + 2, false)]
    {
        assert_eq!(is_extended_at(at_ms).await, is_extended, "after {at_ms} ms");
    }
}
