//! Holds that operators have broken, until the session reports their loss.

use std::sync::Mutex;

use lockkit_core::{backend::ClaimId, support::lock};
use tokio::sync::Notify;

/// The beginning of the message that a hold was broken; the value that the lock had follows.
pub(crate) const BROKEN: &str = "broken ";

/// The broken holds of a session.
#[derive(Debug, Default)]
pub(crate) struct BrokenHolds {
    unreported: Mutex<Vec<ClaimId>>,
    added: Notify,
}

impl BrokenHolds {
    pub(crate) fn add(&self, claim: ClaimId) {
        lock(&self.unreported).push(claim);
        self.added.notify_one();
    }

    /// Waits for the next one. Cancel safe: it is taken right before this returns it.
    pub(crate) async fn next(&self) -> ClaimId {
        loop {
            let taken = lock(&self.unreported).pop();
            if let Some(claim) = taken {
                return claim;
            }
            // A notification that came since is kept.
            self.added.notified().await;
        }
    }
}
