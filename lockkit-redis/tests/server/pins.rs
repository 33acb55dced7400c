//! Holds that last at least so long.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockkit_core::{
    LockName,
    backend::{Grant, Renewal, Session},
};
use lockkit_testbed::{Redis, RedisReplicas};

use crate::{
    common::{
        LONG, SHORT, acquire, bounded, enqueued, fresh_name, is_gave_up, only_renewal, release, session,
        session_at, shared, try_acquire, until,
    },
    raw::{ACQUIRE, CONFIRM, Claimant},
    topologies::PATIENT,
};

/// Longer than the shortest ttl, and shorter than any pause before a re-check at [`LONG`].
const PIN: Duration = Duration::from_secs(2);

/// The bound of a grant after a lock has expired, on a busy machine: less than the pause before a re-check.
const TAKEOVER_MAX: Duration = Duration::from_secs(5);

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
    let (dead, living) = (session(redis, SHORT).await, session(redis, LONG).await);
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
    let session = session(redis, SHORT).await;
    let held = acquire(&session, &name).await;
    assert!(pin(&session, &held, LONG).await);
    assert!(pin(&session, &held, PIN).await, "a shorter pin");
    for _ in 0..2 {
        let renewal = only_renewal(bounded(session.renew(std::slice::from_ref(&held))).await);
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
        assert!(pttl(redis, &name) > 50_000, "after a heartbeat");
    }
    // Late copies of the requests that were granted the lock.
    let late = Claimant { claim: held.claim().to_string(), ttl: "1000", ..Claimant::new(redis, &name) };
    late.run(ACQUIRE, &["c0ffee", "wait", "{}"]);
    late.run(CONFIRM, &["c0ffee"]);
    assert!(pttl(redis, &name) > 50_000, "after late copies");
    // Lost by a failover: a heartbeat brings it back.
    redis.cli(&["PEXPIRE", name.as_str(), "1000"]).unwrap();
    bounded(session.renew(std::slice::from_ref(&held))).await;
    assert!(pttl(redis, &name) > 50_000, "after a failover");
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
        redis.cli(&["PEXPIRE", grant.name().as_str(), "5000"]).unwrap();
    }
    let heartbeat = bounded(session.renew(&[pinned.clone(), other.clone(), gone.clone()])).await;
    for (claim, renewal) in heartbeat.holds {
        assert_eq!(matches!(renewal, Renewal::Gone), claim == gone.claim(), "{renewal:?}");
    }
    assert!(pttl(redis, pinned.name()) > 170_000);
    assert!((50_000..=60_000).contains(&pttl(redis, other.name())));
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
    assert!(living[0] > 170_000 && living[1] > 170_000 && living[2] == -2, "{living:?}");
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
