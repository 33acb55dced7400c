//! Puts the key of a held claim again, with another value or another lease.
//!
//! Failure cases:
//!
//! * The hold has ended. The create revision of the key differs, and nothing is written.
//! * The reply is lost. The next attempt reads the key, and finds it as it shall be, or not.
//! * A copy arrives late. Every rewrite compares the mod revision that the one before it has left, and each changes it.
//!   So a copy does nothing once a later rewrite has been answered.
//! * A copy of the enqueue that was not answered arrives late, and would put the original value and lease again. The
//!   rewrite bumps the client's epoch, which every such copy compares.
//! * Something else has put the key: an operator, or another program. The rewrite is repeated on what it has put.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
};

use super::{EtcdSession, entry::QueueEntry, powers::Pin};
use crate::{
    error::RequestError,
    wire::{self, Rewrite, revision_of},
};

/// How often a rewrite is repeated on what others have put meanwhile.
const REWRITES_MAX: usize = 8;

/// What is known of the key of a held claim.
#[derive(Debug, Default)]
pub(crate) struct HeldKey {
    /// Taken for each rewrite: two at a time would each fail the other one's compare.
    pub(crate) one_at_a_time: tokio::sync::Mutex<()>,
    /// The highest number of a proposal that was to be written.
    pub(crate) proposed: AtomicU64,
    /// The mod revision that the latest reply has shown; 0 for that of its creation.
    modified: AtomicI64,
    /// Whether its release was requested, which ends a pin.
    released: AtomicBool,
    /// That the key is to outlive the session, if so.
    pub(crate) pin: Mutex<Option<Pin>>,
}

impl HeldKey {
    pub(crate) fn mark_released(&self) {
        self.released.store(true, Ordering::Release);
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }
}

impl EtcdSession {
    /// Changes the key of a held claim. The caller has taken `one_at_a_time`. Returns `false` if the claim holds
    /// nothing any more.
    pub(crate) async fn rewrite(&self, entry: &QueueEntry, change: &Rewrite) -> Result<bool, RequestError> {
        let Some(own) = entry.own_revision() else { return Ok(false) };
        let modified = &entry.held.modified;
        for _ in 0..REWRITES_MAX {
            let known = match modified.load(Ordering::Acquire) {
                0 => own,
                known => known,
            };
            let bump_epoch = entry.needs_epoch_bump(&self.epoch);
            let txn = wire::rewrite(&self.entry_keys(entry), own, known, change, bump_epoch);
            let answer = self.state.unless_over(self.server.txn(txn)).await;
            if answer.as_ref().is_err_and(RequestError::is_in_doubt) {
                entry.put_in_doubt();
            }
            let answer = answer?;
            if answer.succeeded() {
                let revision = revision_of(answer.header())?;
                if bump_epoch {
                    self.epoch.observe(revision);
                    entry.epoch_bumped();
                }
                modified.store(revision, Ordering::Release);
                return Ok(true);
            }
            match wire::found_instead(&answer)?.filter(|kv| kv.create_revision() == own) {
                None => return Ok(false),
                Some(kv) => {
                    modified.store(kv.mod_revision(), Ordering::Release);
                    if change.is_done(&kv) {
                        return Ok(true);
                    }
                }
            }
        }
        Err(RequestError::busy("others keep changing the key of the lock"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockkit_conformance::direct::{acquire, fresh_name};
    use lockkit_core::backend::Session;

    use super::*;
    use crate::{
        client::scripted::Script,
        session::tests::{before_each_txn, queue_session},
    };

    /// It is that of another hold, whatever its value or lease is.
    #[tokio::test(start_paused = true)]
    async fn key_that_was_created_again_is_not_rewritten() {
        let script = Script::default();
        let session = queue_session(&script).await;
        let held = acquire(&(session.clone() as Arc<dyn Session>), &fresh_name()).await;
        let entry = session.claims.get(held.claim()).unwrap();
        for lease in [session.lease.id(), 0] {
            script.delete(&entry.key);
            script.put_leased(&entry.key, "another", lease);
            assert!(!session.rewrite(&entry, &Rewrite::Lease(session.lease.id())).await.unwrap());
        }
    }

    /// Another program may put it again and again.
    #[tokio::test(start_paused = true)]
    async fn key_that_keeps_changing_is_given_up() {
        let script = Script::default();
        let session = queue_session(&script).await;
        let held = acquire(&(session.clone() as Arc<dyn Session>), &fresh_name()).await;
        let entry = session.claims.get(held.claim()).unwrap();
        let (changing, key) = (script.clone(), entry.key.clone());
        script.take_calls();
        script.rule(before_each_txn(move || changing.put(&key, "another")));
        let fault = session.rewrite(&entry, &Rewrite::Value("ours".to_owned())).await.unwrap_err();
        assert!(fault.is_transient() && script.count("Txn") == REWRITES_MAX, "{fault:?}");
        script.serve();
    }
}
