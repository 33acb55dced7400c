//! What is measured.

use std::fmt;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

use crate::job::{Job, Names};

/// The ttl of every lock whose expiry is not measured.
const TTL_MS: u64 = 10_000;

/// The same for more than this many clients or tasks, which a few cores serve slowly.
const CROWD: usize = 500;
const CROWD_TTL_MS: u64 = 30_000;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "verbatim")]
pub enum Workload {
    /// one client acquires and releases one lock in a loop
    W1,
    /// 32 tasks of one client, each with a lock of its own
    W2,
    /// 8 clients, one lock, empty critical section
    W3,
    /// as W3, held for 5 ms, then a pause of 5 to 15 ms
    W3H,
    /// 200 clients wait behind a holder; each acquires once
    W4,
    /// as W4, with 200 tasks of one client
    W4L,
    /// re-entry: the owner acquires a lock that it holds
    W5,
    /// one client holds up to 10,000 locks
    W6,
    /// the server freezes: when the holder learns that its hold has ended
    W7,
    /// the holder is killed: when the next one is granted the lock
    W8,
    /// 500 buyers in two processes buy 300 items
    W9,
}

/// What rows of a workload are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComparedBy {
    /// Pairs of acquire and release per second; more is better.
    Rate,
    /// The median of the times from a release to the next grant; less is better.
    Handoff,
    /// The time until all have had the lock; less is better.
    Elapsed,
}

impl Workload {
    /// The workloads that rows in processes of their own run.
    pub(crate) const OF_ROWS: [Self; 6] = [Self::W1, Self::W2, Self::W3, Self::W3H, Self::W4, Self::W4L];

    /// Returns what it is, in a few words.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::W1 => "one client acquires and releases one lock in a loop",
            Self::W2 => "32 tasks of one client, each with a lock of its own",
            Self::W3 => "8 clients, one lock, empty critical section",
            Self::W3H => "as W3, held for 5 ms, then a pause of 5 to 15 ms",
            Self::W4 => "200 clients wait behind a holder; each acquires once",
            Self::W4L => "as W4, with 200 tasks of one client",
            Self::W5 => "re-entry: the owner acquires a lock that it holds",
            Self::W6 => "one client holds many locks",
            Self::W7 => "the server freezes: when the holder learns that its hold has ended",
            Self::W8 => "the holder is killed: when the next one is granted the lock",
            Self::W9 => "500 buyers in two processes buy 300 items",
        }
    }

    pub(crate) fn compared_by(self) -> ComparedBy {
        match self {
            Self::W3H => ComparedBy::Handoff,
            Self::W4 | Self::W4L => ComparedBy::Elapsed,
            _ => ComparedBy::Rate,
        }
    }

    /// Returns how many lock at the same time.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::W2 => 32,
            Self::W3 | Self::W3H => 8,
            Self::W4 | Self::W4L => 200,
            _ => 1,
        }
    }

    /// Whether each task acquires once.
    pub(crate) fn is_once(self) -> bool {
        matches!(self, Self::W4 | Self::W4L)
    }

    /// Returns the job of a row, for `size` clients or tasks.
    pub(crate) fn job(
        self,
        row: &str,
        servers: Vec<String>,
        size: usize,
        millis: u64,
        settle_ms: u64,
    ) -> Job {
        let is_one_client = matches!(self, Self::W1 | Self::W2 | Self::W4L);
        let (clients, tasks) = if is_one_client { (1, size) } else { (size, 1) };
        let (hold_us, pause_us) = if self == Self::W3H { (5_000, [5_000, 15_000]) } else { (0, [0, 0]) };
        Job {
            row: row.to_owned(),
            servers,
            clients,
            tasks,
            names: if matches!(self, Self::W1 | Self::W2) { Names::Own } else { Names::Shared },
            name: format!("bench-{:08x}", fastrand::u32(..)),
            hold_us,
            pause_us,
            ttl_ms: if size > CROWD { CROWD_TTL_MS } else { TTL_MS },
            millis: (!self.is_once()).then_some(millis),
            once: self.is_once(),
            settle_ms,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
