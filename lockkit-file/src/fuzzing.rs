//! Fuzz targets for what is read from the folder. Each takes any bytes, and panics if a check fails.

use crate::{contents, keys};

/// Parses the record of the last token.
pub fn token(bytes: &[u8]) {
    if let Some(token) = keys::parse_record(bytes) {
        assert_eq!(keys::record(token).as_bytes(), bytes, "a parsed record is written back unchanged");
    }
}

/// Parses a holder file.
pub fn holder(bytes: &[u8]) {
    if let Some((token, metadata)) = contents::parse_holder(bytes) {
        let text = contents::holder(token, &metadata.to_json());
        assert_eq!(
            contents::parse_holder(text.as_bytes()),
            Some((token, metadata)),
            "it is written and read again"
        );
    }
}
