//! Nodes at their memory limit (`maxmemory`): they refuse SET and HSET as the first write of a script.

use std::sync::Arc;

use lockkit_conformance::direct::{LONG, acquire, bounded, fresh_name, until};
use lockkit_core::{
    Clock, LockName,
    backend::{Admin, Backend, Session},
};

use lockkit_redis::RedlockBackend;

use crate::{
    command,
    redlock::{Masters, backend, config, encoded},
};

const NODES: usize = 3;

/// A set of nodes, and a session with a request timeout for a busy machine.
async fn set() -> (Masters, Arc<dyn Session>) {
    let masters = Masters::start(NODES).unwrap();
    let url = format!("{}?request_timeout=10s", masters.url());
    let session = backend(&url).unwrap().open_session(LONG, Clock::boot()).await.unwrap();
    (masters, session)
}

async fn until_nodes_with(masters: &Masters, name: &LockName, count: usize) {
    until("as many nodes have the lock", async || masters.nodes_with(name).await.unwrap() == count).await;
}

async fn limit_memory(masters: &Masters) {
    for node in 0..NODES {
        command(masters, node, &["CONFIG", "SET", "maxmemory", "1"]).await;
    }
}

/// Waits until every node refuses a late restore of the hold with this token.
async fn until_counters_exceed(masters: &Masters, name: &LockName, token: u64) {
    let counter = format!("lockkit:{{{}}}:fence", encoded(name));
    for node in 0..NODES {
        until("the counter was raised", async || {
            let found = command(masters, node, &["GET", &counter]).await;
            found.parse::<u64>().is_ok_and(|found| found > token)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn full_nodes_release_a_hold_that_was_restored() {
    let (masters, session) = set().await;
    let name = fresh_name();
    let held = acquire(&session, &name).await;
    until_nodes_with(&masters, &name, NODES).await;
    command(&masters, 0, &["DEL", &encoded(&name)]).await;
    until("a heartbeat has restored the lock", async || {
        session.renew(std::slice::from_ref(&held)).await;
        masters.nodes_with(&name).await.unwrap() == NODES
    })
    .await;
    limit_memory(&masters).await;
    bounded(session.release(&held)).await.unwrap();
    until_nodes_with(&masters, &name, 0).await;
    until_counters_exceed(&masters, &name, held.token().get()).await;
}

/// Otherwise a restore that is delayed until after the break would bring the lock back at the node without it.
#[tokio::test(flavor = "multi_thread")]
async fn break_at_full_nodes_raises_the_counter_where_the_hold_is_missing() {
    let (masters, session) = set().await;
    let name = fresh_name();
    let held = acquire(&session, &name).await;
    until_nodes_with(&masters, &name, NODES).await;
    command(&masters, 0, &["DEL", &encoded(&name)]).await;
    limit_memory(&masters).await;
    let admin = RedlockBackend::new(config(&masters.url()).unwrap());
    let holder = bounded(admin.inspect(&name)).await.unwrap().holder.unwrap();
    assert!(bounded(admin.break_lock(&name, &holder)).await.unwrap());
    until_counters_exceed(&masters, &name, held.token().get()).await;
}
