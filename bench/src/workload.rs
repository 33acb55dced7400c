//! What contenders do.

use std::{fmt, ops::Range, time::Duration};

use serde::{Serialize, Serializer};

/// What contenders do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// W3: eight clients, one lock, nothing to do while it is held.
    HandOver,
    /// W3H: as before, and each holds it for 5 ms and then lets the others have it for 5 to 15 ms, so that whoever
    /// releases cannot just take it again.
    TrueHandOver,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::HandOver, Self::TrueHandOver];

    pub(crate) const CONTENDERS: usize = 8;

    pub(crate) fn holds(self) -> Duration {
        match self {
            Self::HandOver => Duration::ZERO,
            Self::TrueHandOver => Duration::from_millis(5),
        }
    }

    /// In milliseconds, after a release.
    pub(crate) fn pauses(self) -> Range<u64> {
        match self {
            Self::HandOver => 0..1,
            Self::TrueHandOver => 5..16,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::HandOver => "W3",
            Self::TrueHandOver => "W3H",
        })
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
