//! A node's marker: which node of which set it is. Pure.
//!
//! | text | the node |
//! |---|---|
//! | `ready 60000 5f0c1d2e3b4a5968 2/3` | counts: the second of three, for locks of up to 60 s |
//! | `preparing 60000 5f0c1d2e3b4a5968 2/3` | is between the two steps of the set-up |
//! | `empty ...`, or none | has lost its data, or was never set up |

use std::{fmt, time::Duration};

/// Prefix of the note that clients write in place of a missing marker.
const EMPTY: &str = "empty ";

const READY: &str = "ready";
const PREPARING: &str = "preparing";

/// A text that is no node's marker.
pub(crate) const NO_MARKER: &str = "unknown";

/// Separates the names of a set's nodes.
const NAMES: char = '\n';

/// Which node of which set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    /// The set's random id.
    pub(crate) set: String,
    /// The longest ttl of the set's locks, in ms.
    pub(crate) max_ttl_ms: u64,
    /// Counted from 1.
    pub(crate) number: usize,
    /// The number of nodes of the set.
    pub(crate) set_size: usize,
}

impl NodeIdentity {
    /// Returns the marker of a node that counts.
    pub(crate) fn ready(&self) -> String {
        format!("{READY} {self}")
    }

    /// Returns the marker between the two steps of the set-up.
    pub(crate) fn preparing(&self) -> String {
        format!("{PREPARING} {self}")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (max_ttl_ms, set) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        let (number, set_size) = words.next()?.split_once('/')?;
        let identity =
            Self { set, max_ttl_ms, number: number.parse().ok()?, set_size: set_size.parse().ok()? };
        // Only the exact spelling: nodes compare the text.
        (identity.to_string() == text).then_some(identity)
    }
}

impl fmt::Display for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}/{}", self.max_ttl_ms, self.set, self.number, self.set_size)
    }
}

/// A parsed marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    Missing,
    Preparing(NodeIdentity),
    Ready(NodeIdentity),
    /// Not written by this version of lockkit.
    Unrecognized,
}

impl Marker {
    pub(crate) fn parse(text: &str) -> Self {
        if text.is_empty() || text.starts_with(EMPTY) {
            return Self::Missing;
        }
        let (phase, identity) = text.split_once(' ').unwrap_or_default();
        match (phase, NodeIdentity::parse(identity)) {
            (READY, Some(identity)) => Self::Ready(identity),
            (PREPARING, Some(identity)) => Self::Preparing(identity),
            _ => Self::Unrecognized,
        }
    }
}

/// Returns a new note for a node without a marker.
pub(crate) fn empty_note() -> String {
    format!("{EMPTY}{:032x}", fastrand::u128(..))
}

/// Returns a new set's id.
pub(crate) fn random_set_id() -> String {
    format!("{:016x}", fastrand::u64(..))
}

pub(crate) fn milliseconds(max_ttl: Duration) -> u64 {
    u64::try_from(max_ttl.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the names of a set's nodes, as each node stores them.
pub(crate) fn join_names(names: &[String]) -> String {
    names.join(&NAMES.to_string())
}

pub(crate) fn split_names(names: &str) -> Vec<String> {
    names.split(NAMES).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_names_longest_ttl_set_and_node() {
        let identity = NodeIdentity { set: "5f0c".to_owned(), max_ttl_ms: 60_000, number: 2, set_size: 3 };
        assert_eq!(identity.ready(), "ready 60000 5f0c 2/3");
        assert_eq!(Marker::parse(&identity.ready()), Marker::Ready(identity.clone()));
        assert_eq!(Marker::parse(&identity.preparing()), Marker::Preparing(identity));
        assert_eq!(Marker::parse(&empty_note()), Marker::Missing);
        assert_eq!(Marker::parse(""), Marker::Missing);
    }

    #[test]
    fn other_spellings_are_not_markers() {
        for text in [
            "ready",
            "ready 60000",
            "ready 60000 x 1",
            "ready 060000 x 1/3",
            "ready 60000 x +1/3",
            "ready 60000 x 1/3 ",
            "ready  60000 x 1/3",
            "done 60000 x 1/3",
            NO_MARKER,
        ] {
            assert_eq!(Marker::parse(text), Marker::Unrecognized, "{text:?}");
        }
    }

    #[test]
    fn set_ids_differ() {
        assert_ne!(random_set_id(), random_set_id());
    }

    /// Else a client would not see that the node was emptied again, and that another client has noted it.
    #[test]
    fn notes_of_an_emptied_node_differ() {
        assert_ne!(empty_note(), empty_note());
    }
}
