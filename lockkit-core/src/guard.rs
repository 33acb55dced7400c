//! The guard of a lock that is held.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use crate::{
    Error, FencingToken, LockName, Proposal, Result, RunError,
    backend::Evidence,
    client::Handle,
    keeper::{HoldShare, Proclaims},
    while_held::while_held,
};

/// A lock that is held; dropping the guard releases the lock in the background.
///
/// A guard cannot prevent writes by former holders: a paused process can wake up after its lock has been granted to
/// another one. Send [`token`](Self::token) with every write, and let the resource refuse lower tokens.
///
/// Dropping never blocks, never panics and needs no runtime. The release that it starts needs one: **a guard that is
/// dropped at the end of `main`, just before the runtime ends, sends nothing**, and others wait for the lock until the
/// ttl expires. End the program with [`LockClient::close`](crate::LockClient::close) or
/// [`LockClient::drain`](crate::LockClient::drain), or call [`release`](Self::release). A leaked guard keeps the lock
/// as long as its client lives, unless [`Lock::max_hold`](crate::Lock::max_hold) ends the hold.
#[must_use = "a guard that is not bound releases its lock at once"]
pub struct LockGuard {
    share: HoldShare,
    client: Arc<Handle>,
}

impl LockGuard {
    pub(crate) fn new(client: Arc<Handle>, share: HoldShare) -> Self {
        Self { share, client }
    }

    /// Returns the fencing token of this grant, to be sent with every write that the lock protects.
    pub fn token(&self) -> FencingToken {
        self.share.hold().grant().token()
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        self.share.hold().grant().name()
    }

    /// Returns what a transaction or script in the same store can compare to prove this grant; `None` if the backend
    /// has no such thing (see [`Powers::evidence`](crate::backend::Powers::evidence)).
    ///
    /// A write that carries it is refused from the moment at which the grant's entry is gone, so before any other
    /// grant. The [token](Self::token) alone is refused only after the next holder's first write.
    pub fn evidence(&self) -> Option<&Evidence> {
        self.share.hold().grant().evidence()
    }

    /// Returns whether the lock is held at this moment, without I/O.
    ///
    /// It reads the clock: the result is false from the deadline on, even if the process was paused and no task has
    /// noticed the deadline. Once false, it stays false.
    pub fn is_held(&self) -> bool {
        self.share.hold().is_held()
    }

    /// Returns the time to the deadline if no further renewal is acknowledged, or to the end that
    /// [`max_hold`](crate::Lock::max_hold) sets. Zero if the lock is lost, `Duration::MAX` where holds have no ttl.
    pub fn remaining(&self) -> Duration {
        self.share.hold().remaining()
    }

    /// Like [`is_held`](Self::is_held), but returns the reason of the loss.
    ///
    /// # Errors
    ///
    /// `Lost`.
    pub fn check(&self) -> Result<()> {
        self.share.hold().loss().map_or(Ok(()), Err)
    }

    /// Waits until the lock is lost, and returns the reason.
    ///
    /// A lock is lost when its deadline passes without an acknowledged renewal, when the server reports the loss, when
    /// the hold exceeds `max_hold`, or when the client is closed. The calling tokio runtime checks the deadline, at
    /// least once a second. Outside a runtime, or on one without timers, the client's runtime does.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; resolves at once if the lock is already lost.
    pub async fn lost(&self) -> Error {
        self.share.hold().lost().await
    }

    /// Runs `work` while the lock is held: when the hold ends, `work` is dropped at its next await.
    ///
    /// Work that does not await continues; only the token can stop its later writes.
    ///
    /// ```
    /// # use lockkit_core::{LockClient, RunError, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// # async fn book() -> &'static str { "booked" }
    /// let guard = client.lock("orders/42")?.acquire().await?;
    /// match guard.run(book()).await {
    ///     Ok(receipt) => println!("{receipt} under the lock"),
    ///     Err(RunError::Finished { outcome: receipt, .. }) => println!("{receipt}, but check what others did"),
    ///     Err(stopped) => println!("{stopped:#}"),
    /// }
    /// # drop(guard);
    /// # client.close().await }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RunError::Stopped`] if the hold ended before `work` did; [`RunError::Finished`], with the outcome, if `work`
    /// returned after the hold had ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` at its current await; this guard still holds the lock.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, RunError<F::Output>> {
        while_held(work, self.lost(), || self.check()).await
    }

    /// Runs `work` while the lock is held, and releases the lock.
    pub(crate) async fn run_and_release<T>(
        self,
        work: impl AsyncFnOnce(&Self) -> T,
    ) -> Result<T, RunError<T>> {
        let outcome = self.run(work(&self)).await?;
        // The work was done under the lock, whatever the outcome of the release.
        let _ = self.release().await;
        Ok(outcome)
    }

    /// Replaces what the holder proposes; see [`Leadership::proclaim`](crate::Leadership::proclaim).
    pub(crate) async fn proclaim(&self, proclaims: &Arc<Proclaims>, proposal: Proposal) -> Result<()> {
        self.client.keeper().proclaim(self.share.hold(), proclaims, proposal).await
    }

    /// Writes the record of this lock.
    pub(crate) async fn write_record(&self, record: String, keep: Duration) -> Result<()> {
        self.client.keeper().write_record(self.share.hold(), record, keep).await
    }

    /// Releases the lock and waits for the confirmation. Renewals stop before the release is sent.
    ///
    /// If other guards of the same owner remain, the lock stays held and the call returns `Ok` at once.
    ///
    /// # Errors
    ///
    /// * `Lost` if the hold had ended before, also with the runtime.
    /// * The store's last error, such as `Denied`, or `Unavailable` if it did not answer: after
    ///   [`RELEASE_ANSWER_MAX`](crate::limits::RELEASE_ANSWER_MAX), or earlier if the session ends. The release is then
    ///   retried in the background for one ttl. After that the session is ended where it keeps locks alive: this frees
    ///   the lock, and the client loses its other locks in that session.
    /// * `Closed` if the runtime ends meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the release continues in the background even if the future is dropped.
    pub async fn release(self) -> Result<()> {
        let Self { share, client } = self;
        let outcome = client.keeper().release(share).await;
        // Dropping the last handle closes the client, which must happen after the release was confirmed.
        drop(client);
        outcome
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", self.name())
            .field("token", &self.token())
            .field("held", &self.share.hold().looks_held())
            .finish_non_exhaustive()
    }
}
