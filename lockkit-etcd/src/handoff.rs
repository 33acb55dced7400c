//! What a releasing client writes to the handoff key of the next client.

use serde::{Deserialize, Serialize};

use crate::{
    keys::ClaimKey,
    session::Stretch,
    wire::{QueuedKey, Revision},
};

/// The value of a handoff key: the claim that is first in its queue. The transaction that puts it proves that, at the
/// revision of the put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handoff {
    /// The key of the claim that is granted.
    pub(crate) key: String,
    /// Its create revision.
    pub(crate) created: Revision,
    /// The contenders behind it, so that its holder need not read the queue to release. Clients of other versions omit and
    /// ignore this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) next: Vec<NextContender>,
}

/// A contender of the same queue: its key behind the queue's path, and its create revision.
pub(crate) type NextContender = (String, Revision);

impl Handoff {
    pub(crate) fn to_json(&self) -> String {
        // Cannot fail for plain fields; an empty value would be ignored.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a value; `None` unless a lockkit client may have written it.
    pub(crate) fn from_json(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Takes the contenders behind the granted claim as a stretch of the queue; `None` if it names none.
    pub(crate) fn take_order(&mut self) -> Option<Stretch> {
        let path = ClaimKey::parse(&self.key)?.queue;
        let queued = |(entry, created)| QueuedKey { key: format!("{path}{entry}").into_bytes(), created };
        Stretch::new(self.created, std::mem::take(&mut self.next).into_iter().map(queued).collect())
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::backend::ClaimId;

    use super::*;

    #[test]
    fn handoff_survives_its_json() {
        let handoff = Handoff { key: "a\"/1f-0".to_owned(), created: 7, next: vec![("b".to_owned(), 9)] };
        assert_eq!(Handoff::from_json(handoff.to_json().as_bytes()), Some(handoff));
        for foreign in [
            &b""[..],
            b"{}",
            b"\xff",
            b"{\"key\":1,\"created\":2}",
            b"[]",
            b"{\"key\":\"\",\"created\":2,\"next\":[1]}",
        ] {
            assert_eq!(Handoff::from_json(foreign), None);
        }
    }

    /// Others may be in front of that claim.
    #[test]
    fn order_begins_behind_the_claim_that_is_granted() {
        let key = format!("q/af-0-{}", ClaimId::random());
        let mut handoff = Handoff { key, created: 7, next: vec![("b".to_owned(), 9)] };
        let next = QueuedKey { key: b"q/b".to_vec(), created: 9 };
        assert_eq!(handoff.take_order(), Stretch::new(7, vec![next]));
    }

    #[test]
    fn handoff_of_a_client_of_another_version_names_nobody_else() {
        let mut handoff = Handoff::from_json(b"{\"key\":\"a/x\",\"created\":2,\"other\":0}").unwrap();
        assert_eq!(handoff, Handoff { key: "a/x".to_owned(), created: 2, next: Vec::new() });
        assert!(handoff.take_order().is_none());
    }
}
