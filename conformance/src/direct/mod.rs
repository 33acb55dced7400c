//! Drives claims directly at a session, without a keeper: for a backend's own tests. The helpers panic on failure.
//!
//! The suite proves what every backend promises. What is special to one backend (its requests, its keys, what its
//! operators do) is tested in its own crate, one session and one claim at a time:
//!
//! ```
//! use lockkit_conformance::direct::{acquire, enqueued, fresh_name, release};
//! use lockkit_core::{Clock, backend::Backend, memory::MemoryServer};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit_core::Result<()> {
//! let session = MemoryServer::new().backend().open_session(std::time::Duration::from_secs(60), Clock::boot()).await?;
//! let name = fresh_name();
//! let held = acquire(&session, &name).await;
//! let next = enqueued(&session, &name).await;
//! release(&session, &held).await;
//! release(&session, &next.granted().await).await;
//! # Ok(()) }
//! ```
#![allow(clippy::panic, clippy::expect_used, reason = "helpers of tests are tests")]

mod checks;
mod in_case;
mod log;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockkit_core::{
    Clock, Error, LockClient, LockName, Metadata, Result,
    backend::{Acquired, Backend, Claim, ClaimControl, Grant, Renewals, Session},
};
use tokio::{task::JoinHandle, time::sleep};

pub use self::checks::{
    HANG, LONG, assert_error, assert_rising, bounded, earliest_recheck, is_entry_gone, is_gave_up,
    is_renewed, latest_recheck, sooner_than, until,
};
pub(crate) use self::in_case::{claim, claim_of, granted_or_err, metadata, take};
pub use self::log::LogText;

/// The label in the metadata of these claims.
pub const LABEL: &str = "test";

/// Pause before an unconfirmed release is sent again.
const RELEASE_PAUSE: Duration = Duration::from_millis(10);

/// Returns a lock name that nothing else in this process uses.
pub fn fresh_name() -> LockName {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    name(&format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Parses a lock name that must be valid.
#[track_caller]
pub fn name(text: &str) -> LockName {
    LockName::new(text).expect("a valid name")
}

/// A claim that runs in a task of its own.
#[derive(Debug)]
pub struct PendingClaim {
    /// Gives the claim up, and shows what the session noted about it.
    pub control: ClaimControl,
    /// The claim that was passed to the session.
    pub claim: Claim,
    task: JoinHandle<Result<Acquired>>,
}

impl PendingClaim {
    fn spawn(session: &Arc<dyn Session>, claim: Claim, control: ClaimControl) -> Self {
        let (session, sent) = (Arc::clone(session), claim.clone());
        let task = tokio::spawn(async move { session.acquire(sent).await });
        Self { control, claim, task }
    }

    /// Whether the claim has not ended yet.
    pub fn is_waiting(&self) -> bool {
        !self.task.is_finished()
    }

    /// Waits until the claim ends, and returns its outcome.
    ///
    /// # Panics
    ///
    /// When the claim does not end, or panics.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the claim running.
    pub async fn ends(self) -> Result<Acquired> {
        bounded(self.task).await.expect("the claim panicked")
    }

    /// Waits until the claim is granted.
    ///
    /// # Panics
    ///
    /// When the claim ends without a grant, or does not end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the claim running.
    pub async fn granted(self) -> Grant {
        granted(self.ends().await)
    }
}

/// Returns the grant that a claim has ended with.
///
/// # Panics
///
/// When the claim has ended without a grant.
#[track_caller]
pub fn granted(end: Result<Acquired>) -> Grant {
    match end {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted but {other:?}"),
    }
}

/// Starts a claim that waits.
pub fn start(session: &Arc<dyn Session>, name: &LockName) -> PendingClaim {
    start_claim(session, name, true)
}

/// Starts a claim that waits, or a try.
pub fn start_claim(session: &Arc<dyn Session>, name: &LockName, wait: bool) -> PendingClaim {
    let control = ClaimControl::new();
    let claim = Claim::new(name.clone(), wait, Metadata::of_this_process(Some(LABEL)), &control);
    PendingClaim::spawn(session, claim, control)
}

/// Starts a claim, and returns once the session has noted that another claim holds the lock.
///
/// # Panics
///
/// When the claim never waits.
///
/// # Cancel safety
///
/// Dropping the future leaves the claim running.
pub async fn enqueued(session: &Arc<dyn Session>, name: &LockName) -> PendingClaim {
    let pending = start(session, name);
    until("the claim is queued", async || pending.control.was_contended()).await;
    assert!(pending.is_waiting());
    pending
}

/// Acquires the lock, and waits for it where it is held.
///
/// # Panics
///
/// When the lock is not granted.
///
/// # Cancel safety
///
/// Dropping the future leaves the claim running.
pub async fn acquire(session: &Arc<dyn Session>, name: &LockName) -> Grant {
    start(session, name).granted().await
}

/// Tries to acquire the lock once.
///
/// # Panics
///
/// When the session does not answer.
///
/// # Errors
///
/// The error that the session returns.
///
/// # Cancel safety
///
/// Dropping the future leaves the claim running.
pub async fn try_acquire(session: &Arc<dyn Session>, name: &LockName) -> Result<Acquired> {
    start_claim(session, name, false).ends().await
}

/// Releases a grant, and repeats the release until it is confirmed, as a keeper does.
///
/// # Panics
///
/// When the release is never confirmed.
///
/// # Cancel safety
///
/// Not cancel safe: the release may have taken effect or not.
pub async fn release(session: &Arc<dyn Session>, grant: &Grant) {
    let confirmed = async {
        while session.release(grant).await.is_err() {
            sleep(RELEASE_PAUSE).await;
        }
    };
    bounded(confirmed).await;
}

/// Sends one heartbeat for these grants.
///
/// # Panics
///
/// When the heartbeat does not end.
///
/// # Cancel safety
///
/// Not cancel safe: the answer is lost.
pub async fn heartbeat(session: &Arc<dyn Session>, held: &[&Grant]) -> Renewals {
    let held: Vec<Grant> = held.iter().map(|&grant| grant.clone()).collect();
    bounded(session.renew(&held)).await
}

/// Cancels a waiter while the holder releases, at a different moment in each round. Whichever comes first, the next
/// waiter must be granted. Returns in how many rounds the cancelled waiter was granted.
///
/// # Panics
///
/// When a grant is lost.
///
/// # Cancel safety
///
/// Not cancel safe: claims keep running.
pub async fn cancel_during_handoff(
    one: &Arc<dyn Session>,
    other: &Arc<dyn Session>,
    name: &LockName,
    rounds: usize,
) -> usize {
    let mut granted = 0;
    for round in 0..rounds {
        let first = acquire(one, name).await;
        let second = enqueued(other, name).await;
        let third = enqueued(one, name).await;
        let releasing = Arc::clone(one);
        let releasing = tokio::spawn(async move { releasing.release(&first).await });
        for _ in 0..round % 40 {
            tokio::task::yield_now().await;
        }
        second.control.give_up();
        match second.ends().await {
            Ok(Acquired::Granted(grant)) => {
                granted += 1;
                release(other, &grant).await;
            }
            end => assert!(is_gave_up(&end), "{end:?}"),
        }
        bounded(releasing).await.expect("the release panicked").expect("the release is confirmed");
        release(one, &third.granted().await).await;
    }
    granted
}

/// Returns why this backend opens no session. A client of it must fail with the same kind at once: a failure that
/// no retry can fix is not retried.
///
/// # Panics
///
/// When a session is opened, or the backend waits for one.
///
/// # Cancel safety
///
/// Cancel safe as long as the backend refuses, which it should.
pub async fn refusal_of(backend: impl Backend + Clone) -> Error {
    let session = bounded(backend.open_session(LONG, Clock::boot())).await;
    let client = bounded(LockClient::builder(backend.clone()).build()).await;
    let (session, client) = (session.expect_err("a session"), client.expect_err("a client"));
    assert_eq!(session.kind(), client.kind());
    session
}
