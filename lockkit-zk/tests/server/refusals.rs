//! Nodes that may be created but not deleted.

use std::sync::Arc;

use lockkit_core::{
    ErrorKind, LockClient, LockName,
    backend::{Loss, Session},
};
use lockkit_testbed::ZooKeeper;
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use crate::common::{
    BEFORE_A_RECHECK, LONG, acquire, backend, bounded, enqueued, fresh_name, is_entry_gone, node, own_server,
    plain, queue, release, session, session_at, shared, sooner_than, start, start_claim, through_proxy,
};
use crate::elections::elections;

/// Creates the lock's directory, in which everybody has only this permission.
async fn permit(server: &ZooKeeper, name: &LockName, permission: Permission) {
    let acl = [Acl::new(permission, AuthId::anyone())];
    let (client, options) = (plain(server).await, CreateMode::Persistent.with_acls(Acls::new(&acl)));
    // Open for everybody, as the first session makes it.
    client.mkdir("/lockkit", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    client.create(&node(name), b"", &options).await.unwrap();
}

/// Returns a session, and a lock that it may acquire but not release.
pub(crate) async fn unreleasable() -> (Arc<dyn Session>, LockName) {
    let (server, name) = (shared(), fresh_name());
    let session = session(server, LONG).await;
    permit(server, &name, Permission::CREATE | Permission::READ).await;
    (session, name)
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_session_stays_at_the_server_until_close() {
    let (server, kept_name) = (shared(), fresh_name());
    let (session, name) = unreleasable().await;
    let _kept = acquire(&session, &kept_name).await;
    let other = crate::common::session(server, LONG).await;
    let next = enqueued(&other, &kept_name).await;
    let _held = acquire(&session, &name).await;
    let waiting = enqueued(&session, &name).await;
    waiting.control.give_up();
    assert!(waiting.ends().await.is_err());
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    // The holder has not been notified: it must have time for that.
    for _ in 0..20 {
        release(&other, &acquire(&other, &fresh_name()).await).await;
        assert_eq!(queue(server, &kept_name).len(), 2);
    }
    bounded(session.close()).await.unwrap();
    next.granted().await;
}

/// First the listing is denied, then the withdrawal.
#[tokio::test(flavor = "multi_thread")]
async fn claim_that_cannot_be_withdrawn_is_an_error_and_not_retried() {
    let (server, name) = (shared(), fresh_name());
    let client = LockClient::builder(backend(&server.url())).ttl(LONG).build().await.unwrap();
    permit(server, &name, Permission::CREATE).await;
    let error = bounded(client.lock(name.as_str()).unwrap().acquire()).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
    let (session, name) = unreleasable().await;
    let _held = acquire(&session, &name).await;
    let error = bounded(client.lock(name.as_str()).unwrap().try_acquire()).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
    client.close().await.unwrap();
}

/// The list that comes with the create is denied, and so is the one that is asked for after it.
#[tokio::test(flavor = "multi_thread")]
async fn claim_that_may_not_list_is_denied_and_leaves_nothing() {
    let (server, name) = (shared(), fresh_name());
    let session = session(server, LONG).await;
    permit(server, &name, Permission::CREATE | Permission::DELETE).await;
    for waits in [true, false] {
        let error = start_claim(&session, &name, waits).ends().await.unwrap_err();
        assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
        let in_directory = format!("{}/", node(&name));
        let left = server.ephemerals().unwrap().into_values().flatten();
        assert_eq!(left.filter(|path| path.starts_with(&in_directory)).count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_release_abandons_the_session() {
    let (session, name) = unreleasable().await;
    let held = acquire(&session, &name).await;
    let error = bounded(session.release(&held)).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    bounded(session.close()).await.unwrap();
    assert_eq!(queue(shared(), &name), [""; 0]);
}

/// Makes the session abandoned, by a refused release.
async fn abandon(session: &Arc<dyn Session>, name: &LockName) {
    let held = acquire(session, name).await;
    assert!(bounded(session.release(&held)).await.is_err());
    bounded(session.lost()).await;
}

/// The server does not know yet, so only the local mark can wake them.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_an_abandoned_session_end_before_their_next_recheck() {
    sooner_than(BEFORE_A_RECHECK, async || {
        let (session, name) = unreleasable().await;
        let (other, awaited) = (crate::common::session(shared(), LONG).await, fresh_name());
        let held = acquire(&other, &awaited).await;
        let waiting = enqueued(&session, &awaited).await;
        let mut watch = bounded(elections(&session).watch(&awaited)).await.unwrap();
        abandon(&session, &name).await;
        assert!(is_entry_gone(&waiting.ends().await));
        // The keeper asks, and learns why.
        bounded(watch.changed()).await;
        let error = bounded(elections(&session).leader(&awaited)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "nobody has closed the client: {error}");
        bounded(session.close()).await.unwrap();
        release(&other, &held).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_for_a_single_node_end_with_their_abandoned_session() {
    sooner_than(BEFORE_A_RECHECK, async || {
        let (root, name, awaited) = (fresh_name(), fresh_name(), fresh_name());
        permit(shared(), &root, Permission::CREATE | Permission::READ).await;
        let url = format!("{}/?form=single&root={}", shared().url(), node(&root));
        let (session, other) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
        let _held = acquire(&other, &awaited).await;
        let waiting = enqueued(&session, &awaited).await;
        abandon(&session, &name).await;
        assert!(is_entry_gone(&waiting.ends().await));
        bounded(session.close()).await.unwrap();
        bounded(other.close()).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_session_creates_nothing_more() {
    let (session, name) = unreleasable().await;
    let late = fresh_name();
    release(&session, &acquire(&session, &late).await).await;
    abandon(&session, &name).await;
    assert!(is_entry_gone(&start(&session, &late).ends().await));
    bounded(session.close()).await.unwrap();
    let _next = acquire(&crate::common::session(shared(), LONG).await, &late).await;
    let children = queue(shared(), &late);
    assert!(matches!(&children[..], [next] if next.ends_with("-lock-0000000001")), "{children:?}");
}

/// The effect of the create cannot be found out, so its node must end with the session.
#[tokio::test(flavor = "multi_thread")]
async fn lost_create_that_cannot_be_looked_up_abandons_the_session() {
    let (server, name) = (own_server(), fresh_name());
    let (proxy, session) = through_proxy(&server).await;
    permit(&server, &name, Permission::CREATE | Permission::DELETE).await;
    proxy.swallow_reply(1);
    let error = start(&session, &name).ends().await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Denied, Some(&name)), "{error}");
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    bounded(session.close()).await.unwrap();
}

/// It would be the first in its queue for as long as the session lives. To the look-up, a node that it may not read does
/// not exist, like one that the server creates later.
#[tokio::test(flavor = "multi_thread")]
async fn late_node_that_may_not_be_deleted_abandons_the_session() {
    /// `ZooDefs.OpCode.getData`, and `KeeperException.Code.NOAUTH`.
    const GET_DATA: i32 = 4;
    const NO_AUTH: i32 = -102;
    let (server, name) = (own_server(), fresh_name());
    let (proxy, session) = through_proxy(&server).await;
    permit(&server, &name, Permission::CREATE | Permission::READ).await;
    proxy.refuse_requests(GET_DATA, NO_AUTH, 1);
    proxy.swallow_reply(1);
    assert!(is_entry_gone(&start(&session, &name).ends().await));
    assert_eq!(bounded(session.lost()).await, Loss::Session);
    bounded(session.close()).await.unwrap();
    assert_eq!(queue(&server, &name), [""; 0]);
}
