//! A lock: a name at a client, and how to take it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    LockGuard, LockName, Owner, Result, RunError,
    client::Handle,
    keeper::{LockRequest, WaitPolicy},
    limits::TRY_ANSWER_MAX,
};

/// A lock: a name at a client and a few options. Holds nothing, does no I/O; cheap to clone.
///
/// Contention and timeouts are values (`None`), never errors.
#[derive(Clone, Debug)]
pub struct Lock {
    client: Arc<Handle>,
    request: LockRequest,
}

impl Lock {
    pub(crate) fn new(client: Arc<Handle>, name: LockName) -> Self {
        Self { client, request: LockRequest { name, owner: None, max_hold: None } }
    }

    /// The name.
    pub fn name(&self) -> &LockName {
        &self.request.name
    }

    /// The same lock taken in the name of this owner: who holds it already enters again at once, without I/O, with
    /// the same token; it is released when the last of the owner's guards is.
    ///
    /// Calls of one owner that wait at the same time share one attempt; a try asks the store by itself. Whichever of them
    /// is granted, all calls of the owner that are under way share the hold.
    ///
    /// ```
    /// # use lockkit_core::{LockClient, Owner, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// let lock = client.lock("orders/42")?.reentrant(&Owner::new());
    /// let outer = lock.acquire().await?;
    /// let inner = lock.acquire().await?;
    /// assert_eq!(inner.token(), outer.token());
    /// # drop((outer, inner));
    /// # client.close().await }
    /// ```
    #[must_use]
    pub fn reentrant(mut self, owner: &Owner) -> Self {
        self.request.owner = Some(owner.clone());
        self
    }

    /// The same lock with an end to every hold: after this time it is lost and given back, however long its guard
    /// lives. Bounds a guard that was forgotten (`std::mem::forget`) or whose work hangs. Counts from the grant, on the
    /// clock of the deadlines; who enters again shares the end that the grant was taken with.
    #[must_use]
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.request.max_hold = Some(longest);
        self
    }

    /// Waits for the lock as long as it takes, through outages of the store too.
    ///
    /// # Errors
    ///
    /// `Denied`, `Unexpected`, `Closed`; `Unavailable` when the store refuses to serve, or too many callers wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the claim up: a place in the queue is withdrawn, a grant that was under way is
    /// released, both in the background. Nothing is left behind, at whatever await point it is dropped.
    pub async fn acquire(&self) -> Result<LockGuard> {
        match self.acquire_within(WaitPolicy::Unlimited).await? {
            Some(guard) => Ok(guard),
            // Only a deadline or a try is answered `None`.
            None => Err(crate::Error::new(crate::ErrorKind::Unexpected, "acquire").with_lock(self.name())),
        }
    }

    /// Takes the lock if it is free: `None` when somebody else holds it. Asks the server once, never queues.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and `Unavailable` when the store has not answered within
    /// [`TRY_ANSWER_MAX`].
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        self.acquire_within(WaitPolicy::Try(Instant::now() + TRY_ANSWER_MAX)).await
    }

    /// Waits for the lock, at most this long: `None` when somebody else held it all the time. A zero `timeout` is a
    /// [try](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and `Unavailable` when the store said nothing in time, so that nobody knows
    /// whether the lock was free.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        if timeout.is_zero() {
            return self.try_acquire().await;
        }
        let policy = Instant::now().checked_add(timeout).map_or(WaitPolicy::Unlimited, WaitPolicy::Until);
        self.acquire_within(policy).await
    }

    /// Takes the lock, runs `work` under it, and releases it. See [`LockGuard::run`] for what happens on a loss.
    ///
    /// ```
    /// # use lockkit_core::{LockClient, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// let token = client.lock("orders/42")?.run(async |guard| guard.token()).await;
    /// # let _ = token;
    /// # client.close().await }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`LockGuard::run`]; [`RunError::Stopped`] also with the errors of [`acquire`](Self::acquire), before `work` has
    /// begun.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` where it stands and releases the lock.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T, RunError<T>> {
        let guard = self.acquire().await.map_err(RunError::Stopped)?;
        let outcome = guard.run(work(&guard)).await?;
        // The work was done under the lock; how its release fares changes nothing about that.
        let _ = guard.release().await;
        Ok(outcome)
    }

    async fn acquire_within(&self, policy: WaitPolicy) -> Result<Option<LockGuard>> {
        let entered = self.client.keeper().acquire(&self.request, policy).await?;
        Ok(entered.map(|entered| LockGuard::new(Arc::clone(&self.client), entered)))
    }
}
