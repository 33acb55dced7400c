//! Servers that lose counters, or everything.

use std::ops::Range;

use anyhow::{Result, ensure};
use lockkit_conformance::{Case, own_case};
use lockkit_testbed::Redis;
use tokio::{task::JoinSet, time::timeout};

use super::{
    super::{Servers, key, side},
    LONG, SLACK, client, exists, name, off, until,
};

pub(super) const CASES: [Case; 1] = [own_case!(names_used_once_leave_nothing: NoResidue; bugs 49)];

pub(super) fn anywhere<S: Servers>() -> Vec<Case> {
    vec![
        own_case!(tokens_rise_without_their_counters<S>: FencedExclusion TokenOrder; bugs 47),
        own_case!(flush_ends_a_hold_and_no_renewal_restores_it<S>: NoForeignRelease BoundedLoss),
    ]
}

async fn tokens_rise_without_their_counters<S: Servers>() -> Result<()> {
    let servers = off(S::start)?;
    let client = client(&servers.url_for_clients(), LONG).await?;
    let (lock, counter) = (client.lock("counters")?, side(&name("counters"), "fence"));
    let mut last = None;
    for round in 0..20 {
        let guard = lock.acquire().await?;
        ensure!(last < Some(guard.token()), "round {round}: {:?} after {last:?}", guard.token());
        last = Some(guard.token());
        guard.release().await?;
        if round < 10 {
            let deleted = off(|| servers.node_of(&counter)?.cli(&["DEL", &counter]))?;
            ensure!(deleted.number() == Some(1), "there is no counter");
        } else {
            off(|| servers.masters()?.iter().try_for_each(|node| node.cli(&["FLUSHALL"]).map(drop)))?;
        }
    }
    client.close().await?;
    Ok(())
}

async fn flush_ends_a_hold_and_no_renewal_restores_it<S: Servers>() -> Result<()> {
    // Long enough that a heartbeat reports the loss, not the deadline.
    let ttl = 4 * SLACK;
    let servers = off(S::start)?;
    let (one, other) =
        (client(&servers.url_for_clients(), ttl).await?, client(&servers.url_for_clients(), ttl).await?);
    let (guard, key) = (one.lock("flush")?.acquire().await?, key(&name("flush")));
    off(|| servers.masters()?.iter().try_for_each(|node| node.cli(&["FLUSHALL"]).map(drop)))?;
    let lost = timeout(ttl / 3 + SLACK, guard.lost());
    let restored = async { until("the lock exists again", async || off(|| exists(&servers, &key))).await };
    tokio::select! {
        lost = lost => drop(lost?),
        after = restored => anyhow::bail!("a renewal restored it after {:?}", after?),
    }
    let next = other.lock("flush")?.acquire().await?;
    ensure!(next.token() > guard.token(), "{} after {}", next.token(), guard.token());
    ensure!(guard.release().await.is_err(), "the release of a lost hold succeeded");
    ensure!(off(|| exists(&servers, &key))?, "the release of the lost hold ended the next one");
    next.release().await?;
    Ok(())
}

async fn names_used_once_leave_nothing() -> Result<()> {
    const NAMES: usize = 100_000;
    /// The rest is done by the scripts alone: unoptimised clients would need a minute for all names.
    const BY_CLIENTS: usize = 10_000;
    const TASKS: usize = 50;
    let server = off(<Redis as Servers>::start)?;
    let client = client(&format!("{}&counter_ttl=5s", server.url_for_clients()), LONG).await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            for number in (task..BY_CLIENTS).step_by(TASKS) {
                client.lock(format!("names-{number}"))?.acquire().await?.release().await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    off(|| use_by_scripts(&server, BY_CLIENTS..NAMES))?;
    let left = async || anyhow::Ok(off(|| server.cli(&["DBSIZE"]))?.number());
    ensure!(left().await? > Some(0), "there are no counters");
    until("nothing is left", async || Ok(left().await? == Some(0))).await?;
    client.close().await?;
    Ok(())
}

/// Acquires and releases the locks of these numbers inside the server, by the scripts that clients send.
fn use_by_scripts(server: &Redis, names: Range<usize>) -> Result<()> {
    const AT_A_TIME: usize = 1_000;
    for first in names.clone().step_by(AT_A_TIME) {
        let last = names.end.min(first + AT_A_TIME) - 1;
        let (prefix, numbers) = (key(&name("names-")), [first, last].map(|number| number.to_string()));
        let granted = server.cli(&["EVAL", USE, "0", &prefix, &numbers[0], &numbers[1]])?.number();
        ensure!(granted == Some((last + 1 - first) as i64), "granted: {granted:?}");
    }
    Ok(())
}

/// Lua: acquires and releases the locks from number `ARGV[2]` to `ARGV[3]`. Returns how many were granted and released.
const USE: &str = concat!(
    "local function acquire(KEYS, ARGV) ",
    include_str!("../../../src/scripts/base.lua"),
    include_str!("../../../src/scripts/counter.lua"),
    include_str!("../../../src/scripts/grant.lua"),
    include_str!("../../../src/scripts/take.lua"),
    include_str!("../../../src/scripts/value.lua"),
    include_str!("../../../src/scripts/lock.lua"),
    include_str!("../../../src/scripts/wait.lua"),
    include_str!("../../../src/scripts/acquire.lua"),
    " end local function release(KEYS, ARGV) ",
    include_str!("../../../src/scripts/base.lua"),
    include_str!("../../../src/scripts/free.lua"),
    include_str!("../../../src/scripts/let_go.lua"),
    include_str!("../../../src/scripts/counter.lua"),
    include_str!("../../../src/scripts/grant.lua"),
    include_str!("../../../src/scripts/value.lua"),
    include_str!("../../../src/scripts/lock.lua"),
    include_str!("../../../src/scripts/release.lua"),
    r"
    end
    local granted = 0
    for number = ARGV[2], ARGV[3] do
      local lock, claim = ARGV[1] .. number, string.format('%032x', number)
      local side = 'lockkit:{' .. lock .. '}:'
      local keys = { lock, side .. 'fence', side .. 'queue', side .. 'deadlines' }
      if type(acquire(keys, { claim, '5000', '60000', 'c0ffee', 'wait', '{}' })) == 'number' then
        granted = granted + release(keys, { claim, '5000', '5000' })
      end
    end
    return granted"
);
