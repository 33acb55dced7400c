//! Requests of waiters, read from the nodes' own counters.

use std::{sync::Arc, time::Duration};

use lockkit_conformance::direct::{
    HANG, acquire, bounded, is_gave_up, name, release, start, try_acquire, until,
};
use lockkit_core::{
    Clock,
    backend::{Backend, Session},
};

use tokio::time::Instant;

use crate::redlock::{Masters, backend, bare::bare_notification};

const LONG: Duration = Duration::from_secs(60);

const LOCK: &str = "x";

async fn session(masters: &Masters) -> Arc<dyn Session> {
    backend(&masters.url()).unwrap().open_session(LONG, Clock::boot()).await.unwrap()
}

async fn calls(masters: &Masters, commands: &'static [&'static str]) -> Vec<u64> {
    let count = masters.with(move |nodes| {
        (0..nodes.len())
            .map(|node| commands.iter().map(|command| nodes.node(node).calls(command)).sum())
            .collect()
    });
    count.await.unwrap()
}

async fn scripts(masters: &Masters) -> Vec<u64> {
    calls(masters, &["evalsha", "eval"]).await
}

fn since(before: &[u64], now: Vec<u64>) -> Vec<u64> {
    now.iter().zip(before).map(|(now, before)| now - before).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn try_of_a_held_lock_is_one_script_at_each_node() {
    const TRIES: u64 = 20;
    let masters = Masters::start(3).unwrap();
    let (one, other) = (session(&masters).await, session(&masters).await);
    let held = acquire(&one, &name(LOCK)).await;
    let before = scripts(&masters).await;
    for _ in 0..TRIES {
        assert!(is_gave_up(&try_acquire(&other, &name(LOCK)).await));
    }
    let asked = async || since(&before, scripts(&masters).await).iter().all(|asked| *asked >= TRIES);
    until("all nodes have executed all tries", asked).await;
    // Requests that opened the sessions and took the lock may arrive late at a node. A clean-up for each try would
    // double the count.
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
    let (mut waited, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(bare_notification(&masters.endpoints[0]).await.unwrap());
        let held = acquire(&one, &name(LOCK)).await;
        let waiter = start(&other, &name(LOCK));
        until("the claim waits", async || waiter.control.was_contended()).await;
        let start = Instant::now();
        release(&one, &held).await;
        let granted = waiter.granted().await;
        waited.push(start.elapsed());
        release(&other, &granted).await;
    }
    waited.sort_unstable();
    bare.sort_unstable();
    let (waited, bare) = (waited[ROUNDS / 2], bare[ROUNDS / 2]);
    let allowed = bare * 20 + Duration::from_millis(50);
    assert!(waited <= allowed, "half of the handoffs took {waited:?} or more, a bare notification {bare:?}");
}

/// Every waiter gets that node, and removes its key again.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_at_a_node_without_the_holder_do_not_wake_each_other() {
    const WAITERS: usize = 8;
    const ATTEMPTS: u64 = 200;
    let masters = Masters::start(3).unwrap();
    let one = session(&masters).await;
    let held = acquire(&one, &name(LOCK)).await;
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        let other = session(&masters).await;
        let waiter = start(&other, &name(LOCK));
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
    let released = since(&sent, calls(&masters, &["publish"]).await);
    assert!(released.iter().sum::<u64>() >= 2, "{released:?}");
    let waiting: Vec<_> = waiting
        .into_iter()
        .map(|(session, waiter)| async move {
            let granted = waiter.granted().await;
            release(&session, &granted).await;
        })
        .collect();
    bounded(futures_util::future::join_all(waiting)).await;
}
