//! What a releasing client writes to the mailbox of the client that is next.

use serde::{Deserialize, Serialize};

use crate::txn::Revision;

/// "This claim of yours is first": proved by the transaction that puts it, at the revision of the put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mail {
    /// The key of the claim.
    pub(crate) key: String,
    /// Its create revision.
    pub(crate) created: Revision,
}

impl Mail {
    pub(crate) fn to_json(&self) -> String {
        // Two plain fields cannot fail to be written; an empty mail would be ignored.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// `None` for whatever a lockkit client would not write.
    pub(crate) fn from_json(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mail_survives_its_json() {
        let mail = Mail { key: "a\"/1f-0".to_owned(), created: 7 };
        assert_eq!(Mail::from_json(mail.to_json().as_bytes()), Some(mail));
        for foreign in [&b""[..], b"{}", b"\xff", b"{\"key\":1,\"created\":2}", b"[]"] {
            assert_eq!(Mail::from_json(foreign), None);
        }
    }
}
