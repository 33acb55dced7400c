//! Requests, messages and scripts that are lost or come too early.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Case, Rounds, own_case};
use lockkit_testbed::{Direction, Flow, Proxy, Redis};
use tokio::time::{Instant, sleep, timeout};

use super::{
    super::{Servers, key, servers::url_at, side},
    HANG, LONG, NOTIFIED_MAX, RepeatedCommand, client, exists, has_waiter, name, off, until,
};

/// Handoffs during which connections are killed.
const HANDOFFS: usize = 50;

/// How often all connections with a subscription are killed around one handoff. A client's connection has one. An
/// endless series would be a bet that a loaded machine connects faster than the test kills.
const KILLS: u32 = 5;

/// The longest pause before one of them.
const KILL_PAUSE_MAX: Duration = Duration::from_millis(20);

pub(super) const CASES: [Case; 2] = [
    own_case!(acquire_with_a_lost_reply_holds_or_frees: NoOrphan TruthfulErrors; bugs 52 55),
    own_case!(a_release_between_the_try_and_the_wait_is_not_missed: NoLostWakeUp NoResidue; bugs 44 45 54),
];

pub(super) fn anywhere<S: Servers>() -> Vec<Case> {
    vec![
        own_case!(waiters_are_granted_although_connections_are_killed<S>: NoLostWakeUp; bugs 45),
        own_case!(scripts_flushed_by_the_server_are_sent_again<S>: TruthfulErrors),
    ]
}

async fn acquire_with_a_lost_reply_holds_or_frees() -> Result<()> {
    let rounds = Rounds::asked_for()?.unwrap_or(Rounds::Few).times(500, 200);
    let server = off(<Redis as Servers>::start)?;
    let proxy = Proxy::start_redis(server.endpoint())?;
    let client = client(&url_at(&proxy.endpoint()), LONG).await?;
    let (lock, key) = (client.lock("lost-reply")?, key(&name("lost-reply")));
    for round in 0..rounds {
        proxy.swallow_reply(1);
        let lost = async || Ok(proxy.counts().dropped > round);
        if round % 4 == 3 {
            let acquiring = tokio::spawn({
                let lock = lock.clone();
                async move { lock.acquire().await.map(drop) }
            });
            until("the reply is lost", lost).await?;
            acquiring.abort();
        } else {
            let guard = timeout(HANG, lock.acquire()).await??;
            ensure!(lost().await?, "round {round}: no reply was lost");
            let (value, pttl) =
                off(|| anyhow::Ok((server.cli(&["GET", &key])?, server.cli(&["PTTL", &key])?)))?;
            ensure!(value.text().ends_with(&format!(":{}", guard.token())), "round {round}: {value:?}");
            ensure!(pttl.number() > Some(0), "round {round}: the lock has no ttl");
            guard.release().await?;
        }
        until("it is free", async || Ok(!off(|| exists(&server, &key))?)).await?;
    }
    client.close().await?;
    Ok(())
}

async fn a_release_between_the_try_and_the_wait_is_not_missed() -> Result<()> {
    const HELD_BACK: usize = 50;
    let chance = Rounds::asked_for()?.unwrap_or(Rounds::Few).times(5_000, 1_000);
    let server = off(<Redis as Servers>::start)?;
    let proxy = Proxy::start_redis(server.endpoint())?;
    let (holder, waiter) =
        (client(&server.url_for_clients(), LONG).await?, client(&url_at(&proxy.endpoint()), LONG).await?);
    let (held, waited, queue) =
        (holder.lock("no-gap")?, waiter.lock("no-gap")?, side(&name("no-gap"), "queue"));
    for round in 0..HELD_BACK + chance {
        let guard = held.acquire().await?;
        let holds_back = round < HELD_BACK;
        if holds_back {
            proxy.set(Direction::Replies, Flow::Hold);
        }
        let waiting = tokio::spawn({
            let waited = waited.clone();
            async move { waited.acquire().await }
        });
        if holds_back {
            until("the claim waits", async || off(|| exists(&server, &queue))).await?;
        }
        for _ in 0..fastrand::u8(..) {
            tokio::task::yield_now().await;
        }
        guard.release().await?;
        proxy.pass();
        let next = timeout(NOTIFIED_MAX, waiting).await.with_context(|| format!("round {round}"))???;
        next.release().await?;
    }
    for client in [holder, waiter] {
        client.close().await?;
    }
    let left = off(|| server.keys("*"))?;
    ensure!(left == [side(&name("no-gap"), "fence")], "{left:?}");
    Ok(())
}

async fn waiters_are_granted_although_connections_are_killed<S: Servers>() -> Result<()> {
    let servers = off(S::start)?;
    let url = servers.url_for_clients();
    let clients = [client(&url, LONG).await?, client(&url, LONG).await?];
    let kills = async || {
        let mut killed = 0;
        for _ in 0..KILLS {
            sleep(KILL_PAUSE_MAX.mul_f64(fastrand::f64())).await;
            for node in off(|| servers.masters())? {
                killed +=
                    off(|| node.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]))?.number().unwrap_or_default();
            }
        }
        anyhow::Ok(killed)
    };
    let (mut guard, mut took) = (clients[0].lock("killed")?.acquire().await?, Vec::new());
    let mut killed = 0;
    for round in 0..HANDOFFS {
        let next = &clients[(round + 1) % 2];
        let waiting = tokio::spawn({
            let lock = next.lock("killed")?;
            async move { lock.acquire().await }
        });
        has_waiter(next, &name("killed")).await?;
        let start = Instant::now();
        let (released, counted) = tokio::join!(guard.release(), kills());
        released?;
        killed += counted?;
        guard = timeout(NOTIFIED_MAX, waiting).await.with_context(|| format!("round {round}"))???;
        took.push(start.elapsed());
    }
    guard.release().await?;
    took.sort_unstable();
    let most = took[took.len() - 1];
    println!(
        "{}: {HANDOFFS} handoffs, {killed} connections killed: p50 {:?}, longest {most:?}",
        S::NAME,
        took[HANDOFFS / 2]
    );
    ensure!(killed > 0, "no connection was killed");
    Ok(())
}

async fn scripts_flushed_by_the_server_are_sent_again<S: Servers>() -> Result<()> {
    const FOREIGN: usize = 600;
    const LOCKS: usize = 4;
    const ROUNDS: usize = 50;
    let servers = off(S::start)?;
    let url = servers.url_for_clients();
    let repeated = RepeatedCommand::start(servers, Duration::from_millis(10), &["SCRIPT", "FLUSH"]);
    let others = tokio::task::spawn_blocking({
        let servers = std::sync::Arc::clone(&repeated.servers);
        move || {
            for number in 0..FOREIGN {
                for node in servers.masters()? {
                    node.cli(&["EVAL", &format!("return {number}"), "0"])?;
                }
            }
            anyhow::Ok(())
        }
    });
    let mut tasks = Vec::new();
    for number in 0..2 * LOCKS {
        // Two clients for each lock, so there are handoffs, too.
        let lock = client(&url, LONG).await?.lock(format!("flushed-{}", number % LOCKS))?;
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                timeout(HANG, lock.acquire()).await??.release().await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    others.await??;
    ensure!(repeated.end().await? > 1, "no scripts were flushed");
    Ok(())
}
