//! Cases that only Redlock has: minorities and majorities, slow nodes, nodes that have lost their data.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use lockkit_conformance::{Case, Rounds, Store, direct, own_case};
use lockkit_core::{
    BootInstant, Clock, ErrorKind, LockClient, LockGuard, LockName, TimeSource,
    backend::{Backend, ClaimId, Renewal},
};
use lockkit_testbed::{Direction, Flow, Proxy};
use tokio::time::{Instant, sleep};

use super::{Masters, backend, config, encoded};

/// Generous bound against hangs.
const HANG: Duration = Duration::from_secs(30);

/// Longer than any case.
const LONG: Duration = Duration::from_secs(60);

/// For cases that wait until it has passed.
const SHORT: Duration = Duration::from_secs(2);

/// For holds that must survive faults at nodes: a busy machine delays a heartbeat by far less.
const SURVIVED: Duration = Duration::from_secs(6);

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

async fn acquire(client: &LockClient) -> Result<LockGuard> {
    let guard = client.lock(name().as_str())?.acquire_timeout(HANG).await?;
    guard.context("not granted")
}

/// Waits until nothing is left of the lock at any running node.
async fn is_clean(masters: &Masters) -> Result<()> {
    is_clean_of(masters, &name()).await
}

async fn is_clean_of(masters: &Masters, name: &LockName) -> Result<()> {
    until("nothing is left", async || Ok(masters.entries(name).await?.is_empty())).await
}

/// Polls until the condition is true.
async fn until(what: &str, condition: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !condition().await? {
        ensure!(start.elapsed() < HANG, "not within {HANG:?}: {what}");
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// The lock's value at this node.
async fn value(masters: &Masters, node: usize) -> Result<String> {
    masters.with(move |nodes| Ok(nodes.node(node).cli(&["GET", &encoded(&name())])?.text().to_owned())).await
}

async fn locking_works_while_a_minority_is_down() -> Result<()> {
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

async fn locking_works_with_one_node_down_and_one_emptied() -> Result<()> {
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

async fn attempt_without_a_majority_fails_and_leaves_nothing() -> Result<()> {
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

async fn majority_after_the_deadline_is_not_a_grant() -> Result<()> {
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

async fn late_grants_of_slow_nodes_are_removed() -> Result<()> {
    let masters = Masters::start(5)?;
    let proxies: Vec<Proxy> = masters.endpoints.iter().map(Proxy::start_redis).collect::<Result<_>>()?;
    let endpoints: Vec<String> = proxies.iter().map(Proxy::endpoint).collect();
    let client = client(&format!("{}?request_timeout=1s", super::url_of(&endpoints)), LONG).await?;
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

/// A lock that is held at two of three nodes, of which one is then emptied.
async fn held_at_one_of_three(masters: &Masters, client: &LockClient) -> Result<LockGuard> {
    masters.with(|nodes| nodes.node_mut(2).kill()).await?;
    let guard = acquire(client).await?;
    masters.with(|nodes| nodes.node_mut(2).restart()).await?;
    masters.with(|nodes| nodes.node_mut(0).wipe()).await?;
    Ok(guard)
}

async fn emptied_node_does_not_grant_a_held_lock() -> Result<()> {
    let masters = Masters::start(3)?;
    let holder = client(&masters.url(), LONG).await?;
    let guard = held_at_one_of_three(&masters, &holder).await?;
    // This client connects after the node was emptied.
    let other = client(&masters.url(), LONG).await?;
    for _ in 0..20 {
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

async fn emptied_node_counts_again_after_the_longest_ttl() -> Result<()> {
    let masters = Masters::start_with(3, "?max_ttl=3s")?;
    let client = client(&format!("{}?max_ttl=3s", masters.url()), SHORT).await?;
    let before = acquire(&client).await?;
    masters.with(|nodes| nodes.node_mut(0).wipe()).await?;
    let emptied = Instant::now();
    // Only the client's own heartbeats can detect it.
    until("the node counts again", async || counts(&masters, 0).await).await?;
    ensure!(emptied.elapsed() >= Duration::from_secs(3), "after {:?} only", emptied.elapsed());
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

/// Sets the lock's counter at these nodes, to a different value at each, above any clock.
async fn set_counters(masters: &Masters, numbers: std::ops::Range<usize>) -> Result<()> {
    const FAR: i64 = 4_000_000_000_000_000;
    let set = masters.with(move |nodes| {
        for node in numbers {
            let fence = format!("lockkit:{{{}}}:fence", encoded(&name()));
            let counter = nodes.node(node).cli(&["GET", &fence])?.number().unwrap_or(0);
            let counter = counter.max(FAR) + i64::try_from(node)?;
            nodes.node(node).cli(&["SET", &fence, &counter.to_string()])?;
        }
        Ok(())
    });
    set.await
}

async fn rejoined_node_has_the_counters_of_the_others() -> Result<()> {
    let masters = Masters::start_with(3, "?max_ttl=2s")?;
    let client = client(&format!("{}?max_ttl=2s", masters.url()), SHORT).await?;
    // A grant that is not released, and that one node does not know.
    set_counters(&masters, 0..2).await?;
    let granted = masters.with(|nodes| super::raw::die(nodes, &name(), 2, 2)).await?;
    let token = granted.context("the node was too slow for its ttl")?;
    masters.with(|nodes| nodes.node_mut(0).wipe()).await?;
    until("the node counts again", async || counts(&masters, 0).await).await?;
    // The only other node that granted it is down.
    masters.with(|nodes| nodes.node_mut(1).kill()).await?;
    let after = acquire(&client).await?;
    ensure!(after.token().get() > token, "{} after {token}", after.token());
    after.release().await?;
    masters.with(|nodes| nodes.node_mut(1).restart()).await?;
    // The metadata of a dead claim is removed by the next grant at that node.
    until("the next grants leave nothing", async || {
        acquire(&client).await?.release().await?;
        Ok(masters.entries(&name()).await?.is_empty())
    })
    .await
}

async fn tokens_rise_after_a_client_dies_before_its_write_back() -> Result<()> {
    let masters = Masters::start(3)?;
    let client = client(&masters.url(), LONG).await?;
    let mut last = 0;
    for (asked, written) in (1..=3).flat_map(|asked| (0..=asked).map(move |written| (asked, written))) {
        set_counters(&masters, 0..3).await?;
        let dead = masters.with(move |nodes| super::raw::die(nodes, &name(), asked, written)).await?;
        let guard = acquire(&client).await?;
        let token = guard.token().get();
        ensure!(token > last, "{token} after {last}");
        ensure!(
            dead.is_none_or(|dead| token > dead),
            "{token} after a grant of {dead:?} ({asked}, {written})"
        );
        last = token;
        guard.release().await?;
    }
    is_clean(&masters).await
}

async fn split_votes_are_resolved() -> Result<()> {
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

async fn lost_lock_is_restored_at_its_node() -> Result<()> {
    let masters = Masters::start(3)?;
    let (holder, other) = (client(&masters.url(), SHORT).await?, client(&masters.url(), LONG).await?);
    let guard = acquire(&holder).await?;
    for node in 0..3 {
        // A majority has granted; the request to this node may still be on its way.
        let is_claim = async || Ok(ClaimId::parse(&value(&masters, (node + 1) % 3).await?).is_some());
        until("another node has the lock", is_claim).await?;
        let held = value(&masters, (node + 1) % 3).await?;
        masters.with(move |nodes| nodes.node(node).cli(&["DEL", &encoded(&name())]).map(drop)).await?;
        until("the node has the lock again", async || Ok(value(&masters, node).await? == held)).await?;
        ensure!(other.lock(name().as_str())?.try_acquire().await?.is_none(), "two holders");
        ensure!(guard.is_held(), "lost: {:?}", guard.check().err());
    }
    guard.release().await?;
    is_clean(&masters).await
}

async fn data_loss_of_a_majority_ends_the_hold() -> Result<()> {
    let masters = Masters::start(3)?;
    let holder = client(&masters.url(), SHORT).await?;
    let guard = acquire(&holder).await?;
    // This hold does not expire during the case: only its client can remove it from the third node.
    let (session, long) =
        (backend(&masters.url())?.open_session(LONG, Clock::boot()).await?, LockName::new("long")?);
    let grant = tokio::time::timeout(HANG, direct::acquire(&session, &long)).await?;
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
