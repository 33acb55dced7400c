//! Who leads and what the leader proposes, as other sessions see it.

use std::{cell::Cell, sync::Arc};

use lockkit_core::{
    ErrorKind, LockName, Metadata, Proposal,
    backend::{Backend, Claim, ClaimControl, Elections, Grant, LeaderEntry, Session},
};
use lockkit_testbed::{Proxy, ZooKeeper};
use zookeeper_client::{Acls, CreateMode};

use crate::common::{
    LATE, LONG, acquire, at_leader_and_follower, backend, bounded, contend, enqueued, fresh_name, granted,
    node, own_ensemble, own_server, patient_url, plain, queue, quiet_session, release, session, session_at,
    shared, through_proxy, try_acquire, url_through,
};

/// What a candidate stores.
pub(crate) fn candidacy(value: &str, number: u64) -> Metadata {
    Metadata::of_this_process(Some("test")).with_proposal(Proposal::new(value, number))
}

/// Acquires the lock as a candidate.
pub(crate) async fn lead(session: &Arc<dyn Session>, name: &LockName, value: &str) -> Grant {
    let claim = Claim::new(name.clone(), true, candidacy(value, 1), &ClaimControl::new());
    granted(bounded(session.acquire(claim)).await)
}

pub(crate) fn elections(session: &Arc<dyn Session>) -> &dyn Elections {
    session.elections().unwrap()
}

pub(crate) async fn leader(session: &Arc<dyn Session>, name: &LockName) -> Option<LeaderEntry> {
    bounded(elections(session).leader(name)).await.unwrap()
}

/// Returns what the leader proposes.
async fn proposal(session: &Arc<dyn Session>, name: &LockName) -> Proposal {
    leader(session, name).await.unwrap().proposal
}

pub(crate) async fn proclaim(session: &Arc<dyn Session>, grant: &Grant, value: &str, number: u64) -> bool {
    bounded(elections(session).proclaim(grant, &candidacy(value, number))).await.unwrap()
}

/// The same, repeated while the answer is unknown, as a keeper does.
async fn proclaim_until_answered(
    session: &Arc<dyn Session>,
    grant: &Grant,
    value: &str,
    number: u64,
) -> bool {
    loop {
        match bounded(elections(session).proclaim(grant, &candidacy(value, number))).await {
            Ok(written) => return written,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    }
}

/// Both ways in which a candidate writes its value.
fn urls(server: &ZooKeeper) -> [String; 2] {
    [server.url(), format!("{}/?root=/lockkit&names=raw", server.url())]
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_is_the_holder_with_its_latest_proposal() {
    let server = shared();
    for url in urls(server) {
        let (session, observer) = (session_at(&url, LONG).await, session_at(&url, LONG).await);
        let name = fresh_name();
        assert_eq!(leader(&observer, &name).await, None, "a lock that nobody has used");
        let ordinary = acquire(&session, &name).await;
        let found = leader(&observer, &name).await.unwrap();
        assert_eq!((found.token, found.proposal), (ordinary.token(), Proposal::default()));
        assert_eq!(found.metadata.unwrap().label.as_deref(), Some("test"));
        release(&session, &ordinary).await;
        assert_eq!(leader(&observer, &name).await, None, "a lock that was released");

        let first = lead(&session, &name, "first").await;
        let next = tokio::spawn({
            let (observer, name) = (Arc::clone(&observer), name.clone());
            async move { lead(&observer, &name, "next").await }
        });
        crate::common::until("it waits", async || queue(server, &name).len() == 2).await;
        let found = leader(&observer, &name).await.unwrap();
        assert_eq!((found.token, found.proposal), (first.token(), Proposal::new("first", 1)));
        for (value, number) in [("second", 2), ("second", 3), ("", 4)] {
            assert!(proclaim(&session, &first, value, number).await);
            let found = leader(&observer, &name).await.unwrap();
            assert_eq!((found.token, found.proposal), (first.token(), Proposal::new(value, number)), "{url}");
        }
        release(&session, &first).await;
        let next = bounded(next).await.unwrap();
        assert_eq!(proposal(&observer, &name).await, Proposal::new("next", 1));
        assert!(!proclaim(&session, &first, "late", 5).await, "the grant was released");
        assert_eq!(proposal(&observer, &name).await, Proposal::new("next", 1));
        release(&observer, &next).await;
    }
}

/// Curator's `LeaderSelector` shows the data of the first node as the leader's id.
#[tokio::test(flavor = "multi_thread")]
async fn raw_names_share_an_election_with_other_programs() {
    let server = shared();
    let (client, name) = (plain(server).await, fresh_name());
    let session = session_at(&urls(server)[1], LONG).await;
    let ours = lead(&session, &name, "ours:1").await;
    let data = async || {
        let path = format!("{}/{}", node(&name), queue(server, &name)[0]);
        String::from_utf8(client.get_data(&path).await.unwrap().0).unwrap()
    };
    assert_eq!(data().await, "ours:1");
    assert!(proclaim(&session, &ours, "ours:2", 2).await);
    assert_eq!(data().await, "ours:2");
    release(&session, &ours).await;
    let theirs = contend(&client, &name, "_c_0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9-lock-").await;
    client.set_data(&theirs, b"participant", None).await.unwrap();
    assert_eq!(proposal(&session, &name).await, Proposal::new("participant", 2));
    client.delete(&theirs, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_whose_data_are_foreign_or_unreadable_leads_without_a_proposal() {
    let server = shared();
    let (client, name) = (plain(server).await, fresh_name());
    let session = session(server, LONG).await;
    release(&session, &acquire(&session, &name).await).await;
    client.auth("digest", b"other:secret").await.unwrap();
    for data in [&b"theirs"[..], &[0xff; 100_000]] {
        let prefix = format!("{}/lock-", node(&name));
        for acl in [Acls::anyone_all(), Acls::creator_all()] {
            let options = CreateMode::EphemeralSequential.with_acls(acl);
            let (stat, number) = client.create(&prefix, data, &options).await.unwrap();
            let found = leader(&session, &name).await.unwrap();
            assert_eq!((found.token.get(), found.proposal), (stat.czxid.unsigned_abs(), Proposal::default()));
            assert_eq!(found.metadata, None);
            client.delete(&format!("{prefix}{number}"), None).await.unwrap();
        }
    }
}

/// Its token is that of its grant, whatever it has written since.
#[tokio::test(flavor = "multi_thread")]
async fn leader_that_may_not_be_read_keeps_its_token() {
    let (server, name) = (shared(), fresh_name());
    let (session, client) = (session(server, LONG).await, plain(server).await);
    release(&session, &acquire(&session, &name).await).await;
    client.auth("digest", b"other:secret").await.unwrap();
    let prefix = format!("{}/lock-", node(&name));
    let options = CreateMode::EphemeralSequential.with_acls(Acls::creator_all());
    let (created, number) = client.create(&prefix, b"first", &options).await.unwrap();
    client.set_data(&format!("{prefix}{number}"), b"second", None).await.unwrap();
    let found = leader(&session, &name).await.unwrap();
    assert_eq!((found.token.get(), found.metadata), (created.czxid.unsigned_abs(), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn proclaim_after_the_node_is_gone_is_refused() {
    let server = shared();
    for url in urls(server) {
        let (stale, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
        let lost = lead(&stale, &name, "lost").await;
        // An operator ends the hold without the client's knowledge.
        let child = queue(server, &name).remove(0);
        assert!(server.delete(&format!("{}/{child}", node(&name))).unwrap());
        let next = lead(&other, &name, "next").await;
        assert!(!proclaim(&stale, &lost, "late", 2).await);
        assert_eq!(proposal(&other, &name).await, Proposal::new("next", 1));
        release(&other, &next).await;
        assert!(!proclaim(&stale, &lost, "late", 3).await);
        assert_eq!(leader(&other, &name).await, None);
    }
}

/// The node was there when its data were read, and is gone when the write arrives.
#[tokio::test(flavor = "multi_thread")]
async fn proclaim_whose_node_is_deleted_meanwhile_is_refused() {
    let (server, name) = (shared(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session_at(&patient_url(&proxy), LONG).await;
    let grant = lead(&session, &name, "first").await;
    let path = format!("{}/{}", node(&name), queue(server, &name)[0]);
    // Only the write contains it.
    proxy.hold_requests_from("too late");
    let delete = async {
        crate::common::until("the write is under way", async || proxy.holds("too late")).await;
        assert!(server.delete(&path).unwrap());
        proxy.pass();
    };
    let (is_written, ()) = tokio::join!(proclaim(&session, &grant, "too late", 2), delete);
    assert!(!is_written);
}

#[tokio::test(flavor = "multi_thread")]
async fn proclaim_with_lost_reply_is_written_once() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for options in ["", "&root=/lockkit&names=raw"] {
        let (session, name) =
            (session_at(&format!("{}{options}", url_through(&proxy)), LONG).await, fresh_name());
        let grant = lead(&session, &name, "1").await;
        // The reply to the read, and to the write.
        for (nth, number) in [(1, 2), (2, 3), (2, 4)] {
            proxy.swallow_reply(nth);
            assert!(proclaim_until_answered(&session, &grant, &number.to_string(), number).await);
            assert_eq!(
                proposal(&session, &name).await,
                Proposal::new(number.to_string(), number),
                "{options}"
            );
        }
        release(&session, &grant).await;
    }
}

/// The write is repeated over a new connection, and a later one follows, before the first copy arrives.
#[tokio::test(flavor = "multi_thread")]
async fn late_copy_of_a_proclaim_does_not_undo_a_later_one() {
    let (server, name) = (own_server(), fresh_name());
    let (proxy, session) = through_proxy(&server).await;
    let grant = lead(&session, &name, "first").await;
    let path = format!("{}/{}", node(&name), queue(&server, &name)[0]);
    proxy.hold_requests_from("overtaken");
    let error = bounded(elections(&session).proclaim(&grant, &candidacy("overtaken", 2))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(proxy.holds("overtaken"), "the write is not under way");
    // ZooKeeper mostly refuses late requests of a connection that a session has left. Here the later proclaim arrives by
    // other means, so only the version can refuse the held one.
    server.write(&path, b"later").unwrap();
    proxy.pass();
    let foreign = plain(&server).await;
    let after = acquire(&session, &fresh_name()).await;
    assert_eq!(foreign.get_data(&path).await.unwrap().0, b"later", "the late copy has undone a later write");
    // The holder itself can still proclaim.
    assert!(proclaim(&session, &grant, "third", 3).await);
    assert_eq!(proposal(&session, &name).await, Proposal::new("third", 3));
    release(&session, &after).await;
    release(&session, &grant).await;
}

/// A follower may show an earlier leader, or an earlier proposal, but not behind a request through the leader.
#[tokio::test(flavor = "multi_thread")]
async fn leader_read_through_a_late_follower_is_current() {
    let ensemble = own_ensemble();
    let (session, observer, follower) = at_leader_and_follower(&ensemble).await;
    let name = fresh_name();
    let first = lead(&session, &name, "old").await;
    assert_eq!(proposal(&observer, &name).await, Proposal::new("old", 1));
    // Connected before the delay: a new connection would be as new as the leader.
    let reader = plain(ensemble.member(follower)).await;
    let path = format!("{}/{}", node(&name), queue(ensemble.member(ensemble.leader().unwrap()), &name)[0]);
    ensemble.delay(follower, LATE);
    assert!(proclaim(&session, &first, "new", 2).await);
    let shown = String::from_utf8(reader.get_data(&path).await.unwrap().0).unwrap();
    assert!(shown.contains("\"old\""), "the follower is not late: {shown}");
    assert_eq!(proposal(&observer, &name).await, Proposal::new("new", 2));
    release(&session, &first).await;
    assert_eq!(leader(&observer, &name).await, None);
}

/// `ZooDefs.OpCode.exists` and `getData`.
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;

/// Checks that an observer sees the next leader, if the first one leaves when its node, which the list shows, is asked for
/// by a request of this kind.
async fn next_leader_is_seen(request: i32, prepare: impl FnOnce(&Proxy)) {
    let (server, name) = (shared(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, observer) = (session(server, LONG).await, session_at(&patient_url(&proxy), LONG).await);
    let first = lead(&session, &name, "first").await;
    let path = format!("{}/{}", node(&name), queue(server, &name)[0]);
    let waiting = enqueued(&session, &name).await;
    let length = i32::try_from(path.len()).unwrap();
    let look = [&request.to_be_bytes()[..], &length.to_be_bytes(), path.as_bytes()].concat();
    prepare(&proxy);
    proxy.hold_requests_from(&look);
    let hand_over = async {
        crate::common::until("the leader's node is asked for", async || proxy.holds_bytes(&look)).await;
        release(&session, &first).await;
        let next = waiting.granted().await;
        proxy.pass();
        next
    };
    let (found, next) = tokio::join!(leader(&observer, &name), hand_over);
    assert_eq!(found.map(|found| found.token), Some(next.token()));
    release(&session, &next).await;
}

/// It is first in the list that was read, and gone when its node is read: the next one leads by then.
#[tokio::test(flavor = "multi_thread")]
async fn leader_that_leaves_before_its_node_is_read_is_not_nobody() {
    next_leader_is_seen(GET_DATA, |_| ()).await;
}

/// The same, if the data of its node may not be read.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_leader_that_leaves_before_its_node_is_looked_at_is_not_nobody() {
    /// `KeeperException.Code.NOAUTH`.
    const NO_AUTH: i32 = -102;
    next_leader_is_seen(EXISTS, |proxy| proxy.refuse_requests(GET_DATA, NO_AUTH, 1)).await;
}

/// The leader's own server still shows its node, with the proposal. A keeper repeats an unanswered proclaim.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_proclaim_through_a_late_follower_finds_the_hold_over() {
    let ensemble = own_ensemble();
    let (at_leader, follower) = (ensemble.member(ensemble.leader().unwrap()), ensemble.follower().unwrap());
    let session = quiet_session(ensemble.member(follower)).await;
    let name = fresh_name();
    let grant = lead(&session, &name, "first").await;
    let reader = plain(ensemble.member(follower)).await;
    assert!(proclaim(&session, &grant, "second", 2).await);
    let path = format!("{}/{}", node(&name), queue(at_leader, &name)[0]);
    ensemble.delay(follower, LATE);
    assert!(at_leader.delete(&path).unwrap());
    assert!(reader.check_stat(&path).await.unwrap().is_some(), "the follower is not late");
    // It is written already, and so is a later one.
    assert!(!proclaim(&session, &grant, "first", 1).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_leader_is_unavailable_and_a_closed_session_is_closed() {
    let (server, name) = (shared(), fresh_name());
    let (proxy, session) = through_proxy(server).await;
    proxy.refuse();
    let error = bounded(elections(&session).leader(&name)).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Unavailable, Some(&name)), "{error}");
    proxy.pass();
    let answered = Cell::new(false);
    crate::common::until("it is connected again", async || {
        answered.set(elections(&session).leader(&name).await.is_ok());
        answered.get()
    })
    .await;
    bounded(session.close()).await.unwrap();
    let error = bounded(elections(&session).leader(&name)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}

/// Several of them may be under way, for several locks.
#[tokio::test(flavor = "multi_thread")]
async fn error_names_the_operation_and_the_lock() {
    let (session, name) = (session(shared(), LONG).await, fresh_name());
    let grant = lead(&session, &name, "x").await;
    bounded(session.close()).await.unwrap();
    let (elections, records) = (elections(&session), session.records().unwrap());
    let errors = [
        ("acquire", try_acquire(&session, &name).await.err()),
        ("release", bounded(session.release(&grant)).await.err()),
        ("read leader", bounded(elections.leader(&name)).await.err()),
        ("watch leader", bounded(elections.watch(&name)).await.err()),
        ("proclaim", bounded(elections.proclaim(&grant, &candidacy("y", 2))).await.err()),
        ("read record", bounded(records.read(&name)).await.err()),
        ("write record", bounded(records.write(&grant, "y", LONG)).await.err()),
    ];
    for (operation, error) in errors {
        let error = error.unwrap();
        assert_eq!((error.operation(), error.lock()), (operation, Some(&name)), "{error}");
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_with_recurring_names_have_no_elections() {
    for (form, offered) in [("curator", true), ("bare", false), ("single", false)] {
        let url = format!("{}/?form={form}", shared().url());
        assert_eq!(backend(&url).info().powers.elections, offered, "{form}");
        assert_eq!(session_at(&url, LONG).await.elections().is_some(), offered, "{form}");
    }
}
