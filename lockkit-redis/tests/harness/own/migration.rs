//! A slot of a cluster that moves from one node to another.

use std::{cell::Cell, time::Duration};

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_testbed::RedisCluster;
use tokio::time::timeout;

use super::{
    super::{Servers, key},
    HANG, client, has_waiter, name, off, until,
};

pub(super) const CASES: [Case; 1] =
    [own_case!(a_slot_moves_under_holders_and_waiters: TimedExclusion TokenOrder NoLostWakeUp Isolation)];

/// A move that is paused half-way for longer than this loses no hold: heartbeats get through.
const TTL: Duration = Duration::from_secs(12);

async fn a_slot_moves_under_holders_and_waiters() -> Result<()> {
    let cluster = off(<RedisCluster as Servers>::start)?;
    let url = cluster.url_for_clients();
    let clients = [client(&url, TTL).await?, client(&url, TTL).await?];
    let (name, key) = (name("slot"), key(&name("slot")));
    let slot = off(|| cluster.slot(&key))?;
    let mut guard = clients[0].lock("slot")?.acquire().await?;
    for round in 1..=3 {
        let next = &clients[round % 2];
        let waiting = tokio::spawn({
            let lock = next.lock("slot")?;
            async move { lock.acquire().await }
        });
        has_waiter(next, &name).await?;
        let to = off(|| another_master(&cluster, slot))?;
        let migration = off(|| cluster.migrate(slot, to))?;
        // The lock is at the new node, its side keys are not.
        ensure!(off(|| migration.move_key(&key))?, "the lock was not at the old node");
        for _ in 0..2 {
            // The remaining time rises only by a heartbeat. Two checks right after a heartbeat show no difference.
            let left = Cell::new(guard.remaining());
            until("a heartbeat gets through", async || {
                let now = guard.remaining();
                Ok(now > left.replace(now))
            })
            .await?;
        }
        off(|| migration.move_keys())?;
        off(|| migration.finish())?;
        ensure!(off(|| cluster.owner(slot))? == to, "the slot has not moved");
        guard.check().with_context(|| format!("round {round}"))?;
        ensure!(!waiting.is_finished(), "round {round}: two holders");
        let last = guard.token();
        guard.release().await?;
        guard = timeout(HANG, waiting).await.with_context(|| format!("round {round}"))???;
        ensure!(guard.token() > last, "{} after {last}", guard.token());
    }
    guard.release().await?;
    Ok(())
}

fn another_master(cluster: &RedisCluster, slot: usize) -> Result<usize> {
    let owner = cluster.owner(slot)?;
    for number in (0..cluster.len()).filter(|&number| number != owner) {
        if cluster.node(number).is_master()? {
            return Ok(number);
        }
    }
    anyhow::bail!("there is no other master")
}
