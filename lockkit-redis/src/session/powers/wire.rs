//! The requests of elections and records.

use std::time::Duration;

use lockkit_core::{
    FencingToken, Metadata,
    backend::{Grant, LeaderEntry},
    limits::METADATA_BYTES_MAX,
};
use redis::Value;

use crate::{
    error::RequestError,
    keys::{self, LockKeys, parse_value},
    wire::{Call, LEADER, PROCLAIM, Pttl, READ_RECORD, ScriptParams, WRITE_RECORD, lifetime_ms},
};

/// Returns the call that reads who holds a lock.
pub(super) fn leader(keys: &LockKeys) -> Call {
    let names = vec![keys.lock().to_owned(), keys.token_counter().to_owned()];
    Call::new(&LEADER, names, vec![METADATA_BYTES_MAX.to_string()])
}

/// Parses the answer of `leader`: the holder, unless it is another program, and the PTTL of the lock.
pub(crate) fn parse_leader(answer: Value) -> Result<(Option<LeaderEntry>, Pttl), RequestError> {
    let (value, metadata, pttl): (Vec<u8>, Vec<u8>, Pttl) = redis::from_redis_value(answer)?;
    let held = parse_value(&String::from_utf8_lossy(&value));
    let leader = held
        .map(|(_, token)| LeaderEntry::of_metadata(FencingToken::new(token), Metadata::from_json(&metadata)));
    Ok((leader, pttl))
}

impl ScriptParams {
    /// Returns the call that replaces the metadata of a grant.
    pub(super) fn proclaim(&self, grant: &Grant, keys: &LockKeys, metadata: &Metadata) -> Call {
        let names = vec![keys.lock().to_owned(), keys.token_counter().to_owned()];
        let number = metadata.proposal.as_ref().map_or(0, |proposal| proposal.number);
        let arguments = vec![
            keys::value(grant.claim(), grant.token()),
            grant.token().get().to_string(),
            metadata.to_json(),
            number.to_string(),
            self.linger_ms.to_string(),
            METADATA_BYTES_MAX.to_string(),
            keys.leader_channel(),
            self.client.clone(),
        ];
        Call::new(&PROCLAIM, names, arguments)
    }
}

/// Returns the call that reads the record of a lock.
pub(super) fn read_record(keys: &LockKeys) -> Call {
    Call::new(&READ_RECORD, vec![keys.record()], Vec::new())
}

/// Returns the call that writes the record of a lock.
pub(super) fn write_record(grant: &Grant, keys: &LockKeys, record: &str, keep: Duration) -> Call {
    let value = keys::value(grant.claim(), grant.token());
    let arguments = vec![value, record.to_owned(), lifetime_ms(keep).to_string()];
    Call::new(&WRITE_RECORD, vec![keys.lock().to_owned(), keys.record()], arguments)
}
