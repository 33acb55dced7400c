//! Holds that an operator has broken: what `break_lock` writes to tell the client, and what the session has not
//! reported yet.

use std::{collections::HashSet, sync::Mutex};

use lockkit_core::{backend::ClaimId, support::lock};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{client::KeyValue, session::ClaimRegistry, wire::Revision};

/// The value of a client's key `broken`: the hold that was broken. The transaction that puts it has deleted the hold's
/// keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BrokenHold {
    /// The key whose creation was the grant.
    pub(crate) key: String,
    /// Its create revision, which is the token of the grant.
    pub(crate) created: Revision,
}

impl BrokenHold {
    pub(crate) fn to_json(&self) -> String {
        // Cannot fail for two plain fields; an empty value would be ignored.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a value; `None` unless a lockkit client may have written it.
    pub(crate) fn from_json(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// The broken holds of a session that it has not reported yet. Only its own holds enter, so they bound the number.
#[derive(Debug, Default)]
pub(crate) struct BrokenHolds {
    unreported: Mutex<HashSet<ClaimId>>,
    added: Notify,
}

impl BrokenHolds {
    /// Reports the hold that this key names. One whose grant the client has not learned of yet is found by its heartbeat.
    pub(crate) fn report(&self, kv: &KeyValue, claims: &ClaimRegistry) {
        let broken = BrokenHold::from_json(kv.value());
        if let Some(hold) = broken.and_then(|broken| claims.broken(&broken)) {
            self.add(hold);
        }
    }

    fn add(&self, hold: ClaimId) {
        lock(&self.unreported).insert(hold);
        self.added.notify_one();
    }

    /// Removes and returns the next one; waits for it. Cancel safe: after a removal it does not wait.
    pub(crate) async fn next(&self) -> ClaimId {
        loop {
            if let Some(hold) = self.take() {
                return hold;
            }
            self.added.notified().await;
        }
    }

    fn take(&self) -> Option<ClaimId> {
        let mut unreported = lock(&self.unreported);
        let hold = unreported.iter().next().copied()?;
        unreported.remove(&hold);
        Some(hold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_hold_survives_its_json() {
        let broken = BrokenHold { key: "a\"/1f-0".to_owned(), created: 7 };
        assert_eq!(BrokenHold::from_json(broken.to_json().as_bytes()), Some(broken));
        for foreign in [&b""[..], b"{}", b"\xff", b"[]"] {
            assert_eq!(BrokenHold::from_json(foreign), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_waits_learns_of_a_broken_hold() {
        let (broken, hold) = (BrokenHolds::default(), ClaimId::random());
        let reported = async {
            tokio::task::yield_now().await;
            broken.add(hold);
        };
        let waiting = tokio::time::timeout(std::time::Duration::from_secs(1), broken.next());
        assert_eq!(tokio::join!(waiting, reported).0.unwrap(), hold);
    }

    #[tokio::test]
    async fn each_broken_hold_is_reported_once() {
        let (broken, holds) = (BrokenHolds::default(), [ClaimId::random(), ClaimId::random()]);
        for hold in [holds[0], holds[1], holds[0]] {
            broken.add(hold);
        }
        assert_eq!(HashSet::from([broken.next().await, broken.next().await]), HashSet::from(holds));
        assert!(tokio::time::timeout(std::time::Duration::ZERO, broken.next()).await.is_err());
    }
}
