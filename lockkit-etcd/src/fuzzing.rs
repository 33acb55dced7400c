//! Fuzz targets for what is read from the store. Each takes any bytes, and panics if a check fails.

use std::str;

use crate::{handoff::Handoff, keys::ClaimKey};

/// Parses the key of a contender.
pub fn key(bytes: &[u8]) {
    let Ok(key) = str::from_utf8(bytes) else { return };
    if let Some(ClaimKey { queue, prefix, lease, claim }) = ClaimKey::parse(key) {
        let written = format!("{queue}{lease:x}-{}-{claim}", prefix.len());
        assert!(key == written && queue.starts_with(prefix), "a parsed key is written back unchanged");
    }
}

/// Parses the value of a handoff key.
pub fn handoff(bytes: &[u8]) {
    if let Some(mut handoff) = Handoff::from_json(bytes) {
        assert_eq!(Handoff::from_json(handoff.to_json().as_bytes()), Some(handoff.clone()));
        handoff.take_order();
    }
}
