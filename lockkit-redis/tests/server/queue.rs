//! What waiting costs.

use std::{sync::Arc, time::Duration};

use lockkit_core::backend::Session;
use lockkit_testbed::Redis;

use crate::common::{LONG, acquire, bounded, enqueued, fresh_name, release, session, until};

const WAITERS: usize = 20;

/// Long enough that a busy machine sends every heartbeat in time.
const TTL: Duration = Duration::from_secs(6);

const HEARTBEATS: u32 = 5;

/// Heartbeats as a keeper sends them; the scripts that were run meanwhile.
async fn scripts_of_heartbeats(redis: &Redis, session: &Arc<dyn Session>) -> u64 {
    let before = redis.calls("evalsha").unwrap() + redis.calls("eval").unwrap();
    let mut beats = tokio::time::interval(TTL / 3);
    for _ in 0..HEARTBEATS {
        beats.tick().await;
        bounded(session.renew(&[])).await;
    }
    redis.calls("evalsha").unwrap() + redis.calls("eval").unwrap() - before
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_heartbeats_keep_ask_for_nothing_themselves() {
    let redis = Redis::start().unwrap();
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, TTL).await, fresh_name());
    let held = acquire(&one, &name).await;
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        waiting.push(enqueued(&other, &name).await);
    }
    let scripts = scripts_of_heartbeats(&redis, &other).await;
    println!("{scripts} scripts for {WAITERS} waiters and {HEARTBEATS} heartbeats, three of which are a ttl");
    // One for each heartbeat, where each waiter used to add one of its own.
    assert!(scripts < u64::from(HEARTBEATS) + WAITERS as u64, "{scripts}");
    release(&one, &held).await;
    waiting.remove(0).granted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_without_heartbeats_keep_themselves_waiting() {
    let redis = Redis::start().unwrap();
    let ttl = Duration::from_secs(1);
    let (one, other, name) = (session(&redis, LONG).await, session(&redis, ttl).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    let looks = redis.calls("evalsha").unwrap() + redis.calls("eval").unwrap();
    until("it has looked for more than a ttl", async || {
        redis.calls("evalsha").unwrap() + redis.calls("eval").unwrap() - looks >= 4
    })
    .await;
    release(&one, &held).await;
    waiter.granted().await;
}

/// The waiters of a client for one lock look together when a heartbeat finds that nobody holds it: one of them is enough.
#[tokio::test(flavor = "multi_thread")]
async fn one_waiter_looks_when_nobody_holds_the_lock() {
    let redis = Redis::start().unwrap();
    let (other, name) = (session(&redis, LONG).await, fresh_name());
    redis.cli(&["SET", name.as_str(), "another program's"]).unwrap();
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        waiting.push(enqueued(&other, &name).await);
    }
    other.renew(&[]).await;
    let scripts = || redis.calls("evalsha").unwrap() + redis.calls("eval").unwrap();
    redis.cli(&["DEL", name.as_str()]).unwrap();
    let before = scripts();
    other.renew(&[]).await;
    waiting.remove(0).granted().await;
    // The heartbeat, the look, and the confirmation of whoever was handed the lock.
    assert!(scripts() - before <= 4, "{}", scripts() - before);
}
