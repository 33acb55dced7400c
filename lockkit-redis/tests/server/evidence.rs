//! Writes that carry the evidence of their grant.

use lockkit_core::backend::Evidence;
use lockkit_redis::GUARD;
use lockkit_testbed::Redis;

use crate::common::{LONG, acquire, bounded, fresh_name, release, session, shared, start};

#[path = "../../examples/redis_guarded_writes.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "an example is a program")]
mod guarded_writes;

#[tokio::test(flavor = "multi_thread")]
async fn example_refuses_the_stale_writer() {
    let redis = Redis::start().unwrap();
    let seen = bounded(guarded_writes::run(&redis.url())).await.unwrap();
    let ends: Vec<&str> = seen.iter().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(ends, ["written", "refused", "written"], "{seen:#?}");
    assert_eq!(redis.cli(&["HGET", "order:{orders%2F42}", "total"]).unwrap().text(), "20");
}

/// The value is the one in the store, to the byte, and a handoff ends it before the next holder writes.
#[tokio::test(flavor = "multi_thread")]
async fn evidence_ends_with_the_grant() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    let held = acquire(&one, &name).await;
    let Some(Evidence::KeyValue { key, value, .. }) = held.evidence() else { panic!("{held:?}") };
    assert_eq!(redis.cli(&["GET", key]).unwrap().text(), value.expose());
    let data = format!("data:{{{key}}}");
    let script = format!("{GUARD}return redis.call('INCR', KEYS[2])");
    let write = || redis.cli(&["EVAL", &script, "2", key, &data, value.expose()]);
    assert_eq!(write().unwrap().number(), Some(1));
    let waiter = start(&other, &name);
    crate::common::until("it waits", async || waiter.control.was_contended()).await;
    release(&one, &held).await;
    let error = write().unwrap_err().to_string();
    assert!(error.starts_with("FENCED"), "{error}");
    assert_eq!(redis.cli(&["GET", &data]).unwrap().text(), "1");
    release(&other, &waiter.granted().await).await;
    assert!(write().is_err(), "nobody holds the lock");
}
