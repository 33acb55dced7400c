//! Fuzz targets for what is read from the folder. Each takes any bytes, and panics if a check fails.

use crate::{holder, keys};

/// Parses the record of the last token.
pub fn token(bytes: &[u8]) {
    if let Some(token) = keys::parse_record(bytes) {
        assert_eq!(keys::record(token).as_bytes(), bytes, "a parsed record is written back unchanged");
    }
}

/// Parses a holder file.
pub fn holder(bytes: &[u8]) {
    let (token, metadata) = holder::parse(bytes);
    assert!(token.is_none() || metadata.is_some(), "a token without metadata");
}
