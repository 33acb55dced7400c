//! What client processes and the coordinator send each other: JSON, one message a line, over one connection per client.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// One client process: the place that it fills, and how often that place was filled before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ClientId {
    pub(crate) slot: usize,
    pub(crate) generation: u32,
}

impl ClientId {
    /// A number that no other client of the run has.
    pub(crate) fn number(self) -> u64 {
        self.slot as u64 + 1_000 * u64::from(self.generation)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}.{}", self.slot, self.generation)
    }
}

/// What a client process is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) client: ClientId,
    /// Where the coordinator listens.
    pub(crate) coordinator: String,
    /// The store.
    pub(crate) url: String,
    pub(crate) ttl: Duration,
    pub(crate) locks: Vec<String>,
    pub(crate) seed: u64,
}

/// What a client reports. All times are readings of [`now`](crate::clock::now).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// First, once.
    Hello { client: ClientId },
    /// Asks the registers of this lock for something; answered by [`Told::Answer`].
    Ask { number: u64, lock: String, token: u64, what: Ask },
    /// The lock was acquired; `is_held`: what the guard said at once.
    Granted {
        lock: String,
        token: u64,
        asked: Duration,
        queued: Option<Duration>,
        granted: Duration,
        is_held: bool,
    },
    /// The guard said at this time, or later, that it is held.
    Believed { lock: String, token: u64, at: Duration },
    /// The guard is gone.
    Ended { lock: String, token: u64, believed: Duration, lost: bool, released: Option<String> },
    /// The wait for the lock ended without a grant: busy all the time, or an error.
    Missed { lock: String, error: Option<String> },
    /// The session is in doubt or over, or the client cannot connect.
    Trouble { what: String },
    /// The last message of a client that was told to finish.
    Closed { error: Option<String> },
}

/// What is asked of the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    Read,
    /// Writes values that are one more than those that were read.
    Write {
        read: Reading,
    },
}

/// The values of the two registers of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reading {
    /// `None`: refused, because a higher token has been there.
    pub(crate) fenced: Option<u64>,
    pub(crate) unfenced: u64,
}

/// What a client is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// The registers' answer; to a write, the values that it left.
    Answer { number: u64, reading: Reading },
    /// Take every lock once more, release it, close the client and end.
    Finish,
}

/// A message as a line.
pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    // These types have nothing that JSON cannot say.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}
