//! What a releasing client writes to the handoff key of the next client.

use serde::{Deserialize, Serialize};

use crate::wire::Revision;

/// The value of a handoff key: the claim that is first in its queue. The transaction that puts it proves that, at the
/// revision of the put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handoff {
    /// The key of the claim that is granted.
    pub(crate) key: String,
    /// Its create revision.
    pub(crate) created: Revision,
}

impl Handoff {
    pub(crate) fn to_json(&self) -> String {
        // Cannot fail for two plain fields; an empty value would be ignored.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a value; `None` unless a lockkit client may have written it.
    pub(crate) fn from_json(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handoff_survives_its_json() {
        let handoff = Handoff { key: "a\"/1f-0".to_owned(), created: 7 };
        assert_eq!(Handoff::from_json(handoff.to_json().as_bytes()), Some(handoff));
        for foreign in [&b""[..], b"{}", b"\xff", b"{\"key\":1,\"created\":2}", b"[]"] {
            assert_eq!(Handoff::from_json(foreign), None);
        }
    }
}
