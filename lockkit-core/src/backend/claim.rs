//! One attempt at a lock, as the backend sees it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use uuid::Uuid;

use crate::{LockName, Metadata};

/// The identity of one attempt: random, never used again. A create whose reply was lost is found by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(Uuid);

impl ClaimId {
    /// A new random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id as its `Display` wrote it.
    pub fn parse(text: &str) -> Option<Self> {
        // `Uuid::try_parse` reads four forms, and capitals; an id is written in one form only.
        Uuid::try_parse(text).ok().map(Self).filter(|id| id.to_string() == text)
    }
}

/// 32 lower-case hexadecimal digits.
impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0.as_simple(), f)
    }
}

/// The first 8 digits: enough to follow one claim in a log, too few to forge its entry.
impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.8}…", self.0.as_simple().to_string())
    }
}

/// One attempt at a lock; made by the keeper, or by a test that drives a [`Session`](super::Session) itself.
///
/// Waiting, a timeout and a dropped future are one code path in a backend: [`give_up`](Self::give_up) resolves.
#[derive(Clone, Debug)]
pub struct Claim {
    name: LockName,
    id: ClaimId,
    wait: bool,
    metadata: Arc<Metadata>,
    control: ClaimControl,
}

/// The other end of a [`Claim`]: tells it to give up, and reads what the backend has noted. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ClaimControl {
    give_up: CancellationToken,
    contended: Arc<AtomicBool>,
}

impl Claim {
    /// A new claim with an id of its own. `wait` is false for a try.
    pub fn new(name: LockName, wait: bool, metadata: Metadata, control: &ClaimControl) -> Self {
        Self { name, id: ClaimId::random(), wait, metadata: Arc::new(metadata), control: control.clone() }
    }

    /// The lock that is claimed.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The identity of this attempt.
    pub fn id(&self) -> ClaimId {
        self.id
    }

    /// Whether to queue when somebody else holds the lock; otherwise the server is asked once.
    pub fn wait(&self) -> bool {
        self.wait
    }

    /// What to store beside the entry.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Resolves when nobody wants the lock any more: the caller's deadline passed, its future was dropped, or the
    /// client closes.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; resolves at once when it has resolved before.
    pub fn give_up(&self) -> WaitForCancellationFuture<'_> {
        self.control.give_up.cancelled()
    }

    /// Whether [`give_up`](Self::give_up) has resolved.
    pub fn has_given_up(&self) -> bool {
        self.control.give_up.is_cancelled()
    }

    /// Notes that the server has answered: somebody else holds the lock. A caller whose time runs out is then told
    /// `None` instead of `Unavailable`.
    pub fn note_contended(&self) {
        self.control.contended.store(true, Ordering::Release);
    }

    /// Whether that was noted.
    pub fn was_contended(&self) -> bool {
        self.control.was_contended()
    }
}

impl ClaimControl {
    /// A control that no claim has given up on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells the claim to give up.
    pub fn give_up(&self) {
        self.give_up.cancel();
    }

    /// Resolves when the claim was told to give up.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn given_up(&self) -> WaitForCancellationFuture<'_> {
        self.give_up.cancelled()
    }

    /// Whether the claim was told to give up.
    pub fn has_given_up(&self) -> bool {
        self.give_up.is_cancelled()
    }

    /// Whether the backend noted that somebody else holds the lock.
    pub fn was_contended(&self) -> bool {
        self.contended.load(Ordering::Acquire)
    }
}
