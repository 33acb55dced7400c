//! The order of grants: tokens, queues, handoffs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lockkit_core::FencingToken;
use tokio::{sync::mpsc, time::Instant};

use super::promptness::{self, Bare, ROUNDS, median};
use crate::{
    Case, Hook, LinkFault,
    case::{Need, case},
    context::{Cx, rises, settle, within},
};

pub(super) const CASES: &[Case] = &[
    case!(tokens_rise_over_clients_and_their_restarts: FencedExclusion TokenOrder; bugs 49),
    case!(tokens_of_contending_clients_are_distinct_and_rise: FencedExclusion TokenOrder; bugs 49),
    case!(waiters_are_granted_in_order_of_arrival: Fifo, needs Need::Fifo; bugs 46),
    case!(waiter_that_leaves_does_not_delay_the_next: NoOrphan Fifo; bugs 46 69),
    case!(a_handoff_does_not_wait_for_the_recheck: NoLostWakeUp; bugs 13 45),
    case!(waiters_without_notifications_look_at_different_moments: NoLostWakeUp,
        needs Need::Hook(Hook::DropNotifications), Need::PausedTime; bugs 12),
    case!(holder_that_reacquires_at_once_starves_no_waiter: Fifo, needs Need::Fifo; bugs 46),
    case!(many_waiters_are_served_with_few_requests: NoLostWakeUp,
        needs Need::Hook(Hook::Requests); bugs 12),
];

async fn tokens_rise_over_clients_and_their_restarts(cx: Cx) -> Result<()> {
    let (name, grants) = (cx.name(), cx.times(1_000, 60));
    let mut last: Option<FencingToken> = None;
    for _ in 0..5 {
        let clients = [cx.client().await?, cx.client().await?];
        for number in 0..grants / 5 {
            let guard = clients[number % 2].lock(name.as_str())?.acquire().await?;
            rises(last, guard.token())?;
            last = Some(guard.token());
            guard.release().await?;
        }
        for client in clients {
            client.close().await?;
        }
    }
    Ok(())
}

async fn tokens_of_contending_clients_are_distinct_and_rise(cx: Cx) -> Result<()> {
    let (name, rounds) = (cx.name(), cx.times(50, 8));
    let (granted, mut tokens) = mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for _ in 0..cx.times(20, 6) {
        let (lock, granted) = (cx.lock(&name).await?, granted.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..rounds {
                let guard = lock.acquire().await?;
                // Sent while the lock is held, so in the order of the grants.
                granted.send(guard.token())?;
                guard.release().await?;
            }
            anyhow::Ok(())
        }));
    }
    drop(granted);
    let mut last = None;
    while let Some(token) = tokens.recv().await {
        rises(last, token)?;
        last = Some(token);
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Starts waiters one after another; each sends its number when it is granted.
async fn waiters(
    cx: &Cx,
    name: &lockkit_core::LockName,
    count: usize,
) -> Result<(Vec<tokio::task::JoinHandle<Result<()>>>, mpsc::UnboundedReceiver<usize>)> {
    let (served, order) = mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for number in 0..count {
        let (lock, served) = (cx.lock(name).await?, served.clone());
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await?;
            served.send(number)?;
            Ok(guard.release().await?)
        }));
        cx.waits_behind(name, number).await?;
    }
    Ok((tasks, order))
}

async fn served(mut order: mpsc::UnboundedReceiver<usize>) -> Vec<usize> {
    let mut served = Vec::new();
    while let Some(number) = order.recv().await {
        served.push(number);
    }
    served
}

async fn waiters_are_granted_in_order_of_arrival(cx: Cx) -> Result<()> {
    let name = cx.name();
    let held = cx.lock(&name).await?.acquire().await?;
    let (tasks, order) = waiters(&cx, &name, 20).await?;
    held.release().await?;
    let order = served(order).await;
    ensure!(order.is_sorted() && order.len() == tasks.len(), "served in the order {order:?}");
    Ok(())
}

async fn waiter_that_leaves_does_not_delay_the_next(cx: Cx) -> Result<()> {
    const WAITERS: usize = 5;
    let (mut without, mut with, mut bare) = (Vec::new(), Vec::new(), Bare::default());
    // In turn, so that load on the machine affects both.
    for _ in 0..ROUNDS {
        bare.measure(&cx).await?;
        without.push(passed_on(&cx, WAITERS, None).await?);
        with.push(passed_on(&cx, WAITERS, Some(WAITERS / 2)).await?);
    }
    let (without, with) = (median(without), median(with));
    cx.publish("no waiter leaves [ms]", without.as_secs_f64() * 1e3);
    cx.publish("one waiter leaves [ms]", with.as_secs_f64() * 1e3);
    // The one that leaves costs its successor no more than a notification.
    ensure!(
        with <= without + bare.allowed(&cx),
        "{WAITERS} waiters took {with:?} when one of them left, {without:?} when none left"
    );
    Ok(())
}

/// Measures how long a lock takes to pass through `count` waiters, of which one leaves just as the holder releases.
async fn passed_on(cx: &Cx, count: usize, leaving: Option<usize>) -> Result<Duration> {
    let (name, client) = (cx.name(), cx.client().await?);
    let held = client.lock(name.as_str())?.acquire().await?;
    let (tasks, order) = waiters(cx, &name, count).await?;
    let start = Instant::now();
    if let Some(leaving) = leaving {
        tasks[leaving].abort();
        settle().await;
    }
    held.release().await?;
    let bound = cx.bounds_of(&client).cleanup();
    let mut order = within(bound * 4, "all others are served", served(order)).await?;
    let took = start.elapsed();
    if cx.promises().queue != lockkit_core::backend::QueueKind::Fifo {
        order.sort_unstable();
    }
    ensure!(
        (0..count).filter(|number| Some(*number) != leaving).eq(order.iter().copied()),
        "served in the order {order:?}, without {leaving:?}"
    );
    Ok(took)
}

async fn a_handoff_does_not_wait_for_the_recheck(cx: Cx) -> Result<()> {
    let (name, clients) = (cx.name(), [cx.client().await?, cx.client().await?]);
    let handoff = async || promptness::handoff(&cx, clients.each_ref(), &name).await;
    let (handoff, bare) = promptness::are_prompt(&cx, "handoffs", cx.times(100, 20), handoff).await?;
    cx.publish("handoff [ms]", handoff.as_secs_f64() * 1e3);
    cx.publish("bare notification [ms]", bare.as_secs_f64() * 1e3);
    Ok(())
}

/// Otherwise all waiters behind a lost notification would send their requests in one burst.
async fn waiters_without_notifications_look_at_different_moments(cx: Cx) -> Result<()> {
    const WAITERS: usize = 16;
    let (link, holding) = (cx.link().await?, cx.client().await?);
    link.inflict(LinkFault::DropNotifications).await?;
    let (mut held, mut waiters) = (Vec::new(), Vec::new());
    for _ in 0..WAITERS {
        let name = cx.name();
        held.push(holding.lock(name.as_str())?.acquire().await?);
        let client = cx.client_of(cx.observe(link.backend()?), cx.long_ttl()).await?;
        let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
        waiters.push(tokio::spawn(async move {
            let granted = waiter.await??;
            let at = Instant::now();
            granted.release().await?;
            anyhow::Ok(at)
        }));
    }
    for guard in held {
        guard.release().await?;
    }
    let bounds = cx.bounds_of(&holding);
    let mut looks = Vec::new();
    for waiter in waiters {
        looks.push(within(bounds.recheck + bounds.slack, "the waiter looks again", waiter).await???);
    }
    link.heal().await?;
    let (first, last) = (looks.iter().min().context("a look")?, looks.iter().max().context("a look")?);
    let spread = *last - *first;
    ensure!(spread >= bounds.recheck / 20, "{WAITERS} waiters looked within {spread:?}");
    Ok(())
}

async fn holder_that_reacquires_at_once_starves_no_waiter(cx: Cx) -> Result<()> {
    const WAITERS: usize = 5;
    let name = cx.name();
    let greedy = cx.lock(&name).await?;
    let mut held = Some(greedy.acquire().await?);
    let (_tasks, mut order) = waiters(&cx, &name, WAITERS).await?;
    let (mut turns, mut left, start) = (0, WAITERS, Instant::now());
    while left > 0 {
        turns += 1;
        ensure!(turns <= WAITERS + 1, "{left} waiters are not served after {turns} turns of one client");
        held.take().context("held")?.release().await?;
        held = Some(greedy.acquire().await?);
        while order.try_recv().is_ok() {
            left -= 1;
        }
    }
    cx.publish("longest wait [turns]", turns as f64);
    cx.publish("longest wait [ms]", start.elapsed().as_secs_f64() * 1e3);
    Ok(held.take().context("held")?.release().await?)
}

async fn many_waiters_are_served_with_few_requests(cx: Cx) -> Result<()> {
    let (herd, releases) = (cx.times(200, 40), cx.times(20, 10));
    let (name, client) = (cx.name(), cx.client().await?);
    let held = client.lock(name.as_str())?.acquire().await?;
    let (tasks, mut order) = waiters(&cx, &name, herd).await?;
    let before = cx.requests().await?;
    let start = Instant::now();
    held.release().await?;
    for _ in 0..releases {
        within(cx.bounds_of(&client).cleanup(), "the next one is served", order.recv()).await?;
    }
    let (requests, took) = (cx.requests().await? - before, start.elapsed());
    for task in tasks {
        task.abort();
    }
    // Besides the releases, every waiter re-checks and heartbeats once per pause. Unordered queues may wake all.
    let bounds = cx.bounds_of(&client);
    let pause = bounds.recheck.min(bounds.heartbeat).mul_f64(0.75).max(Duration::from_millis(1));
    let idle = herd as f64 * (1.0 + took.as_secs_f64() / pause.as_secs_f64()) * 2.0;
    let per_release =
        if cx.promises().queue == lockkit_core::backend::QueueKind::Fifo { 12 } else { 4 * herd };
    let allowed = idle as u64 + (releases * per_release) as u64;
    ensure!(requests <= allowed, "{requests} requests for {releases} releases in {took:?}");
    Ok(())
}
