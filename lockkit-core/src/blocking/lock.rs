//! A lock and its guard, for callers that block.

use std::time::Duration;

use super::wait;
use crate::{FencingToken, LockGuard, LockName, Owner, Result, RunError, while_held::finished};

/// A lock of a blocking [`Client`](super::Client). The value holds nothing and does no I/O. Cheap to clone.
///
/// Contention and timeouts are values (`None`), never errors.
#[derive(Clone, Debug)]
pub struct Lock(pub(super) crate::Lock);

impl Lock {
    /// Returns the name.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Returns the same lock with an owner that may re-enter it; see [`crate::Lock::reentrant`]. An owner is never
    /// derived from the thread.
    #[must_use]
    pub fn reentrant(self, owner: &Owner) -> Self {
        Self(self.0.reentrant(owner))
    }

    /// Returns the same lock with a longest duration for every hold; see [`crate::Lock::max_hold`].
    #[must_use]
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// Blocks until the lock is granted, without a time limit, through outages of the store too.
    ///
    /// # Errors
    ///
    /// As [`crate::Lock::acquire`]; `Unsupported` inside a tokio runtime.
    pub fn acquire(&self) -> Result<Guard> {
        wait("acquire", Some(self.name()), self.0.acquire()).map(Guard)
    }

    /// Acquires the lock if it is free; returns `None` if another claim holds it. Blocks for the answer of the store.
    ///
    /// # Errors
    ///
    /// As [`crate::Lock::try_acquire`]; `Unsupported` inside a tokio runtime.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(wait("acquire", Some(self.name()), self.0.try_acquire())?.map(Guard))
    }

    /// Blocks until the lock is granted, for at most `timeout`; returns `None` if other claims held it all the time.
    ///
    /// # Errors
    ///
    /// As [`crate::Lock::acquire_timeout`]; `Unsupported` inside a tokio runtime.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<Guard>> {
        Ok(wait("acquire", Some(self.name()), self.0.acquire_timeout(timeout))?.map(Guard))
    }

    /// Acquires the lock, runs `work` under it on the calling thread, and releases it.
    ///
    /// Work on a thread cannot be stopped at a loss: long work calls [`Guard::check`] in between.
    ///
    /// # Errors
    ///
    /// [`RunError::Stopped`] with an error of [`acquire`](Self::acquire), before `work` starts;
    /// [`RunError::Finished`], with the outcome, if the lock was lost before `work` returned.
    pub fn run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T, RunError<T>> {
        self.acquire().map_err(RunError::Stopped)?.run_and_release(work)
    }

    /// Like [`run`](Self::run), if the lock is free; returns `None`, without running `work`, if another claim holds it.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), with an error of [`try_acquire`](Self::try_acquire).
    pub fn try_run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<Option<T>, RunError<T>> {
        let guard = self.try_acquire().map_err(RunError::Stopped)?;
        guard.map(|guard| guard.run_and_release(work)).transpose()
    }

    /// Like [`run`](Self::run), but blocks for the lock for at most `timeout`; returns `None`, without running `work`, if
    /// other claims held it all the time. The time of `work` does not count.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), with an error of [`acquire_timeout`](Self::acquire_timeout).
    pub fn run_timeout<T>(
        &self,
        timeout: Duration,
        work: impl FnOnce(&Guard) -> T,
    ) -> Result<Option<T>, RunError<T>> {
        let guard = self.acquire_timeout(timeout).map_err(RunError::Stopped)?;
        guard.map(|guard| guard.run_and_release(work)).transpose()
    }
}

/// A lock that is held; dropping the guard releases the lock in the background, and never blocks.
///
/// [`LockGuard`] says what a guard cannot promise; send [`token`](Self::token) with every write.
#[derive(Debug)]
#[must_use = "a guard that is not bound releases its lock at once"]
pub struct Guard(LockGuard);

impl Guard {
    /// Returns the fencing token of this grant, to be sent with every write that the lock protects.
    pub fn token(&self) -> FencingToken {
        self.0.token()
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Returns whether the lock is held at this moment, without I/O; see [`LockGuard::is_held`].
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// Returns the time to the deadline; see [`LockGuard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Like [`is_held`](Self::is_held), but returns the reason of the loss.
    ///
    /// # Errors
    ///
    /// `Lost`.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Runs `work` on this thread, checks the hold, and releases the lock.
    fn run_and_release<T>(self, work: impl FnOnce(&Self) -> T) -> Result<T, RunError<T>> {
        let outcome = finished(work(&self), self.check())?;
        // The work was done under the lock, whatever the outcome of the release.
        let _ = self.release();
        Ok(outcome)
    }

    /// Releases the lock and blocks until the store has confirmed it.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`]; `Unsupported` inside a tokio runtime, where the lock is released in the background.
    pub fn release(self) -> Result<()> {
        let name = self.name().clone();
        wait("release", Some(&name), self.0.release())
    }
}
