//! A lock that is held.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use crate::{Error, FencingToken, LockName, Result, RunError, client::Handle, keeper::Entered};

/// A lock that is held; dropping it releases the lock in the background.
///
/// A guard does not keep anybody from writing: a paused process can wake up after its lock has gone to somebody else.
/// Send [`token`](Self::token) with every write, and have the resource refuse lower ones.
///
/// Dropping never blocks, never panics and needs no runtime. The release that it begins does: **a guard that is dropped at
/// the end of `main`, just before the runtime ends, sends nothing**, and others wait for the lock until the ttl is over.
/// End the program with [`LockClient::close`](crate::LockClient::close) or
/// [`LockClient::drain`](crate::LockClient::drain), or call [`release`](Self::release). A guard that is leaked keeps the
/// lock as long as its client lives, unless [`Lock::max_hold`](crate::Lock::max_hold) ends it.
#[must_use = "a guard that is not bound releases its lock at once"]
pub struct LockGuard {
    entered: Entered,
    client: Arc<Handle>,
}

impl LockGuard {
    pub(crate) fn new(client: Arc<Handle>, entered: Entered) -> Self {
        Self { entered, client }
    }

    /// The fencing token of this grant, to go with every write that the lock protects.
    pub fn token(&self) -> FencingToken {
        self.entered.hold().grant().token()
    }

    /// The lock.
    pub fn name(&self) -> &LockName {
        self.entered.hold().grant().name()
    }

    /// Whether the lock is held at this moment. Exact to the clock and without I/O: false from the deadline on, even
    /// when the process was paused or nothing else has noticed. Once false it stays false.
    pub fn is_held(&self) -> bool {
        self.entered.hold().is_held()
    }

    /// Time to the deadline if no further renewal is acknowledged, or to the end that
    /// [`max_hold`](crate::Lock::max_hold) sets; zero when the lock is lost, `Duration::MAX` where holds have no ttl.
    pub fn remaining(&self) -> Duration {
        self.entered.hold().remaining()
    }

    /// Like [`is_held`](Self::is_held), with the reason of the loss.
    ///
    /// # Errors
    ///
    /// `Lost`.
    pub fn check(&self) -> Result<()> {
        self.entered.hold().loss().map_or(Ok(()), Err)
    }

    /// Waits until the lock is lost, and returns why: the deadline passed without an acknowledged renewal, the server
    /// said so, the hold lasted longer than `max_hold`, or the client was closed. The deadline is watched on the calling
    /// tokio runtime, at least once a second; outside a runtime (or on one without timers) by the client's.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; resolves at once when the lock was lost before.
    pub async fn lost(&self) -> Error {
        self.entered.hold().lost().await
    }

    /// Runs `work` while the lock is held: when the hold ends, `work` is dropped at its next await.
    ///
    /// Work that does not await runs on; what it writes afterwards only the token can stop.
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
    /// [`RunError::Stopped`] when the hold ended before `work` did; [`RunError::Finished`], with the outcome, when `work`
    /// returned and the hold had ended by then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` where it stands; the lock stays held by this guard.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, RunError<F::Output>> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            // Wakes this task at a loss. The look behind it knows of one that has woken nobody yet, too.
            let _ = lost.as_mut().poll(context);
            self.check().map_err(RunError::Stopped)?;
            let Poll::Ready(outcome) = work.as_mut().poll(context) else { return Poll::Pending };
            Poll::Ready(match self.check() {
                Ok(()) => Ok(outcome),
                Err(lost) => Err(RunError::Finished { outcome, lost }),
            })
        })
        .await
    }

    /// Releases the lock and returns the outcome. Renewals stop before the release is sent. When other guards of the
    /// same owner remain, the lock stays held and the answer is `Ok` at once.
    ///
    /// # Errors
    ///
    /// `Lost` when the hold had ended before. What the store answered last, such as `Denied`, or `Unavailable` when it
    /// answered nothing: after [`RELEASE_ANSWER_MAX`](crate::limits::RELEASE_ANSWER_MAX), or when the session ended
    /// first. The release is tried again in the background for one ttl; then the session is ended where it keeps locks
    /// alive, which frees this one, and costs the client's other locks in that session. `Closed` when the runtime has
    /// ended.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the release goes on in the background when the future is dropped.
    pub async fn release(self) -> Result<()> {
        let Self { entered, client } = self;
        let outcome = client.keeper().release(entered).await;
        // The client must not close before its last release was confirmed.
        drop(client);
        outcome
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", self.name())
            .field("token", &self.token())
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}
