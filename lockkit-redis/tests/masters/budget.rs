//! Requests per operation and node, read from the nodes' own counters. Exact numbers, no times.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    Clock, LockName, Metadata,
    backend::{Acquired, Backend, Claim, ClaimControl, Grant, Renewal, Session},
};

use crate::redlock::{Masters, backend, encoded, raw};

const LONG: Duration = Duration::from_secs(60);

const ROUNDS: u64 = 20;

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

async fn session(masters: &Masters) -> Arc<dyn Session> {
    let session = backend(&masters.url()).unwrap().open_session(LONG, Clock::boot()).await.unwrap();
    // Loads every script at the nodes, so that none is sent twice.
    let load = masters.with(|nodes| {
        (0..nodes.len())
            .try_for_each(|node| nodes.node(node).cli(&["SCRIPT", "LOAD", raw::WRITE_BACK]).map(drop))
    });
    load.await.unwrap();
    let name = name("warm-up");
    // Without a renewal: after one that found a slow node without the lock, the release is another script.
    let grant = acquire(&session, &name).await;
    session.release(&grant).await.unwrap();
    let grant = acquire(&session, &name).await;
    session.renew(std::slice::from_ref(&grant)).await;
    session.release(&grant).await.unwrap();
    session.renew(&[]).await;
    session
}

async fn set_counters(masters: &Masters, name: &LockName, counter: fn(i64) -> i64) {
    let fence = format!("lockkit:{{{}}}:fence", encoded(name));
    let set = masters.with(move |nodes| {
        for node in 0..nodes.len() {
            let counter = counter(i64::try_from(node)?).to_string();
            nodes.node(node).cli(&["SET", &fence, &counter])?;
        }
        Ok(())
    });
    set.await.unwrap();
}

async fn acquire(session: &Arc<dyn Session>, name: &LockName) -> Grant {
    let claim = Claim::new(name.clone(), true, Metadata::of_this_process(None), &ClaimControl::new());
    match session.acquire(claim).await.unwrap() {
        Acquired::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// Scripts that each node has executed.
async fn scripts(masters: &Masters) -> Vec<u64> {
    let count = masters.with(|nodes| {
        (0..nodes.len())
            .map(|node| Ok(nodes.node(node).calls("evalsha")? + nodes.node(node).calls("eval")?))
            .collect()
    });
    count.await.unwrap()
}

/// What each node has executed since `before`, once all have reached `expected`: requests that nobody waits for arrive
/// later.
async fn spent(masters: &Masters, before: &[u64], expected: u64) -> Vec<u64> {
    let mut spent = Vec::new();
    for _ in 0..1000 {
        let now = scripts(masters).await;
        spent = now.iter().zip(before).map(|(now, before)| now - before).collect();
        if spent.iter().all(|spent| *spent >= expected) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    spent
}

#[tokio::test(flavor = "multi_thread")]
async fn uncontended_acquire_and_release_are_two_scripts_at_each_node() {
    let masters = Masters::start(5).unwrap();
    let session = session(&masters).await;
    let before = scripts(&masters).await;
    for _ in 0..ROUNDS {
        let grant = acquire(&session, &name("x")).await;
        session.release(&grant).await.unwrap();
    }
    assert_eq!(spent(&masters, &before, 2 * ROUNDS).await, [2 * ROUNDS; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_and_release_are_three_scripts_if_counters_differ() {
    let masters = Masters::start(3).unwrap();
    let session = session(&masters).await;
    let name = name("y");
    let mut tokens = Vec::new();
    let mut late = 0;
    while tokens.len() < usize::try_from(ROUNDS).unwrap() {
        set_counters(&masters, &name, |node| 6_000_000_000_000_000 + 10 * node).await;
        let before = scripts(&masters).await;
        let grant = acquire(&session, &name).await;
        session.release(&grant).await.unwrap();
        let mut spent = spent(&masters, &before, 3).await;
        spent.sort_unstable();
        if spent == [2, 3, 3] && late < ROUNDS {
            // On a busy machine a node may reply to the ask too late to take part in the write-back.
            late += 1;
            continue;
        }
        assert_eq!(spent, [3; 3]);
        tokens.push(grant.token().get());
    }
    // The counters are 20, 10 and 0 above the base. The ask adds one, the token is one more.
    assert!(tokens.iter().all(|token| *token == 6_000_000_000_000_022), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_is_one_script_at_each_node_for_all_locks() {
    let masters = Masters::start(5).unwrap();
    let session = session(&masters).await;
    let mut held = Vec::new();
    for number in 0..100 {
        held.push(acquire(&session, &name(&format!("held-{number}"))).await);
    }
    let before = scripts(&masters).await;
    let heartbeat = session.renew(&held).await;
    assert!(
        heartbeat.holds.iter().all(|(_, renewal)| matches!(renewal, Renewal::Renewed { .. })),
        "{heartbeat:?}"
    );
    assert_eq!((heartbeat.holds.len(), spent(&masters, &before, 1).await), (100, vec![1; 5]));
    let before = scripts(&masters).await;
    session.close().await.unwrap();
    assert_eq!(spent(&masters, &before, 100).await, [100; 5]);
    let before = scripts(&masters).await;
    let idle = backend(&masters.url()).unwrap().open_session(LONG, Clock::boot()).await.unwrap();
    assert!(matches!(idle.renew(&[]).await.session, Renewal::Renewed { .. }));
    assert_eq!(spent(&masters, &before, 2).await, [2; 5], "a look at the start, and one for the heartbeat");
}
