//! What is read from servers, as fuzz targets: they take any bytes, and panic when something is wrong.

use std::str;

use crate::{keys, probe::Probe, scripts, slots::Masters};

/// Longer errors would repeat what a server made up.
const MESSAGE_CHARACTERS_MAX: usize = 300;

/// The value of a lock.
pub fn value(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Some((claim, token)) = keys::parse_value(text) {
        assert_eq!(format!("{claim}:{token}"), text, "a value is written in one way only");
    }
}

/// What a server says about itself.
pub fn info(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let probe = Probe::parse(text);
    assert!(!probe.is_too_old() || !probe.version.is_empty(), "too old without a version");
}

/// An answer to any of the scripts, or to the question for a cluster's masters.
pub fn answer(bytes: &[u8]) {
    let Ok(answer) = redis::parse_redis_value(bytes) else { return };
    let faults = [
        scripts::standing(answer.clone()).err(),
        scripts::verdicts(answer.clone(), 2).map(|verdicts| assert_eq!(verdicts.len(), 2)).err(),
        Masters::parse(&answer).err(),
        scripts::inspected(answer).err(),
    ];
    for fault in faults.into_iter().flatten() {
        assert!(fault.message().chars().count() <= MESSAGE_CHARACTERS_MAX, "{}", fault.message());
    }
}
