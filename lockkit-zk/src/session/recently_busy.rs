//! Tries at locks that were busy a moment ago: they read before they create a node.
//!
//! A try that finds the lock busy creates a node, lists and deletes the node: two transactions, which every server of
//! the ensemble logs, for the answer "busy". A client that polls a held lock pays them each time. So the client
//! remembers the locks that its tries have found busy. A try at one of them first reads, behind a sync, which costs no
//! transaction. If the read shows a contender, the try ends. Otherwise it creates a node like any other try: only a node
//! of its own can be granted.
//!
//! The read shows everything that the leader had committed when the sync arrived there, which was after the try began.
//! So a lock that any client released before the try began is not reported busy. There is one exception: a leader that
//! is cut off from its quorum, and has not noticed yet (for at most `syncLimit` ticks), does not know later commits.
//! Then a try may report a holder that has released since. A read grants nothing and ends no hold, so this is safe.
//!
//! Failure cases:
//!
//! * The answer is lost: the try fails as `Unavailable`, and leaves nothing behind.
//! * The claim is given up: it ends at once, because the read has no effect.
//! * A node looks like a contender and is none (its name and number were made up): a claim's node may be before it and
//!   be granted, but a read cannot see that. So a read never extends how long a lock counts as recently busy.
//!   [`BUSY_AGE_MAX`] after the last node of a try was behind another one, the next try creates a node.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use lockkit_core::{BootInstant, LockName, backend::Claim, support::lock};
use tracing::trace;

use super::ZkSession;
use crate::{
    error::{Effect, RequestError},
    keys::Form,
    sequence::sequence,
};

/// How long a lock counts as recently busy after a node of a try was behind another one.
const BUSY_AGE_MAX: Duration = Duration::from_secs(60);

/// Locks that are remembered per session, at most. Beyond that the oldest one is forgotten.
const BUSY_NAMES_MAX: usize = 1024;

/// The locks that tries of this session have lately found busy, and when.
#[derive(Debug, Default)]
pub(crate) struct RecentlyBusy(Mutex<HashMap<LockName, BootInstant>>);

impl RecentlyBusy {
    /// Remembers that a node of a try was behind another one.
    pub(crate) fn insert(&self, name: &LockName, now: BootInstant) {
        let mut found = lock(&self.0);
        if found.len() >= BUSY_NAMES_MAX && !found.contains_key(name) {
            found.retain(|_, at| now.since(*at) < BUSY_AGE_MAX);
            if found.len() >= BUSY_NAMES_MAX {
                let oldest = found.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name.clone());
                oldest.and_then(|oldest| found.remove(&oldest));
            }
        }
        found.insert(name.clone(), now);
    }

    fn contains(&self, name: &LockName, now: BootInstant) -> bool {
        lock(&self.0).get(name).is_some_and(|at| now.since(*at) < BUSY_AGE_MAX)
    }

    fn remove(&self, name: &LockName) {
        lock(&self.0).remove(name);
    }
}

impl ZkSession {
    /// Returns whether a read shows that a lock is still busy; false without a read if the claim waits, or if the lock
    /// was not recently busy.
    pub(crate) async fn is_still_busy(&self, claim: &Claim, path: &str) -> Result<bool, RequestError> {
        if claim.wait() || !self.recently_busy.contains(claim.name(), self.server.liveness.now()) {
            return Ok(false);
        }
        // A request sent without a connection waits for the next one, for an unbounded time.
        self.server.connected(self.request_timeout).await?;
        let Some(is_busy) = self.read(claim, || self.has_contenders(path)).await? else {
            // Given up: the claim ends before it creates a node.
            return Ok(false);
        };
        match is_busy {
            true => {
                trace!(lock = ?claim.name(), "still busy");
                claim.note_contended();
            }
            false => self.recently_busy.remove(claim.name()),
        }
        Ok(is_busy)
    }

    async fn has_contenders(&self, path: &str) -> Result<bool, RequestError> {
        if self.layout.form == Form::Single {
            // A persistent node is no lock; the create reports it.
            let found = self.server.current_stat(path).await?;
            return Ok(found.is_some_and(|stat| stat.ephemeral_owner != 0));
        }
        match self.server.current_children(path).await {
            Ok(children) => Ok(children.iter().any(|child| sequence(child).is_some())),
            Err(error) if error.effect == Effect::Missing => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> LockName {
        LockName::new(format!("job-{number}")).unwrap()
    }

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn busy_lock_is_remembered_for_a_time() {
        let busy = RecentlyBusy::default();
        busy.insert(&name(1), at(10));
        assert!(busy.contains(&name(1), at(69)) && !busy.contains(&name(2), at(10)));
        assert!(!busy.contains(&name(1), at(70)));
        busy.remove(&name(1));
        assert!(!busy.contains(&name(1), at(10)));
    }

    #[test]
    fn remembered_locks_are_bounded_and_the_oldest_is_forgotten() {
        let busy = RecentlyBusy::default();
        (0..BUSY_NAMES_MAX).for_each(|number| busy.insert(&name(number), at(number as u64 / 100)));
        // A lock that is remembered already displaces none.
        busy.insert(&name(0), at(20));
        assert!(busy.contains(&name(1), at(20)));
        busy.insert(&name(BUSY_NAMES_MAX), at(20));
        assert_eq!(lock(&busy.0).len(), BUSY_NAMES_MAX);
        assert!(busy.contains(&name(0), at(20)) && busy.contains(&name(BUSY_NAMES_MAX), at(20)));
        // Those of the first second are as old as each other.
        let forgotten = (1..100).filter(|number| !busy.contains(&name(*number), at(20)));
        assert_eq!(forgotten.count(), 1);
        // Those that are too old go first.
        busy.insert(&name(BUSY_NAMES_MAX + 1), at(65));
        assert!(lock(&busy.0).len() < BUSY_NAMES_MAX - 400);
    }
}
