//! Several locks that are acquired all or nothing.
//!
//! The locks are acquired one after the other, in the order of the bytes of their names, which is the same for all
//! callers. A caller that waits for a name holds only smaller ones, so callers of this module never wait in a circle
//! (Havender, "Avoiding Deadlock in Multitasking Systems", 1968).
//!
//! What can fail while some of the locks are held and the next one is waited for:
//!
//! * The next lock is busy until the time limit, fails, or the caller's future is dropped: the guards of the locks that
//!   are held are dropped, which releases them in the background.
//! * A lock that is held is lost. The wait ends at once, all other locks are released, and the acquire starts again
//!   after a pause, within its time limit. To acquire the lost one alone would break the order.
//! * A lock is lost while the last grant arrives: all locks are checked after the last grant.
//! * Each grant is lost at once, as with a `max_hold` of zero: the pauses grow, so that no series of requests without
//!   a bound is sent.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    Error, ErrorKind, Lock, LockName, Owner, Result, RunError, SetGuard,
    backend::{RetryPauses, retry_pauses},
    client::Handle,
    keeper::WaitPolicy,
    limits::LOCKS_PER_SET_MAX,
};

/// A set of locks that are acquired together: all or nothing. The value holds nothing and does no I/O.
///
/// The locks are acquired in the order of the bytes of their names, whatever the order of the call. Callers that acquire
/// every lock by one set at a time never wait for each other in a circle. **A caller that holds a lock already, and then
/// acquires a set, can be part of a deadlock**; so can an [owner](Self::reentrant) that holds some of the locks. Give
/// such an acquire a time limit.
///
/// Contention and timeouts are values (`None`), never errors.
///
/// ```
/// # use lockkit_core::{LockClient, memory::MemoryServer};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkit_core::Result<()> {
/// # let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
/// let transfer = client.lock_all(["accounts/7", "accounts/3"])?;
/// if let Some(guard) = transfer.acquire_timeout(Duration::from_secs(5)).await? {
///     let token = guard.token("accounts/3");
///     assert!(token.is_some() && guard.is_held());
///     guard.release().await?;
/// }
/// # client.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct LockAll {
    client: Arc<Handle>,
    /// In the order of the bytes of their names; at least one.
    locks: Vec<Lock>,
}

impl LockAll {
    pub(crate) fn new(client: &Arc<Handle>, names: impl IntoIterator<Item: AsRef<str>>) -> Result<Self> {
        let refused = |what: String| Error::new(ErrorKind::InvalidName, "lock all").with_message(what);
        let mut set = BTreeSet::new();
        for name in names {
            set.insert(LockName::new(name)?);
            if set.len() > LOCKS_PER_SET_MAX {
                return Err(refused(format!("a set has at most {LOCKS_PER_SET_MAX} names")));
            }
        }
        if set.is_empty() {
            return Err(refused("a set has at least one name".into()));
        }
        let locks = set.into_iter().map(|name| Lock::new(Arc::clone(client), name)).collect();
        Ok(Self { client: Arc::clone(client), locks })
    }

    /// Returns the names, in the order in which they are acquired.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &LockName> {
        self.locks.iter().map(Lock::name)
    }

    /// Returns the same set with an owner that may re-enter each of the locks; see [`Lock::reentrant`].
    ///
    /// Two sets of one owner share the locks that are in both. An owner that holds some of the locks already acquires
    /// the others out of order, and can be part of a deadlock.
    #[must_use]
    pub fn reentrant(self, owner: &Owner) -> Self {
        self.with_each(|lock| lock.reentrant(owner))
    }

    /// Returns the same set with a longest duration for every hold; see [`Lock::max_hold`].
    ///
    /// The time of each lock counts from its own grant, so it also bounds how long the first ones are held while the
    /// acquire waits for the others. When the first hold ends, the set is lost, or the acquire starts again.
    #[must_use]
    pub fn max_hold(self, longest: Duration) -> Self {
        self.with_each(|lock| lock.max_hold(longest))
    }

    fn with_each(mut self, change: impl Fn(Lock) -> Lock) -> Self {
        self.locks = self.locks.into_iter().map(change).collect();
        self
    }

    /// Waits for all the locks without a time limit, through outages of the store too.
    ///
    /// The locks granted first are held, and renewed, while the others are waited for. If one of them is lost meanwhile,
    /// all are released, and the acquire starts again.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], for one of the locks. The others are then released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any await point leaves nothing behind: locks that were granted are released in the
    /// background, and the claim that waits is given up.
    pub async fn acquire(&self) -> Result<SetGuard> {
        WaitPolicy::never_busy(self.acquire_within(WaitPolicy::Unlimited).await?, "acquire")
    }

    /// Acquires the locks if all are free; returns `None` if another claim holds one of them. Sends one request for each
    /// lock and never queues.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`], for one of the locks: [`TRY_ANSWER_MAX`](crate::limits::TRY_ANSWER_MAX) is the limit for all
    /// together. `Lost` if a lock was lost again before the last one was granted. The others are then released.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<SetGuard>> {
        self.acquire_within(WaitPolicy::one_try()).await
    }

    /// Waits for all the locks together for at most `timeout`; returns `None` if other claims held one of them until
    /// then. A zero `timeout` is a [try](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire_timeout`], for one of the locks: `Unavailable` also if the earlier ones left too little time
    /// for a request. `Lost` if a lock was lost before the last one was granted, and the time did not suffice to start
    /// again. The others are then released.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Option<SetGuard>> {
        self.acquire_within(WaitPolicy::within(timeout)).await
    }

    /// Acquires all the locks, runs `work` under them, and releases them. [`SetGuard::run`] describes what happens on a
    /// loss.
    ///
    /// # Errors
    ///
    /// As [`SetGuard::run`]; also [`RunError::Stopped`] with an error of [`acquire`](Self::acquire), before `work`
    /// starts.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` at its current await and releases the locks.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&SetGuard) -> T) -> Result<T, RunError<T>> {
        let guard = self.acquire().await.map_err(RunError::Stopped)?;
        let outcome = guard.run(work(&guard)).await?;
        // The work was done under the locks, whatever the outcome of the release.
        let _ = guard.release().await;
        Ok(outcome)
    }

    async fn acquire_within(&self, policy: WaitPolicy) -> Result<Option<SetGuard>> {
        let mut pauses = retry_pauses();
        loop {
            match self.acquire_once(policy).await? {
                PassOutcome::Granted(guard) => return Ok(Some(guard)),
                PassOutcome::Busy => return Ok(None),
                PassOutcome::Lost(lost) => self.pause(policy, &mut pauses, lost).await?,
            }
        }
    }

    /// Acquires the locks one after the other. On each other outcome than `Granted`, the drop of `held` releases those
    /// that were granted.
    async fn acquire_once(&self, policy: WaitPolicy) -> Result<PassOutcome> {
        let mut held = SetGuard::with_capacity(self.locks.len());
        for lock in &self.locks {
            // Ends at once if one of the earlier locks is lost.
            let answer = match held.run(lock.acquire_within(policy)).await {
                Ok(answer) => answer?,
                Err(RunError::Stopped(lost)) => return Ok(PassOutcome::Lost(lost)),
                Err(RunError::Finished { outcome, lost }) => match outcome? {
                    Some(_) => return Ok(PassOutcome::Lost(lost)),
                    None => None,
                },
            };
            match answer {
                Some(guard) => held.push(guard),
                None => return Ok(PassOutcome::Busy),
            }
        }
        Ok(match held.check() {
            Ok(()) => PassOutcome::Granted(held),
            Err(lost) => PassOutcome::Lost(lost),
        })
    }

    /// Waits for one pause before the acquire starts again; returns the loss if the time does not suffice.
    async fn pause(&self, policy: WaitPolicy, pauses: &mut RetryPauses, lost: Error) -> Result<()> {
        let keeper = self.client.keeper();
        // The end of the client is also the end of its holds, and is what the caller must know.
        keeper.check_open()?;
        let start = Instant::now() + pauses.next_pause();
        match policy {
            WaitPolicy::Try(_) => return Err(lost),
            WaitPolicy::Until(limit) if limit <= start => return Err(lost),
            WaitPolicy::Until(_) | WaitPolicy::Unlimited => {}
        }
        keeper.pause_until(start).await;
        Ok(())
    }
}

/// The outcome of one pass over the locks.
enum PassOutcome {
    Granted(SetGuard),
    /// The store reported another holder.
    Busy,
    /// A lock was lost before the last one was granted.
    Lost(Error),
}
