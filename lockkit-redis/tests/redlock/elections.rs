//! The leader of a lock, as observers see it while nodes are down or have lost keys.

use std::{sync::Arc, time::Duration};

use lockkit_conformance::{
    Store,
    direct::{HANG, LONG, until},
};
use lockkit_core::{
    Clock, ErrorKind, LockName, Metadata, Proposal, Result,
    backend::{Acquired, Backend, Claim, ClaimControl, Grant, LeaderEntry, Session},
};
use lockkit_testbed::{Direction, Flow, Proxy};

use crate::redlock::{Masters, backend, encoded, url_of};

fn name() -> LockName {
    LockName::new("x").unwrap()
}

async fn open(masters: &Masters, ttl: Duration) -> Arc<dyn Session> {
    let url = format!("{}?request_timeout=5s", masters.url());
    backend(&url).unwrap().open_session(ttl, Clock::boot()).await.unwrap()
}

fn proposal(number: u64) -> Metadata {
    Metadata::of_this_process(None).with_proposal(Proposal::new(format!("value {number}"), number))
}

async fn take(session: &Arc<dyn Session>, metadata: Metadata) -> Grant {
    match session.acquire(Claim::new(name(), true, metadata, &ClaimControl::new())).await.unwrap() {
        Acquired::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// Acquires the lock, and waits until every node has it: a majority has granted before.
async fn take_everywhere(masters: &Masters, session: &Arc<dyn Session>, metadata: Metadata) -> Grant {
    let grant = take(session, metadata).await;
    let count = masters.endpoints.len();
    until("every node has the lock", async || masters.nodes_with(&name()).await.unwrap() == count).await;
    grant
}

async fn proclaim(session: &Arc<dyn Session>, grant: &Grant, number: u64) -> Result<bool> {
    session.elections().unwrap().proclaim(grant, &proposal(number)).await
}

async fn look(session: &Arc<dyn Session>) -> Result<Option<LeaderEntry>> {
    session.elections().unwrap().leader(&name()).await
}

/// The leader's token and the number of its proposal.
async fn leader(session: &Arc<dyn Session>) -> Option<(u64, u64)> {
    shown(look(session).await.unwrap())
}

/// As [`leader`], once the session has connected to a node that is back.
async fn leader_of_majority(session: &Arc<dyn Session>) -> Option<(u64, u64)> {
    let start = tokio::time::Instant::now();
    loop {
        match look(session).await {
            Ok(leader) => return shown(leader),
            Err(error) => assert!(start.elapsed() < HANG, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn shown(leader: Option<LeaderEntry>) -> Option<(u64, u64)> {
    let leader = leader?;
    if leader.proposal.number > 0 {
        assert_eq!(leader.proposal.value, format!("value {}", leader.proposal.number));
    }
    Some((leader.token.get(), leader.proposal.number))
}

/// The lock's value at this node.
async fn value(masters: &Masters, node: usize) -> String {
    let get =
        masters.with(move |nodes| Ok(nodes.node(node).cli(&["GET", &encoded(&name())])?.text().to_owned()));
    get.await.unwrap()
}

/// The number of the proposal that this node has for the lock's value.
async fn proposed(masters: &Masters, node: usize) -> u64 {
    let value = value(masters, node).await;
    let metadata = value.find('{').and_then(|at| Metadata::from_json(&value.as_bytes()[at..]));
    metadata.and_then(|metadata| metadata.proposal).map_or(0, |proposal| proposal.number)
}

async fn kill(masters: &Masters, node: usize) {
    masters.with(move |nodes| nodes.node_mut(node).kill()).await.unwrap();
}

async fn restart(masters: &Masters, node: usize) {
    masters.with(move |nodes| nodes.node_mut(node).restart()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_is_seen_from_the_grant_to_the_release() {
    let masters = Masters::start(3).unwrap();
    let (session, observer) = (open(&masters, LONG).await, open(&masters, LONG).await);
    assert_eq!(leader(&observer).await, None);
    let grant = take(&session, proposal(1)).await;
    let token = grant.token().get();
    assert_eq!(leader(&observer).await, Some((token, 1)));
    for number in 2..4 {
        assert!(proclaim(&session, &grant, number).await.unwrap());
        assert_eq!(leader(&observer).await, Some((token, number)));
    }
    session.release(&grant).await.unwrap();
    assert_eq!(leader(&observer).await, None);
    assert!(!proclaim(&session, &grant, 4).await.unwrap());
    until("nothing is left", async || masters.entries(&name()).await.unwrap().is_empty()).await;
    let ordinary = take(&session, Metadata::of_this_process(None)).await;
    assert_eq!(leader(&observer).await, Some((ordinary.token().get(), 0)));
    session.close().await.unwrap();
    let closed = [look(&session).await.err(), proclaim(&session, &ordinary, 2).await.err()];
    assert!(closed.iter().all(|error| error.as_ref().is_some_and(|error| error.kind() == ErrorKind::Closed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_holder_proclaims_nothing() {
    let masters = Masters::start(3).unwrap();
    // A request may take a quarter of the ttl.
    let (stale, session) = (open(&masters, Duration::from_secs(12)).await, open(&masters, LONG).await);
    let old = take(&stale, proposal(1)).await;
    // Granted once the first one, which nobody renews, has expired.
    let grant = take(&session, proposal(1)).await;
    assert!(!proclaim(&stale, &old, 9).await.unwrap());
    assert_eq!(leader(&session).await, Some((grant.token().get(), 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn proposal_of_a_majority_is_seen_by_every_majority() {
    let masters = Masters::start(3).unwrap();
    let (session, observer) = (open(&masters, LONG).await, open(&masters, LONG).await);
    let grant = take_everywhere(&masters, &session, proposal(1)).await;
    kill(&masters, 2).await;
    assert!(proclaim(&session, &grant, 2).await.unwrap());
    for (back, down) in [(2, 1), (1, 0)] {
        restart(&masters, back).await;
        kill(&masters, down).await;
        assert_eq!(
            leader_of_majority(&observer).await,
            Some((grant.token().get(), 2)),
            "without node {down}"
        );
    }
    // Without a majority it may or may not be seen, and is repeated.
    kill(&masters, 1).await;
    assert_eq!(proclaim(&session, &grant, 3).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(look(&observer).await.unwrap_err().kind(), ErrorKind::Unavailable);
    restart(&masters, 0).await;
    until("it is confirmed", async || proclaim(&session, &grant, 3).await.unwrap_or_default()).await;
    assert_eq!(leader_of_majority(&observer).await, Some((grant.token().get(), 3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_lock_has_its_token_and_proposal() {
    let masters = Masters::start(3).unwrap();
    let (session, observer) = (open(&masters, LONG).await, open(&masters, LONG).await);
    kill(&masters, 2).await;
    let grant = take(&session, proposal(1)).await;
    assert!(proclaim(&session, &grant, 2).await.unwrap());
    restart(&masters, 2).await;
    let lose = async || {
        masters.with(|nodes| nodes.node(2).cli(&["DEL", &encoded(&name())]).map(drop)).await.unwrap();
    };
    let has_it = async || {
        session.renew(std::slice::from_ref(&grant)).await;
        proposed(&masters, 2).await == 2
    };
    until("the node has the lock and the proposal", async || {
        if proposed(&masters, 2).await == 1 {
            // By the ask, which was waiting for a connection to the node.
            lose().await;
        }
        has_it().await
    })
    .await;
    // The proclaim may have been waiting, too. Only a restore brings the lock back now.
    lose().await;
    until("a heartbeat has restored the lock and the proposal", has_it).await;
    kill(&masters, 0).await;
    assert_eq!(leader_of_majority(&observer).await, Some((grant.token().get(), 2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_that_may_be_held_is_not_without_a_leader() {
    let masters = Masters::start(3).unwrap();
    let (session, observer) = (open(&masters, LONG).await, open(&masters, LONG).await);
    let grant = take_everywhere(&masters, &session, proposal(1)).await;
    kill(&masters, 2).await;
    masters.with(|nodes| nodes.node(0).cli(&["DEL", "x"]).map(drop)).await.unwrap();
    let error = look(&observer).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&masters.endpoints[2]), "{error}");
    restart(&masters, 2).await;
    assert_eq!(leader_of_majority(&observer).await, Some((grant.token().get(), 1)));
}

/// The counters of the two that answer first differ.
#[tokio::test(flavor = "multi_thread")]
async fn slow_node_decides_on_the_token_of_the_leader() {
    let masters = Masters::start(3).unwrap();
    let proxy = Proxy::start_redis(&masters.endpoints[2]).unwrap();
    let endpoints = [masters.endpoints[0].clone(), masters.endpoints[1].clone(), proxy.endpoint()];
    let url = format!("{}?request_timeout=10s", url_of(&endpoints));
    let observer = backend(&url).unwrap().open_session(LONG, Clock::boot()).await.unwrap();
    let session = open(&masters, LONG).await;
    let grant = take_everywhere(&masters, &session, proposal(1)).await;
    masters.with(|nodes| nodes.node(1).cli(&["INCR", "lockkit:{x}:fence"]).map(drop)).await.unwrap();
    // Longer than a majority waits for the other nodes.
    proxy.set(Direction::Replies, Flow::Delay(Duration::from_millis(300)));
    assert_eq!(leader(&observer).await, Some((grant.token().get(), 1)));
}

/// A request may take a quarter of the ttl: longer than [`HANG`].
#[tokio::test(flavor = "multi_thread")]
async fn nobody_leads_is_known_without_a_silent_node() {
    let masters = Masters::start_with(3, "?max_ttl=4m").unwrap();
    let url = format!("{}?request_timeout=60s&max_ttl=4m", masters.url());
    let observer = backend(&url).unwrap().open_session(4 * LONG, Clock::boot()).await.unwrap();
    masters.with(|nodes| nodes.node(2).pause()).await.unwrap();
    let found = tokio::time::timeout(HANG, look(&observer)).await;
    masters.with(|nodes| nodes.node(2).resume()).await.unwrap();
    assert_eq!(found.expect("the others are enough").unwrap().map(|leader| leader.token), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_of_another_program_is_no_leader() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters, LONG).await;
    // The counters of an earlier grant are the same at all nodes.
    session.release(&take_everywhere(&masters, &session, proposal(1)).await).await.unwrap();
    until("nothing is left", async || masters.entries(&name()).await.unwrap().is_empty()).await;
    let set = masters.with(|nodes| {
        (0..3).try_for_each(|node| nodes.node(node).cli(&["SET", "x", "f00d", "PX", "60000"]).map(drop))
    });
    set.await.unwrap();
    assert_eq!(leader(&session).await, None);
}
