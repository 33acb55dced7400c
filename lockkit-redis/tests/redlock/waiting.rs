//! Requests of waiters, read from the nodes' own counters.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkit_conformance::direct::{
    self, HANG, PendingClaim, acquire, bounded, is_gave_up, name, release, try_acquire, until,
};
use lockkit_core::{
    BootInstant, Clock,
    backend::{Backend, Grant, Session},
    support::lock,
};
use lockkit_testbed::{Message, Proxy, Redis};
use redis::{Client, PushKind, from_redis_value};
use tokio::{sync::mpsc::unbounded_channel, time::Instant};

use crate::{
    counting::{calls, scripts, since},
    redlock::{Masters, backend, bare::bare_notification, patient::patient, url_of},
};

const LONG: Duration = Duration::from_secs(60);

const LOCK: &str = "x";

/// Opens a session with a request timeout for a busy machine.
async fn session(masters: &Masters) -> Arc<dyn Session> {
    let url = format!("{}?request_timeout=10s", masters.url());
    backend(&url).unwrap().open_session(LONG, Clock::boot()).await.unwrap()
}

/// Acquires the lock, and waits until every node has it: a majority has granted before.
async fn acquire_everywhere(masters: &Masters, session: &Arc<dyn Session>) -> Grant {
    let held = acquire(session, &name(LOCK)).await;
    let count = masters.endpoints.len();
    until("every node has the lock", async || masters.nodes_with(&name(LOCK)).await.unwrap() == count).await;
    held
}

/// How many clients are subscribed to each of the lock's channels at a node.
fn subscribed(node: &Redis) -> anyhow::Result<BTreeMap<String, i64>> {
    let channels = node.cli(&["PUBSUB", "CHANNELS", &format!("lockkit:released:*{LOCK}")])?;
    let count = |channel: &str| Ok((channel.to_owned(), node.cli(&["PUBSUB", "NUMSUB", channel])?));
    let counts = channels.list().iter().map(|channel| count(channel.text()));
    counts.map(|count| count.map(|(channel, count)| (channel, count.list()[1].number().unwrap()))).collect()
}

/// Waits until each of these claims was granted the lock and has released it, in any order.
async fn pass_on(waiting: Vec<(Arc<dyn Session>, PendingClaim)>) {
    let turns = waiting.into_iter().map(|(session, waiter)| async move {
        release(&session, &waiter.granted().await).await;
    });
    bounded(futures_util::future::join_all(turns)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn try_of_a_held_lock_is_one_script_at_each_node() {
    const TRIES: u64 = 20;
    let masters = Masters::start(3).unwrap();
    let (one, other) = (session(&masters).await, session(&masters).await);
    let held = acquire_everywhere(&masters, &one).await;
    let before = scripts(&masters).await;
    for _ in 0..TRIES {
        assert!(is_gave_up(&try_acquire(&other, &name(LOCK)).await));
    }
    let asked = async || since(&before, scripts(&masters).await).iter().all(|asked| *asked >= TRIES);
    until("all nodes have executed all tries", asked).await;
    // Requests that opened the sessions may arrive late at a node. A clean-up for each try would double the count.
    let asked = since(&before, scripts(&masters).await);
    assert!(asked.iter().all(|asked| *asked < TRIES * 3 / 2), "{asked:?}");
    release(&one, &held).await;
}

/// The generous bound is far below the pause between two attempts without a hint.
#[tokio::test(flavor = "multi_thread")]
async fn handoff_waits_for_no_pause() {
    const ROUNDS: usize = 21;
    let masters = Masters::start(3).unwrap();
    let (one, other) = (session(&masters).await, session(&masters).await);
    let (mut waited, mut bare, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(bare_notification(&masters.endpoints[0]).await.unwrap());
        // A handoff is a release and an acquire, too.
        let start = Instant::now();
        release(&other, &acquire(&other, &name("uncontended")).await).await;
        pairs.push(start.elapsed());
        let held = acquire(&one, &name(LOCK)).await;
        let waiter = direct::start(&other, &name(LOCK));
        until("the claim waits", async || waiter.control.was_contended()).await;
        let start = Instant::now();
        release(&one, &held).await;
        let granted = waiter.granted().await;
        waited.push(start.elapsed());
        release(&other, &granted).await;
    }
    let [waited, bare, pair] = [waited, bare, pairs].map(|mut times| {
        times.sort_unstable();
        times[ROUNDS / 2]
    });
    let allowed = bare * 20 + pair * 2 + Duration::from_millis(50);
    assert!(
        waited <= allowed,
        "half of the handoffs took {waited:?} or more, a bare notification {bare:?}, an acquire with its release {pair:?}"
    );
}

/// Waiters that ask in step would split the nodes again and again.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_without_hints_asks_after_pauses_of_different_length() {
    /// Of every pause, without its attempt.
    const LONGEST: Duration = Duration::from_millis(200);
    let masters = Masters::start(3).unwrap();
    let holder = session(&masters).await;
    let held = acquire_everywhere(&masters, &holder).await;
    // Each attempt reads the clock before it asks.
    let (start, readings) = (Instant::now(), Arc::<Mutex<Vec<_>>>::default());
    let recorded = Arc::clone(&readings);
    let clock = Clock::new(move || {
        let now = start.elapsed();
        lock(&recorded).push(now);
        BootInstant::from_start(now)
    });
    let waiting = backend(&masters.url()).unwrap().open_session(LONG, clock).await.unwrap();
    let waiter = direct::start(&waiting, &name(LOCK));
    until("the waiter is subscribed at all nodes", async || {
        let all = masters.with(|all| {
            (0..all.len()).try_fold(true, |is, node| Ok(is && subscribed(all.node(node))?.len() == 2))
        });
        all.await.unwrap()
    })
    .await;
    lock(&readings).clear();
    until("some pauses are shorter than the longest", async || {
        let readings = lock(&readings);
        readings.windows(2).filter(|pair| pair[1] - pair[0] < LONGEST).count() >= 3
    })
    .await;
    let readings = lock(&readings).clone();
    assert!(readings.windows(2).all(|pair| pair[1] - pair[0] >= LONGEST / 4), "{readings:?}");
    release(&holder, &held).await;
    release(&waiting, &waiter.granted().await).await;
}

/// As the documents state it. A busy machine may delay some of the grants, and each by what it delays other requests.
#[tokio::test(flavor = "multi_thread")]
async fn release_is_found_within_a_pause_when_hints_are_lost() {
    const TRIES: usize = 3;
    const DOCUMENTED: Duration = Duration::from_millis(200);
    const SLACK: Duration = Duration::from_millis(300);
    let masters = Masters::start(3).unwrap();
    let proxies: Vec<Proxy> =
        masters.endpoints.iter().map(|node| Proxy::start_redis(node).unwrap()).collect();
    let url = url_of(&proxies.iter().map(Proxy::endpoint).collect::<Vec<_>>());
    let one = session(&masters).await;
    let other = backend(&url).unwrap().open_session(LONG, Clock::boot()).await.unwrap();
    proxies.iter().for_each(|proxy| proxy.drop_messages(Message::Events, |_| true));
    let mut waited = Vec::new();
    for _ in 0..TRIES {
        let held = acquire_everywhere(&masters, &one).await;
        let asked = scripts(&masters).await;
        let waiter = direct::start(&other, &name(LOCK));
        // It has subscribed then, and pauses.
        let pauses = async || since(&asked, scripts(&masters).await).iter().all(|asked| *asked >= 2);
        until("the claim waits", pauses).await;
        // A release and an attempt are part of the wait, too.
        let start = Instant::now();
        release(&one, &acquire(&one, &name("uncontended")).await).await;
        let pair = start.elapsed();
        let start = Instant::now();
        release(&one, &held).await;
        let granted = waiter.granted().await;
        waited.push((start.elapsed(), pair));
        release(&other, &granted).await;
    }
    until("hints are lost", async || proxies.iter().all(|proxy| proxy.counts().dropped > 0)).await;
    assert!(waited.iter().any(|(waited, pair)| *waited <= DOCUMENTED + SLACK + *pair), "{waited:?}");
}

/// Every waiter gets that node, and removes its key again.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_at_a_node_without_the_holder_do_not_wake_each_other() {
    const WAITERS: usize = 8;
    const ATTEMPTS: u64 = 200;
    let masters = Masters::start(3).unwrap();
    let one = session(&masters).await;
    let held = acquire_everywhere(&masters, &one).await;
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        let other = session(&masters).await;
        let waiter = direct::start(&other, &name(LOCK));
        waiting.push((other, waiter));
    }
    for (_, waiter) in &waiting {
        until("the claim waits", async || waiter.control.was_contended()).await;
    }
    masters.with(|nodes| nodes.node(0).cli(&["DEL", LOCK]).map(drop)).await.unwrap();
    let (asked, sent) = (scripts(&masters).await, calls(&masters, &["publish"]).await);
    let many = async {
        while since(&asked, scripts(&masters).await).iter().any(|asked| *asked < ATTEMPTS) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(HANG, many).await.unwrap();
    assert_eq!(since(&sent, calls(&masters, &["publish"]).await), [0; 3]);
    // The release of a grant is published.
    release(&one, &held).await;
    until("two nodes have published it", async || {
        since(&sent, calls(&masters, &["publish"]).await).iter().sum::<u64>() >= 2
    })
    .await;
    pass_on(waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn release_notifies_one_group_of_the_clients_that_wait() {
    const CLIENTS: i64 = 4;
    let masters = Masters::start(3).unwrap();
    let one = session(&masters).await;
    let held = acquire_everywhere(&masters, &one).await;
    let mut waiting = Vec::new();
    for _ in 0..CLIENTS {
        let other = session(&masters).await;
        let waiter = direct::start(&other, &name(LOCK));
        waiting.push((other, waiter));
    }
    let at_first = async || masters.with(|nodes| subscribed(nodes.node(0))).await.unwrap();
    let of_all = format!("lockkit:released:{LOCK}");
    until("each client is subscribed to the lock and to its group", async || {
        let mut subscribed = at_first().await;
        subscribed.remove(&of_all) == Some(CLIENTS) && subscribed.values().sum::<i64>() == CLIENTS
    })
    .await;
    let groups = at_first().await;
    // A pattern is not counted as a client that waits.
    let client = Client::open(format!("redis://{}/?protocol=resp3", masters.endpoints[0])).unwrap();
    let (sender, mut pushes) = unbounded_channel();
    let config = patient().set_push_sender(sender);
    let mut watcher = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    watcher.psubscribe("lockkit:released:*").await.unwrap();
    release(&one, &held).await;
    let message = loop {
        let push = bounded(pushes.recv()).await.unwrap();
        if push.kind == PushKind::PMessage {
            break push.data;
        }
    };
    let [_, channel, clients] = <[_; 3]>::try_from(message).unwrap();
    let channel: String = from_redis_value(channel).unwrap();
    assert_ne!(channel, of_all);
    assert_eq!(groups.get(&channel).copied(), Some(from_redis_value(clients).unwrap()), "{channel}");
    pass_on(waiting).await;
}
