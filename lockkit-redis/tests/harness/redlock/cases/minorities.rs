//! Cases of nodes that are down, slow, or grant to different clients.

use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join;
use lockkit_conformance::{Rounds, own::HANG};
use lockkit_core::{ErrorKind, LockClient, LockGuard, LockName};
use lockkit_testbed::{Direction, Flow, Proxy};
use tokio::time::sleep;

use super::{
    super::{Masters, url_of},
    LONG, SURVIVED, acquire, client, is_clean, is_clean_of, name, open_with_jumps, value,
};

pub async fn locking_works_while_a_minority_is_down() -> Result<()> {
    try_join(locking_works_with_nodes_down(1), locking_works_with_nodes_down(2)).await.map(drop)
}

/// A client of before and one of after the failure of the nodes hold a lock each, side by side, for longer than a ttl.
async fn locking_works_with_nodes_down(count: usize) -> Result<()> {
    let masters = Masters::start(5)?;
    let early = client(&masters.url(), SURVIVED).await?;
    let (of_early, of_late) = (LockName::new("early")?, LockName::new("late")?);
    let mut last = [0; 2];
    for down in 1..=count {
        for (name, last) in [&of_early, &of_late].into_iter().zip(&mut last) {
            let guard = acquire_after(&early, name, *last).await?;
            *last = guard.token().get();
            guard.release().await?;
        }
        masters.with(move |nodes| nodes.node_mut(down).kill()).await?;
    }
    let late = client(&masters.url(), SURVIVED).await?;
    let kept = try_join(is_kept(&early, &of_early, last[0]), is_kept(&late, &of_late, last[1])).await?;
    acquire_after(&late, &of_early, kept.0).await?.release().await?;
    acquire_after(&early, &of_late, kept.1).await?.release().await?;
    masters.with(move |nodes| (1..=count).try_for_each(|down| nodes.node_mut(down).restart())).await?;
    is_clean_of(&masters, &of_early).await?;
    is_clean_of(&masters, &of_late).await
}

/// Acquires this lock, whose last token was this one.
async fn acquire_after(client: &LockClient, name: &LockName, last: u64) -> Result<LockGuard> {
    let guard = client.lock(name.as_str())?.acquire_timeout(HANG).await?.context("not granted")?;
    ensure!(guard.token().get() > last, "{} after {last}", guard.token());
    Ok(guard)
}

/// Holds this lock for longer than a ttl, and returns its token.
async fn is_kept(client: &LockClient, name: &LockName, last: u64) -> Result<u64> {
    let guard = acquire_after(client, name, last).await?;
    sleep(SURVIVED * 3 / 2).await;
    ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    let token = guard.token().get();
    guard.release().await?;
    Ok(token)
}

pub async fn locking_works_with_one_node_down_and_one_emptied() -> Result<()> {
    let masters = Masters::start(5)?;
    let client = client(&masters.url(), SURVIVED).await?;
    let first = acquire(&client).await?;
    masters.with(|nodes| nodes.node_mut(0).kill()).await?;
    masters.with(|nodes| nodes.node_mut(4).wipe()).await?;
    sleep(SURVIVED * 3 / 2).await;
    ensure!(first.is_held(), "lost: {:?}", first.check().err());
    let token = first.token();
    first.release().await?;
    let second = acquire(&client).await?;
    ensure!(second.token() > token, "{} after {token}", second.token());
    ensure!(value(&masters, 4).await?.is_empty(), "the emptied node granted");
    second.release().await?;
    masters.with(|nodes| nodes.node_mut(0).restart()).await?;
    is_clean(&masters).await
}

pub async fn attempt_without_a_majority_fails_and_leaves_nothing() -> Result<()> {
    let masters = Masters::start(5)?;
    let client = client(&masters.url(), LONG).await?;
    let lost = masters.with(|nodes| {
        (0..3).try_for_each(|down| nodes.node_mut(down).kill())?;
        Ok(nodes.node(1).endpoint())
    });
    let lost = lost.await?;
    for _ in 0..3 {
        let error = match client.lock(name().as_str())?.try_acquire().await {
            Err(error) => error,
            Ok(answer) => anyhow::bail!("two of five nodes answered {answer:?}"),
        };
        ensure!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(&lost), "{error}");
        for node in 3..5 {
            let left = value(&masters, node).await?;
            ensure!(left.is_empty(), "{left} is left at node {node}");
        }
    }
    masters.with(|nodes| (0..3).try_for_each(|down| nodes.node_mut(down).restart())).await?;
    acquire(&client).await?.release().await?;
    is_clean(&masters).await
}

pub async fn majority_after_the_deadline_is_not_a_grant() -> Result<()> {
    use lockkit_core::{
        Metadata,
        backend::{Claim, ClaimControl},
    };
    let masters = Masters::start(3)?;
    let (session, next_reading) = open_with_jumps(&masters, LONG).await?;
    next_reading.store(1, SeqCst);
    let claim = Claim::new(name(), false, Metadata::of_this_process(None), &ClaimControl::new());
    let error = match session.acquire(claim).await {
        Err(error) => error,
        Ok(answer) => anyhow::bail!("granted after the keys may have expired: {answer:?}"),
    };
    ensure!(error.kind() == ErrorKind::Unavailable, "{error}");
    ensure!(next_reading.load(SeqCst) > 2, "the clock was not read again");
    is_clean(&masters).await?;
    Ok(session.close().await?)
}

pub async fn late_grants_of_slow_nodes_are_removed() -> Result<()> {
    let masters = Masters::start(5)?;
    let proxies: Vec<Proxy> = masters.endpoints.iter().map(Proxy::start_redis).collect::<Result<_>>()?;
    let endpoints: Vec<String> = proxies.iter().map(Proxy::endpoint).collect();
    let client = client(&format!("{}?request_timeout=2s", url_of(&endpoints)), LONG).await?;
    acquire(&client).await?.release().await?;
    is_clean(&masters).await?;
    for proxy in &proxies[..3] {
        proxy.set(Direction::Requests, Flow::Hold);
    }
    let answer = client.lock(name().as_str())?.try_acquire().await;
    ensure!(
        answer.is_err_and(|error| error.kind() == ErrorKind::Unavailable),
        "granted by two of five nodes"
    );
    ensure!(proxies.iter().take(3).all(|proxy| proxy.holds("EVALSHA")), "no node was asked");
    // Now the delayed requests arrive.
    proxies.iter().for_each(Proxy::pass);
    is_clean(&masters).await?;
    acquire(&client).await?.release().await?;
    is_clean(&masters).await
}

pub async fn split_votes_are_resolved() -> Result<()> {
    const CLIENTS: usize = 5;
    let rounds = Rounds::asked_for()?.unwrap_or(Rounds::Few).times(200, 20);
    let masters = Masters::start(3)?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(&masters.url(), LONG).await?);
    }
    let mut tokens = Vec::new();
    for _ in 0..rounds {
        let all = clients.iter().map(|client| async move {
            let guard = acquire(client).await?;
            let token = guard.token();
            ensure!(guard.is_held(), "lost");
            guard.release().await?;
            Ok(token)
        });
        for token in futures_util::future::join_all(all).await {
            tokens.push(token?);
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    ensure!(tokens.len() == CLIENTS * rounds, "{} tokens of {} grants", tokens.len(), CLIENTS * rounds);
    is_clean(&masters).await
}
