//! One attempt at a lock, as the backend receives it.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{LockName, Metadata, metrics::Moment};

/// The random identity of one attempt, never reused. It identifies an entry whose creation reply was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(Uuid);

impl ClaimId {
    /// Creates a random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Parses an id that `Display` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        // `Uuid::try_parse` accepts four forms and capitals; `Display` writes only one form.
        Uuid::try_parse(text).ok().map(Self).filter(|id| id.to_string() == text)
    }
}

/// Prints 32 lower-case hexadecimal digits.
impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0.as_simple(), f)
    }
}

/// Prints the first 8 digits: enough to follow a claim in a log, too few to forge its entry.
impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.8}…", self.0.as_simple().to_string())
    }
}

/// One attempt at a lock, created by the keeper or by a test that drives a [`Session`](super::Session) itself.
///
/// A backend handles a timeout and a dropped future the same way: [`give_up`](Self::give_up) resolves.
#[derive(Clone, Debug)]
pub struct Claim {
    name: LockName,
    id: ClaimId,
    wait: bool,
    metadata: Arc<Metadata>,
    control: ClaimControl,
}

/// The keeper's end of a [`Claim`]: makes it give up, and reads what the backend has noted. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ClaimControl {
    give_up: CancellationToken,
    /// When the server first reported another holder.
    contended: Arc<OnceLock<Moment>>,
}

impl Claim {
    /// Creates a claim with a new id. `wait` is false for a try.
    pub fn new(name: LockName, wait: bool, metadata: Metadata, control: &ClaimControl) -> Self {
        Self { name, id: ClaimId::random(), wait, metadata: Arc::new(metadata), control: control.clone() }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the identity of this attempt.
    pub fn id(&self) -> ClaimId {
        self.id
    }

    /// Returns whether to queue if another claim holds the lock; a try sends one request instead.
    pub fn wait(&self) -> bool {
        self.wait
    }

    /// Returns the metadata to store with the entry.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(super) fn shared_metadata(&self) -> Arc<Metadata> {
        Arc::clone(&self.metadata)
    }

    /// Resolves when the claim must be withdrawn: the caller's time limit passed, its future was dropped, or the client
    /// closes.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; resolves at once if it has resolved before.
    pub fn give_up(&self) -> impl Future<Output = ()> + Send {
        self.control.give_up.cancelled()
    }

    /// Returns whether [`give_up`](Self::give_up) has resolved.
    pub fn has_given_up(&self) -> bool {
        self.control.give_up.is_cancelled()
    }

    /// Notes that the server reported another holder. A caller whose time limit passes then gets `None` instead of
    /// `Unavailable`.
    pub fn note_contended(&self) {
        self.control.contended.get_or_init(Moment::now);
    }

    /// Returns whether [`note_contended`](Self::note_contended) was called.
    pub fn was_contended(&self) -> bool {
        self.control.was_contended()
    }
}

impl ClaimControl {
    /// Creates a control.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the claim give up.
    pub fn give_up(&self) {
        self.give_up.cancel();
    }

    /// Resolves when the claim must give up.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn given_up(&self) -> impl Future<Output = ()> + Send {
        self.give_up.cancelled()
    }

    /// Returns whether the claim must give up.
    pub fn has_given_up(&self) -> bool {
        self.give_up.is_cancelled()
    }

    /// Returns whether the backend noted another holder.
    pub fn was_contended(&self) -> bool {
        self.contended.get().is_some()
    }

    /// Returns when the backend first noted another holder, if it has.
    pub(crate) fn contended_since(&self) -> Option<Moment> {
        self.contended.get().copied()
    }
}
