//! Handoffs by a message alone: it grants only what it must.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use lockkit_core::{
    BootInstant, Clock, LockName, Metadata, Proposal,
    backend::{Claim, ClaimControl, Grant, Session},
};
use lockkit_testbed::{Direction, Flow, Proxy, Redis};

use crate::{
    common::{
        LONG, PendingClaim, acquire, bounded, enqueued, fresh_name, granted, is_gave_up, release, scripts,
        session, session_at, session_on_set_clock, shared, side, until,
    },
    raw::{self, Claimant},
    topologies::{PATIENT, is_renewed},
};

/// Starts a server that has every script that is counted, so that none is sent twice.
fn start() -> Redis {
    let redis = Redis::start().unwrap();
    for script in [*raw::ACQUIRE, *raw::CONFIRM, *raw::RELEASE, *raw::HEARTBEAT] {
        redis.cli(&["SCRIPT", "LOAD", script]).unwrap();
    }
    redis
}

/// A holder, and a claim of another session that waits for it.
struct Contended {
    held: Grant,
    waiter: PendingClaim,
    /// The channel of the waiter's client.
    channel: String,
}

impl Contended {
    async fn new(
        redis: &Redis,
        holder: &Arc<dyn Session>,
        other: &Arc<dyn Session>,
        name: &LockName,
    ) -> Self {
        let held = acquire(holder, name).await;
        let waiter = enqueued(other, name).await;
        let entry = redis.cli(&["HGET", &side(name, "deadlines"), &waiter.claim.id().to_string()]).unwrap();
        let channel = format!("lockkit:client:{}", entry.text().rsplit(':').next().unwrap());
        Self { held, waiter, channel }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pushed_grant_counts_from_the_sending_of_the_last_answered_request() {
    let (redis, name, clock) = (start(), fresh_name(), Clock::boot());
    let (one, other) = (session(&redis, LONG).await, session(&redis, LONG).await);
    let mut held = acquire(&one, &name).await;
    for by_heartbeat in [false, true] {
        let before_the_claim = clock.now();
        let waiter = enqueued(&other, &name).await;
        let before_the_heartbeat = clock.now();
        if by_heartbeat {
            bounded(other.renew(&[])).await;
        }
        let (answered, before) = (clock.now(), scripts(&redis));
        release(&one, &held).await;
        let next = waiter.granted().await;
        assert_eq!(scripts(&redis) - before, 1, "it was confirmed");
        let least = if by_heartbeat { before_the_heartbeat } else { before_the_claim };
        assert!((least..=answered).contains(&next.armed_at()), "{:?} after {answered:?}", next.armed_at());
        assert!(is_renewed(&other, &next).await);
        release(&other, &next).await;
        held = acquire(&one, &name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn push_that_is_not_newer_than_the_last_answer_is_a_hint() {
    let (redis, name) = (start(), fresh_name());
    let (one, other) = (session(&redis, LONG).await, session(&redis, LONG).await);
    let Contended { held, waiter, channel } = Contended::new(&redis, &one, &other, &name).await;
    let claim = waiter.claim.id();
    for token in [held.token().get(), 1] {
        let before = scripts(&redis);
        redis.cli(&["PUBLISH", &channel, &format!("{claim}:{token}")]).unwrap();
        until("it is confirmed", async || scripts(&redis) > before).await;
        assert!(waiter.is_waiting(), "granted with token {token}");
    }
    // The counter decides, even if it is ahead of the server's clock.
    let ahead = 1_u64 << 52;
    redis.cli(&["SET", &side(&name, "fence"), &ahead.to_string()]).unwrap();
    bounded(other.renew(&[])).await;
    let before = scripts(&redis);
    redis.cli(&["PUBLISH", &channel, &format!("{claim}:{ahead}")]).unwrap();
    until("it is confirmed", async || scripts(&redis) > before).await;
    assert!(waiter.is_waiting());
    release(&one, &held).await;
    assert_eq!(waiter.granted().await.token().get(), ahead + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn pushed_grant_counts_from_the_sending_of_a_heartbeat_that_is_answered_late() {
    let (redis, name) = (start(), fresh_name());
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let (slow, now_ms) = session_on_set_clock(&format!("redis://{}/{PATIENT}", proxy.endpoint())).await;
    let one = session(&redis, LONG).await;
    let Contended { held, waiter, .. } = Contended::new(&redis, &one, &slow, &name).await;
    now_ms.store(1, SeqCst);
    proxy.hold_requests_from("EVALSHA");
    let heartbeat = tokio::spawn({
        let slow = Arc::clone(&slow);
        async move { slow.renew(&[]).await }
    });
    until("the heartbeat is sent", async || proxy.holds("EVALSHA")).await;
    now_ms.store(2, SeqCst);
    proxy.pass();
    bounded(heartbeat).await.unwrap();
    release(&one, &held).await;
    let next = waiter.granted().await;
    assert_eq!(next.armed_at(), BootInstant::from_start(Duration::from_millis(1)));
    release(&slow, &next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn push_later_than_a_third_of_the_ttl_is_confirmed() {
    let (redis, name) = (start(), fresh_name());
    let (one, (other, now_ms)) = (session(&redis, LONG).await, session_on_set_clock(&redis.url()).await);
    let third = u64::try_from((LONG / 3).as_millis()).unwrap();
    for (late_by, is_confirmed) in [(0, false), (1, true)] {
        now_ms.store(0, SeqCst);
        let held = acquire(&one, &name).await;
        let waiter = enqueued(&other, &name).await;
        now_ms.store(third + late_by, SeqCst);
        let before = scripts(&redis);
        release(&one, &held).await;
        let next = waiter.granted().await;
        assert_eq!(scripts(&redis) - before, 1 + u64::from(is_confirmed), "late by {late_by} ms");
        let armed_ms = if is_confirmed { third + late_by } else { 0 };
        assert_eq!(next.armed_at(), BootInstant::from_start(Duration::from_millis(armed_ms)));
        release(&other, &next).await;
    }
}

/// Its confirm notifies observers, which the release of a holder that is no candidate does not.
#[tokio::test(flavor = "multi_thread")]
async fn push_to_a_candidate_is_confirmed() {
    let (redis, name) = (start(), fresh_name());
    let (one, other) = (session(&redis, LONG).await, session(&redis, LONG).await);
    let mut watch = bounded(other.elections().unwrap().watch(&name)).await.unwrap();
    let held = acquire(&one, &name).await;
    let (control, metadata) = (ClaimControl::new(), Metadata::of_this_process(None));
    let claim = Claim::new(name.clone(), true, metadata.with_proposal(Proposal::new("a", 1)), &control);
    let campaign = tokio::spawn({
        let other = Arc::clone(&other);
        async move { other.acquire(claim).await }
    });
    until("the candidate waits", async || control.was_contended()).await;
    let before = scripts(&redis);
    release(&one, &held).await;
    let next = granted(bounded(campaign).await.unwrap());
    assert_eq!(scripts(&redis) - before, 2);
    bounded(watch.changed()).await;
    release(&other, &next).await;
}

/// Messages that come twice, and after the end of their grants.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_push_changes_nothing() {
    let (redis, name) = (start(), fresh_name());
    let (one, other) = (session(&redis, LONG).await, session(&redis, LONG).await);
    let Contended { held, waiter, channel } = Contended::new(&redis, &one, &other, &name).await;
    let claim = waiter.claim.id();
    release(&one, &held).await;
    let next = waiter.granted().await;
    let push = format!("{claim}:{}", next.token());
    redis.cli(&["PUBLISH", &channel, &push]).unwrap();
    assert!(is_renewed(&other, &next).await);
    release(&other, &next).await;
    let later = Contended::new(&redis, &one, &other, &name).await;
    redis.cli(&["PUBLISH", &channel, &push]).unwrap();
    // Over the same connection as the message, after it.
    bounded(other.renew(&[])).await;
    assert!(later.waiter.is_waiting());
    release(&one, &later.held).await;
    assert!(later.waiter.granted().await.token() > next.token());
}

/// Its client has not received the message yet, and no longer wants the lock.
#[tokio::test(flavor = "multi_thread")]
async fn pushed_grant_that_nobody_wants_is_released() {
    let (redis, name) = (start(), fresh_name());
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let slow = session_at(&format!("redis://{}/{PATIENT}", proxy.endpoint()), LONG).await;
    let other = session(&redis, LONG).await;
    for gives_up in [true, false] {
        let held = acquire(&other, &name).await;
        let waiter = enqueued(&slow, &name).await;
        proxy.set(Direction::Replies, Flow::Hold);
        release(&other, &held).await;
        let value = redis.cli(&["GET", name.as_str()]).unwrap();
        assert!(value.text().starts_with(&waiter.claim.id().to_string()), "{value:?}");
        if gives_up {
            waiter.control.give_up();
        }
        proxy.pass();
        if gives_up {
            assert!(is_gave_up(&waiter.ends().await));
        } else {
            release(&slow, &waiter.granted().await).await;
        }
        until("the lock is free", async || redis.keys(name.as_str()).unwrap().is_empty()).await;
    }
}

/// What was published meanwhile is lost; what was answered before is not compared with what comes now.
#[tokio::test(flavor = "multi_thread")]
async fn handoffs_work_after_the_connection_is_replaced() {
    let (redis, name) = (start(), fresh_name());
    let (one, other) = (session(&redis, LONG).await, session(&redis, LONG).await);
    let mut held = acquire(&one, &name).await;
    for _ in 0..5 {
        let waiter = enqueued(&other, &name).await;
        redis.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        release(&one, &held).await;
        let next = waiter.granted().await;
        assert!(next.token() > held.token() && is_renewed(&other, &next).await);
        release(&other, &next).await;
        held = acquire(&one, &name).await;
    }
}

/// The new connection may lead to another master, which has made the grant before the answer of the former one.
#[tokio::test(flavor = "multi_thread")]
async fn push_over_a_connection_that_requests_do_not_use_yet_is_confirmed() {
    let (redis, name) = (start(), fresh_name());
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let slow = session_at(&format!("redis://{}/{PATIENT}", proxy.endpoint()), LONG).await;
    let one = session(&redis, LONG).await;
    let Contended { held, waiter, channel } = Contended::new(&redis, &one, &slow, &name).await;
    let subscribers = || redis.cli(&["PUBSUB", "NUMSUB", &channel]).unwrap().list()[1].number();
    proxy.hold_requests_from("SUBSCRIBE");
    proxy.reset();
    until("the new connection subscribes", async || proxy.holds("SUBSCRIBE")).await;
    proxy.set(Direction::Replies, Flow::Hold);
    proxy.set(Direction::Requests, Flow::Pass);
    until("it has subscribed", async || subscribers() == Some(1)).await;
    let before = scripts(&redis);
    release(&one, &held).await;
    // The answer to SUBSCRIBE and the message arrive together.
    proxy.pass();
    let next = waiter.granted().await;
    assert_eq!(scripts(&redis) - before, 2, "it was not confirmed");
    release(&slow, &next).await;
}

/// So a client knows which grants were made after an answer, also at a server that takes the place of this one.
#[test]
fn answer_to_a_waiter_separates_earlier_tokens_from_later_ones() {
    let (redis, name) = (shared(), fresh_name());
    let [holder, waiter] = [(); 2].map(|()| Claimant::new(redis, &name));
    let counter = side(&name, "fence");
    let last = |answer: &lockkit_testbed::Reply| answer.list()[2].number().unwrap();
    let token = Claimant::token(holder.acquire());
    let begun = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let first = last(&waiter.run(*raw::ACQUIRE, &["c0ffee", "wait", "{}"]));
    assert!(first >= token && first >= i64::try_from(begun.as_micros()).unwrap());
    assert!(last(&waiter.run(*raw::CONFIRM, &["c0ffee"])) >= first);
    let ahead = 1_i64 << 52;
    redis.cli(&["SET", &counter, &ahead.to_string()]).unwrap();
    assert_eq!(last(&waiter.run(*raw::CONFIRM, &["c0ffee"])), ahead);
    holder.release();
    assert_eq!(Claimant::token(waiter.confirm()), ahead + 1);
}

/// As in the answers to the requests of the waiter itself: another server may have granted the lock since.
#[test]
fn last_token_in_the_answer_to_a_heartbeat_is_not_below_the_clock() {
    let (redis, name) = (shared(), fresh_name());
    let [holder, waiter] = [(); 2].map(|()| Claimant::new(redis, &name));
    Claimant::token(holder.acquire());
    assert_eq!(waiter.acquire().0, "queued");
    let begun = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let sides = ["fence", "queue", "deadlines"].map(|what| side(&name, what));
    let mut heartbeat = vec!["EVAL", *raw::HEARTBEAT, "4", name.as_str()];
    heartbeat.extend(sides.iter().map(String::as_str));
    heartbeat.extend([raw::TTL, "c0ffee", raw::LINGER, &*waiter.claim]);
    let last = redis.cli(&heartbeat).unwrap().list()[0].list()[1].number().unwrap();
    assert!(last >= i64::try_from(begun.as_micros()).unwrap(), "{last}");
}
