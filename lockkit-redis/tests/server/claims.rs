//! Claims from their first request to their end.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use lockkit_core::{
    BootInstant, Clock, ErrorKind,
    backend::{Acquired, Backend, Renewal},
    limits::{METADATA_BYTES_MAX, RELEASE_ANSWER_MAX},
};
use lockkit_redis::INSPECTED_WAITERS_MAX;
use lockkit_testbed::{Direction, Flow, Proxy, Redis};

use crate::{
    common::{
        LONG, SHORT, acquire, assert_rising, backend, bounded, enqueued, fresh_name, granted, is_gave_up,
        only_renewal, release, session, session_at, session_on_set_clock, shared, side, start, try_acquire,
        until,
    },
    raw,
    topologies::PATIENT,
};

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_several_clients_are_served_in_order() {
    let (redis, name) = (shared(), fresh_name());
    let sessions = [session(redis, LONG).await, session(redis, LONG).await, session(redis, LONG).await];
    let mut holder = (sessions[0].clone(), acquire(&sessions[0], &name).await);
    let mut waiting = Vec::new();
    for turn in 0..9 {
        let session = &sessions[turn % 3];
        waiting.push((session.clone(), enqueued(session, &name).await));
    }
    let mut tokens = vec![holder.1.token()];
    for (session, waiter) in waiting {
        assert!(waiter.is_waiting());
        release(&holder.0, &holder.1).await;
        holder = (session, waiter.granted().await);
        tokens.push(holder.1.token());
    }
    assert_rising(&tokens);
    release(&holder.0, &holder.1).await;
    assert_eq!(redis.keys(name.as_str()).unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn try_sends_one_request() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    let grant = granted(try_acquire(&one, &name).await);
    assert!(is_gave_up(&try_acquire(&other, &name).await));
    // Also from the client that holds the lock.
    assert!(is_gave_up(&try_acquire(&one, &name).await));
    assert_eq!(redis.keys(&side(&name, "queue")).unwrap(), [""; 0]);
    release(&one, &grant).await;
    granted(try_acquire(&other, &name).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_gives_up_does_not_delay_the_next() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    let held = acquire(&one, &name).await;
    let (leaving, staying) = (enqueued(&other, &name).await, enqueued(&one, &name).await);
    leaving.control.give_up();
    assert!(is_gave_up(&leaving.ends().await));
    release(&one, &held).await;
    let next = staying.granted().await;
    release(&one, &next).await;
    assert_eq!(redis.keys(&format!("lockkit:?{name}?:*")).unwrap(), [side(&name, "fence")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_holder_is_succeeded_when_its_ttl_ends() {
    let (redis, name) = (shared(), fresh_name());
    let (dead, living) = (session(redis, SHORT).await, session(redis, LONG).await);
    let before = acquire(&dead, &name).await;
    // It is not renewed any more. The waiter's own re-checks come only every 10 s.
    let next = start(&living, &name).granted().await;
    assert!(next.token() > before.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_makes_up_for_a_lost_message() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    // Like a release whose message is lost: the claim is granted the lock.
    redis.cli(&["ZREM", &side(&name, "queue"), &waiter.claim.id().to_string()]).unwrap();
    redis.cli(&["HDEL", &side(&name, "deadlines"), &waiter.claim.id().to_string()]).unwrap();
    redis.cli(&["SET", name.as_str(), &format!("{}:{}", waiter.claim.id(), u64::MAX >> 12)]).unwrap();
    let heartbeats = async {
        while waiter.is_waiting() {
            other.renew(&[]).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    bounded(heartbeats).await;
    assert_eq!(waiter.granted().await.token().get(), u64::MAX >> 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_without_any_entry_gets_entry_gone() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    redis.cli(&["DEL", &side(&name, "queue"), &side(&name, "deadlines")]).unwrap();
    other.renew(&[]).await;
    assert!(matches!(waiter.ends().await, Ok(Acquired::EntryGone)));
    release(&one, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_without_its_entry_gets_entry_gone() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, SHORT).await);
    let held = acquire(&one, &name).await;
    let queue = side(&name, "queue");
    for operator in ["ZREM", "DEL"] {
        let waiter = enqueued(&other, &name).await;
        let claim = waiter.claim.id().to_string();
        let command = [operator, &queue, &claim];
        redis.cli(if operator == "DEL" { &command[..2] } else { &command }).unwrap();
        // Only the waiter's own re-check finds that its entry is gone.
        assert!(matches!(waiter.ends().await, Ok(Acquired::EntryGone)), "{operator}");
        let left = [side(&name, "deadlines"), queue.clone()];
        assert_eq!(left.map(|key| redis.keys(&key).unwrap().len()), [0, 0], "{operator}");
    }
    release(&one, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_or_replaced_hold_is_gone_and_others_stay() {
    let (redis, clock) = (shared(), Clock::boot());
    let session = session(redis, LONG).await;
    let (kept, deleted) = (acquire(&session, &fresh_name()).await, acquire(&session, &fresh_name()).await);
    redis.cli(&["DEL", deleted.name().as_str()]).unwrap();
    let before: BootInstant = clock.now();
    let heartbeat = session.renew(&[kept.clone(), deleted.clone()]).await;
    for (claim, renewal) in heartbeat.holds {
        match renewal {
            Renewal::Renewed { armed_at } => assert!(claim == kept.claim() && armed_at >= before),
            Renewal::Gone => assert_eq!(claim, deleted.claim()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(redis.keys(deleted.name().as_str()).unwrap(), [""; 0], "the renewal restored it");
    // The release of a lost hold does not end another one.
    let next = acquire(&session, deleted.name()).await;
    release(&session, &deleted).await;
    assert!(matches!(only_renewal(session.renew(&[next]).await), Renewal::Renewed { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn close_releases_and_withdraws_everything() {
    let redis = Redis::start().unwrap();
    let (session, other) = (session(&redis, LONG).await, session(&redis, LONG).await);
    let (held, waited_for) = (fresh_name(), fresh_name());
    acquire(&session, &held).await;
    let grant = acquire(&other, &waited_for).await;
    let waiter = enqueued(&session, &waited_for).await;
    // Sooner than the waiter would re-check.
    tokio::time::timeout(LONG / 10, session.close()).await.expect("the close ends the wait").unwrap();
    assert_eq!(waiter.ends().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(bounded(session.release(&grant)).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(start(&session, &held).ends().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(matches!(bounded(session.renew(&[])).await.session, Renewal::Unknown(_)));
    release(&other, &grant).await;
    let left = redis.keys("*").unwrap();
    assert!(left.iter().all(|key| key.ends_with(":fence")), "{left:?}");
}

/// The server does not have the script of the acquire, so it is sent in full after the close has begun.
#[tokio::test(flavor = "multi_thread")]
async fn close_releases_the_grant_of_a_running_acquire() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let session = session_at(&format!("redis://{}/{PATIENT}", proxy.endpoint()), LONG).await;
    let name = fresh_name();
    redis.cli(&["SCRIPT", "LOAD", *raw::RELEASE]).unwrap();
    proxy.set(Direction::Requests, Flow::Hold);
    let acquiring = start(&session, &name);
    until("the acquire is on its way", async || proxy.holds("EVALSHA")).await;
    let mut closing = session.close();
    // From here on, all requests of the close are queued behind the acquire.
    assert!(futures_util::poll!(&mut closing).is_pending());
    proxy.pass();
    bounded(closing).await.unwrap();
    let end = acquiring.ends().await;
    assert_eq!(redis.keys(name.as_str()).unwrap(), [""; 0], "the acquire left the lock and returned {end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_forgets_an_unconfirmed_release_in_time() {
    const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
    let mut redis = Redis::start().unwrap();
    let url = format!("{}/?request_timeout={}s", redis.url(), REQUEST_TIMEOUT.as_secs());
    let (session, now_ms) = session_on_set_clock(&url).await;
    let advance = |by: Duration| now_ms.fetch_add(u64::try_from(by.as_millis()).unwrap(), SeqCst);
    let grant = acquire(&session, &fresh_name()).await;
    redis.kill().unwrap();
    // The release of a hold in the registry asks the server, which is down, and fails.
    let is_forgotten_by_a_heartbeat = async || {
        bounded(session.renew(&[])).await;
        bounded(session.release(&grant)).await.is_ok()
    };
    assert!(!is_forgotten_by_a_heartbeat().await);
    advance(LONG + REQUEST_TIMEOUT);
    assert!(!is_forgotten_by_a_heartbeat().await, "the server may still have the lock");
    advance(RELEASE_ANSWER_MAX);
    assert!(
        !is_forgotten_by_a_heartbeat().await,
        "a caller that waits for its end would get a false confirmation"
    );
    advance(Duration::from_millis(1));
    assert!(is_forgotten_by_a_heartbeat().await, "it is kept until the session ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_shows_holder_and_waiters_with_their_metadata() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    let inspecting = backend(&redis.url());
    let admin = inspecting.admin().unwrap();
    assert_eq!(admin.inspect(&name).await.unwrap(), lockkit_core::backend::Inspection::default());
    let grant = acquire(&one, &name).await;
    let waiters = [enqueued(&other, &name).await, enqueued(&one, &name).await];
    let found = admin.inspect(&name).await.unwrap();
    let holder = found.holder.unwrap();
    assert_eq!((holder.token, &*holder.entry), (Some(grant.token()), &*grant.claim().to_string()));
    assert_eq!(holder.metadata.unwrap().label.as_deref(), Some("test"));
    let entries: Vec<String> = found.waiters.iter().map(|waiter| waiter.entry.clone()).collect();
    assert_eq!(entries, waiters.each_ref().map(|waiter| waiter.claim.id().to_string()));
    assert!(found.waiters.iter().all(|waiter| waiter.metadata.is_some() && waiter.token.is_none()));
}

/// What is cut would be shown as none.
#[tokio::test(flavor = "multi_thread")]
async fn inspect_shows_the_longest_metadata() {
    let (redis, name) = (shared(), fresh_name());
    let session = session(redis, LONG).await;
    acquire(&session, &name).await;
    let counter = side(&name, "fence");
    let stored = redis.cli(&["GET", &counter]).unwrap();
    let (before, metadata) = stored.text().split_once('{').unwrap();
    let padding = " ".repeat(METADATA_BYTES_MAX - metadata.len() - 1);
    let longest = format!("{before}{{{padding}{metadata}");
    redis.command(&[b"SET".as_slice(), counter.as_bytes(), longest.as_bytes()]).unwrap();
    let inspecting = backend(&redis.url());
    let found = inspecting.admin().unwrap().inspect(&name).await.unwrap();
    assert_eq!(found.holder.unwrap().metadata.unwrap().label.as_deref(), Some("test"));
}

/// An operator may have put anything there.
#[tokio::test(flavor = "multi_thread")]
async fn inspect_does_not_read_metadata_that_are_too_long() {
    let (redis, name) = (Redis::start().unwrap(), fresh_name());
    let session = session(&redis, LONG).await;
    acquire(&session, &name).await;
    let waiter = enqueued(&session, &name).await;
    let inspecting = backend(&redis.url());
    // Whether metadata are shown, and how many fields were read: one says when it lapses.
    let shown = async || {
        let before = redis.calls("hget").unwrap();
        let found = inspecting.admin().unwrap().inspect(&name).await.unwrap();
        (found.waiters[0].metadata.is_some(), redis.calls("hget").unwrap() - before)
    };
    assert_eq!(shown().await, (true, 2));
    let (field, long) = (format!("@{}", waiter.claim.id()), "x".repeat(METADATA_BYTES_MAX + 1));
    redis.cli(&["HSET", &side(&name, "deadlines"), &field, &long]).unwrap();
    assert_eq!(shown().await, (false, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_shows_no_more_waiters_than_its_bound() {
    let (redis, name) = (shared(), fresh_name());
    raw::add_lapsed_waiters(redis, &name, INSPECTED_WAITERS_MAX + 1);
    let revive = "for _, claim in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
        redis.call('HSET', KEYS[2], claim, ARGV[1])
    end";
    let [queue, lapses] = ["queue", "deadlines"].map(|what| side(&name, what));
    let entry = format!("{}:60000:c0ffee", 1_u64 << 52);
    redis.cli(&["EVAL", revive, "2", &queue, &lapses, &entry]).unwrap();
    let inspecting = backend(&redis.url());
    let found = inspecting.admin().unwrap().inspect(&name).await.unwrap();
    assert_eq!(found.waiters.len(), INSPECTED_WAITERS_MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_clients_exclude_each_other_and_share_evenly() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 30;
    let (redis, name) = (shared(), fresh_name());
    let inside = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let (session, name, inside) = (session(redis, LONG).await, name.clone(), Arc::clone(&inside));
        tasks.push(tokio::spawn(async move {
            let mut tokens = Vec::new();
            for _ in 0..ROUNDS {
                let grant = acquire(&session, &name).await;
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two holders");
                tokens.push(grant.token());
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                release(&session, &grant).await;
            }
            tokens
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        // `acquire` and `release` have time limits of their own.
        let tokens = task.await.unwrap();
        assert_rising(&tokens);
        all.extend(tokens);
    }
    all.sort_unstable();
    assert_rising(&all);
    until("the last release is seen", async || redis.keys(name.as_str()).unwrap().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_counts_from_the_sending_of_its_request() {
    let proxy = Proxy::start_redis(shared().endpoint()).unwrap();
    let session = session_at(&format!("redis://{}/{PATIENT}", proxy.endpoint()), LONG).await;
    let (name, clock) = (fresh_name(), Clock::boot());
    proxy.set(Direction::Requests, Flow::Hold);
    let waiting = start(&session, &name);
    until("the acquire is sent", async || proxy.holds("EVALSHA")).await;
    let before_the_answer = clock.now();
    proxy.pass();
    let grant = waiting.granted().await;
    assert!(grant.armed_at() < before_the_answer, "{:?} after {before_the_answer:?}", grant.armed_at());
}
