//! Ends of sessions that no event reports; the next request notices them.

use std::sync::Arc;

use lockkit_core::backend::{Loss, Renewal, Session};
use lockkit_testbed::{Etcd, Message, Proxy};

use crate::common::{
    LONG, OwnServer, acquire, bounded, fresh_name, is_entry_gone, is_renewed, lease_of_only_session,
    own_server, plain, release, session_at, start, start_with_proxy, url_through,
};

/// Returns a server for one test with one session that receives no events.
async fn without_events() -> (OwnServer, Proxy, Arc<dyn Session>) {
    without_events_in("").await
}

/// The same with these options.
async fn without_events_in(options: &str) -> (OwnServer, Proxy, Arc<dyn Session>) {
    let etcd = own_server();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let session = session_at(&format!("{}{options}", url_through(&proxy)), LONG).await;
    proxy.drop_messages(Message::Events, |_| true);
    (etcd, proxy, session)
}

async fn revoke_lease(etcd: &Etcd) {
    plain(etcd).await.lease_revoke(lease_of_only_session(etcd)).await.unwrap();
}

/// The epoch key of the only session.
fn epoch_key(etcd: &Etcd) -> String {
    let keys = etcd.keys("lockkit/:clients/").unwrap();
    keys.into_iter().find(|key| key.ends_with("/epoch")).unwrap()
}

fn delete_epoch(etcd: &Etcd) {
    assert!(etcd.delete(&epoch_key(etcd)).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_that_has_ended_is_not_renewed_on_an_open_stream() {
    let (etcd, _proxy, session) = without_events().await;
    assert!(is_renewed(&bounded(session.renew(&[])).await.session));
    revoke_lease(&etcd).await;
    let heartbeat = bounded(session.renew(&[])).await;
    assert!(matches!(heartbeat.session, Renewal::Gone), "{heartbeat:?}");
    assert_eq!(bounded(session.lost()).await, Loss::Session);
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_that_has_ended_is_not_renewed_on_a_new_stream() {
    let (etcd, _proxy, session) = without_events().await;
    revoke_lease(&etcd).await;
    let heartbeat = bounded(session.renew(&[])).await;
    assert!(matches!(heartbeat.session, Renewal::Gone), "{heartbeat:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_that_finds_the_epoch_key_gone_ends_the_session() {
    for options in ["", "&form=single"] {
        let (etcd, _proxy, session) = without_events_in(options).await;
        delete_epoch(&etcd);
        let end = start(&session, &fresh_name()).ends().await;
        assert!(is_entry_gone(&end), "{options} {end:?}");
        assert_eq!(bounded(session.lost()).await, Loss::Session, "{options}");
    }
}

/// A late reply, or an operator, may have put the key.
#[tokio::test(flavor = "multi_thread")]
async fn claim_in_either_form_learns_the_present_epoch() {
    for options in ["", "&form=single"] {
        let (etcd, _proxy, session) = without_events_in(options).await;
        etcd.put(&epoch_key(&etcd), "").unwrap();
        let held = acquire(&session, &fresh_name()).await;
        release(&session, &held).await;
    }
}

/// The deletion itself can no longer be read when the stream is opened again.
#[tokio::test(flavor = "multi_thread")]
async fn epoch_key_that_is_missing_after_a_compaction_ends_the_session() {
    let (etcd, proxy, session) = start_with_proxy().await;
    proxy.refuse();
    delete_epoch(&etcd);
    // One more revision, because a watch from the last revision on would still report the deletion.
    etcd.put("x", "").unwrap();
    etcd.compact().unwrap();
    proxy.pass();
    assert_eq!(bounded(session.lost()).await, Loss::Session);
}
