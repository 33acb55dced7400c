//! A node's marker: which node it is, of which set. Pure.
//!
//! | text | the node |
//! |---|---|
//! | `ready 60000 5f0c1d2e3b4a5968 2/3` | counts: the second of three, for locks of up to 60 s |
//! | `preparing 60000 5f0c1d2e3b4a5968 2/3` | is between the two steps of the set-up |
//! | `empty ...`, or none | has lost its data, or was never set up |

use std::{fmt, time::Duration};

/// What begins the text in the marker's place by which clients note that a node has none.
const EMPTY: &str = "empty ";

const READY: &str = "ready";
const PREPARING: &str = "preparing";

/// A marker that no node has.
pub(super) const UNKNOWN: &str = "unknown";

/// Separates the names of a set's nodes.
const NAMES: char = '\n';

/// A node's place in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// The set: a number that its set-up has thrown.
    pub(super) set: String,
    /// The longest ttl of the set's locks, in ms.
    pub(super) max_ttl_ms: u64,
    /// From 1 on.
    pub(super) number: usize,
    /// How many nodes the set has.
    pub(super) of: usize,
}

impl Seat {
    /// The marker of this node where it counts.
    pub(super) fn ready(&self) -> String {
        format!("{READY} {self}")
    }

    /// Its marker between the two steps of the set-up.
    pub(super) fn preparing(&self) -> String {
        format!("{PREPARING} {self}")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (max_ttl_ms, set) = (words.next()?.parse().ok()?, words.next()?.to_owned());
        let (number, of) = words.next()?.split_once('/')?;
        let seat = Self { set, max_ttl_ms, number: number.parse().ok()?, of: of.parse().ok()? };
        // Exactly what would be written: nodes compare the text.
        (seat.to_string() == text).then_some(seat)
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}/{}", self.max_ttl_ms, self.set, self.number, self.of)
    }
}

/// What a node has for a marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    Missing,
    Preparing(Seat),
    Ready(Seat),
    /// Nothing that this version of lockkit writes.
    Other,
}

impl Marker {
    pub(super) fn parse(text: &str) -> Self {
        if text.is_empty() || text.starts_with(EMPTY) {
            return Self::Missing;
        }
        let (phase, seat) = text.split_once(' ').unwrap_or_default();
        match (phase, Seat::parse(seat)) {
            (READY, Some(seat)) => Self::Ready(seat),
            (PREPARING, Some(seat)) => Self::Preparing(seat),
            _ => Self::Other,
        }
    }
}

/// A new text for the marker's place of a node that has none.
pub(super) fn note() -> String {
    format!("{EMPTY}{:032x}", fastrand::u128(..))
}

/// A new set's number.
pub(super) fn new_set() -> String {
    format!("{:016x}", fastrand::u64(..))
}

pub(super) fn milliseconds(max_ttl: Duration) -> u64 {
    u64::try_from(max_ttl.as_millis()).unwrap_or(u64::MAX)
}

/// The names of a set's nodes as each node keeps them.
pub(super) fn joined(names: &[String]) -> String {
    names.join(&NAMES.to_string())
}

pub(super) fn split(names: &str) -> Vec<String> {
    names.split(NAMES).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_names_longest_ttl_set_and_node() {
        let seat = Seat { set: "5f0c".to_owned(), max_ttl_ms: 60_000, number: 2, of: 3 };
        assert_eq!(seat.ready(), "ready 60000 5f0c 2/3");
        assert_eq!(Marker::parse(&seat.ready()), Marker::Ready(seat.clone()));
        assert_eq!(Marker::parse(&seat.preparing()), Marker::Preparing(seat));
        assert_eq!(Marker::parse(&note()), Marker::Missing);
        assert_eq!(Marker::parse(""), Marker::Missing);
    }

    #[test]
    fn what_would_be_written_otherwise_is_no_marker() {
        for text in [
            "ready",
            "ready 60000",
            "ready 60000 x 1",
            "ready 060000 x 1/3",
            "ready 60000 x +1/3",
            "ready 60000 x 1/3 ",
            "ready  60000 x 1/3",
            "done 60000 x 1/3",
            UNKNOWN,
        ] {
            assert_eq!(Marker::parse(text), Marker::Other, "{text:?}");
        }
    }

    #[test]
    fn sets_have_different_numbers() {
        assert_ne!(new_set(), new_set());
    }
}
