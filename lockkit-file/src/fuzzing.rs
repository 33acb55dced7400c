//! What is read from the folder, as fuzz targets: they take any bytes, and panic when something is wrong.

use crate::{holder, keys};

/// The record of the last token.
pub fn token(bytes: &[u8]) {
    if let Some(token) = keys::parse_record(bytes) {
        assert_eq!(keys::record(token).as_bytes(), bytes, "a record is written in one way only");
    }
}

/// Who holds a lock.
pub fn holder(bytes: &[u8]) {
    let (token, metadata) = holder::parse(bytes);
    assert!(token.is_none() || metadata.is_some(), "a token of nobody");
}
