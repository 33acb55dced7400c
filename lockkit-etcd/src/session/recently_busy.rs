//! Locks that a try has recently found held.
//!
//! A transaction that may write goes through the consensus log, even if its compare fails and nothing is written. So a
//! client that repeats tries for a held lock sends a read first, which costs the server little.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use lockkit_core::support::lock;
use tokio::time::Instant;

use crate::keys::QueuePath;

/// How long a lock counts as busy after a try has found it held. A wrong guess costs one read.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// Maximum number of remembered locks; all are forgotten when it is reached.
const REMEMBERED_MAX: usize = 1024;

/// The locks that a try has recently found held.
#[derive(Debug, Default)]
pub(crate) struct RecentlyBusy(Mutex<HashMap<QueuePath, Instant>>);

impl RecentlyBusy {
    /// Records that a try has found the lock held.
    pub(crate) fn record(&self, queue: &QueuePath) {
        let mut seen = lock(&self.0);
        if seen.len() >= REMEMBERED_MAX {
            seen.clear();
        }
        seen.insert(queue.clone(), Instant::now());
    }

    /// Returns whether a try has recently found the lock held.
    pub(crate) fn contains(&self, queue: &QueuePath) -> bool {
        let seen = lock(&self.0);
        seen.get(queue).is_some_and(|at| at.elapsed() < BUSY_FOR)
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;
    use crate::keys::{Layout, Names};

    fn queue(name: &str) -> QueuePath {
        Layout::new("", Names::Encoded).queue(&LockName::new(name).unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn lock_counts_as_busy_for_a_moment() {
        let (busy, x) = (RecentlyBusy::default(), queue("x"));
        assert!(!busy.contains(&x));
        busy.record(&x);
        tokio::time::advance(BUSY_FOR / 2).await;
        assert!(busy.contains(&x) && !busy.contains(&queue("y")));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!busy.contains(&x), "each try for it costs a read more");
    }

    #[test]
    fn remembered_locks_are_bounded() {
        let busy = RecentlyBusy::default();
        for number in 0..=2 * REMEMBERED_MAX {
            busy.record(&queue(&number.to_string()));
        }
        assert!(lock(&busy.0).len() <= REMEMBERED_MAX);
    }
}
