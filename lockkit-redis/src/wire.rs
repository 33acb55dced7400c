//! The requests to the server: the scripts, their arguments and their answers.
//!
//! A script is called by its digest, and sent in full if the server does not have it (any more).

use std::{sync::LazyLock, time::Duration};

use lockkit_core::{FencingToken, Metadata, backend::ClaimId};
use redis::{Cmd, Value};

use crate::{
    error::RequestError,
    keys::{self, CHANNEL, LockKeys},
    registry::ClaimEntry,
};

/// Characters of an unexpected answer that an error quotes.
const QUOTED_CHARACTERS: usize = 100;

macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+)))
    };
}

pub(crate) static ACQUIRE: LazyLock<Script> = script!("value", "lock", "acquire");
pub(crate) static CONFIRM: LazyLock<Script> = script!("value", "lock", "confirm");
pub(crate) static BREAK: LazyLock<Script> = script!("value", "lock", "break");
pub(crate) static RELEASE: LazyLock<Script> = script!("value", "lock", "release");
pub(crate) static RENEW: LazyLock<Script> = script!("value", "renew");
pub(crate) static HEARTBEAT: LazyLock<Script> = script!("heartbeat");
pub(crate) static INSPECT: LazyLock<Script> = script!("value", "holder", "inspect");
pub(crate) static WAITED_FOR: LazyLock<Script> = script!("value", "holder", "waited_for");
pub(crate) static LEADER: LazyLock<Script> = script!("value", "holder", "leader");
pub(crate) static PROCLAIM: LazyLock<Script> = script!("value", "holder", "proclaim");
pub(crate) static READ_RECORD: LazyLock<Script> = script!("read_record");
pub(crate) static WRITE_RECORD: LazyLock<Script> = script!("value", "write_record");
pub(crate) static LEAVE: LazyLock<Script> = script!("value", "lock", "leave");

/// A script and its digest.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    digest: String,
}

impl Script {
    pub(crate) fn new(source: &'static str) -> Self {
        Self { source, digest: redis::Script::new(source).get_hash().to_owned() }
    }

    pub(crate) fn source(&self) -> &'static str {
        self.source
    }

    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }
}

/// One execution of a script.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    script: &'static Script,
    keys: Vec<String>,
    pub(crate) arguments: Vec<String>,
}

impl Call {
    pub(crate) fn new(script: &'static Script, keys: Vec<String>, arguments: Vec<String>) -> Self {
        Self { script, keys, arguments }
    }

    /// Returns the call by the digest of the script.
    pub(crate) fn short(&self) -> Cmd {
        self.command("EVALSHA", &self.script.digest)
    }

    /// Returns the call with the whole script.
    pub(crate) fn full(&self) -> Cmd {
        self.command("EVAL", self.script.source)
    }

    /// Adds the channel of observers as the last argument, if the claim takes part in an election.
    fn with_observers(mut self, claim: &ClaimEntry) -> Self {
        self.arguments.extend(claim.observers.clone());
        self
    }

    /// All keys are at the same server as this one.
    pub(crate) fn first_key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    fn command(&self, command: &str, script: &str) -> Cmd {
        let mut cmd = redis::cmd(command);
        cmd.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        cmd
    }
}

/// A lock that is held, for its heartbeat.
#[derive(Clone, Debug)]
pub(crate) struct HeldLock {
    /// Its key.
    pub(crate) lock: String,
    /// The claim and the token of the grant that holds it.
    pub(crate) claim: ClaimId,
    pub(crate) token: FencingToken,
    /// How long it must live from now on.
    pub(crate) lifetime_ms: u64,
}

/// The longest lifetime of a key that is asked for. Redis refuses an expiry beyond the range of its clock.
const LIFETIME_MS_MAX: u64 = 1000 * 365 * 24 * 60 * 60 * 1000;

/// Returns whole milliseconds, rounded up, as the lifetime of a key.
pub(crate) fn lifetime_ms(lifetime: Duration) -> u64 {
    let milliseconds = u64::try_from(lifetime.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    milliseconds.clamp(1, LIFETIME_MS_MAX)
}

/// The parameters that all scripts of a session share.
#[derive(Clone, Debug)]
pub(crate) struct ScriptParams {
    /// The id of the client, in hexadecimal digits.
    pub(crate) client: String,
    pub(crate) ttl_ms: u64,
    /// How long a token counter outlives its last use.
    pub(crate) counter_ttl_ms: u64,
    /// How long queue, deadlines and metadata of a lock outlive their last use.
    pub(crate) linger_ms: u64,
}

impl ScriptParams {
    pub(crate) fn acquire(&self, claim: &ClaimEntry, queue: bool, metadata: &Metadata) -> Call {
        let mode = if queue { "wait" } else { "try" };
        let more = [self.client.clone(), mode.to_owned(), metadata.to_json()];
        self.call(&ACQUIRE, claim, more).with_observers(claim)
    }

    pub(crate) fn confirm(&self, claim: &ClaimEntry) -> Call {
        self.call(&CONFIRM, claim, [self.client.clone()]).with_observers(claim)
    }

    pub(crate) fn release(&self, claim: &ClaimEntry) -> Call {
        self.call(&RELEASE, claim, []).with_observers(claim)
    }

    /// Returns the call that ends a hold whose pin still lasts for `rest_ms`.
    pub(crate) fn leave(&self, claim: &ClaimEntry, rest_ms: u64) -> Call {
        self.call(&LEAVE, claim, [rest_ms.to_string()])
    }

    fn call<const N: usize>(&self, script: &'static Script, claim: &ClaimEntry, more: [String; N]) -> Call {
        self.call_about(script, &claim.keys, claim.id.to_string(), more)
    }

    /// Returns the call about a claim that need not be one of this session.
    pub(crate) fn call_about<const N: usize>(
        &self,
        script: &'static Script,
        keys: &LockKeys,
        claim: String,
        more: [String; N],
    ) -> Call {
        let mut arguments = vec![
            claim,
            self.ttl_ms.to_string(),
            self.counter_ttl_ms.to_string(),
            CHANNEL.to_owned(),
            self.linger_ms.to_string(),
        ];
        arguments.extend(more);
        Call { script, keys: keys.all().to_vec(), arguments }
    }

    /// Returns the heartbeat of held locks.
    pub(crate) fn renew(&self, held: &[HeldLock]) -> Call {
        let mut arguments = vec![self.ttl_ms.to_string()];
        arguments.extend(held.iter().map(|held| keys::value(held.claim, held.token)));
        // Only where a hold is pinned: otherwise all have the ttl.
        if held.iter().any(|held| held.lifetime_ms != self.ttl_ms) {
            arguments.extend(held.iter().map(|held| held.lifetime_ms.to_string()));
        }
        Call { script: &RENEW, keys: held.iter().map(|held| held.lock.clone()).collect(), arguments }
    }

    /// Returns the heartbeat of waiting claims.
    pub(crate) fn heartbeat(&self, waiting: &[(ClaimId, LockKeys)]) -> Call {
        let keys = waiting
            .iter()
            .flat_map(|(_, keys)| [keys.lock(), keys.queue(), keys.deadlines(), keys.metadata()]);
        let common = [self.ttl_ms.to_string(), self.client.clone(), self.linger_ms.to_string()];
        let claims = waiting.iter().map(|(claim, _)| claim.to_string());
        Call {
            script: &HEARTBEAT,
            keys: keys.map(str::to_owned).collect(),
            arguments: common.into_iter().chain(claims).collect(),
        }
    }
}

/// The state of a claim at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimState {
    Granted(FencingToken),
    /// In the queue.
    Queued(Pttl),
    /// The lock is free, and the queue has more lapsed waiters than one script drops: the request must be repeated.
    Unserved,
    /// Another claim holds the lock, and nothing was written.
    Busy(Pttl),
    /// The claim has no entry.
    Gone,
}

/// The remaining lifetime of a lock in milliseconds; -1 without a ttl, -2 when nobody holds it.
pub(crate) type Pttl = i64;

const PTTL_MIN: Pttl = -2;

/// Parses the answer of `acquire` and `confirm`.
pub(crate) fn parse_claim_state(answer: Value) -> Result<ClaimState, RequestError> {
    let (state, number): (String, i64) = redis::from_redis_value(answer)?;
    match &*state {
        "granted" => Ok(ClaimState::Granted(FencingToken::new(number.unsigned_abs()))),
        "queued" => Ok(ClaimState::Queued(number)),
        "unserved" => Ok(ClaimState::Unserved),
        "busy" => Ok(ClaimState::Busy(number)),
        "gone" => Ok(ClaimState::Gone),
        _ => Err(RequestError::unexpected(format!("unknown state of a claim: {state:?}"))),
    }
}

/// The answer of `release` and `break`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    /// Whether the claim held the lock.
    pub(crate) was_held: bool,
    /// Whether the next waiter was not found yet.
    pub(crate) is_unserved: bool,
}

pub(crate) fn parse_release(answer: Value) -> Result<Released, RequestError> {
    let (was_held, is_unserved) = redis::from_redis_value(answer)?;
    Ok(Released { was_held, is_unserved })
}

/// Parses the answer of `renew`: for each lock whether it is held.
pub(crate) fn parse_renewals(answer: Value, asked: usize) -> Result<Vec<bool>, RequestError> {
    one_each(redis::from_redis_value(answer)?, asked)
}

/// Parses the answer of `heartbeat`: for each claim the PTTL of its lock, `None` if it does not wait there (any more).
pub(crate) fn parse_waiters(answer: Value, asked: usize) -> Result<Vec<Option<Pttl>>, RequestError> {
    let answers: Vec<Pttl> = redis::from_redis_value(answer)?;
    one_each(answers.into_iter().map(|pttl| (pttl >= PTTL_MIN).then_some(pttl)).collect(), asked)
}

pub(crate) fn one_each<T>(answers: Vec<T>, asked: usize) -> Result<Vec<T>, RequestError> {
    if answers.len() == asked {
        Ok(answers)
    } else {
        Err(RequestError::unexpected(format!("{} answers instead of {asked}", answers.len())))
    }
}

impl From<redis::ParsingError> for RequestError {
    fn from(error: redis::ParsingError) -> Self {
        // The error text contains the whole answer.
        let text: String = error.to_string().chars().take(QUOTED_CHARACTERS).collect();
        Self::unexpected(format!("the answer has another form: {text}"))
    }
}
