//! A lock of a client, and the ways to acquire it.

use std::{sync::Arc, time::Duration};

use crate::{
    LockGuard, LockName, Owner, Result, RunError,
    client::Handle,
    keeper::{LockRequest, WaitPolicy},
    limits::HOLD_AT_LEAST_MAX,
};

/// A lock: the name, the client and a few options. The value holds nothing and does no I/O. Cheap to clone.
///
/// Contention and timeouts are values (`None`), never errors.
#[derive(Clone, Debug)]
pub struct Lock {
    client: Arc<Handle>,
    request: LockRequest,
}

impl Lock {
    pub(crate) fn new(client: Arc<Handle>, name: LockName) -> Self {
        Self { client, request: LockRequest::new(name) }
    }

    /// Returns the name.
    pub fn name(&self) -> &LockName {
        &self.request.name
    }

    /// Returns the same lock with an owner that may re-enter it.
    ///
    /// If the owner already holds the lock, an acquire returns at once, without I/O, with the same token. The lock is
    /// released when the last of the owner's guards is released.
    ///
    /// Concurrent waiting calls of one owner share one attempt; each try sends its own request. When any of them is
    /// granted, all pending calls of the owner share the hold, with the [`max_hold`](Self::max_hold) and
    /// [`hold_at_least`](Self::hold_at_least) of that one. The grant of a call that was dropped is given back.
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

    /// Returns the same lock with a longest duration for every hold.
    ///
    /// After this time the hold is lost and released, however long its guard lives. This bounds a forgotten guard
    /// (`std::mem::forget`) and work that hangs. The time counts from the grant, on the clock of the deadlines. A
    /// re-entry shares the end that was set at the grant.
    #[must_use]
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.request.max_hold = Some(longest);
        self
    }

    /// Returns the same lock with a shortest duration for every hold.
    ///
    /// Once granted, nobody else is granted the lock for this time, even if the guard is released earlier, the client is
    /// closed or the process is killed: the store keeps the entry by its own lifetime. This keeps a job that takes a
    /// second from running again on a host whose clock is a little late. A grant that no caller got (a cancelled
    /// acquire) is removed. If the store confirms that neither at once nor in retries, acquiring returns `Lost`, and the
    /// entry may stay for the time.
    ///
    /// The time counts from the grant. A guard that lives longer holds the lock as usual, and a re-entry shares the hold
    /// as it was granted. At most [`HOLD_AT_LEAST_MAX`]. If the backend does not have the power
    /// [`pins`](crate::backend::Powers::pins), acquiring returns `Unsupported`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lockkit_core::{LockClient, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// let lock = client.lock("report")?.hold_at_least(Duration::from_secs(60));
    /// lock.acquire().await?.release().await?;
    /// assert!(lock.try_acquire().await?.is_none(), "for a minute");
    /// # client.close().await }
    /// ```
    #[must_use]
    pub fn hold_at_least(mut self, shortest: Duration) -> Self {
        self.request.at_least = Some(shortest).filter(|shortest| !shortest.is_zero());
        self
    }

    /// Waits for the lock without a time limit, through outages of the store too.
    ///
    /// # Errors
    ///
    /// `Denied`, `Unexpected`, `Closed`; `Unavailable` if the store refuses to serve, or if too many callers wait;
    /// `InvalidName` if the name does not fit the configured layout of keys. With [`hold_at_least`](Self::hold_at_least)
    /// also `InvalidConfig` if the time is too long, `Unsupported`, and `Lost` if the grant ended before the caller had it
    /// and its entry may stay.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any await point gives up the claim and leaves nothing behind. In the background, a queue
    /// entry is withdrawn and a grant that arrives later is released.
    pub async fn acquire(&self) -> Result<LockGuard> {
        let answer = self.acquire_within(WaitPolicy::Unlimited).await?;
        WaitPolicy::never_busy(answer, "acquire").map_err(|error| error.with_lock(self.name()))
    }

    /// Acquires the lock if it is free; returns `None` if another claim holds it. Sends one request and never queues.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and `Unavailable` if the store has not answered within
    /// [`TRY_ANSWER_MAX`](crate::limits::TRY_ANSWER_MAX).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        self.acquire_within(WaitPolicy::one_try()).await
    }

    /// Waits for the lock for at most `timeout`; returns `None` if the store has reported another holder, and the session
    /// in which it was asked has not ended. A zero `timeout` is a [try](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and `Unavailable` if the store did not answer in time, so it is unknown whether
    /// the lock was free; `Denied` if it refuses a new session.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        self.acquire_within(WaitPolicy::within(timeout)).await
    }

    /// Acquires the lock, runs `work` under it, and releases it. [`LockGuard::run`] describes what happens on a loss.
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
    /// As [`LockGuard::run`]; also [`RunError::Stopped`] with an error of [`acquire`](Self::acquire), before `work`
    /// starts.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` at its current await and releases the lock.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T, RunError<T>> {
        self.acquire().await.map_err(RunError::Stopped)?.run_and_release(work).await
    }

    /// Like [`run`](Self::run), if the lock is free; returns `None`, without running `work`, if another claim holds it.
    ///
    /// ```
    /// # use lockkit_core::{LockClient, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// # async fn clean_up() -> u32 { 7 }
    /// match client.lock("cleanup")?.try_run(async |_| clean_up().await).await {
    ///     Ok(Some(files)) => println!("{files} files removed"),
    ///     Ok(None) => println!("another process is cleaning up"),
    ///     Err(error) => println!("{error:#}"),
    /// }
    /// # client.close().await }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`LockGuard::run`]; also [`RunError::Stopped`] with an error of [`try_acquire`](Self::try_acquire), before
    /// `work` starts.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn try_run<T>(
        &self,
        work: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<Option<T>, RunError<T>> {
        match self.try_acquire().await.map_err(RunError::Stopped)? {
            Some(guard) => guard.run_and_release(work).await.map(Some),
            None => Ok(None),
        }
    }

    /// Like [`run`](Self::run), but waits for the lock for at most `timeout`; returns `None`, without running `work`, if
    /// other claims held it all the time. The time of `work` does not count.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lockkit_core::{LockClient, memory::MemoryServer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lockkit_core::Result<()> {
    /// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
    /// let lock = client.lock("orders/42")?;
    /// let holder = lock.acquire().await?;
    /// let done = lock.run_timeout(Duration::from_millis(20), async |_| "booked").await;
    /// assert!(matches!(done, Ok(None)), "the lock was held all the time");
    /// # drop(holder);
    /// # client.close().await }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`LockGuard::run`]; also [`RunError::Stopped`] with an error of [`acquire_timeout`](Self::acquire_timeout),
    /// before `work` starts.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn run_timeout<T>(
        &self,
        timeout: Duration,
        work: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<Option<T>, RunError<T>> {
        match self.acquire_timeout(timeout).await.map_err(RunError::Stopped)? {
            Some(guard) => guard.run_and_release(work).await.map(Some),
            None => Ok(None),
        }
    }

    pub(crate) async fn acquire_within(&self, policy: WaitPolicy) -> Result<Option<LockGuard>> {
        if self.request.at_least.is_some_and(|shortest| shortest > HOLD_AT_LEAST_MAX) {
            return Err(crate::Error::new(crate::ErrorKind::InvalidConfig, "acquire")
                .with_lock(self.name())
                .with_message(format!("the minimum time of a hold is at most {HOLD_AT_LEAST_MAX:?}")));
        }
        let share = self.client.keeper().acquire(&self.request, policy).await?;
        Ok(share.map(|share| LockGuard::new(Arc::clone(&self.client), share)))
    }
}
