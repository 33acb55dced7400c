//! A hold that an operator has broken: what `break_lock` writes to tell the client.

use serde::{Deserialize, Serialize};

use crate::wire::Revision;

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
}
