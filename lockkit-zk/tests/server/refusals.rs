//! Nodes that may be created and not deleted.

use std::sync::Arc;

use lockkit_core::{
    ErrorKind, LockClient, LockName,
    backend::{Loss, Session},
};
use lockkit_testbed::ZooKeeper;
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use crate::common::{
    LONG, acquire, backend, bounded, enqueued, fresh_name, node, plain, queue, session, shared,
};

/// Makes the lock's directory, and lets everybody do only this in it.
async fn permit(server: &ZooKeeper, name: &LockName, permission: Permission) {
    let acl = [Acl::new(permission, AuthId::anyone())];
    let options = CreateMode::Persistent.with_acls(Acls::new(&acl));
    plain(server).await.create(&node(name), b"", &options).await.unwrap();
}

/// A session and a lock that it may take and not give back.
async fn irrevocable() -> (Arc<dyn Session>, LockName) {
    let (server, name) = (shared(), fresh_name());
    let session = session(server, LONG).await;
    permit(server, &name, Permission::CREATE | Permission::READ).await;
    (session, name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_given_up_is_ended_by_its_keeper_and_not_before() {
    let (server, kept_name) = (shared(), fresh_name());
    let (session, name) = irrevocable().await;
    let _kept = acquire(&session, &kept_name).await;
    let other = crate::common::session(server, LONG).await;
    let next = enqueued(&other, &kept_name).await;
    let _held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    waiting.control.give_up();
    assert!(waiting.ends().await.is_err());
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    // The holder has not been told: there must be time for it.
    for _ in 0..20 {
        crate::common::release(&other, &acquire(&other, &fresh_name()).await).await;
        assert_eq!(queue(server, &kept_name).len(), 2);
    }
    bounded(session.close()).await.unwrap();
    next.granted().await;
}

/// By list, and by withdrawal.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_be_withdrawn_is_an_error_and_not_claimed_anew() {
    let (server, name) = (shared(), fresh_name());
    let client = LockClient::builder(backend(&server.url())).ttl(LONG).build().await.unwrap();
    permit(server, &name, Permission::CREATE).await;
    let error = bounded(client.lock(name.as_str()).unwrap().acquire()).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
    let (session, name) = irrevocable().await;
    let _held = acquire(&session, &name).await;
    let error = bounded(client.lock(name.as_str()).unwrap().try_acquire()).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
    client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_refused_gives_the_session_up() {
    let (session, name) = irrevocable().await;
    let held = acquire(&session, &name).await;
    let error = bounded(session.release(&held)).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    bounded(session.close()).await.unwrap();
    assert_eq!(queue(shared(), &name), [""; 0]);
}
