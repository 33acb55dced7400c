//! Requests to nodes (the scripts of this folder), and their replies.

use std::sync::{Arc, LazyLock};

use lockkit_core::{FencingToken, backend::ClaimId, limits::METADATA_BYTES_MAX};
use redis::Value;

use super::node_call::{NODE, NodeCall};
use crate::{error::RequestError, keys::LockKeys, wire::Script};

/// Prefix of the channel on which the release of a lock is published; the lock's key follows.
const RELEASED_CHANNEL_PREFIX: &str = "lockkit:released:";

/// Larger numbers are not exact in Lua.
const PROPOSAL_MAX: u64 = (1 << 53) - 1;

macro_rules! scripts {
    ($($name:ident: $($file:literal),+;)+) => {$(
        static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!($file, ".lua"))),+)));
    )+};
}

include!("scripts/list.rs");

/// Builds the requests of a session.
#[derive(Clone, Debug)]
pub(super) struct RequestBuilder {
    pub(super) ttl_ms: u64,
    /// How long a lock's counter outlives its last use.
    pub(super) keep_ms: u64,
}

/// One attempt at a lock: its id, with which the value of the lock begins, and the keys.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) id: ClaimId,
    pub(super) keys: Arc<LockKeys>,
}

impl Attempt {
    /// Returns a request about the lock and its counter.
    fn request(&self, script: &'static Script) -> NodeCall {
        NodeCall::at_member(script, &[self.keys.lock(), self.keys.token_counter()]).arg(&self.id.to_string())
    }

    /// Ends an attempt that was not granted.
    pub(super) fn clean_up(&self) -> NodeCall {
        self.release("")
    }

    fn release(&self, channel: &str) -> NodeCall {
        NodeCall::at_any(&RELEASE, self.keys.lock()).arg(&self.id.to_string()).arg(channel)
    }
}

impl RequestBuilder {
    pub(super) fn ask(&self, attempt: &Attempt, proposal: u64, metadata: &str) -> NodeCall {
        let ask = attempt.request(&ASK).arg(metadata).number(self.ttl_ms).number(self.keep_ms);
        ask.number(proposal.min(PROPOSAL_MAX))
    }

    pub(super) fn write_back(&self, attempt: &Attempt, token: FencingToken) -> NodeCall {
        attempt.request(&WRITE_BACK).number(token.get()).number(self.keep_ms)
    }

    /// Ends an attempt that was granted this token. If restores were sent, nodes refuse those that come later.
    pub(super) fn release(&self, attempt: &Attempt, token: FencingToken, was_restored: bool) -> NodeCall {
        let channel = released_channel(attempt.keys.lock());
        if was_restored {
            attempt.request(&RELEASE_RESTORED).arg(&channel).number(token.get()).number(self.keep_ms)
        } else {
            attempt.release(&channel)
        }
    }

    pub(super) fn restore(&self, attempt: &Attempt, token: FencingToken, metadata: &str) -> NodeCall {
        let restore = attempt.request(&RESTORE).arg(metadata);
        restore.number(self.ttl_ms).number(self.keep_ms).number(token.get())
    }

    /// Replaces the metadata of a holder.
    pub(super) fn proclaim(&self, attempt: &Attempt, metadata: &str) -> NodeCall {
        attempt.request(&PROCLAIM).arg(metadata).number(self.keep_ms)
    }

    /// Returns the heartbeat of held locks.
    pub(super) fn renew<'a>(&self, held: impl Iterator<Item = &'a Attempt> + Clone) -> NodeCall {
        let keys = held.clone().flat_map(|attempt| [attempt.keys.lock(), attempt.keys.token_counter()]);
        let request = NodeCall::at_member(&RENEW, &keys.collect::<Vec<_>>());
        let request = request.number(self.ttl_ms).number(self.keep_ms);
        held.fold(request, |request, attempt| request.arg(&attempt.id.to_string()))
    }
}

/// Writes the record of a grant: `number` counts the writes of its holder.
pub(super) fn write_record(
    attempt: &Attempt,
    token: FencingToken,
    number: u64,
    record: &str,
    keep_ms: u64,
) -> NodeCall {
    let request = NodeCall::at_member(&WRITE_RECORD, &[attempt.keys.lock(), &attempt.keys.record()]);
    request.arg(&attempt.id.to_string()).number(token.get()).number(number).arg(record).number(keep_ms)
}

/// Returns the channel on which waiters get hints that this lock may be free.
pub(super) fn released_channel(lock: &str) -> String {
    format!("{RELEASED_CHANNEL_PREFIX}{lock}")
}

/// Returns the rest of a channel of releases: the key of its lock, or its group and that key.
pub(super) fn released_lock(channel: &str) -> Option<&str> {
    channel.strip_prefix(RELEASED_CHANNEL_PREFIX)
}

/// Returns the channel that notifies all clients of a hold that an operator has broken. No lock has an empty key.
pub(super) fn broken_channel() -> String {
    released_channel("")
}

/// Reads the state of a lock.
pub(super) fn inspect(lock: &LockKeys) -> NodeCall {
    inspection(lock, "")
}

/// Reads the state of a lock as [`inspect`] does, with the remaining time: for an operator, who may read it.
pub(super) fn inspect_with_remaining(lock: &LockKeys) -> NodeCall {
    inspection(lock, "pttl")
}

fn inspection(lock: &LockKeys, with: &str) -> NodeCall {
    let request = NodeCall::at_member(&INSPECT, &[lock.lock(), lock.token_counter()]);
    request.number(METADATA_BYTES_MAX as u64).arg(with)
}

/// Ends the hold with this value, or that of another program; `above` is at least its token.
pub(super) fn break_hold(lock: &LockKeys, value: &str, above: u64, keep_ms: u64) -> NodeCall {
    let request = NodeCall::at_member(&BREAK, &[lock.lock(), lock.token_counter()]).arg(value);
    let request = request.number(above.min(PROPOSAL_MAX)).number(keep_ms);
    request.arg(&released_channel(lock.lock())).arg(&broken_channel())
}

/// Returns whether a node has ended a hold; `None` from a node that has lost its data.
pub(super) fn was_broken(answer: Value) -> Result<Option<bool>, RequestError> {
    match redis::from_redis_value::<i64>(answer)? {
        EMPTY => Ok(None),
        had => Ok(Some(had != 0)),
    }
}

/// Reads the record of a lock.
pub(super) fn read_record(lock: &LockKeys) -> NodeCall {
    NodeCall::at_member(&READ_RECORD, &[&lock.record()])
}

/// Reads the state of a node.
pub(super) fn look() -> NodeCall {
    NodeCall::at_any(&LOOK, NODE)
}

/// Writes a note that a node is empty, unless the node has a marker or a note.
pub(super) fn note_empty(note: &str) -> NodeCall {
    NodeCall::at_any(&NOTE_EMPTY, NODE).arg(note)
}

/// Replaces a node's marker if it is still `instead_of`; `names`: the names of the nodes of its set; `lost`: what it may
/// have lost.
pub(super) fn mark(marker: &str, instead_of: &str, names: &str, lost: LostData) -> NodeCall {
    let request = NodeCall::at_any(&MARK, NODE).arg(instead_of).number(lost.highest).arg(names);
    request.number(lost.records_last_us).arg(marker)
}

/// The reply of a node that does not count.
const EMPTY: i64 = -1;

/// A node's reply about one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimReply {
    /// The attempt has the lock at this node, with this counter in the reply to an ask, a write-back or a restore.
    Mine(u64),
    /// Another claim has the lock, or had it since.
    Refused,
    /// The node has lost its data, or was never set up. Its reply must not count.
    Empty,
}

pub(super) fn claim_reply(answer: Value) -> Result<ClaimReply, RequestError> {
    match redis::from_redis_value::<i64>(answer)? {
        EMPTY => Ok(ClaimReply::Empty),
        0 => Ok(ClaimReply::Refused),
        number => match u64::try_from(number) {
            Ok(counter) => Ok(ClaimReply::Mine(counter)),
            Err(_) => Err(RequestError::unexpected(format!("unexpected reply of a node: {number}"))),
        },
    }
}

/// A node's reply to a heartbeat about one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewReply {
    Held,
    NotHeld,
    /// No claim has the lock.
    Free,
}

/// Returns one reply for each lock, or `None` from a node that has lost its data.
pub(super) fn renew_replies(answer: Value, asked: usize) -> Result<Option<Vec<RenewReply>>, RequestError> {
    let numbers: Vec<i64> = redis::from_redis_value(answer)?;
    if numbers.is_empty() && asked > 0 {
        return Ok(None);
    }
    if numbers.len() != asked {
        return Err(RequestError::unexpected(format!("{} replies instead of {asked}", numbers.len())));
    }
    let reply = |number| match number {
        1 => RenewReply::Held,
        -1 => RenewReply::Free,
        _ => RenewReply::NotHeld,
    };
    Ok(Some(numbers.into_iter().map(reply).collect()))
}

/// What a node stores about itself.
#[derive(Clone, Debug)]
pub(super) struct NodeState {
    pub(super) marker: String,
    /// The highest counter of all its locks.
    pub(super) highest: u64,
    /// The names of the nodes of its set.
    pub(super) names: String,
    /// How long records of the set last, in us.
    pub(super) records_last_us: u64,
}

pub(super) fn node_state(answer: Value) -> Result<NodeState, RequestError> {
    let (marker, highest, names, records_last_us) = redis::from_redis_value(answer)?;
    Ok(NodeState { marker, highest, names, records_last_us })
}

/// What a node without data may have lost; nothing if it is new.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LostData {
    /// The highest counter.
    pub(super) highest: u64,
    /// How long records of the set last, in us.
    pub(super) records_last_us: u64,
}

/// A lock as one node has it.
#[derive(Clone, Debug)]
pub(super) struct LockState {
    /// Empty if nobody holds it.
    pub(super) value: Vec<u8>,
    pub(super) counter: u64,
    /// Of the holder; empty if there are none, or too long ones.
    pub(super) metadata: Vec<u8>,
    /// Whether the holder stored metadata, as every lockkit client does.
    pub(super) has_metadata: bool,
    /// How long the node keeps it, in ms; -1 without an end, or if that was not asked for.
    pub(super) pttl: i64,
}

/// Returns the state of a lock; `None` from a node that has lost its data.
pub(super) fn lock_state(answer: Value) -> Result<Option<LockState>, RequestError> {
    if matches!(&answer, Value::Array(parts) if parts.is_empty()) {
        return Ok(None);
    }
    let (value, counter, metadata, has_metadata, pttl) = redis::from_redis_value(answer)?;
    Ok(Some(LockState { value, counter, metadata, has_metadata, pttl }))
}

/// A record as one node has it.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordState {
    /// Token, number of the write, text.
    pub(super) record: Option<(u64, u64, String)>,
    /// The node may lack the records of grants up to this token.
    pub(super) lost: u64,
}

/// Returns a record; `None` from a node that has lost its data.
pub(super) fn record_state(answer: Value) -> Result<Option<RecordState>, RequestError> {
    if matches!(&answer, Value::Array(parts) if parts.is_empty()) {
        return Ok(None);
    }
    let (text, lost): (String, u64) = redis::from_redis_value(answer)?;
    let record = match &*text {
        "" => None,
        text => Some(parse_record(text).ok_or_else(|| RequestError::unexpected("not a record of lockkit"))?),
    };
    Ok(Some(RecordState { record, lost }))
}

fn parse_record(text: &str) -> Option<(u64, u64, String)> {
    let (token, rest) = text.split_once(':')?;
    let (number, text) = rest.split_once(':')?;
    Some((token.parse().ok()?, number.parse().ok()?, text.to_owned()))
}

#[cfg(test)]
mod tests {
    use lockkit_core::ErrorKind;

    use super::*;

    /// No node has said that a hold is lost, or that another claim has the lock.
    #[test]
    fn replies_of_another_form_are_errors() {
        for numbers in [vec![1], vec![1, 1, 1]] {
            let answer = Value::Array(numbers.into_iter().map(Value::Int).collect());
            assert_eq!(renew_replies(answer, 2).unwrap_err().kind(), ErrorKind::Unexpected);
        }
        assert_eq!(claim_reply(Value::Int(-2)).unwrap_err().kind(), ErrorKind::Unexpected);
    }

    /// Otherwise a break would count where the lock is unknown.
    #[test]
    fn node_that_has_lost_its_data_ends_no_hold() {
        let ended = [-1, 0, 1].map(|number| was_broken(Value::Int(number)).unwrap());
        assert_eq!(ended, [None, Some(false), Some(true)]);
    }

    #[test]
    fn text_of_a_record_may_contain_colons() {
        assert_eq!(parse_record("7:2:a:3:b"), Some((7, 2, "a:3:b".to_owned())));
    }

    /// Otherwise the lock would seem to have no record.
    #[test]
    fn text_of_another_program_is_no_record() {
        let state = |text: &str| {
            record_state(Value::Array(vec![Value::BulkString(text.as_bytes().to_vec()), Value::Int(0)]))
        };
        for text in ["x", "7:x", "x:1:a", "7:x:a", "-7:1:a"] {
            assert_eq!(state(text).unwrap_err().kind(), ErrorKind::Unexpected, "{text}");
        }
        assert!(state("").unwrap().is_some_and(|state| state.record.is_none()));
    }
}
