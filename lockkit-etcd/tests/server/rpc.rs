//! Claims through the server's Lock RPC (`form=rpc`).

use std::sync::Arc;

use etcd_client::LockOptions;
use lockkit_core::{
    Clock, FencingToken,
    backend::{Renewal, Session},
};
use lockkit_testbed::{Etcd, Proxy};

use crate::common::{
    LONG, acquire, bounded, cut, enqueued, fresh_name, is_gave_up, plain, queue, release, session,
    session_at, shared, start, try_acquire, until, url_through,
};

async fn rpc_session(etcd: &Etcd) -> Arc<dyn Session> {
    session_at(&format!("{}/?form=rpc", etcd.url()), LONG).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rpc_and_queue_share_a_lock_in_order() {
    let name = fresh_name();
    let (one, other) = (rpc_session(shared()).await, session(shared(), LONG).await);
    let first = acquire(&one, &name).await;
    let second = enqueued(&other, &name).await;
    let third = start(&one, &name);
    until("the third queues", async || shared().keys(&queue(&name)).unwrap().len() == 3).await;
    release(&one, &first).await;
    let second = second.granted().await;
    assert!(second.token() > first.token() && third.is_waiting());
    release(&other, &second).await;
    release(&one, &third.granted().await).await;
    assert_eq!(shared().keys(&queue(&name)).unwrap(), [""; 0]);
}

/// The claim's lease is granted before it queues, and no heartbeat renews it.
#[tokio::test(flavor = "multi_thread")]
async fn lifetime_of_a_grant_starts_with_the_request_of_its_lease() {
    let (clock, name) = (Clock::boot(), fresh_name());
    let (holder, session) = (rpc_session(shared()).await, rpc_session(shared()).await);
    let held = acquire(&holder, &name).await;
    let waiting = start(&session, &name);
    until("it queues", async || shared().keys(&queue(&name)).unwrap().len() == 2).await;
    let queued = clock.now();
    release(&holder, &held).await;
    let next = waiting.granted().await;
    assert!(next.armed_at() < queued, "the lease is older");
    release(&session, &next).await;
}

/// The RPC that waits is aborted, and its lease is revoked.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_gives_up_leaves_neither_key_nor_lease() {
    let etcd = Etcd::start().unwrap();
    let (session, name) = (rpc_session(&etcd).await, fresh_name());
    let held = acquire(&session, &name).await;
    let waiting = start(&session, &name);
    until("it queues", async || etcd.keys(&queue(&name)).unwrap().len() == 2).await;
    waiting.control.give_up();
    assert!(is_gave_up(&waiting.ends().await));
    assert_eq!((etcd.keys(&queue(&name)).unwrap().len(), etcd.leases().unwrap()), (1, 1));
    assert!(is_gave_up(&try_acquire(&session, &name).await));
    assert_eq!((etcd.keys(&queue(&name)).unwrap().len(), etcd.leases().unwrap()), (1, 1));
    release(&session, &held).await;
    assert_eq!(etcd.leases().unwrap(), 0);
}

/// The server deletes the key of a wait whose connection has broken. The claim starts again behind the others.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_whose_connection_breaks_starts_again() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (one, other) =
        (rpc_session(&etcd).await, session_at(&format!("{}&form=rpc", url_through(&proxy)), LONG).await);
    let name = fresh_name();
    let held = acquire(&one, &name).await;
    let waiting = enqueued(&other, &name).await;
    until("it queues", async || etcd.keys(&queue(&name)).unwrap().len() == 2).await;
    let before = etcd.keys(&queue(&name)).unwrap();
    cut(&proxy);
    until("it queues again", async || {
        let now = etcd.keys(&queue(&name)).unwrap();
        now.len() == 2 && now != before
    })
    .await;
    release(&one, &held).await;
    let granted = waiting.granted().await;
    release(&other, &granted).await;
    assert_eq!(etcd.leases().unwrap(), 0);
}

/// etcd 3.4 answers the RPC although the key of the waiter is gone.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_whose_key_was_deleted_is_not_granted_on_it() {
    let etcd = Etcd::start().unwrap();
    let (session, name) = (rpc_session(&etcd).await, fresh_name());
    let held = acquire(&session, &name).await;
    let waiting = start(&session, &name);
    until("it queues", async || etcd.keys(&queue(&name)).unwrap().len() == 2).await;
    let mut client = plain(&etcd).await;
    let lease = client.lease_grant(600, None).await.unwrap().id();
    let third = tokio::spawn({
        let (mut locks, name) = (client.lock_client(), queue(&name));
        async move { locks.lock(name.trim_end_matches('/'), Some(LockOptions::new().with_lease(lease))).await }
    });
    until("a third one queues", async || etcd.keys(&queue(&name)).unwrap().len() == 3).await;
    let own = format!("{lease:x}");
    let key = etcd.keys(&queue(&name)).unwrap().into_iter();
    let first =
        client.get(queue(&name), Some(oldest())).await.unwrap().kvs()[0].key_str().unwrap().to_owned();
    let key = key.filter(|key| !key.ends_with(&own)).find(|key| *key != first).unwrap();
    assert!(etcd.delete(&key).unwrap());
    release(&session, &held).await;
    bounded(third).await.unwrap().unwrap();
    // Its own key is gone, and the third one holds the lock.
    match waiting.ends().await {
        Ok(lockkit_core::backend::Acquired::EntryGone) => {}
        other => panic!("{other:?}"),
    }
    client.lease_revoke(lease).await.unwrap();
}

fn oldest() -> etcd_client::GetOptions {
    etcd_client::GetOptions::new()
        .with_prefix()
        .with_sort(etcd_client::SortTarget::Create, etcd_client::SortOrder::Ascend)
        .with_limit(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_renews_waiters_and_finds_a_revoked_lease() {
    let etcd = Etcd::start().unwrap();
    let (session, name) = (rpc_session(&etcd).await, fresh_name());
    let held = acquire(&session, &name).await;
    let kept = acquire(&session, &fresh_name()).await;
    let _waiting = enqueued(&session, &name).await;
    let pings = || etcd.metrics().unwrap().grpc_received("LeaseKeepAlive");
    until("all three have a key", async || etcd.keys("lockkit/").unwrap().len() == 3).await;
    let before = pings();
    bounded(session.renew(&[held.clone(), kept.clone()])).await;
    assert_eq!(pings() - before, 3);
    let lease = etcd.keys(&queue(&name)).unwrap();
    let mut client = plain(&etcd).await;
    let first = client.get(queue(&name), Some(oldest())).await.unwrap().kvs()[0].lease();
    assert_eq!(lease.len(), 2);
    client.lease_revoke(first).await.unwrap();
    let renewals = bounded(session.renew(&[held.clone(), kept.clone()])).await;
    let of = |claim| renewals.holds.iter().find(|(id, _)| *id == claim).map(|(_, renewal)| renewal).unwrap();
    assert!(matches!(of(held.claim()), Renewal::Gone), "{renewals:?}");
    assert!(matches!(of(kept.claim()), Renewal::Renewed { .. }), "{renewals:?}");
    assert!(matches!(renewals.session, Renewal::Renewed { .. }), "{renewals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn close_revokes_every_lease() {
    let etcd = Etcd::start().unwrap();
    let (session, name) = (rpc_session(&etcd).await, fresh_name());
    let held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    assert!(held.token() > FencingToken::new(0));
    bounded(session.close()).await.unwrap();
    assert!(waiting.ends().await.is_err());
    until("nothing is left", async || etcd.leases().unwrap() == 0 && etcd.keys("").unwrap().is_empty()).await;
}
