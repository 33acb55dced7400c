//! The operations of a history whose linearizability is checked.

/// The place of an event in the order of all events: a reading of one counter.
pub type Moment = u64;

/// One call at a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// The lock.
    pub lock: String,
    /// The call.
    pub call: Call,
    /// A reading before the call.
    pub called: Moment,
    /// A reading after its return; `None` for an unknown outcome: the call may take effect later, or never.
    pub answered: Option<(Moment, Response)>,
}

impl Operation {
    /// Makes an operation on a lock: its call, the reading before it, and its return with the reading after it.
    pub fn new(
        lock: impl Into<String>,
        call: Call,
        called: Moment,
        answered: Option<(Moment, Response)>,
    ) -> Self {
        Self { lock: lock.into(), call, called, answered }
    }
}

/// A call at a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// Acquires the lock, or re-enters the owner's hold.
    Acquire {
        /// The owner, which may re-enter.
        owner: u64,
    },
    /// Releases one entry of a hold.
    Release {
        /// The owner of the hold.
        owner: u64,
        /// The token of the hold.
        token: u64,
    },
    /// The hold of a client that was killed, stopped or cut off may end at any time. No client calls this and it never
    /// returns; it counts as called when the client was last known to be alive.
    Expire {
        /// The owner of the hold.
        owner: u64,
        /// The token of the hold; `None` when its acquire did not return either.
        token: Option<u64>,
    },
}

/// What a call returned. A try or wait that ended without the lock is not an operation, since it changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Response {
    /// The owner has the lock, with this token.
    Granted(u64),
    /// One entry was released.
    Released,
    /// The hold has ended already.
    NotHeld,
}
