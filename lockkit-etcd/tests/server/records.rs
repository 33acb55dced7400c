//! Records: one text per lock that only its holder writes.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    LockName,
    backend::{Grant, Session},
};
use lockkit_testbed::{Direction, Etcd, Flow, Proxy};

use crate::common::{
    LONG, acquire, bounded, cut, fresh_name, key_of_grant, name, release, session, session_at, until,
    url_through,
};

const KEEP: Duration = Duration::from_secs(300);

async fn read(session: &Arc<dyn Session>, name: &LockName) -> Option<String> {
    bounded(session.records().unwrap().read(name)).await.unwrap()
}

async fn write(session: &Arc<dyn Session>, grant: &Grant, record: &str) -> bool {
    bounded(session.records().unwrap().write(grant, record, KEEP)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn record_outlives_the_session_that_wrote_it() {
    let etcd = Etcd::start().unwrap();
    let (one, other) = (session(&etcd, LONG).await, session(&etcd, LONG).await);
    let name = name("jobs/nightly");
    assert_eq!(read(&one, &name).await, None);
    let held = acquire(&one, &name).await;
    for record in ["a", "b", "c"] {
        assert!(write(&one, &held, record).await);
        assert_eq!(read(&other, &name).await.as_deref(), Some(record));
    }
    // Not for ever: the record has a lease, and the leases of the earlier ones are gone.
    let key = "lockkit/:records/jobs%2Fnightly".to_owned();
    assert!(etcd.leased().unwrap().contains(&(key, true)));
    assert_eq!(etcd.leases().unwrap(), 3);
    release(&one, &held).await;
    assert!(!write(&one, &held, "d").await);
    bounded(one.close()).await.unwrap();
    assert_eq!(read(&other, &name).await.as_deref(), Some("c"));
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_writer_is_refused_before_the_next_one_has_written() {
    let etcd = Etcd::start().unwrap();
    let (one, other, name) = (session(&etcd, LONG).await, session(&etcd, LONG).await, fresh_name());
    let stale = acquire(&one, &name).await;
    assert!(write(&one, &stale, "a").await);
    etcd.delete(key_of_grant(&stale)).unwrap();
    let held = acquire(&other, &name).await;
    let leases = etcd.leases().unwrap();
    assert!(!write(&one, &stale, "late").await);
    assert_eq!(etcd.leases().unwrap(), leases, "the lease of the refused record is left");
    assert_eq!(read(&other, &name).await.as_deref(), Some("a"));
    assert!(write(&other, &held, "b").await);
    assert_eq!(read(&one, &name).await.as_deref(), Some("b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn late_copy_of_an_older_record_does_not_undo_a_newer_one() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start_grpc(etcd.endpoint()).unwrap();
    let (one, name) = (session_at(&url_through(&proxy), LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    proxy.hold_requests_from("older");
    let lost = tokio::spawn({
        let (one, held) = (one.clone(), held.clone());
        async move { one.records().unwrap().write(&held, "older", KEEP).await }
    });
    until("it is under way", async || proxy.holds("older")).await;
    proxy.set(Direction::Requests, Flow::Hold);
    cut(&proxy);
    assert!(bounded(lost).await.unwrap().is_err());
    while one.records().unwrap().write(&held, "newer", KEEP).await.is_err() {}
    let txns = || etcd.metrics().unwrap().grpc_handled("Txn");
    let before = txns();
    proxy.deliver_late();
    until("the late request is executed", async || txns() > before).await;
    assert_eq!(read(&one, &name).await.as_deref(), Some("newer"));
}
