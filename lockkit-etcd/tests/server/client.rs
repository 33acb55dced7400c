//! The whole client on a real server, as a user sees it.

use std::time::Duration;

use lockkit_core::{ErrorKind, LockClient, Status};
use lockkit_testbed::Etcd;

use crate::common::{LONG, backend, bounded, lease_of_only_session, own_server, plain, shared, until};

/// Short, because tests wait for its end. Long enough that a busy machine renews in time.
const SHORT: Duration = Duration::from_secs(8);

async fn client(etcd: &Etcd, ttl: Duration) -> LockClient {
    LockClient::builder(backend(&etcd.url())).ttl(ttl).label("test").build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_exclude_between_clients_and_tokens_rise() {
    let (one, other) = (client(shared(), LONG).await, client(shared(), LONG).await);
    let first = one.lock("client/x").unwrap().acquire().await.unwrap();
    let lock = other.lock("client/x").unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire_timeout(Duration::from_secs(1)).await.unwrap().is_none());
    let seen = other.inspect("client/x").await.unwrap();
    assert_eq!(seen.holder.unwrap().metadata.unwrap().label.as_deref(), Some("test"));
    let token = first.token();
    drop(first);
    let second = bounded(lock.acquire()).await.unwrap();
    assert!(second.token() > token);
    second.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_and_dropped_futures_leave_nothing() {
    let etcd = own_server();
    let client = client(&etcd, LONG).await;
    let lock = client.lock("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    for _ in 0..20 {
        let dropped = tokio::time::timeout(Duration::from_millis(3), lock.acquire()).await;
        assert!(dropped.is_err());
        assert!(lock.acquire_timeout(Duration::from_millis(3)).await.unwrap_or_default().is_none());
    }
    until("only the holder is left", async || etcd.keys("lockkit/x/").unwrap().len() == 1).await;
    guard.release().await.unwrap();
    client.close().await.unwrap();
    assert_eq!(etcd.keys("").unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn minimum_ttl_of_the_server_is_reported() {
    let client = client(shared(), Duration::from_millis(1)).await;
    assert_eq!(client.ttl(), Duration::from_secs(2));
    let odd = LockClient::builder(backend(&shared().url())).ttl(Duration::from_millis(2_500)).build();
    assert_eq!(odd.await.unwrap().ttl(), Duration::from_secs(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lease_loses_the_guard_and_nothing_else() {
    let etcd = own_server();
    let client = client(&etcd, LONG).await;
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    let lock = client.lock("x").unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("the other caller waits", async || etcd.keys("lockkit/x/").unwrap().len() == 2).await;
    plain(&etcd).await.lease_revoke(lease_of_only_session(&etcd)).await.unwrap();
    assert_eq!(bounded(guard.lost()).await.kind(), ErrorKind::Lost);
    assert!(!guard.is_held());
    // The waiter has moved to the new session.
    let next = bounded(waiting).await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    next.check().unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_key_loses_the_guard_within_a_heartbeat() {
    let etcd = own_server();
    let client = client(&etcd, SHORT).await;
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    let kept = client.lock("y").unwrap().acquire().await.unwrap();
    assert!(etcd.delete(&etcd.keys("lockkit/x/").unwrap()[0]).unwrap());
    assert_eq!(bounded(guard.lost()).await.kind(), ErrorKind::Lost);
    assert!(kept.is_held());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_ends_the_hold_before_the_lease_and_the_client_recovers() {
    let etcd = own_server();
    let client = client(&etcd, SHORT).await;
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    let token = guard.token();
    let mut status = client.status();
    etcd.pause().unwrap();
    assert!(matches!(bounded(status.changed()).await, Status::Suspect { .. }));
    assert!(guard.is_held(), "suspect is not lost");
    assert_eq!(bounded(guard.lost()).await.kind(), ErrorKind::Lost);
    etcd.resume().unwrap();
    drop(guard);
    let next = bounded(client.lock("x").unwrap().acquire()).await.unwrap();
    assert!(next.token() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_renewed_outlives_its_ttl() {
    let etcd = own_server();
    let pings = || etcd.metrics().unwrap().grpc_received("LeaseKeepAlive");
    let (client, before) = (client(&etcd, SHORT).await, pings());
    let guard = client.lock("x").unwrap().acquire().await.unwrap();
    until("it was renewed for two ttls", async || pings() >= before + 6).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}
