//! Workloads.

use std::{fmt, ops::Range, time::Duration};

use serde::{Serialize, Serializer};

/// What the contenders do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// W3: eight clients acquire one lock and release it at once.
    Handoff,
    /// W3H: as W3, but each client holds the lock for 5 ms and then pauses for 5 to 15 ms, so that a client that
    /// releases does not acquire it again at once.
    TrueHandoff,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 2] = [Self::Handoff, Self::TrueHandoff];

    pub(crate) const CONTENDERS: usize = 8;

    /// How long a client holds the lock.
    pub(crate) fn holds(self) -> Duration {
        match self {
            Self::Handoff => Duration::ZERO,
            Self::TrueHandoff => Duration::from_millis(5),
        }
    }

    /// The range of a client's pause after a release, in milliseconds.
    pub(crate) fn pauses(self) -> Range<u64> {
        match self {
            Self::Handoff => 0..1,
            Self::TrueHandoff => 5..16,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Handoff => "W3",
            Self::TrueHandoff => "W3H",
        })
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
