//! A hold that an operator has broken: the message to its client.

/// The beginning of the message; the value that the lock had follows.
pub(crate) const BROKEN: &str = "broken ";
