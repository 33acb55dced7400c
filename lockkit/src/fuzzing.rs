//! Fuzz targets: every parser of foreign input, from a store or a configuration. A target takes any bytes, and panics when
//! something is wrong.
//!
//! `fuzz/` runs them with a fuzzer, `tests/corpus.rs` with a short corpus. Not part of the API.

use std::str;

use lockkit_core::{
    LockName, Metadata,
    backend::{BackendUrl, ClaimId},
    limits::METADATA_BYTES_MAX,
};

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("backend_url", backend_url),
    ("claim_id", claim_id),
    ("lock_name", lock_name),
    ("metadata", metadata),
    #[cfg(feature = "etcd")]
    ("etcd_key", lockkit_etcd::fuzzing::key),
    #[cfg(feature = "etcd")]
    ("etcd_handoff", lockkit_etcd::fuzzing::handoff),
    #[cfg(feature = "file")]
    ("file_holder", lockkit_file::fuzzing::holder),
    #[cfg(feature = "file")]
    ("file_token", lockkit_file::fuzzing::token),
    #[cfg(feature = "redis")]
    ("redis_answer", lockkit_redis::fuzzing::answer),
    #[cfg(feature = "redis")]
    ("redis_info", lockkit_redis::fuzzing::info),
    #[cfg(feature = "redis")]
    ("redis_value", lockkit_redis::fuzzing::value),
];

/// Runs the target of this name.
///
/// # Panics
///
/// If there is no such target, or if the target finds something wrong.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    assert!(target.is_some(), "no target {name}");
    if let Some((_, target)) = target {
        target(bytes);
    }
}

/// A URL of any backend, and its options.
fn backend_url(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let message = match crate::builder(text) {
        Ok(_) => String::new(),
        Err(error) => format!("{error} {error:?}"),
    };
    let Ok(url) = BackendUrl::parse(text) else { return };
    // A common word, a port, or a text that occurs twice may be in the message for another reason.
    let is_secret = |word: &&str| {
        word.len() >= 8
            && word.contains(|letter: char| letter.is_ascii_digit())
            && text.matches(word).count() == 1
    };
    if let Some(password) = url.password().filter(is_secret) {
        assert!(!message.contains(password) && !format!("{url:?}").contains(password), "a password is shown");
    }
}

/// The id of a claim, as it is written into keys.
fn claim_id(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Some(id) = ClaimId::parse(text) {
        assert_eq!(id.to_string(), text, "an id has one form only");
    }
}

/// The name of a lock, and its form in keys and file names.
fn lock_name(bytes: &[u8]) {
    const SHORTEST: usize = 66;
    let Some(name) = str::from_utf8(bytes).ok().and_then(|text| LockName::new(text).ok()) else { return };
    for bytes_max in [SHORTEST, SHORTEST + 1, SHORTEST + 2, 255] {
        let encoded = name.encode(bytes_max);
        assert!(!encoded.is_empty() && encoded.len() <= bytes_max, "{encoded}");
        assert!(
            encoded.bytes().all(|byte| byte.is_ascii_graphic() && !b"/{}*?[]\\:".contains(&byte)),
            "{encoded}"
        );
        assert!(!encoded.starts_with('.') && !encoded.ends_with('.'), "{encoded}");
    }
}

/// The metadata of a claim.
fn metadata(bytes: &[u8]) {
    if let Some(record) = Metadata::from_json(bytes) {
        let json = record.to_json();
        assert!(json.len() <= METADATA_BYTES_MAX, "{} bytes", json.len());
        assert!(Metadata::from_json(json.as_bytes()).is_some(), "{json}");
    }
}
