//! One node that is silent, empty, or refuses a part of a script.

use std::{sync::Arc, time::Duration};

use lockkit_conformance::direct::{HANG, LONG, acquire, bounded, name, release, try_acquire, until};
use lockkit_core::{
    Clock, Metadata,
    backend::{Backend, Contender, Renewal, Session},
};
use lockkit_testbed::{Direction, Flow, Proxy};

use crate::{
    command,
    redlock::{Masters, backend, encoded, raw::NODE, url_of},
};

const LOCK: &str = "x";

/// Opens a session whose requests may take longer than a test waits, if the ttl allows it.
async fn open(url: &str, ttl: Duration) -> Arc<dyn Session> {
    backend(&format!("{url}?request_timeout=60s")).unwrap().open_session(ttl, Clock::boot()).await.unwrap()
}

async fn pause(masters: &Masters, nodes: std::ops::Range<usize>) {
    masters.with(move |all| nodes.into_iter().try_for_each(|node| all.node(node).pause())).await.unwrap();
}

async fn resume(masters: &Masters) {
    masters.with(|all| (0..all.len()).try_for_each(|node| all.node(node).resume())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn session_opens_without_a_silent_node() {
    let masters = Masters::start(3).unwrap();
    pause(&masters, 2..3).await;
    let opened = tokio::time::timeout(HANG, open(&masters.url(), LONG)).await;
    resume(&masters).await;
    opened.expect("the others are enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_and_heartbeats_of_idle_sessions_wait_for_no_silent_node() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), LONG).await;
    let held = acquire(&session, &name(LOCK)).await;
    until("every node has the lock", async || masters.nodes_with(&name(LOCK)).await.unwrap() == 3).await;
    pause(&masters, 2..3).await;
    // Less than the quarter of the ttl that a request may take.
    let ended = tokio::time::timeout(LONG / 6, async {
        let idle = session.renew(&[]).await.session;
        assert!(matches!(idle, Renewal::Renewed { .. }), "{idle:?}");
        let records = session.records().unwrap();
        assert!(records.write(&held, "one", LONG).await.unwrap());
        assert_eq!(records.read(held.name()).await.unwrap().as_deref(), Some("one"));
    });
    let ended = ended.await;
    resume(&masters).await;
    ended.expect("the others are enough");
    release(&session, &held).await;
}

/// A heartbeat must end before the next one.
#[tokio::test(flavor = "multi_thread")]
async fn request_may_take_a_share_of_the_ttl_only() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), LONG / 10).await;
    pause(&masters, 1..3).await;
    let heartbeat = tokio::time::timeout(session.ttl() * 3 / 4, session.renew(&[])).await;
    resume(&masters).await;
    let idle = heartbeat.expect("the time limit ends it").session;
    assert!(matches!(idle, Renewal::Unknown(_)), "{idle:?}");
}

/// It may send no other request by which it would find the node.
#[tokio::test(flavor = "multi_thread")]
async fn session_that_opens_begins_to_bring_an_emptied_node_back() {
    let masters = Masters::start(3).unwrap();
    let proxy = Proxy::start_redis(&masters.endpoints[1]).unwrap();
    // A majority needs this node. By the time that it answers, the emptied one has answered, too.
    proxy.set(Direction::Replies, Flow::Delay(Duration::from_millis(300)));
    command(&masters, 2, &["DEL", NODE]).await;
    let endpoints = [masters.endpoints[0].clone(), proxy.endpoint(), masters.endpoints[2].clone()];
    let session = open(&url_of(&endpoints), LONG).await;
    until("there is a note", async || {
        command(&masters, 2, &["HGET", NODE, "marker"]).await.starts_with("empty ")
    })
    .await;
    session.close().await.unwrap();
}

/// Alone in its session, it would wait for that node, too.
#[tokio::test(flavor = "multi_thread")]
async fn hold_that_needs_a_slow_node_is_renewed_although_another_one_does_not() {
    let masters = Masters::start(3).unwrap();
    let proxy = Proxy::start_redis(&masters.endpoints[2]).unwrap();
    let endpoints = [masters.endpoints[0].clone(), masters.endpoints[1].clone(), proxy.endpoint()];
    let session = open(&url_of(&endpoints), LONG).await;
    let held = [acquire(&session, &name(LOCK)).await, acquire(&session, &name("other")).await];
    for grant in &held {
        until("every node has it", async || masters.nodes_with(grant.name()).await.unwrap() == 3).await;
    }
    command(&masters, 0, &["DEL", &encoded(&name(LOCK))]).await;
    proxy.set(Direction::Replies, Flow::Delay(Duration::from_millis(500)));
    let renewals = session.renew(&held).await.holds;
    assert!(renewals.iter().all(|(_, one)| matches!(one, Renewal::Renewed { .. })), "{renewals:?}");
    proxy.pass();
    for grant in &held {
        release(&session, grant).await;
    }
}

/// A command after the one that sets the key is denied.
#[tokio::test(flavor = "multi_thread")]
async fn key_of_an_ask_that_failed_half_way_is_removed() {
    let masters = Masters::start(3).unwrap();
    let (session, lock) = (open(&masters.url(), LONG).await, encoded(&name(LOCK)));
    command(&masters, 0, &["ACL", "SETUSER", "app", "-hset"]).await;
    for other in [1, 2] {
        command(&masters, other, &["SET", &lock, "another"]).await;
    }
    let taken = async || masters.with(|all| all.node(0).calls("set")).await.unwrap();
    let before = taken().await;
    until("the node has taken the lock", async || {
        let _ = try_acquire(&session, &name(LOCK)).await;
        taken().await > before
    })
    .await;
    until("its key is removed", async || command(&masters, 0, &["GET", &lock]).await.is_empty()).await;
}

/// Observers would take another number for the token of the leader, and a late restore would be accepted.
#[tokio::test(flavor = "multi_thread")]
async fn counter_lives_for_as_long_as_its_lock() {
    let masters = Masters::start(3).unwrap();
    let url = format!("{}?counter_ttl=1s", masters.url());
    let session = backend(&url).unwrap().open_session(LONG, Clock::boot()).await.unwrap();
    let held = acquire(&session, &name(LOCK)).await;
    until("every node has the lock", async || masters.nodes_with(&name(LOCK)).await.unwrap() == 3).await;
    for node in 0..3 {
        let counter_key = format!("lockkit:{{{LOCK}}}:fence");
        let lives = masters.with(move |all| all.node(node).lifetime(&counter_key)).await.unwrap();
        assert!(lives.is_some_and(|lives| lives > LONG / 2), "{lives:?}");
    }
    release(&session, &held).await;
}

/// One of the two that answer first has lost its data since.
#[tokio::test(flavor = "multi_thread")]
async fn slow_node_decides_that_no_record_is_lost() {
    const LATER: &str = "9000000000000000";
    let masters = Masters::start(3).unwrap();
    let proxy = Proxy::start_redis(&masters.endpoints[2]).unwrap();
    let endpoints = [masters.endpoints[0].clone(), masters.endpoints[1].clone(), proxy.endpoint()];
    let session = open(&url_of(&endpoints), LONG).await;
    let held = acquire(&session, &name(LOCK)).await;
    let records = session.records().unwrap();
    assert!(records.write(&held, "one", LONG).await.unwrap());
    command(&masters, 0, &["HSET", NODE, "lost", LATER, "lost_until", LATER]).await;
    proxy.set(Direction::Replies, Flow::Delay(Duration::from_millis(300)));
    assert_eq!(records.read(held.name()).await.unwrap().as_deref(), Some("one"));
    proxy.pass();
    release(&session, &held).await;
}

/// The errors of heartbeats are what an operator sees of an outage.
#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_without_a_majority_name_the_nodes_that_are_down() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), LONG).await;
    let held = acquire(&session, &name(LOCK)).await;
    masters.with(|all| (0..2).try_for_each(|node| all.node_mut(node).kill())).await.unwrap();
    let idle = bounded(session.renew(&[])).await;
    let busy = bounded(session.renew(std::slice::from_ref(&held))).await;
    let holds = busy.holds.into_iter().map(|(_, hold)| hold);
    let renewals: Vec<Renewal> = [idle.session, busy.session].into_iter().chain(holds).collect();
    assert_eq!(renewals.len(), 3);
    for renewal in renewals {
        let Renewal::Unknown(error) = renewal else { panic!("{renewal:?}") };
        for endpoint in &masters.endpoints[..2] {
            assert!(error.to_string().contains(endpoint), "{error}");
        }
    }
}

/// A hold lives for as long as was asked for, at least.
#[tokio::test(flavor = "multi_thread")]
async fn ttl_is_rounded_up_to_whole_milliseconds() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), Duration::from_micros(20_000_001)).await;
    assert_eq!(session.ttl(), Duration::from_millis(20_001));
}

/// Nothing else says that to a program with several locks.
#[tokio::test(flavor = "multi_thread")]
async fn errors_without_a_majority_name_the_operation_and_the_lock() {
    let masters = Masters::start(3).unwrap();
    let (session, lock) = (open(&masters.url(), LONG).await, name(LOCK));
    let operator = backend(&format!("{}?request_timeout=60s", masters.url())).unwrap();
    let held = acquire(&session, &lock).await;
    masters.with(|all| (0..2).try_for_each(|node| all.node_mut(node).kill())).await.unwrap();
    let (elections, records) = (session.elections().unwrap(), session.records().unwrap());
    let (admin, shown) = (operator.admin().unwrap(), Contender::new(LOCK, None, None));
    let ended = [
        ("acquire", try_acquire(&session, &lock).await.err()),
        ("read the leader", bounded(elections.leader(&lock)).await.err()),
        ("proclaim", bounded(elections.proclaim(&held, &Metadata::of_this_process(None))).await.err()),
        ("read the record", bounded(records.read(&lock)).await.err()),
        ("write the record", bounded(records.write(&held, "one", LONG)).await.err()),
        ("inspect", bounded(admin.inspect(&lock)).await.err()),
        ("break", bounded(admin.break_lock(&lock, &shown)).await.err()),
        ("release", bounded(session.release(&held)).await.err()),
    ];
    for (operation, error) in ended {
        let named = error.as_ref().map(|error| (error.operation(), error.lock()));
        assert_eq!(named, Some((operation, Some(&lock))), "{error:?}");
    }
}
