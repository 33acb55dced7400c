//! A server at its memory limit (`maxmemory`), which refuses every command that needs more memory.

use std::sync::Arc;

use lockkit_core::{
    ErrorKind,
    backend::{Admin, Renewal, Session},
};
use lockkit_testbed::Redis;

use crate::common::{
    LONG, acquire, backend, bounded, enqueued, fresh_name, granted, is_gave_up, only_renewal, release,
    session, side, start, try_acquire, until,
};

fn limit_memory(redis: &Redis, is_reached: bool) {
    redis.cli(&["CONFIG", "SET", "maxmemory", if is_reached { "1" } else { "0" }]).unwrap();
    assert_eq!(redis.cli(&["SET", "any", "value"]).is_err(), is_reached);
}

/// Makes every waiter lapse, as if time had passed, unless its wait is extended.
fn age(redis: &Redis, lapses: &str) {
    limit_memory(redis, false);
    let fields = redis.cli(&["HKEYS", lapses]).unwrap();
    // The others are metadata.
    for claim in fields.list().iter().filter(|field| !field.text().starts_with('@')) {
        let entry = redis.cli(&["HGET", lapses, claim.text()]).unwrap();
        let (_, rest) = entry.text().split_once(':').unwrap();
        redis.cli(&["HSET", lapses, claim.text(), &format!("1:{rest}")]).unwrap();
    }
    limit_memory(redis, true);
}

fn lapsed(redis: &Redis, lapses: &str) -> usize {
    let entries = redis.cli(&["HVALS", lapses]).unwrap();
    entries.list().iter().filter(|entry| entry.text().starts_with("1:")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn full_server_keeps_holder_and_waiters() {
    let redis = Redis::start().unwrap();
    let (one, other): (Arc<dyn Session>, Arc<dyn Session>) =
        (session(&redis, LONG).await, session(&redis, LONG).await);
    let name = fresh_name();
    let lapses = side(&name, "deadlines");
    let held = acquire(&one, &name).await;
    let (second, third) = (enqueued(&other, &name).await, enqueued(&other, &name).await);
    age(&redis, &lapses);
    assert_eq!(lapsed(&redis, &lapses), 2);
    // A full server still serves heartbeats of holders and of waiters.
    assert!(matches!(
        only_renewal(bounded(one.renew(std::slice::from_ref(&held))).await),
        Renewal::Renewed { .. }
    ));
    bounded(other.renew(&[])).await;
    assert_eq!(lapsed(&redis, &lapses), 0, "a heartbeat was refused");
    // It also serves re-checks; here the cut connection causes one.
    age(&redis, &lapses);
    redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
    until("both have re-checked", async || lapsed(&redis, &lapses) == 0).await;
    // A release grants the lock to the next waiter, in order.
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
async fn full_server_admits_no_new_claims() {
    let redis = Redis::start().unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    limit_memory(&redis, true);
    let error = try_acquire(&other, &fresh_name()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("maxmemory"), "{error}");
    // A held lock is busy, and a new waiter cannot join the queue yet.
    assert!(is_gave_up(&try_acquire(&other, &name).await));
    let refused = || redis.cli(&["INFO", "errorstats"]).unwrap().text().contains("errorstat_OOM");
    redis.cli(&["CONFIG", "RESETSTAT"]).unwrap();
    let waiting = start(&other, &name);
    until("the newcomer is refused", async || refused()).await;
    assert_eq!(redis.keys(&side(&name, "queue")).unwrap(), [""; 0], "the store has grown");
    limit_memory(&redis, false);
    until("it has joined the queue", async || !redis.keys(&side(&name, "queue")).unwrap().is_empty()).await;
    release(&one, &held).await;
    let next = waiting.granted().await;
    release(&other, &next).await;
    granted(try_acquire(&one, &name).await);
}

/// The first write of the break must be one that such a server does not refuse, or it would end half-way.
#[tokio::test(flavor = "multi_thread")]
async fn hold_at_a_full_server_is_listed_and_broken() {
    let redis = Redis::start().unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    limit_memory(&redis, true);
    let admin = backend(&redis.url());
    let page = bounded(admin.list("", None, 10)).await.unwrap();
    assert_eq!(page.locks.iter().filter_map(|lock| lock.name.as_ref()).collect::<Vec<_>>(), [&name]);
    let holder = bounded(admin.inspect(&name)).await.unwrap().holder.unwrap();
    assert!(bounded(admin.break_lock(&name, &holder)).await.unwrap());
    let next = waiting.granted().await;
    assert!(next.token() > held.token());
    release(&other, &next).await;
}
