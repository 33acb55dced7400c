//! Fuzz targets for the parsers of server answers: they take any bytes, and panic on a wrong result.

use std::str;

use crate::{
    admin::parse_inspection, keys, server_info::ServerInfo, session::parse_leader, topology::SlotMasters,
    wire,
};

/// Longer errors would quote arbitrary text of a server.
const MESSAGE_CHARACTERS_MAX: usize = 300;

/// The value of a lock.
pub fn value(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Some((claim, token)) = keys::parse_value(text) {
        assert_eq!(format!("{claim}:{token}"), text, "a value is written in one way only");
    }
}

/// The answer to INFO.
pub fn info(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let info = ServerInfo::parse(text);
    assert!(!info.is_too_old() || !info.version.is_empty(), "too old without a version");
}

/// An answer to any of the scripts, or to the request for a cluster's masters.
pub fn answer(bytes: &[u8]) {
    let Ok(answer) = redis::parse_redis_value(bytes) else { return };
    let faults = [
        wire::parse_claim_state(answer.clone()).err(),
        wire::parse_renewals(answer.clone(), 2).map(|renewals| assert_eq!(renewals.len(), 2)).err(),
        SlotMasters::parse(&answer).err(),
        parse_leader(answer.clone()).err(),
        parse_inspection(answer).err(),
    ];
    for fault in faults.into_iter().flatten() {
        assert!(fault.message().chars().count() <= MESSAGE_CHARACTERS_MAX, "{}", fault.message());
    }
}
