//! Permissions that are revoked while locks are held and waited for.

use std::time::Duration;

use lockkit_core::{
    Clock, ErrorKind, LockClient,
    backend::{Backend, Loss},
};
use lockkit_testbed::Etcd;

use crate::common::{
    LONGEST, acquire, backend, bounded, enqueued, fresh_name, is_gave_up, plain_as, session_at, until,
    url_as, with_login,
};

/// A ttl whose end a test waits for. Long enough that a busy machine renews in time.
const SHORT: Duration = Duration::from_secs(8);

/// Revokes every permission of the user by a role change.
async fn revoke_rights(etcd: &Etcd) {
    plain_as("root", etcd).await.user_revoke_role("app", "keys").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn release_that_is_refused_ends_the_session() {
    let new_password = async |etcd: &Etcd| {
        plain_as("root", etcd).await.user_change_password("app", "another").await.unwrap();
    };
    for change in [0, 1] {
        let (etcd, url) = with_login(Etcd::start());
        let session = session_at(&url, LONGEST).await;
        let held = acquire(&session, &fresh_name()).await;
        if change == 0 {
            revoke_rights(&etcd).await
        } else {
            new_password(&etcd).await
        }
        assert_eq!(bounded(session.release(&held)).await.unwrap_err().kind(), ErrorKind::Denied);
        assert_eq!(bounded(session.lost()).await, Loss::Session);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn withdrawal_that_is_refused_ends_the_session() {
    let (etcd, url) = with_login(Etcd::start());
    let (session, name) = (session_at(&url, LONGEST).await, fresh_name());
    let _held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    revoke_rights(&etcd).await;
    waiting.control.give_up();
    assert!(is_gave_up(&waiting.ends().await));
    assert_eq!(bounded(session.lost()).await, Loss::Session);
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_of_a_client_without_rights_passes_on_when_it_is_dropped() {
    let (etcd, url) = with_login(Etcd::start());
    let client = async |url: &str| LockClient::builder(backend(url)).ttl(SHORT).build().await.unwrap();
    let (holder, other) = (client(&url).await, client(&url_as("root", &etcd)).await);
    let held = holder.lock("x").unwrap().acquire().await.unwrap();
    let lock = other.lock("x").unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("the other client waits", async || etcd.keys("lockkit/x/").unwrap().len() == 2).await;
    revoke_rights(&etcd).await;
    drop(held);
    drop(bounded(waiting).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_may_not_write_leaves_no_lease() {
    let (etcd, url) = with_login(Etcd::start());
    revoke_rights(&etcd).await;
    let refused = bounded(backend(&url).open_session(LONGEST, Clock::boot())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    assert_eq!(etcd.leases().unwrap(), 0);
}
