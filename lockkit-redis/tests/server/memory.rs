//! A server at its memory limit (`maxmemory`), which refuses every command that needs more.

use std::sync::Arc;

use lockkit_core::{
    ErrorKind,
    backend::{Renewal, Session},
};
use lockkit_testbed::Redis;

use crate::common::{
    LONG, acquire, bounded, enqueued, fresh_name, granted, is_gave_up, release, session, side, start,
    try_acquire, until, verdict,
};

fn limit_memory(redis: &Redis, is_reached: bool) {
    redis.cli(&["CONFIG", "SET", "maxmemory", if is_reached { "1" } else { "0" }]).unwrap();
    assert_eq!(redis.cli(&["SET", "any", "value"]).is_err(), is_reached);
}

/// As if time had passed: every deadline is near, and would lapse unless it is moved.
fn age(redis: &Redis, deadlines: &str) {
    limit_memory(redis, false);
    for claim in redis.cli(&["HKEYS", deadlines]).unwrap().list() {
        let entry = redis.cli(&["HGET", deadlines, claim.text()]).unwrap();
        let (_, rest) = entry.text().split_once(':').unwrap();
        redis.cli(&["HSET", deadlines, claim.text(), &format!("1:{rest}")]).unwrap();
    }
    limit_memory(redis, true);
}

fn lapsed(redis: &Redis, deadlines: &str) -> usize {
    let entries = redis.cli(&["HVALS", deadlines]).unwrap();
    entries.list().iter().filter(|entry| entry.text().starts_with("1:")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_keeps_the_lock_and_waiters_keep_their_places() {
    let redis = Redis::start().unwrap();
    let (one, other): (Arc<dyn Session>, Arc<dyn Session>) =
        (session(&redis, LONG).await, session(&redis, LONG).await);
    let name = fresh_name();
    let deadlines = side(&name, "deadlines");
    let held = acquire(&one, &name).await;
    let (second, third) = (enqueued(&other, &name).await, enqueued(&other, &name).await);
    age(&redis, &deadlines);
    assert_eq!(lapsed(&redis, &deadlines), 2);
    // The server is full: heartbeats of holders and of waiters go on.
    assert!(matches!(
        verdict(bounded(one.renew(std::slice::from_ref(&held))).await),
        Renewal::Renewed { .. }
    ));
    bounded(other.renew(&[])).await;
    assert_eq!(lapsed(&redis, &deadlines), 0, "a heartbeat was refused");
    // So do looks: here one is made because the connection was cut.
    age(&redis, &deadlines);
    redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
    until("both have looked", async || lapsed(&redis, &deadlines) == 0).await;
    // A release hands the lock over, in order.
    release(&one, &held).await;
    let next = second.granted().await;
    assert!(next.token() > held.token() && third.is_waiting());
    release(&other, &next).await;
    let last = third.granted().await;
    assert!(last.token() > next.token());
    release(&other, &last).await;
    assert_eq!(redis.keys(name.as_str()).unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_new_is_taken_in_before_there_is_room() {
    let redis = Redis::start().unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    limit_memory(&redis, true);
    let error = try_acquire(&other, &fresh_name()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("maxmemory"), "{error}");
    // A lock that is held is busy, and whoever would wait for it has no place yet.
    assert!(is_gave_up(&try_acquire(&other, &name).await));
    let refused = || redis.cli(&["INFO", "errorstats"]).unwrap().text().contains("errorstat_OOM");
    redis.cli(&["CONFIG", "RESETSTAT"]).unwrap();
    let waiting = start(&other, &name);
    until("the newcomer is refused", async || refused()).await;
    assert_eq!(redis.keys(&side(&name, "queue")).unwrap(), [""; 0], "the store has grown");
    limit_memory(&redis, false);
    until("it has a place", async || !redis.keys(&side(&name, "queue")).unwrap().is_empty()).await;
    release(&one, &held).await;
    let next = waiting.granted().await;
    release(&other, &next).await;
    granted(try_acquire(&one, &name).await);
}
