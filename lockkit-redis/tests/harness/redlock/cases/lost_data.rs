//! Cases of nodes that have lost their data, or a lock.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Store, direct};
use lockkit_core::{
    Clock, ErrorKind, LockClient, LockGuard, LockName,
    backend::{Backend, ClaimId, Renewal},
};
use tokio::time::{Instant, sleep};

use super::{
    super::{Masters, backend, config, encoded, raw},
    HANG, LONG, SHORT, SURVIVED, acquire, acquire_everywhere, client, is_clean, is_clean_of, name,
    set_counters, until, value,
};

/// A lock that is held at two of three nodes, of which one is then emptied.
async fn held_at_one_of_three(masters: &Masters, client: &LockClient) -> Result<LockGuard> {
    masters.with(|nodes| nodes.node_mut(2).kill()).await?;
    let guard = acquire(client).await?;
    masters.with(|nodes| nodes.node_mut(2).restart()).await?;
    masters.with(|nodes| nodes.node_mut(0).wipe()).await?;
    Ok(guard)
}

pub async fn emptied_node_does_not_grant_a_held_lock() -> Result<()> {
    let masters = Masters::start(3)?;
    let holder = client(&masters.url(), LONG).await?;
    let guard = held_at_one_of_three(&masters, &holder).await?;
    // This client connects after the node was emptied.
    let other = client(&masters.url(), LONG).await?;
    for _ in 0..20 {
        // An ask that waited for the node may have reached it after its restart.
        masters.with(|nodes| nodes.node(2).cli(&["DEL", &encoded(&name())]).map(drop)).await?;
        let second = other.lock(name().as_str())?.try_acquire().await;
        ensure!(!matches!(second, Ok(Some(_))), "two holders");
        sleep(Duration::from_millis(20)).await;
    }
    ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    guard.release().await?;
    is_clean(&masters).await
}

async fn counts(masters: &Masters, node: usize) -> Result<bool> {
    let marker = ["HGET", "lockkit:redlock", "marker"];
    let marker = masters.with(move |nodes| Ok(nodes.node(node).cli(&marker)?.text().to_owned()));
    Ok(marker.await?.starts_with("ready"))
}

pub async fn emptied_node_counts_again_after_the_longest_ttl() -> Result<()> {
    let masters = Masters::start_with(3, &format!("?max_ttl={}s", SURVIVED.as_secs()))?;
    let url = format!("{}?max_ttl={}s", masters.url(), SURVIVED.as_secs());
    let client = client(&url, SURVIVED).await?;
    let before = acquire(&client).await?;
    let emptied = masters.with(|nodes| {
        nodes.node_mut(0).kill()?;
        // The client may find the empty node before this thread does.
        let emptied = Instant::now();
        nodes.node_mut(0).wipe()?;
        Ok(emptied)
    });
    let emptied = emptied.await?;
    // Only the client's own heartbeats can detect it.
    until("the node counts again", async || counts(&masters, 0).await).await?;
    ensure!(emptied.elapsed() >= SURVIVED, "after {:?} only", emptied.elapsed());
    ensure!(before.is_held(), "lost with one of three");
    let token = before.token();
    before.release().await?;
    // Now the node is needed for a majority.
    masters.with(|nodes| nodes.node_mut(1).kill()).await?;
    let after = acquire(&client).await?;
    ensure!(after.token() > token, "{} after {token}", after.token());
    ensure!(!value(&masters, 0).await?.is_empty(), "granted without the node");
    after.release().await?;
    masters.with(|nodes| nodes.node_mut(1).restart()).await?;
    is_clean(&masters).await
}

pub async fn rejoined_node_has_the_counters_of_the_others() -> Result<()> {
    let masters = Masters::start_with(3, "?max_ttl=2s")?;
    let client = client(&format!("{}?max_ttl=2s", masters.url()), SHORT).await?;
    // A grant that is not released, and that one node does not know.
    let token = loop {
        set_counters(&masters, 0..2).await?;
        // No grant if the nodes were too slow for its ttl.
        if let Some(token) = masters.with(|nodes| raw::die(nodes, &name(), 2, 2)).await? {
            break token;
        }
    };
    masters.with(|nodes| nodes.node_mut(0).wipe()).await?;
    until("the node counts again", async || counts(&masters, 0).await).await?;
    // The only other node that granted it is down.
    masters.with(|nodes| nodes.node_mut(1).kill()).await?;
    let after = acquire(&client).await?;
    ensure!(after.token().get() > token, "{} after {token}", after.token());
    if let Err(error) = after.release().await {
        // On a busy machine the hold may have ended by now.
        ensure!(error.kind() == ErrorKind::Lost, "{error}");
    }
    masters.with(|nodes| nodes.node_mut(1).restart()).await?;
    is_clean(&masters).await
}

pub async fn lost_lock_is_restored_at_its_node() -> Result<()> {
    let masters = Masters::start(3)?;
    let (holder, other) = (client(&masters.url(), SURVIVED).await?, client(&masters.url(), LONG).await?);
    let guard = acquire_everywhere(&masters, &holder).await?;
    for node in 0..3 {
        let held = value(&masters, (node + 1) % 3).await?;
        ensure!(held.split('{').next().is_some_and(|claim| ClaimId::parse(claim).is_some()), "{held}");
        masters.with(move |nodes| nodes.node(node).cli(&["DEL", &encoded(&name())]).map(drop)).await?;
        until("the node has the lock again", async || Ok(value(&masters, node).await? == held)).await?;
        ensure!(other.lock(name().as_str())?.try_acquire().await?.is_none(), "two holders");
        ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    }
    guard.release().await?;
    is_clean(&masters).await
}

pub async fn data_loss_of_a_majority_ends_the_hold() -> Result<()> {
    let masters = Masters::start(3)?;
    let holder = client(&masters.url(), SHORT).await?;
    let guard = acquire(&holder).await?;
    let patient = format!("{}?request_timeout=10s", masters.url());
    // This hold does not expire during the case: only its client can remove it from the third node.
    let (session, long) =
        (backend(&patient)?.open_session(LONG, Clock::boot()).await?, LockName::new("long")?);
    let grant = tokio::time::timeout(HANG, direct::acquire(&session, &long)).await?;
    until("every node has the lock", async || Ok(masters.nodes_with(&long).await? == 3)).await?;
    masters.with(|nodes| (0..2).try_for_each(|node| nodes.node(node).cli(&["FLUSHALL"]).map(drop))).await?;
    let lost = tokio::time::timeout(HANG, guard.lost()).await?;
    ensure!(lost.kind() == ErrorKind::Lost && !guard.is_held(), "{lost}");
    is_clean(&masters).await?;
    ensure!(!masters.entries(&long).await?.is_empty(), "removed before its client has sent a heartbeat");
    let heartbeat = session.renew(std::slice::from_ref(&grant)).await;
    ensure!(matches!(heartbeat.holds[..], [(_, Renewal::Gone)]), "{heartbeat:?}");
    is_clean_of(&masters, &long).await?;
    let refused = LockClient::builder(backend(&masters.url())?).build().await;
    let error = refused.err().context("a majority has lost its data")?;
    ensure!(
        error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("lockkit init"),
        "{error}"
    );
    let error = lockkit_redis::init(&config(&masters.url())?)
        .await
        .err()
        .context("set up again as if the nodes were new")?;
    ensure!(error.kind() == ErrorKind::InvalidConfig, "{error}");
    Ok(())
}
