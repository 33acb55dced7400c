//! Cases of nodes that are down, slow, or grant to different clients.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use lockkit_conformance::Rounds;
use lockkit_core::{BootInstant, Clock, ErrorKind, TimeSource, backend::Backend};
use lockkit_testbed::{Direction, Flow, Proxy};
use tokio::time::sleep;

use super::{
    super::{Masters, backend, url_of},
    LONG, SURVIVED, acquire, client, is_clean, name, value,
};

pub async fn locking_works_while_a_minority_is_down() -> Result<()> {
    let masters = Masters::start(5)?;
    let (early, mut last) = (client(&masters.url(), SURVIVED).await?, 0);
    for down in 1..=2 {
        masters.with(move |nodes| nodes.node_mut(down).kill()).await?;
        let late = client(&masters.url(), SURVIVED).await?;
        for client in [&early, &late] {
            let guard = acquire(client).await?;
            ensure!(guard.token().get() > last, "{} after {last}", guard.token());
            last = guard.token().get();
            sleep(SURVIVED * 3 / 2).await;
            ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
            guard.release().await?;
        }
    }
    masters.with(|nodes| (1..=2).try_for_each(|down| nodes.node_mut(down).restart())).await?;
    is_clean(&masters).await
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

/// A clock that jumps between the first and the second reading after it was armed.
struct SteppedClock {
    clock: Clock,
    readings: AtomicU64,
}

impl TimeSource for SteppedClock {
    fn now(&self) -> BootInstant {
        let step = match self.readings.load(SeqCst) {
            0 => Duration::ZERO,
            reading => {
                self.readings.store(reading + 1, SeqCst);
                if reading > 1 { LONG } else { Duration::ZERO }
            }
        };
        self.clock.now().after(step)
    }
}

struct SharedClock(Arc<SteppedClock>);

impl TimeSource for SharedClock {
    fn now(&self) -> BootInstant {
        self.0.now()
    }
}

pub async fn majority_after_the_deadline_is_not_a_grant() -> Result<()> {
    use lockkit_core::{
        Metadata,
        backend::{Claim, ClaimControl},
    };
    let masters = Masters::start(3)?;
    let stepped = Arc::new(SteppedClock { clock: Clock::boot(), readings: AtomicU64::new(0) });
    let clock = Clock::new(SharedClock(Arc::clone(&stepped)));
    let session = backend(&masters.url())?.open_session(LONG, clock).await?;
    stepped.readings.store(1, SeqCst);
    let claim = Claim::new(name(), false, Metadata::of_this_process(None), &ClaimControl::new());
    let error = match session.acquire(claim).await {
        Err(error) => error,
        Ok(answer) => anyhow::bail!("granted after the keys may have expired: {answer:?}"),
    };
    ensure!(error.kind() == ErrorKind::Unavailable, "{error}");
    ensure!(stepped.readings.load(SeqCst) > 2, "the clock was not read again");
    is_clean(&masters).await?;
    Ok(session.close().await?)
}

pub async fn late_grants_of_slow_nodes_are_removed() -> Result<()> {
    let masters = Masters::start(5)?;
    let proxies: Vec<Proxy> = masters.endpoints.iter().map(Proxy::start_redis).collect::<Result<_>>()?;
    let endpoints: Vec<String> = proxies.iter().map(Proxy::endpoint).collect();
    let client = client(&format!("{}?request_timeout=1s", url_of(&endpoints)), LONG).await?;
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
