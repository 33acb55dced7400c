//! What proves a grant in a transaction of the user's own.

use lockkit_core::backend::{Backend, Evidence};
use zookeeper_client::{Client, Error, MultiWriteError};

use crate::common::{LONG, acquire, backend, bounded, enqueued, fresh_name, release, session_at, shared};

#[path = "../../examples/zk_guarded_writes.rs"]
mod guarded_writes;

/// Writes if the node of this evidence exists.
async fn write(user: &Client, evidence: &Evidence, target: &str, data: &[u8]) -> Result<(), MultiWriteError> {
    let Evidence::NodeExists { path, .. } = evidence else { panic!("{evidence:?}") };
    let mut transaction = user.new_multi_writer();
    transaction.add_check_version(path, -1).unwrap();
    transaction.add_set_data(target, data, None).unwrap();
    bounded(transaction.commit()).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn write_of_an_ended_grant_is_refused_before_the_next_holder_writes() {
    let (server, name) = (shared(), fresh_name());
    server.create("/evidence", "").unwrap();
    let chroot = format!("{}/evidence?root=/locks", server.url());
    let user = Client::connect(&format!("{}/evidence", server.endpoint())).await.unwrap();
    let (stale, other) = (session_at(&chroot, LONG).await, session_at(&chroot, LONG).await);
    server.create("/evidence/target", "").unwrap();

    let first = acquire(&stale, &name).await;
    let evidence = first.evidence().unwrap();
    let Evidence::NodeExists { path, czxid, .. } = evidence else { panic!("{evidence:?}") };
    // As a client with the same chroot sees it.
    assert_eq!(user.check_stat(path).await.unwrap().unwrap().czxid, *czxid);
    assert_eq!(first.token().get(), czxid.unsigned_abs());
    write(&user, evidence, "/target", b"first").await.unwrap();

    let next = enqueued(&other, &name).await;
    bounded(stale.close()).await.unwrap();
    let next = next.granted().await;
    let refused = MultiWriteError::OperationFailed { index: 0, source: Error::NoNode };
    assert_eq!(write(&user, evidence, "/target", b"late").await, Err(refused));
    assert_eq!(user.get_data("/target").await.unwrap().0, b"first");
    write(&user, next.evidence().unwrap(), "/target", b"next").await.unwrap();
    release(&other, &next).await;
}

/// Where a later claim may get the same path, a check of it would accept the writes of an earlier holder.
#[tokio::test(flavor = "multi_thread")]
async fn forms_with_recurring_names_have_no_evidence() {
    for (form, claimed) in [("curator", true), ("bare", false), ("single", false)] {
        let url = format!("{}/?form={form}", shared().url());
        assert_eq!(backend(&url).info().powers.evidence, claimed, "{form}");
        let (session, name) = (session_at(&url, LONG).await, fresh_name());
        let grant = acquire(&session, &name).await;
        assert_eq!(grant.evidence().is_some(), claimed, "{form}");
        release(&session, &grant).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn example_of_guarded_writes_runs() {
    bounded(guarded_writes::run(&shared().url())).await.unwrap();
}
