//! Lost replies, late requests, and lost events.

use std::{sync::Arc, time::Duration};

use lockkit_core::{ErrorKind, LockName, backend::Session};
use lockkit_testbed::{Direction, Flow, Message, Proxy, ZooKeeperEnsemble};

use crate::common::{
    BEFORE_A_RECHECK, LONG, PendingClaim, SHORT, acquire, acquire_as_keeper, bounded, contend, enqueued,
    fresh_name, heartbeat, held_create, is_entry_gone, is_gave_up, is_renewed, mark, node, own_ensemble,
    own_server, plain, queue, release, session, session_at, shared, sooner_than, start, start_claim,
    through_proxy, until, url_through, watching,
};

#[tokio::test(flavor = "multi_thread")]
async fn create_with_lost_reply_is_found_again() {
    const ROUNDS: usize = 4;
    // Its directories stay.
    let server = &own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in ["curator", "bare", "single"] {
        let session = session_at(&format!("{}&form={form}", url_through(&proxy)), LONG).await;
        let (name, other) = (fresh_name(), fresh_name());
        // Its directory exists, so its node is created.
        release(&session, &acquire(&session, &name).await).await;
        for round in 0..ROUNDS {
            let dropped = proxy.counts().dropped;
            proxy.swallow_reply(1);
            let grant = start_claim(&session, &name, round % 2 == 0).granted().await;
            assert!(proxy.counts().dropped > dropped, "the reply was not lost");
            if form != "single" {
                assert_eq!(queue(server, &name).len(), 1, "{form}");
            }
            // The session has a second lock, whose node must not be taken for the first one's.
            let second = acquire(&session, &other).await;
            assert!(is_renewed(&heartbeat(&session, &[&grant, &second]).await.session));
            release(&session, &second).await;
            release(&session, &grant).await;
        }
    }
}

/// Starts a claim for a lock with a directory, while all followers are late; returns when its create is proposed.
async fn proposed_create(
    ensemble: &ZooKeeperEnsemble,
    session: &Arc<dyn Session>,
    name: &LockName,
) -> PendingClaim {
    release(session, &acquire(session, name).await).await;
    let number = ensemble.leader().unwrap();
    (0..ensemble.len()).filter(|other| *other != number).for_each(|follower| {
        ensemble.delay(follower, Duration::from_secs(1));
    });
    let leader = ensemble.member(number);
    let logged = leader.log_bytes().unwrap();
    let claim = start(session, name);
    until("the create is proposed", async || leader.log_bytes().unwrap() > logged).await;
    claim
}

/// When the connection breaks, the create is proposed, and no server shows it yet.
#[tokio::test(flavor = "multi_thread")]
async fn create_that_commits_late_is_found_again() {
    let ensemble = own_ensemble();
    let leader = ensemble.member(ensemble.leader().unwrap());
    let proxy = Proxy::start_zookeeper(leader.endpoint()).unwrap();
    let (session, name) = (session_at(&format!("zk://{}", proxy.endpoint()), LONG).await, fresh_name());
    let claim = proposed_create(&ensemble, &session, &name).await;
    proxy.reset();
    let grant = claim.granted().await;
    ensemble.heal();
    assert_eq!(queue(leader, &name).len(), 1, "it was created twice");
    release(&session, &grant).await;
}

/// The session reconnects to a follower, which accepts it at once and learns later that the create is committed. (The
/// server that received the create would delay the reads of its session until then.)
#[tokio::test(flavor = "multi_thread")]
async fn create_not_yet_visible_at_a_follower_is_found() {
    let ensemble = own_ensemble();
    let leader = ensemble.member(ensemble.leader().unwrap());
    let follower = ensemble.member(ensemble.follower().unwrap());
    let to_leader = Proxy::start_zookeeper(leader.endpoint()).unwrap();
    let to_follower = Proxy::start_zookeeper(follower.endpoint()).unwrap();
    to_follower.refuse();
    let url = format!("zk://{},{}", to_leader.endpoint(), to_follower.endpoint());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    let claim = proposed_create(&ensemble, &session, &name).await;
    to_follower.pass();
    to_leader.refuse();
    // Listing would need a session, which has to be committed, too.
    let nodes =
        || leader.ephemerals().unwrap().into_values().flatten().filter(|path| path.contains(&node(&name)));
    until("it is looked up", async || !claim.is_waiting() || nodes().count() > 1).await;
    assert_eq!(nodes().count(), 1, "it was created twice");
    ensemble.heal();
    release(&session, &claim.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_of_one_session_are_distinguished_after_a_lost_reply() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in ["curator", "bare", "single"] {
        let session = session_at(&format!("{}&form={form}", url_through(&proxy)), LONG).await;
        let name = fresh_name();
        let held = acquire(&session, &name).await;
        proxy.swallow_reply(1);
        if form == "single" {
            // That there is a node already is the answer that is lost.
            assert!(is_entry_gone(&start(&session, &name).ends().await));
        }
        let second = enqueued(&session, &name).await;
        release(&session, &held).await;
        let second = second.granted().await;
        assert!(second.token() > held.token(), "{form}: the holder's node was taken for the waiter's");
        release(&session, &second).await;
    }
}

/// Their names differ only in their numbers, and the server lists them by hash: the own one is not always the first.
#[tokio::test(flavor = "multi_thread")]
async fn bare_node_that_is_listed_before_the_own_one_is_not_adopted() {
    let (server, name) = (own_server(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session_at(&format!("{}&form=bare", url_through(&proxy)), LONG).await;
    release(&session, &acquire(&session, &name).await).await;
    let held = acquire(&session, &name).await;
    proxy.swallow_reply(1);
    let second = enqueued(&session, &name).await;
    let listed = plain(&server).await.list_children(&node(&name)).await.unwrap();
    assert_eq!(listed, ["lock-0000000001", "lock-0000000002"], "the own one is the first");
    release(&session, &held).await;
    let second = second.granted().await;
    assert!(second.token() > held.token(), "the holder's node was taken for the waiter's");
    release(&session, &second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_reply_during_a_wait_only_delays_the_grant() {
    let (server, name) = (shared(), fresh_name());
    let other = session(server, LONG).await;
    let (proxy, session) = through_proxy(server).await;
    // Create, list, watch; then the list after the wake-up.
    for nth in 1..=4 {
        let held = acquire(&other, &name).await;
        if nth <= 3 {
            proxy.swallow_reply(nth);
        }
        let waiting = enqueued(&session, &name).await;
        if nth == 4 {
            proxy.swallow_reply(1);
        }
        release(&other, &held).await;
        let grant = waiting.granted().await;
        assert!(grant.token() > held.token());
        release(&session, &grant).await;
        assert_eq!(queue(server, &name), [""; 0], "reply {nth}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_request_has_no_effect_after_a_reconnect() {
    let (server, name) = (own_server(), fresh_name());
    let (proxy, session) = through_proxy(&server).await;
    let claim = held_create(&proxy, &session, &name).await;
    proxy.reset_clients();
    proxy.pass();
    assert!(is_entry_gone(&claim.ends().await));
    let grant = acquire_as_keeper(&session, &name).await;
    proxy.deliver_late();
    // By now the server has closed the connection of the late request.
    let after = acquire(&session, &fresh_name()).await;
    assert_eq!(queue(&server, &name).len(), 1, "the late copy is an orphan");
    release(&session, &grant).await;
    assert_eq!(queue(&server, &name), [""; 0]);
    release(&session, &after).await;
}

/// A client meets such a node when it reconnects to a server that does not know yet that its last session is over.
#[tokio::test(flavor = "multi_thread")]
async fn node_of_another_session_is_not_adopted_whatever_its_name() {
    let (server, name) = (own_server(), fresh_name());
    let (proxy, session) = through_proxy(&server).await;
    let claim = held_create(&proxy, &session, &name).await;
    let other_client = plain(&server).await;
    let foreign = contend(&other_client, &name, &format!("_c_{}-lock-", mark(&claim.claim))).await;
    proxy.reset_clients();
    proxy.pass();
    assert!(is_entry_gone(&claim.ends().await));
    let next = enqueued(&session, &name).await;
    assert_eq!(queue(&server, &name).len(), 2);
    other_client.delete(&foreign, None).await.unwrap();
    release(&session, &next.granted().await).await;
    assert_eq!(queue(&server, &name), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_release_confirms_a_lost_reply_and_keeps_newer_grants() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in ["curator", "single"] {
        let session = session_at(&format!("{}&form={form}", url_through(&proxy)), LONG).await;
        let other = session_at(&format!("{}/?form={form}", server.url()), LONG).await;
        let name = fresh_name();
        let first = acquire(&session, &name).await;
        let next = enqueued(&other, &name).await;
        // The single form asks the leader and reads the node before it deletes.
        proxy.swallow_reply(if form == "single" { 3 } else { 1 });
        assert_eq!(bounded(session.release(&first)).await.unwrap_err().kind(), ErrorKind::Unavailable);
        let second = next.granted().await;
        release(&session, &first).await;
        assert!(
            is_renewed(&heartbeat(&other, &[&second]).await.holds[0].1),
            "{form}: the newer grant is gone"
        );
        release(&other, &second).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_withdrawal_is_repeated() {
    let (server, name) = (shared(), fresh_name());
    let other = session(server, LONG).await;
    let (proxy, session) = through_proxy(server).await;
    let held = acquire(&other, &name).await;
    let waiting = enqueued(&session, &name).await;
    proxy.set(Direction::Requests, Flow::Hold);
    waiting.control.give_up();
    until("the withdrawal is under way", async || proxy.holds(&mark(&waiting.claim))).await;
    // What is held is lost with its connection.
    proxy.reset();
    proxy.pass();
    assert!(is_gave_up(&waiting.ends().await));
    assert_eq!(queue(server, &name).len(), 1);
    release(&other, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_event_is_covered_by_a_recheck() {
    let server = own_server();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (other, name) = (session(&server, LONG).await, fresh_name());
    // It outlasts its first re-check without heartbeats.
    let session = session_at(&url_through(&proxy), 2 * SHORT).await;
    let held = acquire(&other, &name).await;
    let waiting = watching(&server, &session, &name).await;
    proxy.drop_messages(Message::Events, |_| true);
    release(&other, &held).await;
    let grant = waiting.granted().await;
    // A client that has reconnected meanwhile is notified again.
    assert!(proxy.counts().dropped > 0, "no event was lost");
    proxy.pass();
    release(&session, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_during_a_disconnect_wakes_the_waiter_after_reconnect() {
    let server = shared();
    let other = session(server, LONG).await;
    let (proxy, session) = through_proxy(server).await;
    // By the watch, not by a re-check.
    sooner_than(BEFORE_A_RECHECK, async || {
        let name = fresh_name();
        let held = acquire(&other, &name).await;
        let waiting = enqueued(&session, &name).await;
        proxy.refuse();
        release(&other, &held).await;
        proxy.pass();
        release(&session, &waiting.granted().await).await;
        assert_eq!(queue(server, &name), [""; 0]);
    })
    .await;
}

/// The nodes of a bare queue do not say whose they are; only their data do, and some may not be read.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_node_does_not_hide_that_of_an_unanswered_create() {
    let (server, name) = (shared(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let session = session_at(&format!("{}&form=bare", url_through(&proxy)), LONG).await;
    let owner = format!("zk://app:secret@{}/?form=bare&acl=auth::cdrwa", server.endpoint());
    let owner = session_at(&owner, LONG).await;
    // Its directory is everybody's.
    release(&session, &acquire(&session, &name).await).await;
    let held = acquire(&owner, &name).await;
    proxy.swallow_reply(1);
    let waiting = enqueued(&session, &name).await;
    assert_eq!(queue(server, &name).len(), 2);
    release(&owner, &held).await;
    release(&session, &waiting.granted().await).await;
}

/// The keeper repeats it; the node must not stay because the first request counts as sent.
#[tokio::test(flavor = "multi_thread")]
async fn release_that_reached_no_server_is_repeated() {
    let (server, name) = (shared(), fresh_name());
    let (proxy, session) = through_proxy(server).await;
    let held = acquire(&session, &name).await;
    proxy.set(Direction::Requests, Flow::Hold);
    let error = bounded(session.release(&held)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // What is held is lost with its connection.
    proxy.reset();
    proxy.pass();
    release(&session, &held).await;
    assert_eq!(queue(server, &name), [""; 0]);
}
