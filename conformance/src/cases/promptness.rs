//! Handoffs and notifications, compared with a notification on the same store that involves no lock.

use std::time::Duration;

use anyhow::{Result, ensure};
use lockkit_core::{LockClient, LockName};
use tokio::time::Instant;

use crate::context::Cx;

/// Rounds of a comparison, of which a busy machine may delay some.
pub(super) const ROUNDS: usize = 5;

/// Notifications without any lock, measured between the rounds of a comparison, so that load affects both.
#[derive(Default)]
pub(super) struct Bare(Vec<Duration>);

impl Bare {
    pub(super) async fn measure(&mut self, cx: &Cx) -> Result<()> {
        self.0.extend(cx.bare_notification().await?);
        Ok(())
    }

    fn median(&self) -> Duration {
        median(self.0.clone())
    }

    /// Returns what is allowed for a handoff or a notification: generous enough for a loaded machine, and far below any
    /// pause of a waiter.
    pub(super) fn allowed(&self, cx: &Cx) -> Duration {
        match self.0.as_slice() {
            // Where the harness cannot measure a notification, the pause is the reference.
            [] => cx.bounds(cx.long_ttl()).recheck / 4,
            _ => self.median() * 20 + Duration::from_millis(50),
        }
    }
}

/// Returns the median, which a single slow round does not change.
pub(super) fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// Checks that half of the rounds, each of which returns its duration, take no longer than a notification may. Returns
/// the median round and the median notification.
pub(super) async fn are_prompt(
    cx: &Cx,
    what: &str,
    rounds: usize,
    mut round: impl AsyncFnMut() -> Result<Duration>,
) -> Result<(Duration, Duration)> {
    let (mut took, mut bare) = (Vec::new(), Bare::default());
    for _ in 0..rounds {
        bare.measure(cx).await?;
        took.push(round().await?);
    }
    let (took, allowed) = (median(took), bare.allowed(cx));
    ensure!(took <= allowed, "half of the {what} took {took:?} or more, {allowed:?} are allowed");
    Ok((took, bare.median()))
}

/// Waits until a waiter that has just queued is notified at once. Its watch may not be there yet, and what came before a
/// watch is sent late: by etcd ten times a second.
pub(super) async fn waiter_watches(cx: &Cx) -> Result<()> {
    // It takes more steps than the waiter has left to do.
    cx.bare_notification().await?;
    cx.reports_at_once().await
}

/// Measures how long the second client waits for a lock that the first one has released.
pub(super) async fn handoff(cx: &Cx, clients: [&LockClient; 2], name: &LockName) -> Result<Duration> {
    let [held, waiting] = [clients[0].lock(name.as_str())?, clients[1].lock(name.as_str())?];
    let held = held.acquire().await?;
    let waiter = cx.enqueue(&waiting, 0).await?;
    waiter_watches(cx).await?;
    let start = Instant::now();
    held.release().await?;
    let next = waiter.await??;
    let waited = start.elapsed();
    next.release().await?;
    Ok(waited)
}
