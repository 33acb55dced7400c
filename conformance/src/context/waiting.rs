//! Waits of a case, each with a bound.

use std::{future::Future, time::Duration};

use anyhow::{Result, anyhow, ensure};
use lockkit_core::{
    Lock, LockGuard, LockName,
    backend::{Backend, QueueKind},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::Context;
use crate::Bounds;

/// Pauses between two polls of a condition; they grow.
const POLL_PAUSE_MIN: Duration = Duration::from_millis(2);
const POLL_PAUSE_MAX: Duration = Duration::from_millis(200);

impl Context {
    /// Acquires this lock in a task, and returns once its claim waits behind `ahead` others.
    pub(crate) async fn enqueue(
        &self,
        lock: &Lock,
        ahead: usize,
    ) -> Result<JoinHandle<lockkit_core::Result<LockGuard>>> {
        let waiting = lock.clone();
        let task = tokio::spawn(async move { waiting.acquire().await });
        self.waits_behind(lock.name(), ahead).await?;
        Ok(task)
    }

    /// Waits until more than `ahead` claims wait for this lock.
    pub(crate) async fn waits_behind(&self, name: &LockName, ahead: usize) -> Result<()> {
        let backend = self.store.backend()?;
        let look = async || match (self.promises().queue, backend.admin()) {
            (QueueKind::Fifo, Some(admin)) => {
                Ok(admin.inspect(name).await.is_ok_and(|found| found.waiters.len() > ahead))
            }
            // Waiters without an order need no entries in the store: it is enough that each has heard of a holder.
            _ => Ok(self.log.waiting(name) > ahead),
        };
        self.eventually(Duration::from_secs(30), "the claim waits", look).await.map(drop)
    }

    /// Waits until the lock has no waiters; where the backend cannot inspect locks, waits for the whole bound.
    pub(crate) async fn nobody_waits(&self, name: &LockName, bound: Duration) -> Result<()> {
        let backend = self.store.backend()?;
        let Some(admin) = backend.admin() else {
            sleep(bound).await;
            return Ok(());
        };
        let empty = async || Ok(admin.inspect(name).await?.waiters.is_empty());
        self.eventually(bound, "the last waiter's entry is gone", empty).await.map(drop)
    }

    /// Waits until each of these holds was renewed by a heartbeat that began after this call.
    pub(crate) async fn renewed(&self, guards: &[LockGuard], bounds: Bounds) -> Result<()> {
        let counts = || guards.iter().map(|guard| self.log.renewed(guard.name())).collect::<Vec<_>>();
        let before = counts();
        // One heartbeat may have been sent already.
        let twice = async || Ok(counts().iter().zip(&before).all(|(now, before)| now - before >= 2));
        self.eventually(bounds.heartbeat * 3 + bounds.slack, "all are renewed", twice).await.map(drop)
    }

    /// Polls a condition until it holds, and returns how long that took. Fails after `within`.
    pub(crate) async fn eventually(
        &self,
        within: Duration,
        what: &str,
        condition: impl AsyncFn() -> Result<bool>,
    ) -> Result<Duration> {
        let (start, mut pause) = (Instant::now(), POLL_PAUSE_MIN);
        loop {
            settle().await;
            if condition().await? {
                return Ok(start.elapsed());
            }
            ensure!(start.elapsed() <= within, "not within {within:?}: {what}");
            sleep(pause).await;
            pause = (pause * 3 / 2).min(POLL_PAUSE_MAX);
        }
    }
}

/// Lets every runnable task run, without moving a paused clock.
pub(crate) async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// Returns the result of the work; fails when it takes longer than `bound`.
pub(crate) async fn within<T>(bound: Duration, what: &str, work: impl Future<Output = T>) -> Result<T> {
    timeout(bound, work).await.map_err(|_| anyhow!("not within {bound:?}: {what}"))
}
