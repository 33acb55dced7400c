//! Pins: minimum hold times.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use lockkit_core::{
    ErrorKind, LockName,
    backend::{Grant, Renewal, Session},
    limits::RELEASE_ANSWER_MAX,
};
use lockkit_testbed::{Direction, Flow, Proxy, Redis, RedisReplicas};

use crate::{
    common::{
        LONG, SHORT, acquire, bounded, enqueued, fresh_name, is_gave_up, only_renewal, release, scripts,
        session, session_at, session_on_set_clock, shared, try_acquire, until,
    },
    raw::{ACQUIRE, CONFIRM, Claimant},
    topologies::PATIENT,
};

/// The ttl of a session that dies: longer than its requests take on a busy machine.
const DYING: Duration = Duration::from_secs(4);

/// Longer than [`DYING`], and shorter than any pause before a re-check at [`LONG`].
const PIN: Duration = Duration::from_secs(5);

/// The bound of a grant after a lock has expired, on a busy machine. With [`PIN`], no more than the pause before a
/// re-check.
const TAKEOVER_MAX: Duration = Duration::from_secs(4);

async fn pin(session: &Arc<dyn Session>, grant: &Grant, at_least: Duration) -> bool {
    bounded(session.pins().unwrap().pin(grant, at_least)).await.unwrap()
}

async fn leave(session: &Arc<dyn Session>, grant: &Grant) {
    bounded(session.pins().unwrap().leave(grant)).await.unwrap();
}

fn pttl(redis: &Redis, name: &LockName) -> i64 {
    redis.cli(&["PTTL", name.as_str()]).unwrap().number().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_hold_stays_until_its_pin_ends() {
    let (redis, name) = (shared(), fresh_name());
    let (dead, living) = (session(redis, DYING).await, session(redis, LONG).await);
    let before = acquire(&dead, &name).await;
    let waiter = enqueued(&living, &name).await;
    let pinned = Instant::now();
    assert!(pin(&dead, &before, PIN).await);
    drop(dead);
    let next = waiter.granted().await;
    let took = pinned.elapsed();
    assert!(took >= PIN, "granted after {took:?}");
    assert!(took < PIN + TAKEOVER_MAX, "granted only after {took:?}");
    assert!(next.token() > before.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_of_the_holder_shortens_a_pin() {
    let (redis, name) = (shared(), fresh_name());
    // A heartbeat may take a quarter of the ttl. The pin is longer.
    let session = session(redis, LONG / 3).await;
    let held = acquire(&session, &name).await;
    assert!(pin(&session, &held, LONG).await);
    assert!(pin(&session, &held, PIN).await, "a shorter pin");
    for _ in 0..2 {
        let renewal = only_renewal(bounded(session.renew(std::slice::from_ref(&held))).await);
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
        assert!(pttl(redis, &name) > 30_000, "after a heartbeat");
    }
    // Late copies of the requests that were granted the lock.
    let late = Claimant { claim: held.claim().to_string(), ttl: "1000", ..Claimant::new(redis, &name) };
    late.run(*ACQUIRE, &["c0ffee", "wait", "{}"]);
    late.run(*CONFIRM, &["c0ffee"]);
    assert!(pttl(redis, &name) > 30_000, "after late copies");
    // Lost by a failover: a heartbeat brings it back.
    redis.cli(&["PEXPIRE", name.as_str(), "20000"]).unwrap();
    bounded(session.renew(std::slice::from_ref(&held))).await;
    assert!(pttl(redis, &name) > 30_000, "after a failover");
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_and_other_holds_share_a_heartbeat() {
    let redis = shared();
    let session = session(redis, LONG).await;
    let (pinned, other, gone) = (
        acquire(&session, &fresh_name()).await,
        acquire(&session, &fresh_name()).await,
        acquire(&session, &fresh_name()).await,
    );
    assert!(pin(&session, &pinned, 3 * LONG).await);
    redis.cli(&["DEL", gone.name().as_str()]).unwrap();
    assert!(!pin(&session, &gone, LONG).await, "a lost grant is not pinned");
    for grant in [&pinned, &other] {
        redis.cli(&["PEXPIRE", grant.name().as_str(), "20000"]).unwrap();
    }
    let heartbeat = bounded(session.renew(&[pinned.clone(), other.clone(), gone.clone()])).await;
    for (claim, renewal) in heartbeat.holds {
        assert_eq!(matches!(renewal, Renewal::Gone), claim == gone.claim(), "{renewal:?}");
    }
    assert!(pttl(redis, pinned.name()) > 100_000);
    assert!((30_000..=60_000).contains(&pttl(redis, other.name())));
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_outlasts_its_pin() {
    let (redis, name) = (shared(), fresh_name());
    let session = session(redis, LONG).await;
    let held = acquire(&session, &name).await;
    let pinned = Instant::now();
    assert!(pin(&session, &held, SHORT).await);
    until("the pin has ended", async || pinned.elapsed() > SHORT).await;
    let renewal = only_renewal(bounded(session.renew(std::slice::from_ref(&held))).await);
    assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
    assert!(pttl(redis, &name) > 50_000);
    // Nothing is left of the pin: the lock is handed over at once.
    let waiter = enqueued(&session, &name).await;
    leave(&session, &held).await;
    waiter.granted().await;
}

/// The waiter expects the lock's end one ttl later, until it is notified.
#[tokio::test(flavor = "multi_thread")]
async fn left_lock_is_granted_when_its_pin_ends() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    let held = acquire(&one, &name).await;
    let pinned = Instant::now();
    assert!(pin(&one, &held, PIN).await);
    let waiter = enqueued(&other, &name).await;
    let value = redis.cli(&["GET", name.as_str()]).unwrap();
    leave(&one, &held).await;
    leave(&one, &held).await;
    assert_eq!(redis.cli(&["GET", name.as_str()]).unwrap(), value);
    assert!(is_gave_up(&try_acquire(&one, &name).await));
    assert!(waiter.is_waiting());
    let next = waiter.granted().await;
    let took = pinned.elapsed();
    assert!(took >= PIN, "granted after {took:?}");
    assert!(took < PIN + TAKEOVER_MAX, "granted only after {took:?}");
    release(&other, &next).await;
}

/// Heartbeats shorten lifetimes that are too long, so they must know of the pin before its answer.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_before_the_answer_to_a_pin_does_not_shorten_it() {
    let (redis, name) = (shared(), fresh_name());
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let session = session_at(&format!("redis://{}/{PATIENT}", proxy.endpoint()), LONG).await;
    let held = acquire(&session, &name).await;
    // The server must know the script: to send it in full takes an answer.
    bounded(session.renew(std::slice::from_ref(&held))).await;
    proxy.set(Direction::Replies, Flow::Hold);
    let pinning = tokio::spawn({
        let (session, held) = (Arc::clone(&session), held.clone());
        async move { pin(&session, &held, 10 * LONG).await }
    });
    let left = |ms: Duration| i64::try_from(ms.as_millis()).unwrap();
    until("the lock is pinned", async || pttl(redis, &name) > left(2 * LONG)).await;
    let before = proxy.counts().to_server;
    let beating = tokio::spawn({
        let (session, held) = (Arc::clone(&session), held.clone());
        async move { session.renew(&[held]).await }
    });
    until("the heartbeat is sent", async || proxy.counts().to_server > before).await;
    proxy.set(Direction::Replies, Flow::Pass);
    assert!(bounded(pinning).await.unwrap());
    let renewal = only_renewal(bounded(beating).await.unwrap());
    assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
    assert!(pttl(redis, &name) > left(2 * LONG));
    release(&session, &held).await;
}

/// As a failover may lose it.
#[tokio::test(flavor = "multi_thread")]
async fn leave_restores_a_pin_that_was_lost() {
    let (redis, name) = (shared(), fresh_name());
    let session = session(redis, LONG).await;
    let held = acquire(&session, &name).await;
    assert!(pin(&session, &held, 3 * LONG).await);
    redis.cli(&["PEXPIRE", name.as_str(), "20000"]).unwrap();
    leave(&session, &held).await;
    assert!(pttl(redis, &name) > 100_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn left_hold_is_left_once() {
    let redis = Redis::start().unwrap();
    let (session, name) = (session(&redis, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    assert!(pin(&session, &held, 10 * LONG).await);
    leave(&session, &held).await;
    let before = scripts(&redis);
    leave(&session, &held).await;
    bounded(session.close()).await.unwrap();
    assert_eq!(scripts(&redis), before, "nothing is known of it any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn release_ends_a_pin() {
    let (redis, name) = (shared(), fresh_name());
    let (one, other) = (session(redis, LONG).await, session(redis, LONG).await);
    let held = acquire(&one, &name).await;
    assert!(pin(&one, &held, 10 * LONG).await);
    let waiter = enqueued(&other, &name).await;
    release(&one, &held).await;
    release(&other, &waiter.granted().await).await;
    let held = acquire(&one, &name).await;
    assert!(pin(&one, &held, 10 * LONG).await);
    release(&one, &held).await;
    assert_eq!(redis.keys(name.as_str()).unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_session_pins_and_leaves_nothing() {
    let (session, name) = (session(shared(), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    bounded(session.close()).await.unwrap();
    let pins = session.pins().unwrap();
    assert_eq!(bounded(pins.pin(&held, LONG)).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(bounded(pins.leave(&held)).await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn close_leaves_what_is_pinned() {
    let redis = shared();
    let session = session(redis, LONG).await;
    let [pinned, left, plain] = [(); 3].map(|()| fresh_name());
    let held = acquire(&session, &pinned).await;
    assert!(pin(&session, &held, 3 * LONG).await);
    let held = acquire(&session, &left).await;
    assert!(pin(&session, &held, 3 * LONG).await);
    leave(&session, &held).await;
    acquire(&session, &plain).await;
    bounded(session.close()).await.unwrap();
    let living = [&pinned, &left, &plain].map(|name| pttl(redis, name));
    assert!(living[0] > 100_000 && living[1] > 100_000 && living[2] == -2, "{living:?}");
}

/// The end that was asked for last counts, not the pin before it.
#[tokio::test(flavor = "multi_thread")]
async fn close_ends_a_pinned_hold_whose_release_was_not_confirmed() {
    let (mut redis, name) = (Redis::start().unwrap(), fresh_name());
    let session = session(&redis, LONG).await;
    let held = acquire(&session, &name).await;
    assert!(pin(&session, &held, 10 * LONG).await);
    redis.kill().unwrap();
    bounded(session.release(&held)).await.unwrap_err();
    redis.restart().unwrap();
    assert!(pttl(&redis, &name) > 0, "the server has lost the lock");
    until("the session is closed", async || session.close().await.is_ok()).await;
    assert_eq!(redis.keys(name.as_str()).unwrap(), [""; 0]);
}

/// The server counts from the arrival of the request, and the client may have sent it long before.
#[tokio::test(flavor = "multi_thread")]
async fn leave_does_not_shorten_a_pin_whose_request_came_late() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
    let url = format!("redis://{}/?request_timeout=20s", proxy.endpoint());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    proxy.set(Direction::Requests, Flow::Hold);
    let pinning = tokio::spawn({
        let (session, held) = (Arc::clone(&session), held.clone());
        async move { pin(&session, &held, 3 * LONG).await }
    });
    until("the request is on its way", async || proxy.holds(name.as_str())).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.pass();
    assert!(pinning.await.unwrap());
    let (asked, before) = (Instant::now(), pttl(&redis, &name));
    leave(&session, &held).await;
    let after = pttl(&redis, &name);
    let passed = i64::try_from(asked.elapsed().as_millis()).unwrap();
    assert!(after + passed + 1 >= before, "{after} ms, {passed} ms after {before} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_forgets_an_unconfirmed_leave_once_its_pin_has_ended() {
    let mut redis = Redis::start().unwrap();
    let (session, now_ms) = session_on_set_clock(&format!("{}/?request_timeout=5s", redis.url())).await;
    let held = acquire(&session, &fresh_name()).await;
    assert!(pin(&session, &held, 2 * LONG).await);
    redis.kill().unwrap();
    bounded(session.pins().unwrap().leave(&held)).await.unwrap_err();
    // A leave of a hold in the registry asks the server, which is down, and fails.
    let is_forgotten = async |after: Duration| {
        now_ms.store(u64::try_from(after.as_millis()).unwrap(), SeqCst);
        bounded(session.renew(&[])).await;
        bounded(session.pins().unwrap().leave(&held)).await.is_ok()
    };
    assert!(!is_forgotten(2 * LONG).await, "the server may still have the lock");
    assert!(is_forgotten(3 * LONG + RELEASE_ANSWER_MAX).await, "it is kept until the session ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn pin_counts_when_replicas_have_it() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{PATIENT}&min_replicas=1", nodes.url()), LONG).await;
    let name = fresh_name();
    let held = bounded(async {
        loop {
            // Fails until a replica has acknowledged something.
            if let Ok(lockkit_core::backend::Acquired::Granted(held)) = try_acquire(&session, &name).await {
                break held;
            }
        }
    })
    .await;
    assert!(pin(&session, &held, 3 * LONG).await);
    assert!(bounded(session.records().unwrap().write(&held, "done", LONG)).await.unwrap());
    for number in 1..nodes.len() {
        nodes.node(number).stop_replicating().unwrap();
    }
    let refused = bounded(session.pins().unwrap().pin(&held, 4 * LONG)).await.unwrap_err();
    assert!(refused.to_string().contains("replica"), "{refused}");
    let refused = bounded(session.records().unwrap().write(&held, "more", LONG)).await.unwrap_err();
    assert!(refused.to_string().contains("replica"), "{refused}");
    // What is not held is refused, whatever replicas acknowledge.
    nodes.node(0).cli(&["DEL", name.as_str()]).unwrap();
    assert!(!bounded(session.records().unwrap().write(&held, "late", LONG)).await.unwrap());
}
