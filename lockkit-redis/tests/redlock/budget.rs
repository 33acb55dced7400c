//! Requests per operation and node, read from the nodes' own counters. Exact numbers, no times.

use std::{sync::Arc, time::Duration};

use lockkit_conformance::direct::{HANG, until};
use lockkit_core::{
    Clock, LockName, Metadata,
    backend::{Acquired, Backend, Claim, ClaimControl, Grant, Renewal, Session},
};
use tokio::time::Instant;

use crate::{
    counting::{calls, scripts, since},
    redlock::{Masters, backend, encoded, raw},
};

const LONG: Duration = Duration::from_secs(60);

const ROUNDS: u64 = 20;

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// A session of which no request is on its way. Every node has every script, so that none is sent twice.
async fn session(masters: &Masters) -> Arc<dyn Session> {
    let load = masters.with(|nodes| {
        let scripts = [*raw::LOOK, *raw::ASK, *raw::WRITE_BACK, *raw::RENEW, *raw::RELEASE];
        (0..nodes.len()).try_for_each(|node| {
            scripts.iter().try_for_each(|script| nodes.node(node).cli(&["SCRIPT", "LOAD", script]).map(drop))
        })
    });
    load.await.unwrap();
    let before = scripts(masters).await;
    // A request that is repeated after a stall of a busy machine would be counted twice.
    let url = format!("{}?request_timeout=10s", masters.url());
    let session = backend(&url).unwrap().open_session(LONG, Clock::boot()).await.unwrap();
    assert!(spent(masters, &before, 1).await.iter().all(|looks| *looks == 1));
    // A node that replied too late is looked at once more, before its first other request.
    acquire_and_release(masters, &session, &name("warm-up")).await;
    session
}

async fn set_counters(masters: &Masters, name: &LockName, counter: fn(i64) -> i64) {
    let counter_key = format!("lockkit:{{{}}}:fence", encoded(name));
    let set = masters.with(move |nodes| {
        for node in 0..nodes.len() {
            let counter = counter(i64::try_from(node)?).to_string();
            nodes.node(node).cli(&["SET", &counter_key, &counter])?;
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

/// Returns the token once all nodes have executed the release: a majority has confirmed it before, and a node that still
/// has the lock would refuse the next ask.
async fn acquire_and_release(masters: &Masters, session: &Arc<dyn Session>, name: &LockName) -> u64 {
    let before = calls(masters, &["pubsub|numsub"]).await;
    let grant = acquire(session, name).await;
    session.release(&grant).await.unwrap();
    until("every node has executed the release", async || {
        since(&before, calls(masters, &["pubsub|numsub"]).await).iter().all(|released| *released > 0)
    })
    .await;
    grant.token().get()
}

/// How many scripts each node has executed since `before`, once all have reached `expected`: requests that nobody waits
/// for arrive later.
async fn spent(masters: &Masters, before: &[u64], expected: u64) -> Vec<u64> {
    until("the nodes have executed the scripts", async || {
        since(before, scripts(masters).await).iter().all(|spent| *spent >= expected)
    })
    .await;
    since(before, scripts(masters).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn uncontended_acquire_and_release_are_two_scripts_at_each_node() {
    let masters = Masters::start(5).unwrap();
    let session = session(&masters).await;
    let before = scripts(&masters).await;
    for _ in 0..ROUNDS {
        acquire_and_release(&masters, &session, &name("x")).await;
    }
    assert_eq!(since(&before, scripts(&masters).await), [2 * ROUNDS; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_and_release_are_three_scripts_if_counters_differ() {
    let masters = Masters::start(3).unwrap();
    let session = session(&masters).await;
    let name = name("y");
    let (mut tokens, start) = (Vec::new(), Instant::now());
    while tokens.len() < usize::try_from(ROUNDS).unwrap() {
        assert!(start.elapsed() < HANG, "a node takes part in too few of the write-backs: {tokens:?}");
        set_counters(&masters, &name, |node| 6_000_000_000_000_000 + 10 * node).await;
        let before = scripts(&masters).await;
        let token = acquire_and_release(&masters, &session, &name).await;
        let mut spent = since(&before, scripts(&masters).await);
        spent.sort_unstable();
        if spent == [2, 3, 3] {
            // On a busy machine a node may reply to the ask too late to take part in the write-back.
            continue;
        }
        assert_eq!(spent, [3; 3]);
        tokens.push(token);
    }
    // The counters are 20, 10 and 0 above the base. The ask adds one, the token is one more.
    assert!(tokens.iter().all(|token| *token == 6_000_000_000_000_022), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeat_is_one_script_at_each_node_for_all_locks() {
    let masters = Masters::start(5).unwrap();
    let session = session(&masters).await;
    let (before, mut held) = (scripts(&masters).await, Vec::new());
    for number in 0..100 {
        held.push(acquire(&session, &name(&format!("held-{number}"))).await);
    }
    assert_eq!(spent(&masters, &before, 100).await, [100; 5]);
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
