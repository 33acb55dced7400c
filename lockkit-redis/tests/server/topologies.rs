//! Several servers: the master is found, also after a failover.

use std::sync::Arc;

use lockkit_core::{
    ErrorKind,
    backend::{Grant, Renewal, Session},
};
use lockkit_testbed::{Proxy, Redis, RedisReplicas};

use crate::common::{
    LONG, acquire, assert_error, backend, bounded, enqueued, fresh_name, only_renewal, refusal_of, release,
    session_at, try_acquire, until,
};

/// Options that make outages short.
pub(crate) const QUICK: &str = "?request_timeout=1s";

/// Options for servers that answer at once, however busy this machine is.
pub(crate) const PATIENT: &str = "?request_timeout=10s";

pub(crate) async fn is_renewed(session: &Arc<dyn Session>, grant: &Grant) -> bool {
    matches!(only_renewal(session.renew(std::slice::from_ref(grant)).await), Renewal::Renewed { .. })
}

#[tokio::test(flavor = "multi_thread")]
async fn master_of_several_servers_is_found_again_after_a_failover() {
    let mut nodes = RedisReplicas::start().unwrap();
    let url = format!("{}/{PATIENT}", nodes.url());
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    let held = acquire(&one, &name).await;
    let waiter = enqueued(&other, &name).await;
    nodes.wait_until_in_sync(0).unwrap();
    nodes.promote(1).unwrap();
    until("the hold is renewed at the new master", async || is_renewed(&one, &held).await).await;
    release(&one, &held).await;
    let next = waiter.granted().await;
    assert!(next.token() > held.token());
    assert!(
        nodes.node(1).cli(&["GET", name.as_str()]).unwrap().text().starts_with(&next.claim().to_string())
    );
    nodes.wait_until_in_sync(1).unwrap();
    nodes.node_mut(1).kill().unwrap();
    nodes.promote(2).unwrap();
    until("the hold is renewed at the third master", async || is_renewed(&other, &next).await).await;
    release(&other, &next).await;
}

/// It sends no write, which the demoted master would refuse.
#[tokio::test(flavor = "multi_thread")]
async fn idle_client_leaves_a_demoted_master() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{PATIENT}", nodes.url()), LONG).await;
    let has_subscriber = |number: usize| {
        let channels = nodes.node(number).cli(&["PUBSUB", "CHANNELS", "lockkit:client:*"]).unwrap();
        !channels.list().is_empty()
    };
    assert!(has_subscriber(0));
    nodes.wait_until_in_sync(0).unwrap();
    nodes.promote(1).unwrap();
    until("the client is at the new master", async || {
        bounded(session.renew(&[])).await;
        has_subscriber(1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_master_nothing_is_granted() {
    let nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{PATIENT}", nodes.url()), LONG).await;
    for number in 0..nodes.len() {
        nodes.node(number).cli(&["REPLICAOF", "127.255.255.254", "1"]).unwrap();
    }
    let error = try_acquire(&session, &fresh_name()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    nodes.promote(0).unwrap();
    acquire(&session, &fresh_name()).await;
}

/// A lock that a failover loses is granted again, with a larger token.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_a_failover_loses_is_followed_by_a_larger_token() {
    let nodes = RedisReplicas::start().unwrap();
    let url = format!("{}/{PATIENT}", nodes.url());
    let (one, other, name) = (session_at(&url, LONG).await, session_at(&url, LONG).await, fresh_name());
    nodes.wait_until_in_sync(0).unwrap();
    for number in 1..nodes.len() {
        nodes.node(number).stop_replicating().unwrap();
    }
    let lost = acquire(&one, &name).await;
    nodes.promote(1).unwrap();
    let next = acquire(&other, &name).await;
    assert!(next.token() > lost.token(), "{} after {}", next.token(), lost.token());
    until("the loss is reported", async || {
        matches!(only_renewal(one.renew(std::slice::from_ref(&lost)).await), Renewal::Gone)
    })
    .await;
    assert!(is_renewed(&other, &next).await);
}

/// A restarted former master claims to be the master until an operator or a Sentinel demotes it.
#[tokio::test(flavor = "multi_thread")]
async fn with_two_masters_no_session_opens() {
    let mut nodes = RedisReplicas::start().unwrap();
    let session = session_at(&format!("{}/{PATIENT}", nodes.url()), LONG).await;
    let (name, replica) = (fresh_name(), nodes.node(2).endpoint());
    nodes.node_mut(0).kill().unwrap();
    nodes.promote(1).unwrap();
    let held = acquire(&session, &name).await;
    nodes.node_mut(0).restart().unwrap();
    let masters = [0, 1].map(|number| nodes.node(number).endpoint());
    // In any order, and with any other server.
    for hosts in [
        [&masters[0], &masters[1], &replica],
        [&replica, &masters[1], &masters[0]],
        [&masters[1], &replica, &masters[0]],
    ] {
        let [one, two, three] = hosts;
        let error = refusal_of(backend(&format!("redis://{one},{two},{three}/{PATIENT}"))).await;
        for master in &masters {
            assert_error(&error, ErrorKind::Unavailable, master);
        }
    }
    // Connected clients stay connected; new ones connect after the operator has decided.
    assert!(is_renewed(&session, &held).await);
    nodes.promote(1).unwrap();
    let other = session_at(&format!("{}/{PATIENT}", nodes.url()), LONG).await;
    assert!(crate::common::is_gave_up(&try_acquire(&other, &name).await));
}

/// Without the right to INFO, their run ids are unknown: they may be one server, or share nothing.
#[tokio::test(flavor = "multi_thread")]
async fn two_masters_without_run_ids_are_two() {
    let nodes = [Redis::start().unwrap(), Redis::start().unwrap()];
    for node in &nodes {
        node.cli(&["ACL", "SETUSER", "app", "on", ">right", "~*", "&*", "+@all", "-info"]).unwrap();
    }
    let [one, two] = nodes.each_ref().map(Redis::endpoint);
    let error = refusal_of(backend(&format!("redis://app:right@{one},{two}/{PATIENT}"))).await;
    for master in [&one, &two] {
        assert_error(&error, ErrorKind::Unavailable, master);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_server_does_not_hide_the_master() {
    let nodes = RedisReplicas::start().unwrap();
    nodes.node(0).pause().unwrap();
    nodes.node(1).cli(&["REPLICAOF", "NO", "ONE"]).unwrap();
    for hosts in [[0, 1], [1, 0]] {
        let [one, two] = hosts.map(|number| nodes.node(number).endpoint());
        let session = session_at(&format!("redis://{one},{two}/{PATIENT}"), LONG).await;
        acquire(&session, &fresh_name()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_named_twice_is_one_master() {
    let nodes = RedisReplicas::start().unwrap();
    let alias = Proxy::start_redis(nodes.node(0).endpoint()).unwrap();
    let session = session_at(&format!("{},{}/{PATIENT}", nodes.url(), alias.endpoint()), LONG).await;
    acquire(&session, &fresh_name()).await;
}
