//! Cases that only Redlock has: minorities and majorities, slow nodes, nodes that have lost their data.

mod lost_data;
mod minorities;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{
    Case, Store,
    own::{HANG, LONG, until},
    own_case,
};
use lockkit_core::{
    Clock, LockClient, LockGuard, LockName,
    backend::{Backend, Session},
};

use self::{
    lost_data::{
        data_loss_of_a_majority_ends_the_hold, emptied_node_counts_again_after_the_longest_ttl,
        emptied_node_does_not_grant_a_held_lock, lost_lock_is_restored_at_its_node,
        rejoined_node_has_the_counters_of_the_others,
    },
    minorities::{
        attempt_without_a_majority_fails_and_leaves_nothing, late_grants_of_slow_nodes_are_removed,
        locking_works_while_a_minority_is_down, locking_works_with_one_node_down_and_one_emptied,
        majority_after_the_deadline_is_not_a_grant, split_votes_are_resolved,
    },
};
use super::{Masters, backend, encoded};

/// For cases that wait until it has passed.
const SHORT: Duration = Duration::from_secs(2);

/// For holds that must survive faults at nodes: a busy machine delays a heartbeat by far less.
const SURVIVED: Duration = Duration::from_secs(10);

pub const CASES: [Case; 12] = [
    own_case!(locking_works_while_a_minority_is_down: TimedExclusion TokenOrder NoResidue),
    own_case!(locking_works_with_one_node_down_and_one_emptied: TimedExclusion TokenOrder NoResidue),
    own_case!(attempt_without_a_majority_fails_and_leaves_nothing: NoOrphan TruthfulErrors),
    own_case!(majority_after_the_deadline_is_not_a_grant: TimedExclusion NoOrphan),
    own_case!(late_grants_of_slow_nodes_are_removed: NoOrphan NoResidue),
    own_case!(emptied_node_does_not_grant_a_held_lock: TimedExclusion BoundedLoss),
    own_case!(emptied_node_counts_again_after_the_longest_ttl: TokenOrder NoLostWakeUp),
    own_case!(rejoined_node_has_the_counters_of_the_others: TokenOrder),
    own_case!(tokens_rise_after_a_client_dies_before_its_write_back: TokenOrder),
    own_case!(split_votes_are_resolved: TimedExclusion NoLostWakeUp),
    own_case!(lost_lock_is_restored_at_its_node: TimedExclusion BoundedLoss),
    own_case!(data_loss_of_a_majority_ends_the_hold: NoForeignRelease BoundedLoss),
];

fn name() -> LockName {
    LockName::new("own").unwrap()
}

async fn client(url: &str, ttl: Duration) -> Result<LockClient> {
    Ok(LockClient::builder(backend(url)?).ttl(ttl).build().await?)
}

/// Opens a session whose clock jumps by this step between two readings once it has been started. Returns also what starts
/// it, the number of the next reading.
pub async fn open_with_jumps(
    masters: &Masters,
    step: Duration,
) -> Result<(Arc<dyn Session>, Arc<AtomicU32>)> {
    let (clock, next_reading) = (Clock::boot(), Arc::new(AtomicU32::new(0)));
    let next = Arc::clone(&next_reading);
    let jumping = move || {
        let is_started = |reading| (reading > 0).then_some(reading + 1);
        let reading = next.fetch_update(SeqCst, SeqCst, is_started).unwrap_or_default();
        clock.now().after(step * reading.saturating_sub(1))
    };
    Ok((backend(&masters.url())?.open_session(LONG, Clock::new(jumping)).await?, next_reading))
}

async fn acquire(client: &LockClient) -> Result<LockGuard> {
    let guard = client.lock(name().as_str())?.acquire_timeout(HANG).await?;
    guard.context("not granted")
}

/// As [`acquire`], and waits until every node has the lock: a majority has granted before.
async fn acquire_everywhere(masters: &Masters, client: &LockClient) -> Result<LockGuard> {
    let guard = acquire(client).await?;
    let count = masters.endpoints.len();
    until("every node has the lock", async || Ok(masters.nodes_with(&name()).await? == count)).await?;
    Ok(guard)
}

/// Waits until nothing is left of the lock at any running node.
async fn is_clean(masters: &Masters) -> Result<()> {
    is_clean_of(masters, &name()).await
}

async fn is_clean_of(masters: &Masters, name: &LockName) -> Result<()> {
    until("nothing is left", async || Ok(masters.entries(name).await?.is_empty())).await.map(drop)
}

/// The lock's value at this node.
async fn value(masters: &Masters, node: usize) -> Result<String> {
    masters.with(move |nodes| Ok(nodes.node(node).cli(&["GET", &encoded(&name())])?.text().to_owned())).await
}

/// Sets the lock's counter at these nodes, to a different value at each, above any clock.
async fn set_counters(masters: &Masters, numbers: std::ops::Range<usize>) -> Result<()> {
    const FAR: i64 = 4_000_000_000_000_000;
    let set = masters.with(move |nodes| {
        for node in numbers {
            let counter_key = format!("lockkit:{{{}}}:fence", encoded(&name()));
            let counter = nodes.node(node).cli(&["GET", &counter_key])?.number().unwrap_or(0);
            let counter = counter.max(FAR) + i64::try_from(node)?;
            nodes.node(node).cli(&["SET", &counter_key, &counter.to_string()])?;
        }
        Ok(())
    });
    set.await
}

async fn tokens_rise_after_a_client_dies_before_its_write_back() -> Result<()> {
    let masters = Masters::start(3)?;
    let client = client(&masters.url(), LONG).await?;
    let mut last = 0;
    for (asked, written) in (1..=3).flat_map(|asked| (0..=asked).map(move |written| (asked, written))) {
        set_counters(&masters, 0..3).await?;
        let dead = masters.with(move |nodes| super::raw::die(nodes, &name(), asked, written)).await?;
        let guard = acquire_everywhere(&masters, &client).await?;
        let token = guard.token().get();
        ensure!(token > last, "{token} after {last}");
        ensure!(
            dead.is_none_or(|dead| token > dead),
            "{token} after a grant of {dead:?} ({asked}, {written})"
        );
        last = token;
        guard.release().await?;
        // A majority has confirmed it. The next claim asks each node once.
        is_clean(&masters).await?;
    }
    Ok(())
}
