//! The number of requests per operation, from the server's own counters.

use std::sync::Arc;

use lockkit_core::{
    LockName, Metadata,
    backend::{Claim, ClaimControl, Grant, Session},
};
use lockkit_testbed::Redis;

use crate::common::{LONG, acquire, bounded, enqueued, fresh_name, granted, release, session};

/// The counters of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spent {
    scripts: u64,
    messages: u64,
    connections: u64,
}

fn counted(redis: &Redis) -> Spent {
    let connections = redis.calls("hello").unwrap();
    let full = redis.calls("eval").unwrap();
    Spent {
        scripts: redis.calls("evalsha").unwrap() + full,
        messages: redis.calls("publish").unwrap(),
        connections,
    }
}

fn since(redis: &Redis, before: Spent) -> Spent {
    let now = counted(redis);
    Spent {
        scripts: now.scripts - before.scripts,
        messages: now.messages - before.messages,
        connections: now.connections - before.connections,
    }
}

/// Loads every script into the server, so that none is sent twice.
async fn warm_up(session: &Arc<dyn Session>) {
    let name = fresh_name();
    let held = acquire(session, &name).await;
    let waiter = enqueued(session, &name).await;
    session.renew(std::slice::from_ref(&held)).await;
    release(session, &held).await;
    let next = waiter.granted().await;
    release(session, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uncontended_acquire_and_release_are_two_scripts() {
    const ROUNDS: u64 = 50;
    let redis = Redis::start().unwrap();
    let (session, name) = (session(&redis, LONG).await, fresh_name());
    warm_up(&session).await;
    let before = counted(&redis);
    for _ in 0..ROUNDS {
        let grant = acquire(&session, &name).await;
        release(&session, &grant).await;
    }
    assert_eq!(since(&redis, before), Spent { scripts: 2 * ROUNDS, messages: 0, connections: 0 });
}

/// What the server does inside the scripts, and what a held lock and a pair cost it.
#[tokio::test(flavor = "multi_thread")]
async fn uncontended_acquire_is_five_commands_and_release_three() {
    let redis = Redis::start().unwrap();
    let (session, name) = (session(&redis, LONG).await, LockName::new("orders-42").unwrap());
    warm_up(&session).await;
    let mut log_bytes = u64::MAX;
    // With the first grant of a name, and with later ones.
    for _ in 0..3 {
        redis.cli(&["CONFIG", "RESETSTAT"]).unwrap();
        let log_before = log_bytes_of(&redis);
        let (mut metadata, control) = (Metadata::of_this_process(None), ClaimControl::new());
        (metadata.host, metadata.pid) = ("host-1".to_owned(), 123_456);
        let grant =
            granted(bounded(session.acquire(Claim::new(name.clone(), true, metadata, &control))).await);
        assert_eq!(commands(&redis), ["evalsha 1", "exists 1", "getrange 1", "set 2", "time 1"]);
        let keys = redis.keys("*orders*").unwrap();
        let bytes: i64 = keys.iter().map(|key| memory_usage(&redis, key)).sum();
        assert!(keys.len() == 2 && bytes <= BYTES_PER_HOLD_MAX, "{bytes} bytes: {keys:?}");
        redis.cli(&["CONFIG", "RESETSTAT"]).unwrap();
        release(&session, &grant).await;
        assert_eq!(commands(&redis), ["del 1", "evalsha 1", "exists 1", "getrange 1"]);
        log_bytes = log_bytes_of(&redis) - log_before;
        println!("{bytes} bytes while held, {log_bytes} bytes of the append-only file per pair");
    }
    assert!(log_bytes <= LOG_BYTES_PER_PAIR_MAX, "{log_bytes}");
}

/// What the server does inside the scripts of a handoff: the request of the claim that waits, and the release that grants
/// it the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_is_eleven_commands_and_its_grant_too() {
    let redis = Redis::start().unwrap();
    // No heartbeat extends the wait meanwhile.
    let (session, name) = (session(&redis, 10 * LONG).await, fresh_name());
    warm_up(&session).await;
    let mut held = acquire(&session, &name).await;
    for _ in 0..3 {
        redis.cli(&["CONFIG", "RESETSTAT"]).unwrap();
        let waiter = enqueued(&session, &name).await;
        let wait =
            "evalsha 1 exists 1 getrange 2 hexists 1 hset 1 pexpire 2 pttl 1 time 1 zadd 1 zrevrange 1";
        assert_eq!(commands(&redis).join(" "), wait);
        redis.cli(&["CONFIG", "RESETSTAT"]).unwrap();
        release(&session, &held).await;
        held = waiter.granted().await;
        let grant = "evalsha 1 exists 1 getrange 2 hdel 1 hmget 1 publish 1 set 2 time 1 zrange 1 zrem 1";
        assert_eq!(commands(&redis).join(" "), grant);
    }
}

/// What a held lock takes in the server, in bytes.
const BYTES_PER_HOLD_MAX: i64 = 450;

/// What an acquire and a release write to the append-only file, in bytes.
const LOG_BYTES_PER_PAIR_MAX: u64 = 350;

/// Returns the commands since the statistics were reset, with their numbers.
fn commands(redis: &Redis) -> Vec<String> {
    let statistics = redis.cli(&["INFO", "commandstats"]).unwrap();
    let lines = statistics.text().lines().filter_map(|line| {
        let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some(format!("{command} {}", figures.split(',').next()?))
    });
    // What this test asks.
    let of_test =
        |line: &String| ["info", "config", "keys", "memory"].iter().any(|word| line.starts_with(word));
    let mut commands: Vec<String> = lines.filter(|line| !of_test(line)).collect();
    commands.sort_unstable();
    commands
}

fn memory_usage(redis: &Redis, key: &str) -> i64 {
    redis.cli(&["MEMORY", "USAGE", key]).unwrap().number().unwrap()
}

/// Returns how much the server has written to its append-only file.
fn log_bytes_of(redis: &Redis) -> u64 {
    let statistics = redis.cli(&["INFO", "persistence"]).unwrap();
    let size = statistics.text().lines().find_map(|line| line.strip_prefix("aof_current_size:"));
    size.unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_is_two_scripts_and_a_message_with_two_waiters() {
    handoffs(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_is_two_scripts_and_a_message_with_200_waiters() {
    handoffs(200).await;
}

async fn handoffs(waiters: u64) {
    const CLIENTS: usize = 4;
    let redis = Redis::start().unwrap();
    let name = fresh_name();
    let mut sessions = Vec::new();
    for _ in 0..CLIENTS {
        // A message long after the answer would be confirmed.
        sessions.push(session(&redis, 10 * LONG).await);
    }
    warm_up(&sessions[0]).await;
    let mut holder: (Arc<dyn Session>, Grant) = (sessions[0].clone(), acquire(&sessions[0], &name).await);
    let before = counted(&redis);
    // Without heartbeats, the waiters of a slow run would re-check.
    let mut heartbeats = 0;
    let mut heartbeat = async |number: usize| {
        if number % 10 == 9 {
            let before = counted(&redis);
            for session in &sessions {
                bounded(session.renew(&[])).await;
            }
            heartbeats += since(&redis, before).scripts;
        }
    };
    let mut waiting = Vec::new();
    for (number, session) in sessions.iter().cycle().take(usize::try_from(waiters).unwrap()).enumerate() {
        heartbeat(number).await;
        waiting.push((session.clone(), enqueued(session, &name).await));
    }
    for (number, (session, next)) in waiting.into_iter().enumerate() {
        heartbeat(number).await;
        release(&holder.0, &holder.1).await;
        holder = (session, next.granted().await);
    }
    let scripts = 2 * waiters + heartbeats;
    assert_eq!(since(&redis, before), Spent { scripts, messages: waiters, connections: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_is_one_script_per_500_locks() {
    const LOCKS: usize = 1200;
    let redis = Redis::start().unwrap();
    let session = session(&redis, LONG).await;
    warm_up(&session).await;
    let mut held = Vec::new();
    for _ in 0..LOCKS {
        held.push(acquire(&session, &fresh_name()).await);
    }
    let before = counted(&redis);
    let heartbeat = bounded(session.renew(&held)).await;
    assert_eq!(heartbeat.holds.len(), LOCKS);
    assert_eq!(since(&redis, before), Spent { scripts: 3, messages: 0, connections: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_with_nothing_held_is_one_ping() {
    let redis = Redis::start().unwrap();
    let session = session(&redis, LONG).await;
    let (before, pings) = (counted(&redis), redis.calls("ping").unwrap());
    bounded(session.renew(&[])).await;
    assert_eq!(redis.calls("ping").unwrap() - pings, 1);
    assert_eq!(since(&redis, before), Spent { scripts: 0, messages: 0, connections: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_with_waiters_is_one_script_more() {
    let redis = Redis::start().unwrap();
    let (one, other) = (session(&redis, LONG).await, session(&redis, LONG).await);
    let name = fresh_name();
    let held = acquire(&one, &name).await;
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(enqueued(&other, &name).await);
    }
    other.renew(&[]).await;
    let before = counted(&redis);
    bounded(other.renew(&[])).await;
    assert_eq!(since(&redis, before), Spent { scripts: 1, messages: 0, connections: 0 });
    release(&one, &held).await;
    bounded(other.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_has_waited_is_in_no_heartbeat_of_waiters() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let (one, other) = (session(&redis, LONG).await, session(&redis, LONG).await);
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    release(&one, &held).await;
    let next = waiter.granted().await;
    for is_counted in [false, true] {
        let before = counted(&redis);
        bounded(other.renew(std::slice::from_ref(&next))).await;
        // The first one may send its script twice.
        assert!(!is_counted || since(&redis, before).scripts == 1, "{:?}", since(&redis, before));
    }
}
