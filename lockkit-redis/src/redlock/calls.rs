//! The scripts of this folder, what they are asked, and what they answer.

use std::sync::LazyLock;

use lockkit_core::{FencingToken, Metadata, backend::ClaimId, limits::METADATA_BYTES_MAX};
use redis::Value;

use crate::{
    error::Fault,
    keys::LockKeys,
    scripts::{Call, Script},
};

/// Where a node keeps what it knows of itself.
pub(super) const NODE: &str = "lockkit:redlock";

/// What comes before a lock's key in the channel on which its release is told.
const RELEASED: &str = "lockkit:released:";

/// Numbers above are not exact in Lua.
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
static RESTORE: LazyLock<Script> =
    script!("../scripts/value.lua", "scripts/node.lua", "scripts/claim.lua", "scripts/restore.lua");
static RENEW: LazyLock<Script> = script!("../scripts/value.lua", "scripts/node.lua", "scripts/renew.lua");
static INSPECT: LazyLock<Script> = script!("../scripts/value.lua", "scripts/node.lua", "scripts/inspect.lua");
static LOOK: LazyLock<Script> = script!("scripts/node.lua", "scripts/look.lua");
static NOTE_EMPTY: LazyLock<Script> = script!("scripts/node.lua", "scripts/note_empty.lua");
static MARK: LazyLock<Script> = script!("scripts/node.lua", "scripts/mark.lua");

/// One execution of a script, at whichever node.
#[derive(Clone, Debug)]
pub(super) struct Request {
    script: &'static Script,
    keys: Vec<String>,
    /// The script's first argument; `None`: the marker of the node that is asked, without which it answers nothing that
    /// counts.
    first: Option<String>,
    arguments: Vec<String>,
}

impl Request {
    /// Whether it is for nodes that count.
    pub(super) fn needs_marker(&self) -> bool {
        self.first.is_none()
    }

    /// As the node with this marker is asked.
    pub(super) fn to(&self, marker: &str) -> Call {
        let first = self.first.as_deref().unwrap_or(marker).to_owned();
        let arguments = std::iter::once(first).chain(self.arguments.iter().cloned()).collect();
        Call::new(self.script, self.keys.clone(), arguments)
    }
}

/// What all requests of a session have in common.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) ttl_ms: u64,
    /// How long a lock's counter outlives its last use.
    pub(super) keep_ms: u64,
}

/// One try to get a lock: what it is called at the nodes, and where.
#[derive(Clone, Debug)]
pub(super) struct Bid {
    pub(super) id: ClaimId,
    pub(super) keys: LockKeys,
}

impl Terms {
    pub(super) fn ask(&self, bid: &Bid, proposal: u64, metadata: &Metadata) -> Request {
        self.claim(&ASK, bid, [proposal.min(PROPOSAL_MAX).to_string(), metadata.to_json()])
    }

    pub(super) fn write_back(&self, bid: &Bid, token: FencingToken) -> Request {
        self.claim(&WRITE_BACK, bid, [token.get().to_string()])
    }

    /// Ends a claim that was granted this token.
    pub(super) fn release(&self, bid: &Bid, token: FencingToken) -> Request {
        self.end(bid, token.get())
    }

    /// Ends a claim that was not granted.
    pub(super) fn clean_up(&self, bid: &Bid) -> Request {
        self.end(bid, 0)
    }

    fn end(&self, bid: &Bid, token: u64) -> Request {
        self.claim(&RELEASE, bid, [token.to_string(), released_channel(bid.keys.lock())])
    }

    pub(super) fn restore(&self, bid: &Bid, token: FencingToken) -> Request {
        self.claim(&RESTORE, bid, [token.get().to_string()])
    }

    fn claim<const N: usize>(&self, script: &'static Script, bid: &Bid, more: [String; N]) -> Request {
        let mut arguments = vec![bid.id.to_string(), self.ttl_ms.to_string(), self.keep_ms.to_string()];
        arguments.extend(more);
        Request { script, keys: keys(&bid.keys), first: None, arguments }
    }

    /// The beat of held locks.
    pub(super) fn renew<'a>(&self, held: impl Iterator<Item = &'a Bid>) -> Request {
        let mut keys = vec![NODE.to_owned()];
        let mut arguments = vec![self.ttl_ms.to_string(), self.keep_ms.to_string()];
        for bid in held {
            keys.extend([bid.keys.lock().to_owned(), bid.keys.fence().to_owned()]);
            arguments.push(bid.id.to_string());
        }
        Request { script: &RENEW, keys, first: None, arguments }
    }
}

fn keys(lock: &LockKeys) -> Vec<String> {
    [NODE, lock.lock(), lock.fence(), lock.metadata()].map(str::to_owned).into()
}

/// Where waiters hear that this lock may be free.
pub(super) fn released_channel(lock: &str) -> String {
    format!("{RELEASED}{lock}")
}

/// Looks at a lock.
pub(super) fn inspect(lock: &LockKeys) -> Request {
    Request {
        script: &INSPECT,
        keys: keys(lock),
        first: None,
        arguments: vec![METADATA_BYTES_MAX.to_string()],
    }
}

/// Looks at a node.
pub(super) fn look() -> Request {
    of_node(&LOOK, "", Vec::new())
}

/// Notes that a node is empty, unless it has any marker.
pub(super) fn note_empty(note: &str) -> Request {
    of_node(&NOTE_EMPTY, "", vec![note.to_owned()])
}

/// Gives a node another marker where it still has the one that was seen; `names`: of the nodes of its set.
pub(super) fn mark(marker: &str, instead_of: &str, highest: u64, names: &str) -> Request {
    of_node(&MARK, marker, vec![instead_of.to_owned(), highest.to_string(), names.to_owned()])
}

fn of_node(script: &'static Script, first: &str, arguments: Vec<String>) -> Request {
    Request { script, keys: vec![NODE.to_owned()], first: Some(first.to_owned()), arguments }
}

/// What a node says to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It has the lock here, with this counter.
    Mine(u64),
    /// Somebody else has the lock.
    Busy,
    /// A write-back or a restore that came too late, and the counter that says so.
    Refused(u64),
    /// The node has lost its data, or was never set up: it must not count.
    Empty,
}

pub(super) fn word(answer: Value) -> Result<Word, Fault> {
    let (word, number): (String, u64) = redis::from_redis_value(answer)?;
    match &*word {
        "mine" => Ok(Word::Mine(number)),
        "busy" => Ok(Word::Busy),
        "refused" => Ok(Word::Refused(number)),
        "empty" => Ok(Word::Empty),
        _ => Err(Fault::nonsense(format!("a node says {word:?}"))),
    }
}

/// What a node says to a beat about one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Yes,
    No,
    /// Nobody has it.
    Free,
}

/// One each for what was asked, or `None` from a node that has lost its data.
pub(super) fn beaten(answer: Value, asked: usize) -> Result<Option<Vec<Held>>, Fault> {
    let numbers: Vec<i64> = redis::from_redis_value(answer)?;
    if numbers.is_empty() && asked > 0 {
        return Ok(None);
    }
    if numbers.len() != asked {
        return Err(Fault::nonsense(format!("{} answers instead of {asked}", numbers.len())));
    }
    let held = |number| match number {
        1 => Held::Yes,
        -1 => Held::Free,
        _ => Held::No,
    };
    Ok(Some(numbers.into_iter().map(held).collect()))
}

/// What a node knows of itself.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) marker: String,
    /// The highest of its counters.
    pub(super) highest: u64,
    /// The names of the nodes of its set.
    pub(super) names: String,
}

pub(super) fn found(answer: Value) -> Result<Found, Fault> {
    let (marker, highest, names) = redis::from_redis_value(answer)?;
    Ok(Found { marker, highest, names })
}

/// A lock's value, its counter, and what its holder says about itself.
pub(super) fn inspected(answer: Value) -> Result<(Vec<u8>, u64, Vec<u8>), Fault> {
    Ok(redis::from_redis_value(answer)?)
}
