//! Requests to nodes (the scripts of this folder), and their replies.

use std::sync::LazyLock;

use lockkit_core::{FencingToken, Metadata, backend::ClaimId, limits::METADATA_BYTES_MAX};
use redis::Value;

use crate::{
    error::RequestError,
    keys::LockKeys,
    wire::{Call, Script},
};

/// The key where a node keeps its marker.
pub(super) const NODE: &str = "lockkit:redlock";

/// Prefix of the channel on which the release of a lock is published; the lock's key follows.
const RELEASED_CHANNEL_PREFIX: &str = "lockkit:released:";

/// Larger numbers are not exact in Lua.
const PROPOSAL_MAX: u64 = (1 << 53) - 1;

macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!($file)),+)))
    };
}

static ASK: LazyLock<Script> =
    script!("../scripts/value.lua", "scripts/node.lua", "scripts/claim.lua", "scripts/ask.lua");
static WRITE_BACK: LazyLock<Script> =
    script!("../scripts/value.lua", "scripts/node.lua", "scripts/claim.lua", "scripts/write_back.lua");
static RELEASE: LazyLock<Script> =
    script!("../scripts/value.lua", "scripts/node.lua", "scripts/claim.lua", "scripts/release.lua");
static BREAK: LazyLock<Script> =
    script!("../scripts/value.lua", "scripts/node.lua", "scripts/claim.lua", "scripts/break.lua");
static RESTORE: LazyLock<Script> =
    script!("../scripts/value.lua", "scripts/node.lua", "scripts/claim.lua", "scripts/restore.lua");
static PROCLAIM: LazyLock<Script> =
    script!("../scripts/value.lua", "scripts/node.lua", "scripts/claim.lua", "scripts/proclaim.lua");
static WRITE_RECORD: LazyLock<Script> =
    script!("../scripts/value.lua", "scripts/node.lua", "scripts/claim.lua", "scripts/write_record.lua");
static READ_RECORD: LazyLock<Script> = script!("scripts/node.lua", "scripts/read_record.lua");
static RENEW: LazyLock<Script> = script!("../scripts/value.lua", "scripts/node.lua", "scripts/renew.lua");
static INSPECT: LazyLock<Script> = script!("../scripts/value.lua", "scripts/node.lua", "scripts/inspect.lua");
static LOOK: LazyLock<Script> = script!("scripts/node.lua", "scripts/look.lua");
static NOTE_EMPTY: LazyLock<Script> = script!("scripts/node.lua", "scripts/note_empty.lua");
static MARK: LazyLock<Script> = script!("scripts/node.lua", "scripts/mark.lua");

/// A script and its arguments, for any node.
#[derive(Clone, Debug)]
pub(super) struct Request {
    script: &'static Script,
    keys: Vec<String>,
    /// The script's first argument. `None` stands for the marker of the node that is asked.
    first: Option<String>,
    arguments: Vec<String>,
}

impl Request {
    /// Whether only nodes that count may answer it.
    pub(super) fn needs_marker(&self) -> bool {
        self.first.is_none()
    }

    /// The call for the node with this marker.
    pub(super) fn to(&self, marker: &str) -> Call {
        let first = self.first.as_deref().unwrap_or(marker).to_owned();
        let arguments = std::iter::once(first).chain(self.arguments.iter().cloned()).collect();
        Call::new(self.script, self.keys.clone(), arguments)
    }
}

/// Builds the requests of a session.
#[derive(Clone, Debug)]
pub(super) struct RequestBuilder {
    pub(super) ttl_ms: u64,
    /// How long a lock's counter outlives its last use.
    pub(super) keep_ms: u64,
}

/// One attempt at a lock: its id, which is the value of the keys, and the keys.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) id: ClaimId,
    pub(super) keys: LockKeys,
}

impl RequestBuilder {
    pub(super) fn ask(&self, attempt: &Attempt, proposal: u64, metadata: &Metadata) -> Request {
        self.attempt_request(&ASK, attempt, [proposal.min(PROPOSAL_MAX).to_string(), metadata.to_json()])
    }

    pub(super) fn write_back(&self, attempt: &Attempt, token: FencingToken) -> Request {
        self.attempt_request(&WRITE_BACK, attempt, [token.get().to_string()])
    }

    /// Ends an attempt that was granted this token.
    pub(super) fn release(&self, attempt: &Attempt, token: FencingToken) -> Request {
        self.remove(attempt, token.get())
    }

    /// Ends an attempt that was not granted.
    pub(super) fn clean_up(&self, attempt: &Attempt) -> Request {
        self.remove(attempt, 0)
    }

    fn remove(&self, attempt: &Attempt, token: u64) -> Request {
        self.attempt_request(&RELEASE, attempt, [token.to_string(), released_channel(attempt.keys.lock())])
    }

    pub(super) fn restore(&self, attempt: &Attempt, token: FencingToken, metadata: &Metadata) -> Request {
        self.attempt_request(&RESTORE, attempt, [token.get().to_string(), metadata.to_json()])
    }

    /// Replaces the metadata of a holder.
    pub(super) fn proclaim(&self, attempt: &Attempt, metadata: &Metadata) -> Request {
        self.attempt_request(&PROCLAIM, attempt, [metadata.to_json()])
    }

    /// Writes the record of a grant: `number` counts the writes of its holder.
    pub(super) fn write_record(
        &self,
        attempt: &Attempt,
        token: FencingToken,
        number: u64,
        record: &str,
        keep_ms: u64,
    ) -> Request {
        let more = [token.get().to_string(), number.to_string(), record.to_owned(), keep_ms.to_string()];
        let mut request = self.attempt_request(&WRITE_RECORD, attempt, more);
        request.keys.push(attempt.keys.record());
        request
    }

    fn attempt_request<const N: usize>(
        &self,
        script: &'static Script,
        attempt: &Attempt,
        more: [String; N],
    ) -> Request {
        let mut arguments = vec![attempt.id.to_string(), self.ttl_ms.to_string(), self.keep_ms.to_string()];
        arguments.extend(more);
        Request { script, keys: keys_of(&attempt.keys), first: None, arguments }
    }

    /// The heartbeat of held locks.
    pub(super) fn renew<'a>(&self, held: impl Iterator<Item = &'a Attempt>) -> Request {
        let mut keys = vec![NODE.to_owned()];
        let mut arguments = vec![self.ttl_ms.to_string(), self.keep_ms.to_string()];
        for attempt in held {
            let keys_of = &attempt.keys;
            keys.extend([keys_of.lock(), keys_of.token_counter(), keys_of.metadata()].map(str::to_owned));
            arguments.push(attempt.id.to_string());
        }
        Request { script: &RENEW, keys, first: None, arguments }
    }
}

fn keys_of(lock: &LockKeys) -> Vec<String> {
    [NODE, lock.lock(), lock.token_counter(), lock.metadata()].map(str::to_owned).into()
}

/// The channel on which waiters get hints that this lock may be free.
pub(super) fn released_channel(lock: &str) -> String {
    format!("{RELEASED_CHANNEL_PREFIX}{lock}")
}

/// The channel that notifies all clients of a hold that an operator has broken. No lock has an empty key.
pub(super) fn broken_channel() -> String {
    released_channel("")
}

/// Reads the state of a lock.
pub(super) fn inspect(lock: &LockKeys) -> Request {
    let arguments = vec![METADATA_BYTES_MAX.to_string()];
    Request { script: &INSPECT, keys: keys_of(lock), first: None, arguments }
}

/// As [`inspect`], with the remaining time: for an operator, who may read it.
pub(super) fn inspect_with_remaining(lock: &LockKeys) -> Request {
    let mut request = inspect(lock);
    request.arguments.push("pttl".to_owned());
    request
}

/// Ends the hold with this value, or that of another program; `above` is at least its token.
pub(super) fn break_hold(lock: &LockKeys, value: &str, above: u64, keep_ms: u64) -> Request {
    // There is no claim of a client, so no ttl.
    let ttl = String::new();
    let (released, broken) = (released_channel(lock.lock()), broken_channel());
    let arguments = vec![
        value.to_owned(),
        ttl,
        keep_ms.to_string(),
        above.min(PROPOSAL_MAX).to_string(),
        released,
        broken,
    ];
    Request { script: &BREAK, keys: keys_of(lock), first: None, arguments }
}

/// Whether a node has ended a hold; `None` from a node that has lost its data.
pub(super) fn was_broken(answer: Value) -> Result<Option<bool>, RequestError> {
    let (reply, had): (String, bool) = redis::from_redis_value(answer)?;
    match &*reply {
        "done" => Ok(Some(had)),
        "empty" => Ok(None),
        _ => Err(RequestError::unexpected(format!("unexpected reply of a node: {reply:?}"))),
    }
}

/// Reads the record of a lock.
pub(super) fn read_record(lock: &LockKeys) -> Request {
    let keys = vec![NODE.to_owned(), lock.record()];
    Request { script: &READ_RECORD, keys, first: None, arguments: Vec::new() }
}

/// Reads the state of a node.
pub(super) fn look() -> Request {
    node_request(&LOOK, "", Vec::new())
}

/// Writes a note that a node is empty, unless the node has a marker or a note.
pub(super) fn note_empty(note: &str) -> Request {
    node_request(&NOTE_EMPTY, "", vec![note.to_owned()])
}

/// Replaces a node's marker if it is still `instead_of`; `names`: the names of the nodes of its set; `lost`: what it may
/// have lost.
pub(super) fn mark(marker: &str, instead_of: &str, names: &str, lost: LostData) -> Request {
    let arguments =
        [instead_of.to_owned(), lost.highest.to_string(), names.to_owned(), lost.records_last_us.to_string()];
    node_request(&MARK, marker, arguments.into())
}

fn node_request(script: &'static Script, first: &str, arguments: Vec<String>) -> Request {
    Request { script, keys: vec![NODE.to_owned()], first: Some(first.to_owned()), arguments }
}

/// A node's reply about one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimReply {
    /// The attempt has the lock at this node; the lock's counter.
    Mine(u64),
    /// Another claim has the lock.
    Busy,
    /// A write-back or restore came too late; the lock's counter.
    Refused(u64),
    /// The node has lost its data, or was never set up. Its reply must not count.
    Empty,
}

pub(super) fn claim_reply(answer: Value) -> Result<ClaimReply, RequestError> {
    let (reply, number): (String, u64) = redis::from_redis_value(answer)?;
    match &*reply {
        "mine" => Ok(ClaimReply::Mine(number)),
        "busy" => Ok(ClaimReply::Busy),
        "refused" => Ok(ClaimReply::Refused(number)),
        "empty" => Ok(ClaimReply::Empty),
        _ => Err(RequestError::unexpected(format!("unexpected reply of a node: {reply:?}"))),
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

/// One reply for each lock, or `None` from a node that has lost its data.
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
    pub(super) is_described: bool,
    /// How long the node keeps it, in ms; -1 without an end, or if that was not asked for.
    pub(super) pttl: i64,
}

/// The state of a lock; `None` from a node that has lost its data.
pub(super) fn lock_state(answer: Value) -> Result<Option<LockState>, RequestError> {
    if matches!(&answer, Value::Array(parts) if parts.is_empty()) {
        return Ok(None);
    }
    let (value, counter, metadata, is_described, pttl) = redis::from_redis_value(answer)?;
    Ok(Some(LockState { value, counter, metadata, is_described, pttl }))
}

/// A record as one node has it.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordState {
    /// Token, number of the write, text.
    pub(super) record: Option<(u64, u64, String)>,
    /// The node may lack the records of grants up to this token.
    pub(super) lost: u64,
}

/// A record; `None` from a node that has lost its data.
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
