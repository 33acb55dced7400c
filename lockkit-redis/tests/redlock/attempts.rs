//! Attempts that fail, and what they leave at the nodes.

use std::{sync::Arc, time::Duration};

use lockkit_conformance::{
    Store,
    direct::{self, LONG, try_acquire, until},
};
use lockkit_core::{
    Clock, ErrorKind, LockName, Metadata, Result,
    backend::{Acquired, Backend, Claim, ClaimControl, Grant, Renewal, Session},
};
use lockkit_testbed::{Direction, Flow, Proxy};
use tokio::time::Instant;

use crate::{
    command,
    redlock::{Masters, backend, encoded, raw, url_of},
};

fn name() -> LockName {
    LockName::new("x").unwrap()
}

/// Opens a session with a request timeout for a busy machine.
async fn open(url: &str, ttl: Duration) -> Arc<dyn Session> {
    open_with(&format!("{url}?request_timeout=10s"), ttl).await
}

async fn open_with(url: &str, ttl: Duration) -> Arc<dyn Session> {
    backend(url).unwrap().open_session(ttl, Clock::boot()).await.unwrap()
}

async fn acquire(session: &Arc<dyn Session>, waits: bool, control: &ClaimControl) -> Result<Acquired> {
    session.acquire(Claim::new(name(), waits, Metadata::of_this_process(None), control)).await
}

async fn take(session: &Arc<dyn Session>) -> Grant {
    match acquire(session, false, &ClaimControl::new()).await.unwrap() {
        Acquired::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// The key of the lock's token counter.
fn counter() -> String {
    format!("lockkit:{{{}}}:fence", encoded(&name()))
}

async fn get(masters: &Masters, node: usize, key: &str) -> String {
    command(masters, node, &["GET", key]).await
}

/// Loads the script of a release at the first node, and returns how requests name it.
async fn digest_of_release(masters: &Masters) -> String {
    command(masters, 0, &["SCRIPT", "LOAD", *raw::RELEASE]).await
}

async fn calls(masters: &Masters, node: usize, command: &'static str) -> u64 {
    masters.with(move |nodes| nodes.node(node).calls(command)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn write_back_without_a_majority_is_unavailable_and_names_the_nodes() {
    let masters = Masters::start(3).unwrap();
    let proxy = Proxy::start_redis(&masters.endpoints[1]).unwrap();
    let endpoints = [masters.endpoints[0].clone(), proxy.endpoint(), masters.endpoints[2].clone()];
    let session = open(&url_of(&endpoints), LONG).await;
    // After `INFO`, only the test's own requests are sent, and every script is loaded.
    until("the node has executed INFO", async || calls(&masters, 1, "info").await > 0).await;
    let prepared = masters.with(|nodes| {
        nodes.node_mut(2).kill()?;
        nodes.node(1).cli(&["SCRIPT", "LOAD", *raw::WRITE_BACK]).map(drop)
    });
    prepared.await.unwrap();
    // Without the third node, each of these waits for the reply of the second one: no reply is on its way after them.
    session.release(&take(&session).await).await.unwrap();
    command(&masters, 0, &["SET", &counter(), "6000000000000000"]).await;
    command(&masters, 1, &["SET", &counter(), "6000000000000010"]).await;
    // The reply to the ask arrives, the reply to the write-back does not.
    proxy.swallow_reply(2);
    let error = acquire(&session, false, &ClaimControl::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for silent in &endpoints[1..] {
        assert!(error.to_string().contains(silent), "{error}");
    }
}

/// A session whose third node is down, so that each request waits for the reply of the second one, which is behind the
/// proxy. Every script of an attempt is loaded.
async fn session_of_two_nodes() -> (Masters, Proxy, Arc<dyn Session>) {
    let masters = Masters::start(3).unwrap();
    let proxy = Proxy::start_redis(&masters.endpoints[1]).unwrap();
    let endpoints = [masters.endpoints[0].clone(), proxy.endpoint(), masters.endpoints[2].clone()];
    let session = open(&url_of(&endpoints), LONG).await;
    until("the node has executed INFO", async || calls(&masters, 1, "info").await > 0).await;
    masters.with(|nodes| nodes.node_mut(2).kill()).await.unwrap();
    session.release(&take(&session).await).await.unwrap();
    (masters, proxy, session)
}

#[tokio::test(flavor = "multi_thread")]
async fn ask_whose_connection_breaks_is_repeated() {
    let (_masters, proxy, session) = session_of_two_nodes().await;
    proxy.swallow_reply(1);
    session.release(&take(&session).await).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_lock_is_unavailable_if_a_key_of_the_attempt_may_be_left() {
    let (masters, proxy, session) = session_of_two_nodes().await;
    let lock = encoded(&name());
    masters.with(move |nodes| nodes.node(0).cli(&["SET", &lock, "another"]).map(drop)).await.unwrap();
    // The node grants, and the reply to the clean-up is lost.
    proxy.swallow_reply(2);
    let error = acquire(&session, false, &ClaimControl::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn close_releases_the_grant_of_a_running_acquire() {
    let (masters, proxy, session) = session_of_two_nodes().await;
    let lock = encoded(&name());
    let is_at_the_first = async || {
        let lock = lock.clone();
        masters.with(move |nodes| Ok(!nodes.node(0).keys(&lock)?.is_empty())).await.unwrap()
    };
    let former = take(&session).await;
    session.release(&former).await.unwrap();
    proxy.set(Direction::Replies, Flow::Hold);
    let acquiring = tokio::spawn({
        let session = Arc::clone(&session);
        async move { acquire(&session, false, &ClaimControl::new()).await }
    });
    until("the first node has granted", is_at_the_first).await;
    let closing = tokio::spawn({
        let session = Arc::clone(&session);
        async move { session.close().await }
    });
    until("it is closed", async || session.release(&former).await.is_err()).await;
    proxy.pass();
    closing.await.unwrap().unwrap();
    let _ = acquiring.await.unwrap();
    assert!(!is_at_the_first().await, "the grant is left");
}

/// It might reply with one of the two counters, so that no write-back is needed. It is waited for only for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn silent_node_delays_a_majority_for_a_moment() {
    let masters = Masters::start(3).unwrap();
    let session = open_with(&format!("{}?request_timeout=60s", masters.url()), LONG).await;
    session.release(&take(&session).await).await.unwrap();
    let counter_key = format!("lockkit:{{{}}}:fence", encoded(&name()));
    let prepared = masters.with(move |nodes| {
        nodes.node(0).cli(&["SET", &counter_key, "6000000000000000"])?;
        nodes.node(1).cli(&["SET", &counter_key, "6000000000000010"])?;
        nodes.node(2).pause()
    });
    prepared.await.unwrap();
    let work = async {
        let grant = take(&session).await;
        let renewal = session.renew(std::slice::from_ref(&grant)).await.holds.remove(0).1;
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
        session.release(&grant).await.unwrap();
    };
    let ended = tokio::time::timeout(LONG / 4, work).await;
    masters.with(|nodes| nodes.node(2).resume()).await.unwrap();
    ended.expect("no request waits for the reply of the silent node");
}

#[tokio::test(flavor = "multi_thread")]
async fn held_lock_is_busy_while_a_minority_is_down() {
    let masters = Masters::start(3).unwrap();
    masters.with(|nodes| nodes.node_mut(0).kill()).await.unwrap();
    let (holder, other) = (open(&masters.url(), LONG).await, open(&masters.url(), LONG).await);
    let grant = take(&holder).await;
    for _ in 0..50 {
        let answer = acquire(&other, false, &ClaimControl::new()).await.unwrap();
        assert!(matches!(answer, Acquired::GaveUp), "{answer:?}");
    }
    holder.release(&grant).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_nodes_have_not_lost_the_lock() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), LONG).await;
    let grant = take(&session).await;
    let marker = command(&masters, 0, &["HGET", raw::NODE, "marker"]).await;
    let renewal = async || session.renew(std::slice::from_ref(&grant)).await.holds.remove(0).1;
    masters.with(|nodes| (1..3).try_for_each(|node| nodes.node_mut(node).kill())).await.unwrap();
    let mut unanswered = session.renew(std::slice::from_ref(&grant)).await;
    assert!(matches!(unanswered.session, Renewal::Unknown(_)), "{:?}", unanswered.session);
    let unanswered = unanswered.holds.remove(0).1;
    assert!(matches!(unanswered, Renewal::Unknown(_)), "{unanswered:?}");
    // One node of another set is no majority that was set up again.
    command(&masters, 0, &["HSET", raw::NODE, "marker", "ready 60000 0a0b 1/3"]).await;
    let without_majority = session.renew(&[]).await.session;
    assert!(matches!(without_majority, Renewal::Unknown(_)), "{without_majority:?}");
    command(&masters, 0, &["HSET", raw::NODE, "marker", &marker]).await;
    // Nor is one node of this set, for a session without holds.
    let without_holds = session.renew(&[]).await.session;
    assert!(matches!(without_holds, Renewal::Unknown(_)), "{without_holds:?}");
    masters.with(|nodes| (1..3).try_for_each(|node| nodes.node_mut(node).restart())).await.unwrap();
    until("the hold is renewed", async || matches!(renewal().await, Renewal::Renewed { .. })).await;
    session.release(&grant).await.unwrap();
}

/// Tasks of this test's runtime.
fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_leave_no_tasks_for_a_node_that_is_down() {
    const WAITERS: usize = 10;
    /// Tasks of one attempt at most: an ask and a clean-up at each node.
    const TASKS_PER_ATTEMPT: usize = 6;
    let masters = Masters::start(3).unwrap();
    masters.with(|nodes| nodes.node_mut(2).kill()).await.unwrap();
    let (holder, session) = (open(&masters.url(), LONG).await, open(&masters.url(), LONG).await);
    let grant = take(&holder).await;
    let control = ClaimControl::new();
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (session, control) = (Arc::clone(&session), control.clone());
            tokio::spawn(async move { acquire(&session, true, &control).await })
        })
        .collect();
    let mut counts = Vec::new();
    for tries in [40, 600] {
        let goal = calls(&masters, 0, "evalsha").await + tries;
        until("the waiters have made attempts", async || calls(&masters, 0, "evalsha").await >= goal).await;
        counts.push(tasks());
    }
    assert!(counts[1] < counts[0] + 2 * WAITERS * TASKS_PER_ATTEMPT, "{counts:?}");
    control.give_up();
    for waiter in waiting {
        assert!(matches!(waiter.await.unwrap(), Ok(Acquired::GaveUp)));
    }
    holder.release(&grant).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unconfirmed_release_is_forgotten_once_its_keys_have_expired() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), Duration::from_secs(4)).await;
    // A try has a quarter of the ttl, which may be too short on a busy machine. A claim that waits is repeated.
    let grant = direct::acquire(&session, &name()).await;
    masters.with(|nodes| (0..2).try_for_each(|node| nodes.node_mut(node).kill())).await.unwrap();
    let begun = Instant::now();
    assert_eq!(session.release(&grant).await.unwrap_err().kind(), ErrorKind::Unavailable);
    until("the session can be closed", async || session.close().await.is_ok()).await;
    assert!(begun.elapsed() > session.ttl(), "the nodes that are down may still have the keys");
}

/// Tries the lock while the ask is delayed on the way to the first node, and the other two nodes are busy.
#[tokio::test(flavor = "multi_thread")]
async fn grant_after_the_clean_up_is_removed() {
    let masters = Masters::start(3).unwrap();
    let proxy = Proxy::start_redis(&masters.endpoints[0]).unwrap();
    let endpoints = [proxy.endpoint(), masters.endpoints[1].clone(), masters.endpoints[2].clone()];
    let session = open_with(&format!("{}?request_timeout=5s", url_of(&endpoints)), LONG).await;
    let (lock, counter) = (encoded(&name()), counter());
    let clean_up = digest_of_release(&masters).await;

    // One attempt that arrives everywhere, so that every script is loaded.
    let grant = take(&session).await;
    session.release(&grant).await.unwrap();
    let token = grant.token().get().to_string();
    until("the ask has arrived at the first node", async || get(&masters, 0, &counter).await == token).await;
    until("the release has arrived there", async || get(&masters, 0, &lock).await.is_empty()).await;
    // From now on, the counter shows whether the next ask has arrived.
    command(&masters, 0, &["DEL", &counter]).await;
    for other in [1, 2] {
        command(&masters, other, &["SET", &lock, "another"]).await;
    }

    // The open connection stalls. After the time limit, the client opens a new one for its clean-up.
    proxy.stall_open();
    let before = calls(&masters, 0, "evalsha").await;
    let answer = acquire(&session, false, &ClaimControl::new()).await.unwrap();
    assert!(matches!(answer, Acquired::GaveUp), "{answer:?}");
    until("the clean-up is done", async || calls(&masters, 0, "evalsha").await > before).await;
    assert!(proxy.holds("EVALSHA"), "the ask is still delayed");
    // Over that connection it would be executed after the ask, and remove its key.
    assert!(!proxy.holds(&clean_up), "the clean-up was sent over a connection that was given up");

    // The ask arrives after its clean-up.
    proxy.pass();
    until("the ask has arrived", async || !get(&masters, 0, &counter).await.is_empty()).await;
    let removed = until("its key was removed", async || get(&masters, 0, &lock).await.is_empty());
    tokio::time::timeout(LONG / 2, removed).await.expect("removed, not expired");
    for other in [1, 2] {
        command(&masters, other, &["DEL", &lock]).await;
    }
    assert_eq!(masters.entries(&name()).await.unwrap(), [""; 0]);
}

/// The first request at a node includes connecting and the login.
#[tokio::test(flavor = "multi_thread")]
async fn session_with_a_short_ttl_opens_over_a_slow_link() {
    let masters = Masters::start(3).unwrap();
    let proxies: Vec<_> =
        masters.endpoints.iter().map(|endpoint| Proxy::start_redis(endpoint).unwrap()).collect();
    // Two round trips take longer than a quarter of the ttl.
    proxies.iter().for_each(|proxy| proxy.set(Direction::Replies, Flow::Delay(Duration::from_millis(150))));
    let url = url_of(&proxies.iter().map(Proxy::endpoint).collect::<Vec<_>>());
    open(&url, Duration::from_secs(1)).await;
}

/// Otherwise a restore that is delayed until after the release would bring the lock back.
#[tokio::test(flavor = "multi_thread")]
async fn release_after_a_restore_raises_the_counters() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), LONG).await;
    let counter = counter();
    for is_restored in [false, true] {
        let grant = take(&session).await;
        let token = grant.token().get();
        if is_restored {
            // A majority has granted; at the other node the ask may be executed later.
            until("every node has the lock", async || masters.nodes_with(&name()).await.unwrap() == 3).await;
            masters.with(|nodes| nodes.node(0).cli(&["DEL", &encoded(&name())]).map(drop)).await.unwrap();
            until("a heartbeat has restored the lock", async || {
                // It does not wait for long for a node that a majority does not need.
                session.renew(std::slice::from_ref(&grant)).await;
                !get(&masters, 0, &encoded(&name())).await.is_empty()
            })
            .await;
            let lifetime = masters.with(|nodes| nodes.node(0).lifetime(&encoded(&name()))).await.unwrap();
            // It is rounded up to the next millisecond.
            let longest = LONG + Duration::from_millis(1);
            assert!(lifetime.is_some_and(|lifetime| lifetime <= longest), "{lifetime:?}");
        }
        session.release(&grant).await.unwrap();
        let expected = (token + u64::from(is_restored)).to_string();
        for node in 0..3 {
            until("the counter is as expected", async || get(&masters, node, &counter).await == expected)
                .await;
        }
    }
}

/// How a session uses the nodes.
#[derive(Clone, Copy, Debug)]
enum Use {
    Ask,
    Heartbeat,
    IdleHeartbeat,
    ReadRecord,
    WriteRecord,
}

/// Whichever request finds it first. The time for which it stays out is longer than the test, so each session writes a
/// note once.
#[tokio::test(flavor = "multi_thread")]
async fn every_request_that_finds_an_emptied_node_begins_to_bring_it_back() {
    let masters = Masters::start(3).unwrap();
    let uses = [Use::Ask, Use::Heartbeat, Use::IdleHeartbeat, Use::ReadRecord, Use::WriteRecord];
    let mut sessions = Vec::new();
    for one in uses {
        let session = open(&masters.url(), LONG).await;
        let lock = LockName::new(format!("{one:?}")).unwrap();
        let held = direct::acquire(&session, &lock).await;
        sessions.push((one, session, held));
    }
    for (one, session, held) in &sessions {
        command(&masters, 2, &["DEL", raw::NODE]).await;
        until(&format!("a note by {one:?}"), async || {
            match one {
                Use::Ask => drop(try_acquire(session, held.name()).await.unwrap()),
                Use::Heartbeat => drop(session.renew(std::slice::from_ref(held)).await),
                Use::IdleHeartbeat => drop(session.renew(&[]).await),
                Use::ReadRecord => drop(session.records().unwrap().read(held.name()).await.unwrap()),
                Use::WriteRecord => {
                    let records = session.records().unwrap();
                    assert!(records.write(held, "x", LONG).await.unwrap());
                }
            }
            command(&masters, 2, &["HGET", raw::NODE, "marker"]).await.starts_with("empty ")
        })
        .await;
    }
}
