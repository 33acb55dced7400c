//! Attempts that end badly, and what is left of them.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkit_conformance::Store;
use lockkit_core::{
    Clock, ErrorKind, LockName, Metadata, Result,
    backend::{Acquired, Backend, Claim, ClaimControl, Grant, Renewal, Session},
};
use lockkit_testbed::{Direction, Flow, Proxy};
use tokio::{net::TcpStream, time::Instant};

use crate::redlock::{Masters, backend, encoded, raw, url_of};

/// Generous bound against hangs.
const HANG: Duration = Duration::from_secs(60);

const LONG: Duration = Duration::from_secs(60);

fn name() -> LockName {
    LockName::new("x").unwrap()
}

/// A session whose requests have time on a busy machine, too.
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

/// Looks again and again until it is so.
async fn until(what: &str, so: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !so().await {
        assert!(start.elapsed() < HANG, "it did not come about that {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn calls(masters: &Masters, node: usize, command: &'static str) -> u64 {
    masters.with(move |nodes| nodes.node(node).calls(command)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_back_without_a_majority_is_unavailable_and_names_the_nodes() {
    let masters = Masters::start(3).unwrap();
    let way = Proxy::start_redis(&masters.endpoints[1]).unwrap();
    let ends = [masters.endpoints[0].clone(), way.endpoint(), masters.endpoints[2].clone()];
    let session = open(&url_of(&ends), LONG).await;
    // From here on nothing but what is asked for travels, and every script is known.
    until("the node was asked about itself", async || calls(&masters, 1, "info").await > 0).await;
    let load = masters.with(|nodes| nodes.node(1).cli(&["SCRIPT", "LOAD", raw::WRITE_BACK]).map(drop));
    load.await.unwrap();
    session.release(&take(&session).await).await.unwrap();
    let fence = format!("lockkit:{{{}}}:fence", encoded(&name()));
    let prepared = masters.with(move |nodes| {
        nodes.node_mut(2).kill()?;
        nodes.node(0).cli(&["SET", &fence, "6000000000000000"])?;
        nodes.node(1).cli(&["SET", &fence, "6000000000000010"])
    });
    prepared.await.unwrap();
    // The answer to the question arrives, that to the write-back does not.
    way.swallow_reply(2);
    let error = acquire(&session, false, &ClaimControl::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for silent in &ends[1..] {
        assert!(error.to_string().contains(silent), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_busy_and_not_unavailable_while_a_minority_is_down() {
    let masters = Masters::start(3).unwrap();
    masters.with(|nodes| nodes.node_mut(0).kill()).await.unwrap();
    let (holder, other) = (open(&masters.url(), LONG).await, open(&masters.url(), LONG).await);
    let grant = take(&holder).await;
    for _ in 0..50 {
        let end = acquire(&other, false, &ClaimControl::new()).await.unwrap();
        assert!(matches!(end, Acquired::GaveUp), "{end:?}");
    }
    holder.release(&grant).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_do_not_answer_have_not_lost_the_lock() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), LONG).await;
    let grant = take(&session).await;
    let renewal = async || session.renew(std::slice::from_ref(&grant)).await.holds.remove(0).1;
    masters.with(|nodes| (1..3).try_for_each(|node| nodes.node_mut(node).kill())).await.unwrap();
    let unanswered = renewal().await;
    assert!(matches!(unanswered, Renewal::Unknown(_)), "{unanswered:?}");
    masters.with(|nodes| (1..3).try_for_each(|node| nodes.node_mut(node).restart())).await.unwrap();
    until("it is renewed", async || matches!(renewal().await, Renewal::Renewed { .. })).await;
    session.release(&grant).await.unwrap();
}

/// Tasks of this test's runtime.
fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test(flavor = "multi_thread")]
async fn tries_leave_nothing_behind_for_a_node_that_is_away() {
    const WAITERS: usize = 10;
    /// What a try has under way: a question and a clean-up at each node.
    const TASKS_PER_TRY: usize = 6;
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
    for tries in [20, 300] {
        // A node that is there executes two scripts for each.
        let goal = calls(&masters, 0, "evalsha").await + 2 * tries;
        until("they have tried", async || calls(&masters, 0, "evalsha").await >= goal).await;
        counts.push(tasks());
    }
    assert!(counts[1] < counts[0] + 2 * WAITERS * TASKS_PER_TRY, "{counts:?}");
    control.give_up();
    for waiter in waiting {
        assert!(matches!(waiter.await.unwrap(), Ok(Acquired::GaveUp)));
    }
    holder.release(&grant).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_no_majority_confirms_is_forgotten_when_its_keys_must_have_ended() {
    let masters = Masters::start(3).unwrap();
    let session = open(&masters.url(), Duration::from_secs(1)).await;
    let grant = take(&session).await;
    masters.with(|nodes| (0..2).try_for_each(|node| nodes.node_mut(node).kill())).await.unwrap();
    let begun = Instant::now();
    assert_eq!(session.release(&grant).await.unwrap_err().kind(), ErrorKind::Unavailable);
    until("the session can be closed", async || session.close().await.is_ok()).await;
    assert!(begun.elapsed() > session.ttl(), "the nodes that are away may have the keys yet");
}

/// Where a client's next connections lead.
struct Switch {
    endpoint: String,
    target: Arc<Mutex<String>>,
}

impl Switch {
    async fn start(target: String) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let target = Arc::new(Mutex::new(target));
        let now = Arc::clone(&target);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let target = now.lock().unwrap().clone();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(target).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
        });
        Self { endpoint, target }
    }

    fn to(&self, target: String) {
        *self.target.lock().unwrap() = target;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_gives_behind_the_clean_up_is_taken_back() {
    let masters = Masters::start(3).unwrap();
    let slow = Proxy::start_redis(&masters.endpoints[0]).unwrap();
    let switch = Switch::start(slow.endpoint()).await;
    let ends = [switch.endpoint.clone(), masters.endpoints[1].clone(), masters.endpoints[2].clone()];
    let session = open_with(&format!("{}?request_timeout=2s", url_of(&ends)), LONG).await;
    let (lock, fence) = (encoded(&name()), format!("lockkit:{{{}}}:fence", encoded(&name())));
    let get = async |key: &str| {
        let key = key.to_owned();
        masters.with(move |nodes| Ok(nodes.node(0).cli(&["GET", &key])?.text().to_owned())).await.unwrap()
    };
    let grant = take(&session).await;
    session.release(&grant).await.unwrap();
    let passed = (grant.token().get() + 1).to_string();
    until("the release has arrived there, too", async || get(&fence).await == passed).await;
    let (held, counter) = (lock.clone(), fence.clone());
    let others = masters.with(move |nodes| {
        (1..3).try_for_each(|node| nodes.node(node).cli(&["SET", &held, "somebody"]).map(drop))?;
        nodes.node(0).cli(&["DEL", &counter]).map(drop)
    });
    others.await.unwrap();
    // The first connection stands still, the next one does not.
    slow.set(Direction::Requests, Flow::Hold);
    switch.to(masters.endpoints[0].clone());
    let before = calls(&masters, 0, "evalsha").await;
    let end = acquire(&session, false, &ClaimControl::new()).await.unwrap();
    assert!(matches!(end, Acquired::GaveUp), "{end:?}");
    until("the clean-up is done", async || calls(&masters, 0, "evalsha").await > before).await;
    assert!(slow.holds("EVALSHA"), "the question is still under way");
    // It would end behind the question what the question brings about.
    assert!(!slow.holds("lockkit:released"), "the clean-up was sent over a connection that was given up");
    slow.pass();
    until("the question has arrived", async || !get(&fence).await.is_empty()).await;
    until("nothing is left of it", async || get(&lock).await.is_empty()).await;
    let cleared = masters
        .with(move |nodes| (1..3).try_for_each(|node| nodes.node(node).cli(&["DEL", &lock]).map(drop)));
    cleared.await.unwrap();
    assert_eq!(masters.entries(&name()).await.unwrap(), [""; 0]);
}
