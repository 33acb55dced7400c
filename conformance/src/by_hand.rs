//! Claims driven by hand, without a keeper in between: for a backend's own tests, where what is wrong panics.
//!
//! The suite says what every backend promises. What only one backend has (its requests, its keys, what its operators do
//! to it) stands in tests of its own, which look at one session and one claim at a time:
//!
//! ```
//! use lockkit_conformance::by_hand::{acquire, enqueued, fresh_name, release};
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

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockkit_core::{
    Clock, Error, ErrorKind, LockClient, LockName, Metadata, Result,
    backend::{Acquired, Backend, Beat, Claim, ClaimControl, Grant, Renewal, Session},
    limits::{RECHECK_PAUSE_MAX, RECHECK_PAUSE_MIN},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

/// Generous bound against hangs; no test depends on its length.
pub const HANG: Duration = Duration::from_secs(60);

/// What claims here say of themselves.
pub const LABEL: &str = "test";

/// A ttl that nothing here outlives.
const LONG: Duration = Duration::from_secs(60);

/// Pause between two looks at something that comes about by itself.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// Pause of a release that was not confirmed before it is sent again.
const RELEASE_PAUSE: Duration = Duration::from_millis(10);

/// How often [`sooner_than`] does something.
const ROUNDS_MAX: usize = 3;

/// A lock name that nothing else in this process uses.
pub fn fresh_name() -> LockName {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    name(&format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// The lock of this name.
#[track_caller]
pub fn name(text: &str) -> LockName {
    LockName::new(text).expect("a valid name")
}

/// A claim on its way, in a task of its own.
#[derive(Debug)]
pub struct Waiting {
    /// Gives the claim up, and knows what was noted of it.
    pub control: ClaimControl,
    /// The claim, as the session has it.
    pub claim: Claim,
    pub(crate) task: JoinHandle<Result<Acquired>>,
}

impl Waiting {
    pub(crate) fn of(session: &Arc<dyn Session>, claim: Claim, control: ClaimControl) -> Self {
        let (session, sent) = (Arc::clone(session), claim.clone());
        let task = tokio::spawn(async move { session.acquire(sent).await });
        Self { control, claim, task }
    }

    /// Whether it has not ended yet.
    pub fn is_waiting(&self) -> bool {
        !self.task.is_finished()
    }

    /// How the claim ends.
    ///
    /// # Panics
    ///
    /// When it does not end, or panics.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the claim on its way.
    pub async fn ends(self) -> Result<Acquired> {
        bounded(self.task).await.expect("the claim panicked")
    }

    /// The grant that the claim ends with.
    ///
    /// # Panics
    ///
    /// When it ends with anything else, or not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the claim on its way.
    pub async fn granted(self) -> Grant {
        granted(self.ends().await)
    }
}

/// The grant that a claim has ended with.
///
/// # Panics
///
/// When it has ended with anything else.
#[track_caller]
pub fn granted(end: Result<Acquired>) -> Grant {
    match end {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("not granted but {other:?}"),
    }
}

/// Whether a claim has ended without the lock, by a try or because it was given up.
pub fn is_gave_up(end: &Result<Acquired>) -> bool {
    matches!(end, Ok(Acquired::GaveUp))
}

/// Whether a claim has ended because its entry vanished.
pub fn is_entry_gone(end: &Result<Acquired>) -> bool {
    matches!(end, Ok(Acquired::EntryGone))
}

/// Starts a claim that waits.
pub fn start(session: &Arc<dyn Session>, name: &LockName) -> Waiting {
    start_claim(session, name, true)
}

/// Starts a claim that waits, or a try.
pub fn start_claim(session: &Arc<dyn Session>, name: &LockName, wait: bool) -> Waiting {
    let control = ClaimControl::new();
    let claim = Claim::new(name.clone(), wait, Metadata::of_this_process(Some(LABEL)), &control);
    Waiting::of(session, claim, control)
}

/// Starts a claim, and returns when it is known to wait behind another.
///
/// # Panics
///
/// When it does not come to wait.
///
/// # Cancel safety
///
/// Dropping the future leaves the claim on its way.
pub async fn enqueued(session: &Arc<dyn Session>, name: &LockName) -> Waiting {
    let waiting = start(session, name);
    until("the claim is queued", async || waiting.control.was_contended()).await;
    assert!(waiting.is_waiting());
    waiting
}

/// Takes the lock, waiting for its turn.
///
/// # Panics
///
/// When it is not granted.
///
/// # Cancel safety
///
/// Dropping the future leaves the claim on its way.
pub async fn acquire(session: &Arc<dyn Session>, name: &LockName) -> Grant {
    start(session, name).granted().await
}

/// Asks for the lock once.
///
/// # Panics
///
/// When there is no answer.
///
/// # Errors
///
/// What the session answers.
///
/// # Cancel safety
///
/// Dropping the future leaves the claim on its way.
pub async fn try_acquire(session: &Arc<dyn Session>, name: &LockName) -> Result<Acquired> {
    start_claim(session, name, false).ends().await
}

/// Releases as a keeper does: until it is confirmed.
///
/// # Panics
///
/// When it never is.
///
/// # Cancel safety
///
/// None: the release may have been done or not.
pub async fn release(session: &Arc<dyn Session>, grant: &Grant) {
    let confirmed = async {
        while session.release(grant).await.is_err() {
            sleep(RELEASE_PAUSE).await;
        }
    };
    bounded(confirmed).await;
}

/// One beat for these grants.
///
/// # Panics
///
/// When it does not end.
///
/// # Cancel safety
///
/// None: the answer is lost.
pub async fn beat(session: &Arc<dyn Session>, held: &[&Grant]) -> Beat {
    let held: Vec<Grant> = held.iter().map(|&grant| grant.clone()).collect();
    bounded(session.renew(&held)).await
}

/// Whether a beat says so of a session or a grant.
pub fn is_renewed(renewal: &Renewal) -> bool {
    matches!(renewal, Renewal::Renewed { .. })
}

/// Cancels a waiter while the holder releases, at a different moment in each round: whichever comes first, the waiter
/// behind it is served next. How many of the cancelled ones were granted.
///
/// # Panics
///
/// When a grant gets lost.
///
/// # Cancel safety
///
/// None: claims are left on their way.
pub async fn cancel_right_at_the_wake(
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

/// Why this backend gets no session, which is also what a client of it is told: it does not retry what another try will
/// not mend.
///
/// # Panics
///
/// When it gets one, or waits for one.
///
/// # Cancel safety
///
/// Cancel safe where the backend refuses, as it should.
pub async fn refusal_of(backend: impl Backend + Clone) -> Error {
    let session = bounded(backend.open_session(LONG, Clock::boot())).await;
    let client = bounded(LockClient::builder(backend.clone()).build()).await;
    let (session, client) = (session.expect_err("a session"), client.expect_err("a client"));
    assert_eq!(session.kind(), client.kind());
    session
}

/// Whether an error is of this kind, with this in its text.
///
/// # Panics
///
/// When it is not.
#[track_caller]
pub fn says(error: &Error, kind: ErrorKind, text: &str) {
    assert!(error.kind() == kind && error.to_string().contains(text), "{error}");
}

/// Looks again and again until it is so.
///
/// # Panics
///
/// When it never comes about.
///
/// # Cancel safety
///
/// That of `so`.
pub async fn until(what: &str, so: impl AsyncFn() -> bool) {
    let look = async {
        while !so().await {
            sleep(LOOK_PAUSE).await;
        }
    };
    assert!(timeout(HANG, look).await.is_ok(), "it never came about that {what}");
}

/// Does it again and again until it takes less than this, three times at most: what always takes longer is red, and a
/// machine that is loaded for a while is not.
///
/// For waits that one thing alone is to end, while another one ends them later.
///
/// # Panics
///
/// When it always takes longer, or panics.
///
/// # Cancel safety
///
/// That of `round`.
pub async fn sooner_than(bound: Duration, round: impl AsyncFn()) {
    let mut took = Vec::new();
    while took.len() < ROUNDS_MAX {
        let start = Instant::now();
        round().await;
        took.push(start.elapsed());
        if took.last() < Some(&bound) {
            return;
        }
    }
    panic!("never in less than {bound:?}: {took:?}");
}

/// The earliest moment at which a waiter in a session with this ttl looks although nothing has notified it.
pub fn earliest_recheck(ttl: Duration) -> Duration {
    middle_of_rechecks(ttl).mul_f64(0.875)
}

/// The latest such moment.
pub fn latest_recheck(ttl: Duration) -> Duration {
    middle_of_rechecks(ttl).mul_f64(1.125)
}

fn middle_of_rechecks(ttl: Duration) -> Duration {
    (ttl / 3).clamp(RECHECK_PAUSE_MIN, RECHECK_PAUSE_MAX)
}

/// What the work answers.
///
/// # Panics
///
/// When it hangs.
///
/// # Cancel safety
///
/// That of the work.
pub async fn bounded<T>(work: impl Future<Output = T>) -> T {
    timeout(HANG, work).await.unwrap_or_else(|_| panic!("a wait without an end"))
}

/// Whether each value is larger than the one before it.
///
/// # Panics
///
/// When they are not.
#[track_caller]
pub fn assert_rising<T: PartialOrd + Debug>(values: &[T]) {
    assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "not strictly rising: {values:?}");
}
