//! The guard of a set of locks.

use std::{
    fmt,
    future::{Future, poll_fn},
    sync::OnceLock,
    task::Poll,
    time::Duration,
};

use crate::{Error, FencingToken, LockGuard, LockName, Result, RunError, while_held::while_held};

/// A set of locks that are held; dropping the guard releases all of them in the background.
///
/// The set is held as long as each of its locks is. **The loss of one lock is the loss of the set**: from then on the
/// guard reports the set as lost, with the first loss that it has seen. The locks that are left stay with the store
/// until the guard is dropped or released, so that nobody else is granted them while work for the set winds up.
///
/// Each lock has a fencing token of its own, and each resource needs the token of its lock. What [`LockGuard`] says
/// about former holders, and about a guard that is dropped at the end of `main`, holds for a set too.
#[must_use = "a guard that is not bound releases its locks at once"]
pub struct SetGuard {
    /// In the order of the bytes of their names.
    guards: Vec<LockGuard>,
    /// The first loss that a call has seen; it is final.
    loss: OnceLock<Error>,
}

impl SetGuard {
    /// Creates the guard of an empty set, for an acquire to fill.
    pub(crate) fn with_capacity(locks: usize) -> Self {
        Self { guards: Vec::with_capacity(locks), loss: OnceLock::new() }
    }

    /// Adds a lock whose name follows the others.
    pub(crate) fn push(&mut self, guard: LockGuard) {
        self.guards.push(guard);
    }

    /// Returns the fencing token of this lock; `None` if the set does not contain it.
    pub fn token(&self, name: impl AsRef<str>) -> Option<FencingToken> {
        let found = self.guards.binary_search_by(|guard| guard.name().as_str().cmp(name.as_ref()));
        found.ok().map(|index| self.guards[index].token())
    }

    /// Returns each lock with its fencing token, in the order of the bytes of the names.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = (&LockName, FencingToken)> {
        self.guards.iter().map(|guard| (guard.name(), guard.token()))
    }

    /// Returns whether all the locks are held at this moment, without I/O; see [`LockGuard::is_held`]. Once false, it
    /// stays false.
    pub fn is_held(&self) -> bool {
        self.check().is_ok()
    }

    /// Returns the least [remaining](LockGuard::remaining) time of the locks. Zero if the set is lost.
    pub fn remaining(&self) -> Duration {
        // A lock that is lost has no time left.
        self.guards.iter().map(LockGuard::remaining).min().unwrap_or(Duration::MAX)
    }

    /// Like [`is_held`](Self::is_held), but returns the reason of the first loss, with the lock that was lost.
    ///
    /// # Errors
    ///
    /// `Lost`.
    pub fn check(&self) -> Result<()> {
        let loss = match self.loss.get() {
            Some(loss) => loss,
            None => match self.guards.iter().find_map(|guard| guard.check().err()) {
                Some(loss) => self.loss.get_or_init(|| loss),
                None => return Ok(()),
            },
        };
        Err(loss.clone())
    }

    /// Waits until one of the locks is lost, and returns the reason of the first loss; see [`LockGuard::lost`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; resolves at once if the set is already lost.
    pub async fn lost(&self) -> Error {
        let mut losses: Vec<_> = self.guards.iter().map(|guard| Box::pin(guard.lost())).collect();
        let loss = poll_fn(|context| {
            let mut polled = losses.iter_mut().map(|lost| lost.as_mut().poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        });
        let loss = loss.await;
        self.loss.get_or_init(|| loss).clone()
    }

    /// Runs `work` while the set is held: when one of the locks is lost, `work` is dropped at its next await. See
    /// [`LockGuard::run`].
    ///
    /// # Errors
    ///
    /// [`RunError::Stopped`] if the set was lost before `work` ended; [`RunError::Finished`], with the outcome, if `work`
    /// returned after the loss.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` at its current await; this guard still holds the locks.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, RunError<F::Output>> {
        while_held(work, self.lost(), || self.check()).await
    }

    /// Releases all the locks, the last one first, and waits for the confirmations of all of them together. A release
    /// that fails does not keep the others from being sent.
    ///
    /// # Errors
    ///
    /// * `Lost`, with the first loss, if the set was lost before. The locks that were left are released.
    /// * Otherwise the first error of a release; see [`LockGuard::release`]. Its time limit counts once for all locks.
    ///
    /// # Cancel safety
    ///
    /// Once polled, all releases continue in the background even if the future is dropped.
    pub async fn release(self) -> Result<()> {
        let mut outcome = self.check();
        let mut releases: Vec<_> =
            self.guards.into_iter().rev().map(|guard| Box::pin(guard.release())).collect();
        poll_fn(|context| {
            // Polls all of them before it waits for any: the first poll starts a release.
            releases.retain_mut(|release| match release.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(released) => {
                    if outcome.is_ok() {
                        outcome = released;
                    }
                    false
                }
            });
            if releases.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        outcome
    }
}

impl fmt::Debug for SetGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetGuard").field("guards", &self.guards).finish()
    }
}
