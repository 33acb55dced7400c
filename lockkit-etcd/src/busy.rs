//! Locks that a try has met busy a moment ago.
//!
//! A transaction that is to write goes through the consensus log even when its compare fails and nothing is written. A
//! client that tries again and again for a lock that others hold therefore looks first: a read costs the server little.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::keys::Queue;

/// How long a lock counts as busy after a try has met a holder. A guess that is wrong costs one read.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// Locks that are remembered; all are forgotten when there are more.
const REMEMBERED_MAX: usize = 1024;

/// Locks that a try has met busy a moment ago.
#[derive(Debug, Default)]
pub(crate) struct BusyLately(Mutex<HashMap<Queue, Instant>>);

impl BusyLately {
    /// A try has met a holder.
    pub(crate) fn note(&self, queue: &Queue) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= REMEMBERED_MAX {
            seen.clear();
        }
        seen.insert(queue.clone(), Instant::now());
    }

    /// Whether a try is likely to meet a holder.
    pub(crate) fn expects(&self, queue: &Queue) -> bool {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(queue).is_some_and(|at| at.elapsed() < BUSY_FOR)
    }
}
