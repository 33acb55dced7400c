//! Clients in processes of their own, which are killed and stopped.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lockkit_core::{Fence, backend::Lifetime};
use tokio::time::{Instant, sleep};

use super::takeover::{self, Takeover};
use crate::{
    Case, Hook,
    case::{Need, case},
    context::{Cx, rises, within},
    direct::metadata,
    worker::Worker,
};

const PROCESSES: Need = Need::Hook(Hook::Processes);

pub(super) const CASES: &[Case] = &[
    case!(processes_that_count_in_a_file_lose_no_increment: TimedExclusion, needs PROCESSES; bugs 2 24),
    case!(processes_exclude_each_other: TimedExclusion TokenOrder, needs PROCESSES; bugs 13),
    case!(the_lock_of_a_killed_process_goes_to_the_next_in_time: BoundedTakeover,
        needs PROCESSES; bugs 52 54),
    case!(a_killed_waiter_delays_its_successors_for_a_bounded_time: BoundedTakeover Fifo,
        needs PROCESSES; bugs 14 46),
    case!(process_stopped_for_long_sees_its_loss: TimedExclusion FencedExclusion BoundedLoss,
        needs PROCESSES, Need::Ttl; bugs 1 50 65),
    case!(process_stopped_briefly_keeps_its_lock: BoundedLoss, needs PROCESSES; bugs 66),
    case!(waiter_stopped_for_long_is_granted_once_free: TimedExclusion NoLostWakeUp,
        needs PROCESSES, Need::Ttl, Need::Fifo; bugs 1 2 3 14),
    case!(tokens_rise_over_processes: TokenOrder, needs PROCESSES; bugs 49),
    case!(process_whose_wall_clock_steps_keeps_lock_and_place: TimedExclusion TokenOrder BoundedLoss,
        needs PROCESSES, Need::Hook(Hook::WallClock); bugs 65),
    case!(processes_whose_wall_clocks_are_days_apart_lose_no_increment: TimedExclusion,
        needs PROCESSES, Need::Hook(Hook::WallClock); bugs 65),
];

/// Processes that count.
const PROCESSES_THAT_COUNT: usize = 8;

/// Ends their rounds sooner on a loaded machine.
const COUNTING_MAX: Duration = Duration::from_secs(20);

async fn processes_that_count_in_a_file_lose_no_increment(cx: Cx) -> Result<()> {
    let mut workers = Vec::new();
    for _ in 0..PROCESSES_THAT_COUNT {
        workers.push(cx.worker(cx.long_ttl()).await?);
    }
    let start = Instant::now();
    let handoffs = count_exactly(&cx, workers, cx.times(250, 60)).await?;
    cx.publish("handoffs per second", handoffs as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// Counts in a file under one lock in all these processes, and returns the count.
async fn count_exactly(cx: &Cx, workers: Vec<Worker>, rounds: usize) -> Result<usize> {
    let (name, folder) = (cx.name(), tempfile::tempdir()?);
    let file = folder.path().join("counter");
    std::fs::write(&file, "0")?;
    let count = |worker: Worker| {
        let (name, file) = (name.clone(), file.clone());
        tokio::spawn(async move { worker.count(&name, file, rounds, COUNTING_MAX).await })
    };
    let mut due = 0;
    for process in workers.into_iter().map(count).collect::<Vec<_>>() {
        due += process.await??;
    }
    let counted: usize = std::fs::read_to_string(&file)?.trim().parse()?;
    ensure!(counted == due, "{counted} of {due} increments are there");
    Ok(counted)
}

async fn processes_exclude_each_other(cx: Cx) -> Result<()> {
    let name = cx.name();
    let other = cx.lock(&name).await?;
    let worker = cx.worker(cx.long_ttl()).await?;
    let token = worker.acquire(1, &name).await?;
    ensure!(other.try_acquire().await?.is_none(), "two processes hold it");
    worker.release(1).await?;
    let next = other.acquire().await?;
    rises(token, next.token())?;
    Ok(next.release().await?)
}

async fn the_lock_of_a_killed_process_goes_to_the_next_in_time(cx: Cx) -> Result<()> {
    takeover::is_in_time(&cx, async || after_a_killed_holder(&cx).await).await
}

async fn after_a_killed_holder(cx: &Cx) -> Result<Takeover> {
    let (name, waiting) = (cx.name(), cx.short_client().await?);
    let mut worker = cx.worker(cx.short_ttl()).await?;
    let token = worker.acquire(1, &name).await?;
    let waiter = cx.enqueue(&waiting.lock(name.as_str())?, 0).await?;
    let asked = Instant::now();
    let left = worker.state(1).await?.remaining;
    worker.kill().await?;
    let (bounds, killed) = (cx.bounds_of(&waiting), Instant::now());
    let next = within(bounds.takeover(), "the waiter is granted", waiter).await???;
    let took = killed.elapsed();
    rises(token, next.token())?;
    // The victim's deadline has passed, unless its holds end with its process.
    let endless = waiting.ttl() == Duration::MAX;
    ensure!(endless || asked.elapsed() >= left, "granted before the victim's deadline");
    next.release().await?;
    Ok(Takeover { bounds, took })
}

async fn a_killed_waiter_delays_its_successors_for_a_bounded_time(cx: Cx) -> Result<()> {
    takeover::is_in_time(&cx, async || after_a_killed_waiter(&cx).await).await
}

async fn after_a_killed_waiter(cx: &Cx) -> Result<Takeover> {
    let (name, client) = (cx.name(), cx.short_client().await?);
    let held = client.lock(name.as_str())?.acquire().await?;
    let mut victim = cx.worker(cx.short_ttl()).await?;
    let dead = victim.begin_acquire(1, &name)?;
    if cx.promises().queue == lockkit_core::backend::QueueKind::Fifo {
        cx.waits_behind(&name, 0).await?;
    }
    let other = cx.short_client().await?;
    let waiting = other.lock(name.as_str())?;
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    victim.kill().await?;
    let (bounds, killed) = (cx.bounds_of(&client), Instant::now());
    held.release().await?;
    let next = within(bounds.takeover(), "the waiter behind the dead one is granted", waiter).await???;
    let took = killed.elapsed();
    next.release().await?;
    ensure!(dead.granted().await.is_err(), "a dead process was granted the lock");
    Ok(Takeover { bounds, took })
}

async fn process_stopped_for_long_sees_its_loss(cx: Cx) -> Result<()> {
    let (name, other) = (cx.name(), cx.steady_client().await?);
    let worker = cx.worker(cx.short_ttl()).await?;
    let stale = worker.acquire(1, &name).await?;
    let fence = Fence::new();
    ensure!(fence.admit(stale), "the first write");
    worker.stop().await?;
    // The rest of the process's ttl, which is the shorter one, and the re-check of the other client.
    let bound = cx.short_ttl() + cx.bounds_of(&other).cleanup();
    let next = other.lock(name.as_str())?.acquire_timeout(bound).await?;
    let Some(next) = next else { anyhow::bail!("a stopped process still has its lock") };
    ensure!(fence.admit(next.token()), "the next holder's write is refused");
    // Its lock was granted to another client, so its deadline has passed.
    worker.resume()?;
    let state = worker.state(1).await?;
    ensure!(!state.held, "a stopped process still reports its lost lock as held");
    ensure!(!fence.admit(stale), "a stale write was admitted");
    let release = worker.failed_release(1).await?;
    ensure!(release == "Lost", "the release failed with {release}");
    ensure!(next.is_held(), "the late release disturbed the next holder: {:?}", next.check().err());
    ensure!(cx.is_taken(&name).await?, "the late release freed the next holder's lock");
    Ok(next.release().await?)
}

async fn process_stopped_briefly_keeps_its_lock(cx: Cx) -> Result<()> {
    let name = cx.name();
    // Long enough for the delays of a loaded machine.
    let ttl = cx.short_ttl() * 2;
    let bounds = cx.bounds(ttl);
    let worker = cx.worker(ttl).await?;
    worker.acquire(1, &name).await?;
    let (stop, end) = (bounds.validity / 3, async || {
        let now = Instant::now();
        anyhow::Ok(now.checked_add(worker.state(1).await?.remaining))
    });
    // A lifetime without an end is never renewed, and cannot have ended.
    let first = end().await?;
    worker.stop().await?;
    // The stop itself.
    sleep(stop).await;
    worker.resume()?;
    // The overdue heartbeat may have been sent before the state can be read.
    let renewed = async || Ok(first.is_none() || end().await? > first.map(|first| first + stop / 2));
    cx.eventually(bounds.heartbeat + bounds.slack, "the hold is renewed", renewed).await?;
    ensure!(worker.state(1).await?.held, "a stop for a third of the validity lost it");
    ensure!(cx.lock(&name).await?.try_acquire().await?.is_none(), "two holders");
    worker.release(1).await
}

async fn waiter_stopped_for_long_is_granted_once_free(cx: Cx) -> Result<()> {
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    let worker = cx.worker(cx.short_ttl()).await?;
    let waiting = worker.begin_acquire(1, &name)?;
    cx.waits_behind(&name, 0).await?;
    worker.stop().await?;
    let bounds = cx.bounds(cx.short_ttl());
    if cx.info().lifetime == Lifetime::Session {
        cx.nobody_waits(&name, bounds.takeover()).await?;
    } else {
        // Its place lapses after a ttl, and is removed by the next release.
        sleep(bounds.ttl * 2).await;
    }
    held.release().await?;
    let other = cx.steady_client().await?;
    let next = other.lock(name.as_str())?.acquire_timeout(bounds.takeover()).await?;
    let Some(next) = next else { anyhow::bail!("a stopped waiter still blocks the queue") };
    worker.resume()?;
    // Nothing must happen in this time, in which the waiter heartbeats and checks its entry.
    sleep(bounds.heartbeat * 2).await;
    // A grant without its entry would make a second holder.
    ensure!(next.is_held(), "disturbed: {:?}", next.check().err());
    ensure!(worker.state(1).await.is_err(), "two holders");
    let token = next.token();
    next.release().await?;
    let granted = within(bounds.takeover(), "the stopped waiter is granted", waiting.granted()).await??;
    rises(token, granted)?;
    worker.release(1).await?;
    let free = other.lock(name.as_str())?.try_acquire().await?;
    Ok(free.context("the stopped waiter was granted the lock twice")?.release().await?)
}

async fn tokens_rise_over_processes(cx: Cx) -> Result<()> {
    let name = cx.name();
    let mut last = None;
    for _ in 0..4 {
        let mut worker = cx.worker(cx.long_ttl()).await?;
        for _ in 0..5 {
            let token = worker.acquire(1, &name).await?;
            rises(last, token)?;
            last = Some(token);
            worker.release(1).await?;
        }
        worker.kill().await?;
    }
    Ok(())
}

async fn process_whose_wall_clock_steps_keeps_lock_and_place(cx: Cx) -> Result<()> {
    const STEP: Duration = Duration::from_secs(60 * 60);
    let (name, clock) = (cx.name(), cx.wall_clock()?);
    let worker = cx.worker_with(cx.steady_ttl(), &clock.environment()).await?;
    let waiting = cx.worker_with(cx.steady_ttl(), &clock.environment()).await?;
    let client = cx.client().await?;
    let (other, bounds) = (client.lock(name.as_str())?, cx.bounds(cx.steady_ttl()));
    for forward in [true, false] {
        let token = worker.acquire(1, &name).await?;
        if !forward && let Ok(found) = client.inspect(name.as_str()).await {
            let since = found.holder.and_then(|holder| holder.metadata).map(|metadata| metadata.since_ms);
            let half_a_step = u64::try_from((STEP / 2).as_millis())?;
            ensure!(
                since > Some(metadata().since_ms + half_a_step),
                "the process does not use the stepped clock"
            );
        }
        let next = waiting.begin_acquire(1, &name)?;
        let left = worker.state(1).await?.remaining;
        let seen = Instant::now();
        if forward {
            clock.step_forward(STEP)?
        } else {
            clock.step_back(STEP * 2)?
        }
        ensure!(worker.state(1).await?.held, "a step by an hour ended the hold");
        ensure!(other.try_acquire().await?.is_none(), "a step by an hour freed the lock");
        // The deadline must move, though less may be left than at first. A lifetime without an end is never renewed.
        let renewed = async || {
            let since = seen.elapsed();
            Ok(left == Duration::MAX || worker.state(1).await?.remaining + since > left)
        };
        cx.eventually(bounds.heartbeat * 2 + bounds.slack, "the hold is renewed", renewed).await?;
        worker.release(1).await?;
        let granted = within(bounds.takeover(), "the waiter is granted", next.granted()).await??;
        rises(token, granted)?;
        waiting.release(1).await?;
    }
    Ok(())
}

async fn processes_whose_wall_clocks_are_days_apart_lose_no_increment(cx: Cx) -> Result<()> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let clocks = [cx.wall_clock()?, cx.wall_clock()?];
    clocks[0].step_forward(DAY)?;
    clocks[1].step_back(DAY)?;
    let mut workers = vec![cx.worker(cx.long_ttl()).await?];
    for clock in &clocks {
        workers.push(cx.worker_with(cx.long_ttl(), &clock.environment()).await?);
    }
    count_exactly(&cx, workers, 50).await.map(drop)
}
