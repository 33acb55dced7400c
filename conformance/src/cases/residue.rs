//! What the use of locks leaves behind: in the store, in the store's counts of its clients, and in the process.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{LockClient, LockName, Owner};
use tokio::runtime::Handle;

use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Cx, busy_or_unavailable},
};

pub(super) const CASES: &[Case] = &[
    case!(clients_that_close_leave_nothing_in_the_store: NoResidue,
        needs Need::Hook(Hook::Contents); bugs 16 17),
    case!(use_of_locks_leaves_no_watch_connection_or_task_behind: NoResidue,
        needs Need::Hook(Hook::Counts); bugs 16 27),
];

/// Uses between two counts: a leak of one per use grows by this much.
const ROUNDS: u64 = 10;

/// Time limit of the attempts that end without the lock.
const SHORT_LIMIT: Duration = Duration::from_millis(50);

async fn clients_that_close_leave_nothing_in_the_store(cx: Cx) -> Result<()> {
    let clients = [cx.client().await?, cx.client().await?];
    for _ in 0..3 {
        use_a_lock(&cx, &clients).await?;
    }
    // One client closes while it holds a lock, the other while it waits for it.
    let name = cx.name();
    let [one, other] = clients;
    let guard = one.lock(name.as_str())?.acquire().await?;
    let waiting = cx.enqueue(&other.lock(name.as_str())?, 0).await?;
    other.close().await?;
    ensure!(waiting.await?.is_err(), "a client that has closed was granted a lock");
    one.close().await?;
    drop(guard);
    // Far less than a ttl: the clients must clean up themselves.
    cx.nothing_is_left(true, cx.bounds(cx.long_ttl()).cleanup()).await
}

async fn use_of_locks_leaves_no_watch_connection_or_task_behind(cx: Cx) -> Result<()> {
    let bound = cx.bounds(cx.long_ttl()).cleanup();
    let before = counts(&cx).await?;
    let clients = [cx.client().await?, cx.client().await?];
    // The first use makes what a client keeps as long as it lives.
    use_a_lock(&cx, &clients).await?;
    let used = counts(&cx).await?;
    for _ in 0..ROUNDS {
        use_a_lock(&cx, &clients).await?;
    }
    // Less than one per use: work that is in progress may be counted at either time.
    let most = used.into_iter().map(|(what, count)| (what, count + ROUNDS - 1)).collect();
    no_more_than(&cx, &most, bound).await.context("after locks were used")?;
    let [one, other] = clients;
    one.close().await?;
    other.close().await?;
    drop((one, other));
    no_more_than(&cx, &before, bound).await.context("after the clients were closed")
}

/// Returns what the store counts of its clients, and the tasks of the case.
async fn counts(cx: &Cx) -> Result<BTreeMap<&'static str, u64>> {
    let mut counts = cx.counts().await?;
    counts.insert("tasks", Handle::current().metrics().num_alive_tasks() as u64);
    Ok(counts)
}

async fn no_more_than(cx: &Cx, most: &BTreeMap<&'static str, u64>, bound: Duration) -> Result<()> {
    let all = async || Ok(counts(cx).await?.iter().all(|(what, count)| most.get(what) >= Some(count)));
    let all = cx.eventually(bound, "every count is back", all).await;
    let now = counts(cx).await?;
    all.map(drop).with_context(|| format!("the counts are {now:?}, and may be {most:?}"))
}

/// Acquires a lock, waits for it and releases it in each way once, and observes it; on return it is free.
async fn use_a_lock(cx: &Cx, clients: &[LockClient; 2]) -> Result<()> {
    let name = cx.name();
    let [one, other] = clients.each_ref().map(|client| client.lock(name.as_str()));
    let (one, other) = (one?.reentrant(&Owner::new()), other?);
    let (guard, again) = (one.acquire().await?, one.acquire().await?);
    busy_or_unavailable(other.try_acquire().await)?;
    busy_or_unavailable(other.acquire_timeout(SHORT_LIMIT).await)?;
    observe(cx, &clients[1], &name).await?;
    let leaves = cx.enqueue(&other, 0).await?;
    leaves.abort();
    let withdrawn = async || Ok(cx.log().claiming(&name) == 0);
    cx.eventually(cx.bounds_of(&clients[1]).cleanup(), "the claim is withdrawn", withdrawn).await?;
    let next = cx.enqueue(&other, 0).await?;
    guard.release().await?;
    again.release().await?;
    drop(next.await??);
    // Granted after the release by the drop, which does not wait for its confirmation.
    one.acquire().await?.release().await?;
    // A watch that ends with the next change would be left.
    observe(cx, &clients[1], &name).await
}

/// Observes who leads, until the first answer.
async fn observe(cx: &Cx, client: &LockClient, name: &LockName) -> Result<()> {
    if cx.info().powers.elections {
        client.election(name.as_str())?.observe().next().await.context("the observation goes on")??;
    }
    Ok(())
}
