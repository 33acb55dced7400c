//! Replies that never come, requests that come late, and events that get lost.

use std::time::Duration;

use lockkit_core::ErrorKind;
use lockkit_testbed::{Direction, Flow, Message, Proxy, ZooKeeper, ZooKeeperEnsemble};

use crate::common::{
    BEFORE_A_LOOK, LONG, SHORT, acquire, beat, bounded, contend, enqueued, fresh_name, is_gave_up,
    is_renewed, mark, node, plain, queue, release, session, session_at, shared, start, start_claim, until,
    url_through, watching,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_create_whose_reply_was_lost_is_found_again() {
    const ROUNDS: usize = 4;
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in ["curator", "bare", "single"] {
        let session = session_at(&format!("{}&form={form}", url_through(&proxy)), LONG).await;
        let (name, other) = (fresh_name(), fresh_name());
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
            assert!(is_renewed(&beat(&session, &[&grant, &second]).await.session));
            release(&session, &second).await;
            release(&session, &grant).await;
        }
    }
}

/// When its connection breaks it is proposed, and shown by no server yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_is_decided_late_is_found_again() {
    let ensemble = ZooKeeperEnsemble::start().unwrap();
    let number = ensemble.leader().unwrap();
    let leader = ensemble.member(number);
    let proxy = Proxy::start_zookeeper(leader.endpoint()).unwrap();
    let (session, name) = (session_at(&format!("zk://{}", proxy.endpoint()), LONG).await, fresh_name());
    release(&session, &acquire(&session, &name).await).await;
    (0..ensemble.len()).filter(|other| *other != number).for_each(|follower| {
        ensemble.delay(follower, Duration::from_secs(1));
    });
    let logged = leader.log_bytes().unwrap();
    let claim = start(&session, &name);
    until("the create is proposed", async || leader.log_bytes().unwrap() > logged).await;
    proxy.reset();
    let grant = claim.granted().await;
    ensemble.heal();
    assert_eq!(queue(leader, &name).len(), 1, "it was created twice");
    release(&session, &grant).await;
}

/// The session comes back to a follower, which takes it at once and hears later that the create is decided. (The server
/// that the create was sent to would let the reads of its session wait for that.)
#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_a_follower_does_not_show_yet_is_found_there() {
    let ensemble = ZooKeeperEnsemble::start().unwrap();
    let (number, follower) = (ensemble.leader().unwrap(), ensemble.follower().unwrap());
    let leader = ensemble.member(number);
    let to_leader = Proxy::start_zookeeper(leader.endpoint()).unwrap();
    let to_follower = Proxy::start_zookeeper(ensemble.member(follower).endpoint()).unwrap();
    to_follower.refuse();
    let url = format!("zk://{},{}", to_leader.endpoint(), to_follower.endpoint());
    let (session, name) = (session_at(&url, LONG).await, fresh_name());
    release(&session, &acquire(&session, &name).await).await;
    (0..ensemble.len()).filter(|other| *other != number).for_each(|follower| {
        ensemble.delay(follower, Duration::from_secs(1));
    });
    let logged = leader.log_bytes().unwrap();
    let claim = start(&session, &name);
    until("the create is proposed", async || leader.log_bytes().unwrap() > logged).await;
    to_follower.pass();
    to_leader.refuse();
    // A look at the list would be a session of its own, which has to be decided too.
    let nodes =
        || leader.ephemerals().unwrap().into_values().flatten().filter(|path| path.contains(&node(&name)));
    until("it is looked up", async || !claim.is_waiting() || nodes().count() > 1).await;
    assert_eq!(nodes().count(), 1, "it was created twice");
    ensemble.heal();
    release(&session, &claim.granted().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_claims_of_one_session_are_told_apart_after_a_lost_reply() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in ["curator", "bare", "single"] {
        let session = session_at(&format!("{}&form={form}", url_through(&proxy)), LONG).await;
        let name = fresh_name();
        let held = acquire(&session, &name).await;
        proxy.swallow_reply(1);
        let second = enqueued(&session, &name).await;
        release(&session, &held).await;
        let second = second.granted().await;
        assert!(second.token() > held.token(), "{form}: the holder's node was taken for the waiter's");
        release(&session, &second).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_lost_reply_of_a_wait_costs_nothing_but_time() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (other, session, name) =
        (session(server, LONG).await, session_at(&url_through(&proxy), LONG).await, fresh_name());
    // Create, list, watch; then the check, when it is served.
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
async fn a_request_that_comes_after_the_session_has_moved_on_does_nothing() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, name) = (session_at(&url_through(&proxy), LONG).await, fresh_name());
    release(&session, &acquire(&session, &name).await).await;
    proxy.set(Direction::Requests, Flow::Hold);
    let claim = start(&session, &name);
    until("the create is under way", async || proxy.holds(&mark(&claim.claim))).await;
    proxy.leave();
    proxy.pass();
    let grant = claim.granted().await;
    proxy.deliver_late();
    // By now the server has closed the connection that it came on.
    let after = acquire(&session, &fresh_name()).await;
    assert_eq!(queue(&server, &name).len(), 1, "the late copy is an orphan");
    release(&session, &grant).await;
    assert_eq!(queue(&server, &name), [""; 0]);
    release(&session, &after).await;
}

/// As a client meets it that comes back to a server which does not know yet that its last session is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_session_is_not_adopted_whatever_its_name() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, name) = (session_at(&url_through(&proxy), LONG).await, fresh_name());
    release(&session, &acquire(&session, &name).await).await;
    proxy.set(Direction::Requests, Flow::Hold);
    let claim = start(&session, &name);
    until("the create is under way", async || proxy.holds(&mark(&claim.claim))).await;
    let ghost_owner = plain(&server).await;
    let ghost = contend(&ghost_owner, &name, &format!("_c_{}-lock-", mark(&claim.claim))).await;
    proxy.leave();
    proxy.pass();
    until("it waits behind the ghost", async || claim.control.was_contended()).await;
    assert_eq!(queue(&server, &name).len(), 2);
    assert!(claim.is_waiting());
    ghost_owner.delete(&ghost, None).await.unwrap();
    release(&session, &claim.granted().await).await;
    assert_eq!(queue(&server, &name), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_reply_was_lost_is_confirmed_by_the_next_and_touches_no_newer_grant() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    for form in ["curator", "single"] {
        let session = session_at(&format!("{}&form={form}", url_through(&proxy)), LONG).await;
        let other = session_at(&format!("{}/?form={form}", server.url()), LONG).await;
        let name = fresh_name();
        let first = acquire(&session, &name).await;
        let next = enqueued(&other, &name).await;
        // The single form asks the leader and looks before it deletes.
        proxy.swallow_reply(if form == "single" { 3 } else { 1 });
        assert_eq!(bounded(session.release(&first)).await.unwrap_err().kind(), ErrorKind::Unavailable);
        let second = next.granted().await;
        release(&session, &first).await;
        assert!(is_renewed(&beat(&other, &[&second]).await.holds[0].1), "{form}: the newer grant is gone");
        release(&other, &second).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_whose_reply_was_lost_is_repeated() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (other, session, name) =
        (session(server, LONG).await, session_at(&url_through(&proxy), LONG).await, fresh_name());
    let held = acquire(&other, &name).await;
    let waiting = enqueued(&session, &name).await;
    proxy.refuse();
    waiting.control.give_up();
    tokio::task::yield_now().await;
    assert!(waiting.is_waiting());
    assert_eq!(queue(server, &name).len(), 2);
    proxy.pass();
    assert!(is_gave_up(&waiting.ends().await));
    assert_eq!(queue(server, &name).len(), 1);
    release(&other, &held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_event_is_made_up_for_by_a_look() {
    let server = ZooKeeper::start().unwrap();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (other, name) = (session(&server, LONG).await, fresh_name());
    let session = session_at(&url_through(&proxy), SHORT).await;
    let held = acquire(&other, &name).await;
    let waiting = watching(&server, &session, &name).await;
    proxy.drop_messages(Message::Events, |_| true);
    release(&other, &held).await;
    let grant = waiting.granted().await;
    assert_eq!(proxy.counts().dropped, 1, "no event was lost");
    proxy.pass();
    release(&session, &grant).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_a_client_was_away_for_wakes_it_when_it_is_back() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (other, session, name) =
        (session(server, LONG).await, session_at(&url_through(&proxy), LONG).await, fresh_name());
    let held = acquire(&other, &name).await;
    let waiting = enqueued(&session, &name).await;
    proxy.refuse();
    release(&other, &held).await;
    proxy.pass();
    // By the watch, and not by a look.
    let granted = tokio::time::timeout(BEFORE_A_LOOK / 2, waiting.granted()).await;
    release(&session, &granted.expect("the watch did not come back")).await;
    assert_eq!(server.children(&node(&name)).unwrap(), [""; 0]);
}
