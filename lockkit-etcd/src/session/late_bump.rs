//! Epoch bumps that a full store has refused, and that a heartbeat makes up for.
//!
//! A full store executes deletions and refuses everything that puts a key, as an epoch bump does. So a claim with copies
//! of its enqueue under way ends there by its deletion alone, and lets go of the lock at once. The bump stays owed.
//!
//! Failure cases:
//!
//! * A copy arrives while the store is full: it is refused.
//! * A copy arrives when the store has room again, but before the bump: it creates the claim's key, for nobody. The
//!   transaction that bumps the epoch deletes that key too, within a heartbeat. No later claim uses it, because a key with
//!   copies under way is not reused.
//! * The store stays full. The transaction is refused, and the next heartbeat sends it again.
//! * The session ends. Copies create nothing under a lease that has ended. So it is ended if more than
//!   [`DELETIONS_OWED_MAX`] deletions are owed, which costs all its holds.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use lockkit_core::support::{bounded, lock};
use tracing::debug;

use super::{EtcdSession, entry::QueueEntry};
use crate::{
    client::{Txn, TxnOp},
    error::RequestError,
    forms::ExclusiveKey,
    wire::{put_epoch, revision_of},
};

/// Deletions of one transaction (etcd's limit is 128 operations).
const DELETIONS_PER_BUMP: usize = 100;

/// Deletions that a session may owe: some ten megabytes, so that only a leak reaches it.
pub(crate) const DELETIONS_OWED_MAX: usize = 100_000;

/// What the next epoch bump is to delete.
#[derive(Debug, Default)]
pub(crate) struct LateBump(Mutex<Vec<TxnOp>>);

impl LateBump {
    fn owed(&self) -> MutexGuard<'_, Vec<TxnOp>> {
        lock(&self.0)
    }
}

impl EtcdSession {
    /// Notes that a claim has ended without the epoch bump that it needs.
    pub(crate) fn owe_bump(&self, entry: &QueueEntry) {
        let deletions = match &entry.exclusive {
            // Its name is the lock's, so the key may be another claim's.
            Some(key) if self.is_single() => ExclusiveKey::removals(key),
            _ => vec![TxnOp::delete(&*entry.key)],
        };
        let count = {
            let mut owed = self.late_bump.owed();
            owed.extend(deletions);
            owed.len()
        };
        if count > DELETIONS_OWED_MAX {
            debug!(count, "too many deletions are owed: the session ends");
            self.state.mark_lost();
        }
    }

    /// Bumps the epoch, if a claim has ended without it. Heartbeats do this one at a time.
    pub(crate) async fn bump_late(&self, limit: Duration) {
        let deletions: Vec<TxnOp> = self.late_bump.owed().iter().take(DELETIONS_PER_BUMP).cloned().collect();
        if deletions.is_empty() {
            return;
        }
        let count = deletions.len();
        let txn = Txn::new().and_then(deletions.into_iter().chain([put_epoch(&self.keys)]));
        let bumped = async { revision_of(bounded(limit, self.txn(txn)).await?.header()) };
        match bumped.await {
            Ok(revision) => {
                self.epoch.observe(revision);
                self.late_bump.owed().drain(..count);
            }
            Err::<_, RequestError>(fault) => debug!(?fault, "an epoch bump is still owed"),
        }
    }
}
