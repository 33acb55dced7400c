//! The messages between client processes and the coordinator: JSON, one per line, over one connection per client.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// One client process: its slot, and how many clients that slot had before.
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

/// The parameters of a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClientSetup {
    pub(crate) client: ClientId,
    /// The address of the coordinator.
    pub(crate) coordinator: String,
    /// The URL of the store.
    pub(crate) url: String,
    pub(crate) ttl: Duration,
    pub(crate) locks: Vec<String>,
    pub(crate) seed: u64,
}

/// A message of a client. All times are readings of [`now`](crate::clock::now).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ClientMessage {
    /// The first message, sent once.
    Hello { client: ClientId },
    /// A read or write of this lock's registers; answered by [`CoordinatorMessage::Answer`].
    UseRegisters { number: u64, lock: String, token: u64, request: RegisterRequest },
    /// The lock was acquired. `is_held` is what the guard reported right after.
    Granted {
        lock: String,
        token: u64,
        asked: Duration,
        queued: Option<Duration>,
        granted: Duration,
        is_held: bool,
    },
    /// The guard reported at this time, or later, that it is held.
    Believed { lock: String, token: u64, at: Duration },
    /// The guard was released or dropped.
    Ended { lock: String, token: u64, believed: Duration, lost: bool, released: Option<String> },
    /// The wait for the lock ended without a grant: the lock was busy, or an error.
    Missed { lock: String, error: Option<String> },
    /// The session is suspect or has ended, or the client cannot connect.
    SessionProblem { problem: String },
    /// The last message of a client that was asked to finish.
    Closed { error: Option<String> },
}

/// A request to the registers of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RegisterRequest {
    Read,
    /// Writes the values that were read, plus one.
    Write {
        read: Reading,
    },
}

/// The values of the two registers of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reading {
    /// `None` if it was refused, because the register has seen a higher token.
    pub(crate) fenced: Option<u64>,
    pub(crate) unfenced: u64,
}

/// A message to a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum CoordinatorMessage {
    /// The answer of the registers; to a write, the values after it.
    Answer { number: u64, reading: Reading },
    /// Take every lock once more, release it, close the client and end.
    Finish,
}

/// Serializes a message as a line.
pub(crate) fn line(message: &impl Serialize) -> Vec<u8> {
    // All of these types can be represented in JSON.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}
