//! Elections: a lock whose holder shows a value to everybody else.
//!
//! Source of the idea and of the words: `concurrency.Election` of etcd's Go client.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_core::Stream;
use tokio::sync::mpsc;

use crate::{
    Error, ErrorKind, FencingToken, LockGuard, LockName, Proposal, Result, RunError,
    backend::{Evidence, LeaderEntry},
    client::Handle,
    keeper::{LockRequest, Proclaims, WaitPolicy},
    limits::PROPOSAL_BYTES_MAX,
};

/// An election: candidates campaign for a name, one of them leads, and everybody can see who and what it proposes.
///
/// It is the lock of the same name: the leader holds the lock, with everything that a lock has (fencing token, loss
/// signal with a time bound, queue). The value holds nothing and does no I/O. Cheap to clone.
///
/// ```
/// use lockkit_core::{LockClient, memory::MemoryServer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkit_core::Result<()> {
/// let client = LockClient::builder(MemoryServer::new().backend()).build().await?;
/// let election = client.election("scheduler")?;
/// let leadership = election.campaign("node-1:8080").await?;
/// assert_eq!(election.leader().await?.unwrap().value, "node-1:8080");
/// leadership.proclaim("node-1:8081").await?;
/// leadership.resign().await?;
/// assert!(election.leader().await?.is_none());
/// client.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    client: Arc<Handle>,
    name: LockName,
}

/// The leader of an election, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// What the leader proposes; empty for the holder of an ordinary lock of this name.
    pub value: String,
    /// The fencing token of its leadership.
    pub token: FencingToken,
    /// The label of its client, if the store's layout has room for it.
    pub label: Option<String>,
    /// When its campaign began, by the wall clock of its host, if the store's layout has room for it.
    pub since: Option<SystemTime>,
}

impl Election {
    pub(crate) fn new(client: Arc<Handle>, name: LockName) -> Result<Self> {
        client.keeper().require_elections().map_err(|error| error.with_lock(&name))?;
        Ok(Self { client, name })
    }

    /// Returns the name.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Waits until the caller leads, without a time limit, through outages of the store too. `value` is what others
    /// see of the leader, such as its address; at most [`PROPOSAL_BYTES_MAX`] bytes.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the value is too long; otherwise as [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leadership> {
        let answer = self.campaign_within(value.into(), WaitPolicy::Unlimited).await?;
        WaitPolicy::never_busy(answer, "campaign").map_err(|error| error.with_lock(&self.name))
    }

    /// Like [`campaign`](Self::campaign), for at most `timeout`; returns `None` if others led all the time. A zero
    /// `timeout` is one request, as in a [try](crate::Lock::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`campaign`](Self::campaign) and [`Lock::acquire_timeout`](crate::Lock::acquire_timeout).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn campaign_timeout(
        &self,
        value: impl Into<String>,
        timeout: Duration,
    ) -> Result<Option<Leadership>> {
        self.campaign_within(value.into(), WaitPolicy::within(timeout)).await
    }

    async fn campaign_within(&self, value: String, policy: WaitPolicy) -> Result<Option<Leadership>> {
        let mut request = LockRequest::new(self.name.clone());
        request.proposal = Some(proposal("campaign", &self.name, value, 1)?);
        let share = self.client.keeper().acquire(&request, policy).await?;
        Ok(share.map(|share| Leadership::new(LockGuard::new(Arc::clone(&self.client), share))))
    }

    /// Returns who leads now, or `None` if nobody does. The answer may be outdated when it arrives: what a leader does
    /// is safe by its token, not because others asked.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store did not answer; `Denied`; `Unexpected` if a value of another program is no UTF-8;
    /// `Closed`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        Ok(self.client.keeper().leader(&self.name).await?.map(Leader::from))
    }

    /// Observes the election: a stream of who leads (`None`: nobody), beginning with the current state.
    ///
    /// Every change is reported that the store can show: leaders and values that follow each other faster than they
    /// can be read are reported as one. A leader is never reported after a newer one (by token), nor an older value of
    /// a leader after a newer one. The observation continues through outages and new sessions; an error is its last item.
    pub fn observe(&self) -> Observer {
        let changes = self.client.keeper().observe(self.name.clone());
        Observer { changes, has_ended: false, _client: Arc::clone(&self.client) }
    }
}

/// The leaders of an election, as they follow each other; see [`Election::observe`].
pub struct Observer {
    changes: mpsc::Receiver<Result<Option<LeaderEntry>>>,
    has_ended: bool,
    /// The observation needs an open client.
    _client: Arc<Handle>,
}

impl Observer {
    /// Waits for the next change and returns who leads since then; `None` after the last one, which was an error.
    ///
    /// # Errors
    ///
    /// `Denied`, `Unexpected`, `Closed`: the observation has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no change is lost.
    pub async fn next(&mut self) -> Option<Result<Option<Leader>>> {
        poll_fn(|context| self.poll_change(context)).await
    }
}

impl Observer {
    fn poll_change(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Option<Leader>>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        // Without an error the observation ends only with the runtime of the client.
        let closed = || Err(Error::new(ErrorKind::Closed, "observe"));
        let change = std::task::ready!(self.changes.poll_recv(context)).unwrap_or_else(closed);
        self.has_ended = change.is_err();
        Poll::Ready(Some(leader_of(change)))
    }
}

impl Stream for Observer {
    type Item = Result<Option<Leader>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_change(context)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

fn leader_of(change: Result<Option<LeaderEntry>>) -> Result<Option<Leader>> {
    change.map(|leader| leader.map(Leader::from))
}

impl From<LeaderEntry> for Leader {
    fn from(entry: LeaderEntry) -> Self {
        let LeaderEntry { token, proposal, metadata } = entry;
        let since = metadata.as_ref().map(|metadata| Duration::from_millis(metadata.since_ms));
        Self {
            value: proposal.value,
            token,
            since: since.and_then(|since| UNIX_EPOCH.checked_add(since)),
            label: metadata.and_then(|metadata| metadata.label),
        }
    }
}

/// The leadership of an election; dropping it resigns in the background, like a dropped [`LockGuard`].
///
/// Others may lead as soon as this one is lost, whether this process has noticed it or not: send the
/// [token](Self::token) with every write.
#[must_use = "a leadership that is not bound resigns at once"]
pub struct Leadership {
    guard: LockGuard,
    proclaims: Arc<Proclaims>,
    /// The number of the last proposal.
    last_number: AtomicU64,
}

impl Leadership {
    fn new(guard: LockGuard) -> Self {
        Self { guard, proclaims: Arc::default(), last_number: AtomicU64::new(1) }
    }

    /// Returns the name of the election.
    pub fn name(&self) -> &LockName {
        self.guard.name()
    }

    /// Returns the fencing token, to be sent with every write of the leader.
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// Returns what a transaction in the same store can compare; see [`LockGuard::evidence`].
    pub fn evidence(&self) -> Option<&Evidence> {
        self.guard.evidence()
    }

    /// Returns whether the caller leads at this moment, without I/O; see [`LockGuard::is_held`].
    pub fn is_leader(&self) -> bool {
        self.guard.is_held()
    }

    /// Like [`is_leader`](Self::is_leader), but returns the reason of the loss.
    ///
    /// # Errors
    ///
    /// `Lost`.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// Returns how long the leadership lasts without a further renewal; see [`LockGuard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Waits until the leadership is lost, and returns the reason; see [`LockGuard::lost`] for the time bound.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) -> Error {
        self.guard.lost().await
    }

    /// Replaces the value that others see. Values are proclaimed in the order of the calls, through outages of the
    /// store, as long as the leadership lasts.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the value is longer than [`PROPOSAL_BYTES_MAX`] bytes; `Lost` if the leadership ended before
    /// the store had confirmed the value; `Unavailable`, at once, if
    /// [`PROCLAIMS_WAITING_MAX`](crate::limits::PROCLAIMS_WAITING_MAX) values wait already; `Denied`, `Unexpected`,
    /// `Closed`.
    ///
    /// # Cancel safety
    ///
    /// Once polled, the value is proclaimed in the background even if the future is dropped.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        let mut next = proposal("proclaim", self.name(), value.into(), 0)?;
        next.number = self.last_number.fetch_add(1, Ordering::AcqRel) + 1;
        self.guard.proclaim(&self.proclaims, next).await
    }

    /// Runs `work` while the caller leads: when the leadership ends, `work` is dropped at its next await; see
    /// [`LockGuard::run`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::run`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` at its current await; the caller still leads.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, RunError<F::Output>> {
        self.guard.run(work).await
    }

    /// Ends the leadership and waits for the confirmation; see [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// Once polled, the release continues in the background even if the future is dropped.
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.guard).finish()
    }
}

fn proposal(operation: &'static str, name: &LockName, value: String, number: u64) -> Result<Proposal> {
    if value.len() > PROPOSAL_BYTES_MAX {
        return Err(Error::new(ErrorKind::InvalidConfig, operation).with_lock(name).with_message(format!(
            "a value has at most {PROPOSAL_BYTES_MAX} bytes, this one has {}",
            value.len()
        )));
    }
    Ok(Proposal::new(value, number))
}
