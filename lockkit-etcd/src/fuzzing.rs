//! What is read from the store, as fuzz targets: they take any bytes, and panic when something is wrong.

use std::str;

use crate::{keys::ClaimKey, mail::Mail};

/// The key of a contender.
pub fn key(bytes: &[u8]) {
    let Ok(key) = str::from_utf8(bytes) else { return };
    if let Some(ClaimKey { queue, prefix, lease, claim }) = ClaimKey::parse(key) {
        let written = format!("{queue}{lease:x}-{}-{claim}", prefix.len());
        assert!(key == written && queue.starts_with(prefix), "a claim is written in one way only");
    }
}

/// A mail to this client.
pub fn mail(bytes: &[u8]) {
    if let Some(mail) = Mail::from_json(bytes) {
        assert_eq!(Mail::from_json(mail.to_json().as_bytes()), Some(mail));
    }
}
