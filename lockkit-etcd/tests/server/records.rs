//! Records: one text per lock that only its holder writes.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    LockName,
    backend::{Grant, Session},
};
use lockkit_testbed::{Direction, Flow};

use crate::common::{
    LONG, acquire, bounded, cut, deliver_late, fresh_name, key_of_grant, name, own_server, plain, release,
    session, session_at, start_with_proxy, until,
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
    let etcd = own_server();
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
    let etcd = own_server();
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
    let (etcd, proxy, one) = start_with_proxy().await;
    let name = fresh_name();
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
    deliver_late(&etcd, &proxy).await;
    assert_eq!(read(&one, &name).await.as_deref(), Some("newer"));
}

/// Its lease is older than the record, by the time that the requests take.
#[tokio::test(flavor = "multi_thread")]
async fn record_is_kept_for_the_time_that_was_asked_for() {
    let etcd = own_server();
    let (session, name) =
        (session_at(&format!("{}/?request_timeout=20s", etcd.url()), LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    assert!(write(&session, &held, "a").await);
    let mut client = plain(&etcd).await;
    let lease = client.get(format!("lockkit/:records/{name}"), None).await.unwrap().kvs()[0].lease();
    let granted = client.lease_time_to_live(lease, None).await.unwrap().granted_ttl();
    assert!((343..=344).contains(&granted), "{granted} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn record_that_the_server_refuses_leaves_no_lease() {
    /// More bytes than etcd accepts in a request.
    const TOO_LONG: usize = 1_700_000;
    let etcd = own_server();
    let (session, name) = (session(&etcd, LONG).await, fresh_name());
    let held = acquire(&session, &name).await;
    let (leases, record) = (etcd.leases().unwrap(), "x".repeat(TOO_LONG));
    bounded(session.records().unwrap().write(&held, &record, KEEP)).await.unwrap_err();
    assert_eq!(read(&session, &name).await, None);
    assert_eq!(etcd.leases().unwrap(), leases, "the lease of the refused record is left");
}
