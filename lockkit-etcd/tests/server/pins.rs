//! Pins: minimum hold times, even if the holder dies.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockkit_core::{
    BootInstant, Clock,
    backend::{Grant, Renewal, Session},
};
use lockkit_testbed::{Etcd, Proxy};

use crate::common::{
    LONG, acquire, bounded, enqueued, fresh_name, key_of_grant, own_server, plain, queue, release, session,
    session_at, until,
};

/// The shortest that the server grants.
const SHORT: Duration = Duration::from_secs(2);

/// The ttl of a client that dies: long enough to acquire and to pin on a busy machine.
const DYING: Duration = Duration::from_secs(5);

/// Longer than two of those.
const PIN: Duration = Duration::from_secs(12);

/// What the server may add to the lifetime of a lease, and a busy machine to a wait.
const SLACK: Duration = Duration::from_secs(6);

async fn pin(session: &Arc<dyn Session>, grant: &Grant, at_least: Duration) {
    assert!(bounded(session.pins().unwrap().pin(grant, at_least)).await.unwrap());
}

async fn leave(session: &Arc<dyn Session>, grant: &Grant) {
    bounded(session.pins().unwrap().leave(grant)).await.unwrap();
}

/// Sends one heartbeat; returns what it has renewed the hold from.
async fn renewed(session: &Arc<dyn Session>, grant: &Grant) -> BootInstant {
    let renewals = bounded(session.renew(std::slice::from_ref(grant))).await;
    match renewals.holds[0].1 {
        Renewal::Renewed { armed_at } => armed_at,
        ref other => panic!("not renewed but {other:?}"),
    }
}

/// The lease that the key of a hold is attached to.
async fn lease_of(etcd: &Etcd, grant: &Grant) -> i64 {
    plain(etcd).await.get(key_of_grant(grant), None).await.unwrap().kvs()[0].lease()
}

/// Ends the holder after a pin; another client must be granted the lock neither before its end nor long after it.
async fn next_is_granted_after_the_pin(end: impl AsyncFnOnce(&Etcd, Arc<dyn Session>, &Grant)) {
    let etcd = own_server();
    let (other, one, name) = (session(&etcd, LONG).await, session(&etcd, DYING).await, fresh_name());
    let held = acquire(&one, &name).await;
    let started = Instant::now();
    pin(&one, &held, PIN).await;
    let pinned = Instant::now();
    let next = enqueued(&other, &name).await;
    end(&etcd, one, &held).await;
    release(&other, &next.granted().await).await;
    let waited = started.elapsed();
    assert!(waited >= PIN && pinned.elapsed() < PIN + SLACK, "granted after {waited:?}");
    until("nothing is left", async || etcd.keys(&queue(&name)).unwrap().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_lock_outlasts_a_client_that_dies() {
    next_is_granted_after_the_pin(async |_, session, _| drop(session)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_lock_outlasts_its_session() {
    next_is_granted_after_the_pin(async |_, session, _| session.close().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_that_was_left_passes_on_at_the_end_of_its_pin() {
    next_is_granted_after_the_pin(async |etcd, session, held| {
        leave(&session, held).await;
        leave(&session, held).await;
        release(&session, held).await;
        assert_eq!(etcd.keys(&queue(held.name())).unwrap().len(), 2);
        // The session goes on, and keeps nothing of it.
        bounded(session.renew(&[])).await;
    })
    .await;
}

/// The pin is shorter than a ttl, so the first heartbeat moves the key back to the session's lease.
async fn moved_back(etcd: &Etcd) -> (Arc<dyn Session>, Grant, Instant) {
    let (session, name) = (session(etcd, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let (lease, started) = (lease_of(etcd, &held).await, Instant::now());
    pin(&session, &held, SHORT).await;
    let of_pin = lease_of(etcd, &held).await;
    assert_ne!(of_pin, lease);
    // The hold is believed for as long as an ordinary one.
    let granted = plain(etcd).await.lease_time_to_live(of_pin, None).await.unwrap().granted_ttl();
    assert!(granted.unsigned_abs() >= LONG.as_secs(), "{granted} s");
    renewed(&session, &held).await;
    assert_eq!(lease_of(etcd, &held).await, lease);
    (session, held, started)
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_that_is_left_after_its_key_was_moved_back_passes_on_at_the_end_of_its_pin() {
    let etcd = own_server();
    let (one, held, started) = moved_back(&etcd).await;
    let other = session(&etcd, LONG).await;
    let next = enqueued(&other, held.name()).await;
    leave(&one, &held).await;
    release(&other, &next.granted().await).await;
    let waited = started.elapsed();
    assert!((SHORT..SHORT + SLACK + SLACK).contains(&waited), "granted after {waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_is_closed_before_the_end_of_a_pin_keeps_its_key() {
    let etcd = own_server();
    let (session, held, started) = moved_back(&etcd).await;
    bounded(session.close()).await.unwrap();
    let keys = etcd.keys(&queue(held.name())).unwrap();
    assert!(keys == [key_of_grant(&held)] || started.elapsed() > SHORT, "{keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_longer_than_its_pin_stays_held() {
    const TTL: Duration = Duration::from_secs(6);
    const HELD: Duration = Duration::from_secs(18);
    let etcd = own_server();
    let (session, name) = (session(&etcd, TTL).await, fresh_name());
    let (clock, held) = (Clock::boot(), acquire(&session, &name).await);
    let (of_session, started) = (lease_of(&etcd, &held).await, clock.now());
    pin(&session, &held, TTL + TTL / 2).await;
    let of_pin = lease_of(&etcd, &held).await;
    assert_ne!(of_pin, of_session);
    // As a keeper does: on a busy machine, a heartbeat may fail.
    let mut heartbeats = tokio::time::interval(TTL / 3);
    let mut renewed_until = held.armed_at().after(TTL);
    while clock.now().since(started) < HELD {
        heartbeats.tick().await;
        assert!(clock.now() < renewed_until, "the hold was lost");
        match bounded(session.renew(std::slice::from_ref(&held))).await.holds.remove(0) {
            (_, Renewal::Renewed { armed_at }) => renewed_until = renewed_until.max(armed_at.after(TTL)),
            (_, Renewal::Unknown(_)) => {}
            (_, gone) => panic!("not renewed but {gone:?}"),
        }
    }
    assert_eq!(lease_of(&etcd, &held).await, of_session);
    release(&session, &held).await;
    assert_eq!(etcd.keys(&queue(&name)).unwrap(), [""; 0]);
}

/// A full store renews leases, and refuses to move the key.
#[tokio::test(flavor = "multi_thread")]
async fn hold_is_not_believed_for_longer_than_the_lease_of_its_pin() {
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    let (clock, held) = (Clock::boot(), acquire(&session, &name).await);
    pin(&session, &held, SHORT).await;
    let pinned = clock.now();
    etcd.set_no_space(true).unwrap();
    for _ in 0..2 {
        assert!(renewed(&session, &held).await <= pinned);
    }
    etcd.set_no_space(false).unwrap();
    assert!(renewed(&session, &held).await > pinned);
}

#[tokio::test(flavor = "multi_thread")]
async fn release_of_a_pinned_hold_removes_its_key_and_its_lease() {
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    pin(&session, &held, LONG * 60).await;
    pin(&session, &held, LONG).await;
    assert_eq!(etcd.leases().unwrap(), 2);
    release(&session, &held).await;
    assert_eq!(etcd.keys(&queue(&name)).unwrap(), [""; 0]);
    assert_eq!(etcd.leases().unwrap(), 1);
    let again = acquire(&session, &name).await;
    assert_ne!(key_of_grant(&again), key_of_grant(&held), "a request that names the old key may arrive late");
}

#[tokio::test(flavor = "multi_thread")]
async fn close_ends_a_pin_whose_release_was_not_confirmed() {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    // The close revokes the lease twice at most: both requests must not fail on a busy machine.
    let url = format!("etcd://{}/?request_timeout=20s", proxy.endpoint());
    let session = session_at(&url, LONG).await;
    let held = acquire(&session, &fresh_name()).await;
    pin(&session, &held, LONG * 60).await;
    proxy.refuse();
    bounded(session.release(&held)).await.unwrap_err();
    proxy.pass();
    bounded(session.close()).await.unwrap();
    assert_eq!((etcd.keys("").unwrap(), etcd.leases().unwrap()), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn pin_of_a_lost_hold_is_refused() {
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    etcd.delete(key_of_grant(&held)).unwrap();
    assert!(!bounded(session.pins().unwrap().pin(&held, LONG)).await.unwrap());
    assert!(matches!(bounded(session.renew(&[held])).await.holds[0].1, Renewal::Gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_key_ends_a_pinned_hold() {
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    pin(&session, &held, LONG * 60).await;
    renewed(&session, &held).await;
    etcd.delete(key_of_grant(&held)).unwrap();
    assert!(matches!(bounded(session.renew(&[held])).await.holds[0].1, Renewal::Gone));
}
