//! A set of locks and its guard, for callers that block.

use std::time::Duration;

use super::wait;
use crate::{FencingToken, LockName, Owner, Result, RunError, while_held::finished};

/// A set of locks of a blocking [`Client`](super::Client), acquired all or nothing; see [`crate::LockAll`] for the order
/// and for what can still deadlock.
#[derive(Clone, Debug)]
pub struct LockAll(pub(super) crate::LockAll);

impl LockAll {
    /// Returns the names, in the order in which they are acquired.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &LockName> {
        self.0.names()
    }

    /// Returns the same set with an owner that may re-enter each of the locks; see [`crate::LockAll::reentrant`].
    #[must_use]
    pub fn reentrant(self, owner: &Owner) -> Self {
        Self(self.0.reentrant(owner))
    }

    /// Returns the same set with a longest duration for every hold; see [`crate::LockAll::max_hold`].
    #[must_use]
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// Blocks until all the locks are granted, without a time limit.
    ///
    /// # Errors
    ///
    /// As [`crate::LockAll::acquire`]; `Unsupported` inside a tokio runtime.
    pub fn acquire(&self) -> Result<SetGuard> {
        wait("acquire", None, self.0.acquire()).map(SetGuard)
    }

    /// Acquires the locks if all are free; returns `None` if another claim holds one of them.
    ///
    /// # Errors
    ///
    /// As [`crate::LockAll::try_acquire`]; `Unsupported` inside a tokio runtime.
    pub fn try_acquire(&self) -> Result<Option<SetGuard>> {
        Ok(wait("acquire", None, self.0.try_acquire())?.map(SetGuard))
    }

    /// Blocks until all the locks are granted, for at most `timeout` together; returns `None` if other claims held one
    /// of them until then.
    ///
    /// # Errors
    ///
    /// As [`crate::LockAll::acquire_timeout`]; `Unsupported` inside a tokio runtime.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Option<SetGuard>> {
        Ok(wait("acquire", None, self.0.acquire_timeout(timeout))?.map(SetGuard))
    }

    /// Acquires all the locks, runs `work` under them on the calling thread, and releases them.
    ///
    /// # Errors
    ///
    /// As [`Lock::run`](super::Lock::run).
    pub fn run<T>(&self, work: impl FnOnce(&SetGuard) -> T) -> Result<T, RunError<T>> {
        let guard = self.acquire().map_err(RunError::Stopped)?;
        let outcome = finished(work(&guard), guard.check())?;
        // The work was done under the locks, whatever the outcome of the release.
        let _ = guard.release();
        Ok(outcome)
    }
}

/// A set of locks that are held; dropping the guard releases all of them in the background, and never blocks. The loss
/// of one lock is the loss of the set; see [`crate::SetGuard`].
#[derive(Debug)]
#[must_use = "a guard that is not bound releases its locks at once"]
pub struct SetGuard(crate::SetGuard);

impl SetGuard {
    /// Returns the fencing token of this lock; `None` if the set does not contain it.
    pub fn token(&self, name: impl AsRef<str>) -> Option<FencingToken> {
        self.0.token(name)
    }

    /// Returns each lock with its fencing token, in the order of the bytes of the names.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = (&LockName, FencingToken)> {
        self.0.tokens()
    }

    /// Returns whether all the locks are held at this moment, without I/O.
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// Returns the least remaining time of the locks; zero if the set is lost.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Like [`is_held`](Self::is_held), but returns the reason of the first loss.
    ///
    /// # Errors
    ///
    /// `Lost`.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Releases all the locks and blocks until the store has confirmed it.
    ///
    /// # Errors
    ///
    /// As [`crate::SetGuard::release`]; `Unsupported` inside a tokio runtime, where the locks are released in the
    /// background.
    pub fn release(self) -> Result<()> {
        wait("release", None, self.0.release())
    }
}
