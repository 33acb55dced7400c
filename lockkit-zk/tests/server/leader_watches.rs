//! What wakes a watch on the leader, and what is left of it.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use lockkit_core::{
    LockName,
    backend::{LeaderWatch, Session},
};
use lockkit_testbed::{Direction, Flow, Proxy};

use crate::{
    budget::spent,
    common::{
        LONG, acquire, bounded, contend, enqueued, fresh_name, node, own_server, patient_url, plain, queue,
        quiet_session, release, session, session_at, shared, until, url_through,
    },
    elections::{elections, lead, leader, proclaim},
};

async fn watch(session: &Arc<dyn Session>, name: &LockName) -> Box<dyn LeaderWatch> {
    bounded(elections(session).watch(name)).await.unwrap()
}

/// Polls a watch once; returns whether it reports a change.
async fn has_changed(watch: &mut dyn LeaderWatch) -> bool {
    let mut changed = pin!(watch.changed());
    poll_fn(|context| Poll::Ready(changed.as_mut().poll(context).is_ready())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_of_leader_or_proposal_wakes_the_watch() {
    let server = own_server();
    let (session, other, observer) =
        (session(&server, LONG).await, session(&server, LONG).await, session(&server, LONG).await);
    let name = fresh_name();
    // Nobody has used the lock; then the empty directory remains.
    for _ in 0..2 {
        let mut watch = watch(&observer, &name).await;
        let grant = lead(&session, &name, "first").await;
        bounded(watch.changed()).await;
        for number in 2..5 {
            assert!(proclaim(&session, &grant, "again", number).await);
            bounded(watch.changed()).await;
            assert_eq!(leader(&observer, &name).await.unwrap().proposal.number, number);
        }
        let next = enqueued(&other, &name).await;
        release(&session, &grant).await;
        bounded(watch.changed()).await;
        let next = next.granted().await;
        assert_eq!(leader(&observer, &name).await.unwrap().token, next.token());
        release(&other, &next).await;
        bounded(watch.changed()).await;
        assert_eq!(leader(&observer, &name).await, None);
    }
    // The server removes an empty directory, and somebody locks again.
    let mut watch = watch(&observer, &name).await;
    assert!(server.delete(&node(&name)).unwrap());
    let grant = lead(&session, &name, "again").await;
    bounded(watch.changed()).await;
    assert_eq!(leader(&observer, &name).await.unwrap().token, grant.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_the_leaders_session_wakes_the_watch() {
    let server = own_server();
    let gate = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, observer) = (session_at(&url_through(&gate), LONG).await, session(&server, LONG).await);
    let name = fresh_name();
    let _grant = lead(&session, &name, "x").await;
    let mut watch = watch(&observer, &name).await;
    let path = format!("{}/{}", node(&name), queue(&server, &name)[0]);
    let owners = server.ephemerals().unwrap();
    let (owner, _) = owners.iter().find(|(_, paths)| paths.contains(&path)).unwrap();
    gate.hold_new();
    server.end_session(*owner).unwrap();
    bounded(watch.changed()).await;
    assert_eq!(leader(&observer, &name).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn change_during_a_disconnect_wakes_the_watch_after_reconnect() {
    let server = shared();
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, observer) = (session(server, LONG).await, session_at(&url_through(&proxy), LONG).await);
    let name = fresh_name();
    let grant = lead(&session, &name, "1").await;
    let mut watch = watch(&observer, &name).await;
    proxy.refuse();
    assert!(proclaim(&session, &grant, "2", 2).await);
    proxy.pass();
    bounded(watch.changed()).await;
    proxy.refuse();
    release(&session, &grant).await;
    proxy.pass();
    bounded(watch.changed()).await;
    assert_eq!(leader(&observer, &name).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_that_waits_sends_nothing() {
    let server = own_server();
    let (session, observer, name) =
        (quiet_session(&server).await, quiet_session(&server).await, fresh_name());
    let grant = lead(&session, &name, "x").await;
    let mut watch = watch(&observer, &name).await;
    let waiting = tokio::spawn(async move { watch.changed().await });
    assert_eq!(spent(&server, async || ()).await, (0, 0));
    release(&session, &grant).await;
    bounded(waiting).await.unwrap();
}

/// A candidate that joins or leaves fires the watch on the list, but is no change.
#[tokio::test(flavor = "multi_thread")]
async fn candidates_behind_the_leader_wake_nobody() {
    let server = own_server();
    let (session, other, observer) =
        (session(&server, LONG).await, session(&server, LONG).await, session(&server, LONG).await);
    let name = fresh_name();
    let grant = lead(&session, &name, "x").await;
    let mut watch = watch(&observer, &name).await;
    for _ in 0..3 {
        let waiting = enqueued(&other, &name).await;
        waiting.control.give_up();
        waiting.ends().await.unwrap();
    }
    // Until the event of the list has arrived, and the list is watched again beside the leader's node.
    let watched_again = async {
        let mut polls = 0;
        while polls < 10 || server.watches().unwrap() != 2 {
            let polled = tokio::time::timeout(Duration::from_millis(20), watch.changed()).await;
            assert!(polled.is_err(), "woken without a change");
            polls += 1;
        }
    };
    bounded(watched_again).await;
    release(&session, &grant).await;
    bounded(watch.changed()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_futures_lose_no_change() {
    let server = shared();
    let (session, observer) = (session(server, LONG).await, session(server, LONG).await);
    for round in 0..30 {
        let name = fresh_name();
        let grant = lead(&session, &name, "1").await;
        let mut watch = watch(&observer, &name).await;
        assert!(!has_changed(&mut *watch).await);
        assert!(proclaim(&session, &grant, "2", 2).await);
        // Dropped at any await point: before the event, and between the reads that watch again.
        let mut patience = Duration::from_micros(50 * round);
        let woken = async {
            while tokio::time::timeout(patience, watch.changed()).await.is_err() {
                patience += Duration::from_micros(200);
            }
        };
        bounded(woken).await;
        release(&session, &grant).await;
        bounded(watch.changed()).await;
    }
}

/// As when a re-check ends the wait while the connection is broken.
#[tokio::test(flavor = "multi_thread")]
async fn wait_dropped_before_the_leader_is_watched_again_loses_no_change() {
    let (server, name) = (shared(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, observer) = (session(server, LONG).await, session_at(&patient_url(&proxy), LONG).await);
    let grant = lead(&session, &name, "1").await;
    let mut watch = watch(&observer, &name).await;
    proxy.set(Direction::Requests, Flow::Hold);
    assert!(proclaim(&session, &grant, "2", 2).await);
    tokio::select! {
        () = watch.changed() => panic!("reported before it is watched again"),
        () = until("it is read again", async || proxy.holds(&node(&name))) => {}
    }
    proxy.pass();
    bounded(watch.changed()).await;
    release(&session, &grant).await;
    bounded(watch.changed()).await;
}

/// The server keeps a watch on a missing node until somebody creates the node or removes the watch.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_watch_leaves_nothing_at_the_server() {
    let server = own_server();
    let (session, observer) = (session(&server, LONG).await, session(&server, LONG).await);
    let is_watched = async |count| until("watches", async || server.watches().unwrap() == count).await;
    let unused = watch(&observer, &fresh_name()).await;
    is_watched(1).await;
    drop(unused);
    is_watched(0).await;
    let name = fresh_name();
    let grant = acquire(&session, &name).await;
    let [one, mut other] = [watch(&observer, &name).await, watch(&observer, &name).await];
    is_watched(2).await;
    drop(one);
    release(&session, &grant).await;
    bounded(other.changed()).await;
    is_watched(1).await;
    drop(other);
    is_watched(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_the_watching_session_is_one_last_hint() {
    let (observer, name) = (session(shared(), LONG).await, fresh_name());
    let mut watch = watch(&observer, &name).await;
    bounded(observer.close()).await.unwrap();
    bounded(watch.changed()).await;
    assert!(!has_changed(&mut *watch).await, "a keeper would ask without end");
}

/// It is missing when it is to be listed, and is made before that can be watched for.
#[tokio::test(flavor = "multi_thread")]
async fn directory_that_is_made_while_the_watch_is_set_is_watched() {
    /// `ZooDefs.OpCode.exists`.
    const EXISTS: i32 = 3;
    let (server, name) = (shared(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, observer) = (session(server, LONG).await, session_at(&patient_url(&proxy), LONG).await);
    let directory = node(&name);
    let length = i32::try_from(directory.len()).unwrap();
    let look = [&EXISTS.to_be_bytes()[..], &length.to_be_bytes(), directory.as_bytes()].concat();
    proxy.hold_requests_from(&look);
    let make = async {
        until("it is looked for", async || proxy.holds_bytes(&look)).await;
        let grant = lead(&session, &name, "x").await;
        proxy.pass();
        grant
    };
    let (mut watch, grant) = tokio::join!(watch(&observer, &name), make);
    release(&session, &grant).await;
    bounded(watch.changed()).await;
    assert_eq!(leader(&observer, &name).await, None);
}

/// The keeper asks then, and learns why. What the server refuses once, it refuses again.
#[tokio::test(flavor = "multi_thread")]
async fn refused_read_behind_an_event_is_one_last_hint() {
    /// `ZooDefs.OpCode.getChildren`, and `KeeperException.Code.NOAUTH`.
    const LIST: i32 = 8;
    const NO_AUTH: i32 = -102;
    let (server, name) = (shared(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (session, observer) = (session(server, LONG).await, session_at(&patient_url(&proxy), LONG).await);
    let mut watch = watch(&observer, &name).await;
    proxy.refuse_requests(LIST, NO_AUTH, u64::MAX);
    let grant = lead(&session, &name, "x").await;
    bounded(watch.changed()).await;
    assert!(!has_changed(&mut *watch).await, "a keeper would ask without end");
    release(&session, &grant).await;
}

/// Names without an id recur in a new directory, and the version of new data is 0 again.
#[tokio::test(flavor = "multi_thread")]
async fn new_leader_with_the_node_name_of_the_last_one_is_reported() {
    let (server, name) = (shared(), fresh_name());
    let proxy = Proxy::start_zookeeper(server.endpoint()).unwrap();
    let (observer, other) = (session_at(&url_through(&proxy), LONG).await, plain(server).await);
    let path = contend(&other, &name, "lock-").await;
    let mut watch = watch(&observer, &name).await;
    let before = leader(&observer, &name).await.unwrap().token;
    proxy.hold_events();
    other.delete(&path, None).await.unwrap();
    assert!(server.delete(&node(&name)).unwrap());
    assert_eq!(contend(&other, &name, "lock-").await, path, "the name did not recur");
    proxy.pass();
    bounded(watch.changed()).await;
    assert!(leader(&observer, &name).await.unwrap().token > before);
}
