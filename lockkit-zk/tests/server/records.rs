//! Texts that only the holder of a lock can write, and that outlive it.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    ErrorKind, LockName,
    backend::{Backend, Grant, Records, Session},
};
use lockkit_testbed::Proxy;

use crate::common::{
    LATE, LONG, acquire, at_leader_and_follower, backend, bounded, enqueued, fresh_name, name, node,
    own_ensemble, own_server, patient_url, plain, queue, release, session, session_at, shared, through_proxy,
    until, url_through,
};

/// ZooKeeper keeps records for good.
const KEEP: Duration = Duration::from_secs(60);

fn records(session: &Arc<dyn Session>) -> &dyn Records {
    session.records().unwrap()
}

async fn read(session: &Arc<dyn Session>, name: &LockName) -> Option<String> {
    bounded(records(session).read(name)).await.unwrap()
}

async fn write(session: &Arc<dyn Session>, grant: &Grant, record: &str) -> bool {
    bounded(records(session).write(grant, record, KEEP)).await.unwrap()
}

/// The same, repeated while the answer is unknown.
async fn write_until_answered(session: &Arc<dyn Session>, grant: &Grant, record: &str) -> bool {
    loop {
        match bounded(records(session).write(grant, record, KEEP)).await {
            Ok(written) => return written,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
}

/// Returns the node of a record whose name needs no encoding.
fn record_node(name: &LockName) -> String {
    format!("/lockkit/:records/{name}")
}

#[tokio::test(flavor = "multi_thread")]
async fn record_outlives_hold_and_session_and_only_its_name_has_it() {
    let server = own_server();
    let (first, second, name) = (session(&server, LONG).await, session(&server, LONG).await, fresh_name());
    assert_eq!(read(&first, &name).await, None);
    let grant = acquire(&first, &name).await;
    for record in ["one", "two", "", "two"] {
        assert!(write(&first, &grant, record).await);
        assert_eq!(read(&second, &name).await.as_deref(), Some(record));
    }
    assert_eq!(read(&second, &fresh_name()).await, None);
    bounded(first.close()).await.unwrap();
    let next = acquire(&second, &name).await;
    assert_eq!(read(&second, &name).await.as_deref(), Some("two"));
    assert!(write(&second, &next, "three").await);
    release(&second, &next).await;
    assert_eq!(read(&session(&server, LONG).await, &name).await.as_deref(), Some("three"));
}

#[tokio::test(flavor = "multi_thread")]
async fn record_is_written_whatever_its_locks_name_and_an_operator_deletes() {
    let server = own_server();
    let session = session(&server, LONG).await;
    for text in ["a/b", "ends-in-0000000001", ":records", "🔒%", &"x".repeat(1024)] {
        let name = name(text);
        let grant = acquire(&session, &name).await;
        assert!(write(&session, &grant, text).await);
        assert_eq!(read(&session, &name).await.as_deref(), Some(text));
        for place in server.tree("/lockkit/:records").unwrap().into_iter().rev() {
            assert!(server.delete(&place).unwrap());
        }
        assert_eq!(read(&session, &name).await, None);
        assert!(write(&session, &grant, "again").await);
        assert_eq!(read(&session, &name).await.as_deref(), Some("again"));
        release(&session, &grant).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn write_of_a_stale_holder_is_refused() {
    let (server, name) = (shared(), fresh_name());
    let (stale, other) = (session(server, LONG).await, session(server, LONG).await);
    // Once without a record, and once with one.
    for record in [None, Some("next")] {
        let lost = acquire(&stale, &name).await;
        // An operator ends the hold without the client's knowledge.
        let child = queue(server, &name).remove(0);
        assert!(server.delete(&format!("{}/{child}", node(&name))).unwrap());
        assert!(!write(&stale, &lost, "late").await, "nobody holds the lock");
        let next = acquire(&other, &name).await;
        assert!(!write(&stale, &lost, "late").await, "another session holds the lock");
        assert_eq!(read(&other, &name).await.as_deref(), record);
        assert!(write(&other, &next, "next").await);
        assert!(!write(&stale, &lost, "late").await);
        release(&other, &next).await;
        assert!(!write(&other, &next, "late").await, "the grant was released");
        assert_eq!(read(&other, &name).await.as_deref(), Some("next"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn write_with_lost_reply_is_repeated() {
    let (server, name) = (shared(), fresh_name());
    let (proxy, session) = through_proxy(server).await;
    let grant = acquire(&session, &name).await;
    // The reply to the read, and to the transaction that creates or writes.
    for (nth, record) in [(2, "created"), (1, "read"), (2, "written")] {
        proxy.swallow_reply(nth);
        assert!(write_until_answered(&session, &grant, record).await);
        assert_eq!(read(&session, &name).await.as_deref(), Some(record));
    }
    release(&session, &grant).await;
}

/// The held transaction stands for a late copy of one that was repeated: the hold is the same, so only the version can
/// refuse it.
#[tokio::test(flavor = "multi_thread")]
async fn late_copy_of_a_write_does_not_undo_a_later_one() {
    let (server, name) = (own_server(), fresh_name());
    let (proxy, session) = through_proxy(&server).await;
    let grant = acquire(&session, &name).await;
    assert!(write(&session, &grant, "first").await);
    proxy.hold_requests_from("overtaken");
    let error = bounded(records(&session).write(&grant, "overtaken", KEEP)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(proxy.holds("overtaken"), "the write is not under way");
    server.write(&record_node(&name), b"later").unwrap();
    proxy.pass();
    assert_eq!(read(&session, &name).await.as_deref(), Some("later"));
    assert!(write(&session, &grant, "last").await);
    assert_eq!(read(&session, &name).await.as_deref(), Some("last"));
    release(&session, &grant).await;
}

/// The read before the transaction was old: the record has been deleted, or made, since.
#[tokio::test(flavor = "multi_thread")]
async fn record_that_came_or_went_since_it_was_read_is_written() {
    let (server, name) = (own_server(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session_at(&patient_url(&proxy), LONG).await;
    let (grant, path) = (acquire(&session, &name).await, record_node(&name));
    assert!(write(&session, &grant, "first").await);
    for record in ["over a deleted one", "over a made one"] {
        // Only the write contains it.
        proxy.hold_requests_from(record);
        let change = async {
            until("the write is under way", async || proxy.holds(record)).await;
            match record {
                "over a deleted one" => assert!(server.delete(&path).unwrap()),
                _ => server.create(&path, "made").unwrap(),
            }
            proxy.pass();
        };
        let (is_written, ()) = tokio::join!(write(&session, &grant, record), change);
        assert!(is_written && read(&session, &name).await.as_deref() == Some(record), "{record}");
        assert!(server.delete(&path).unwrap());
    }
    release(&session, &grant).await;
}

/// The next holder is granted the lock while the write of the one before it is on its way.
#[tokio::test(flavor = "multi_thread")]
async fn write_that_arrives_after_the_next_grant_is_refused() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (stale, other) = (session_at(&url_through(&proxy), LONG).await, session(&server, LONG).await);
    let name = fresh_name();
    let lost = acquire(&stale, &name).await;
    assert!(write(&stale, &lost, "first").await);
    let next = enqueued(&other, &name).await;
    proxy.hold_requests_from("late");
    bounded(records(&stale).write(&lost, "late", KEEP)).await.unwrap_err();
    assert!(proxy.holds("late"), "the write is not under way");
    let children = queue(&server, &name);
    let first = children.iter().min_by_key(|child| child[child.len() - 10..].to_owned()).unwrap();
    assert!(server.delete(&format!("{}/{first}", node(&name))).unwrap());
    let next = next.granted().await;
    proxy.pass();
    assert!(!write_until_answered(&stale, &lost, "late").await);
    assert_eq!(read(&other, &name).await.as_deref(), Some("first"));
    release(&other, &next).await;
}

/// A follower may show an earlier record, but not behind a request through the leader.
#[tokio::test(flavor = "multi_thread")]
async fn record_read_through_a_late_follower_is_current() {
    let ensemble = own_ensemble();
    let (session, observer, follower) = at_leader_and_follower(&ensemble).await;
    let name = fresh_name();
    let grant = acquire(&session, &name).await;
    assert!(write(&session, &grant, "old").await);
    assert_eq!(read(&observer, &name).await.as_deref(), Some("old"));
    let reader = plain(ensemble.member(follower)).await;
    ensemble.delay(follower, LATE);
    assert!(write(&session, &grant, "new").await);
    let shown = reader.get_data(&record_node(&name)).await.unwrap().0;
    assert_eq!(shown, b"old", "the follower is not late");
    assert_eq!(read(&observer, &name).await.as_deref(), Some("new"));
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_record_is_an_error() {
    let (server, name) = (shared(), fresh_name());
    let session = session(server, LONG).await;
    let grant = acquire(&session, &name).await;
    assert!(write(&session, &grant, "ours").await);
    server.write(&record_node(&name), &[0xff; 10]).unwrap();
    let error = bounded(records(&session).read(&name)).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Unexpected, Some(&name)), "{error}");
    assert!(write(&session, &grant, "ours").await);
    assert_eq!(read(&session, &name).await.as_deref(), Some("ours"));
    release(&session, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_with_recurring_names_have_no_records() {
    for (form, offered) in [("curator", true), ("bare", false), ("single", false)] {
        let url = format!("{}/?form={form}", shared().url());
        assert_eq!(backend(&url).info().powers.records, offered, "{form}");
        assert_eq!(session_at(&url, LONG).await.records().is_some(), offered, "{form}");
    }
}
