//! The requests to the server: the scripts, their arguments and their answers.
//!
//! A script is called by its digest, and sent in full if the server does not have it (any more).

use std::{fmt, sync::LazyLock, time::Duration};

use lockkit_core::{FencingToken, backend::ClaimId};
use redis::{Arg, Cmd, RedisWrite, ToRedisArgs, Value};

use crate::{
    error::RequestError,
    keys::{self, LockKeys},
    session::ClaimEntry,
};

/// Characters of an unexpected answer that an error quotes.
const QUOTED_CHARACTERS: usize = 100;

macro_rules! scripts {
    ($($name:ident: $($file:literal),+;)+) => {$(
        pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!($file, ".lua"))),+)));
    )+};
}

include!("scripts/list.rs");

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

    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }
}

/// Room for the name of a script and for its arguments, except keys, so that most calls are encoded without growing.
const CALL_ARGUMENTS: usize = 10;
const CALL_BYTES: usize = 384;

/// Room for the name of one key.
const KEY_BYTES: usize = 48;

/// One execution of a script.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    script: &'static Script,
    /// The call by the digest of the script. All keys and arguments are in its buffer, and nowhere else.
    short: Cmd,
}

impl Call {
    pub(crate) fn new(script: &'static Script, keys: Vec<String>, arguments: Vec<String>) -> Self {
        arguments.iter().fold(Self::about(script, &keys), |call, argument| call.arg(argument.as_str()))
    }

    /// Returns the call without arguments.
    pub(crate) fn about(script: &'static Script, keys: &[impl AsRef<str>]) -> Self {
        let bytes = CALL_BYTES + keys.len() * KEY_BYTES;
        let mut short = Cmd::with_capacity(CALL_ARGUMENTS + keys.len(), bytes);
        short.arg("EVALSHA").arg(script.digest()).arg(keys.len());
        for key in keys {
            short.arg(key.as_ref());
        }
        Self { script, short }
    }

    /// Adds an argument.
    #[must_use]
    pub(crate) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.short.arg(argument);
        self
    }

    /// Adds what this prints as an argument.
    #[must_use]
    pub(crate) fn text(mut self, argument: impl fmt::Display) -> Self {
        self.short.write_arg_fmt(argument);
        self
    }

    /// Returns the call by the digest of the script.
    pub(crate) fn short(&self) -> &Cmd {
        &self.short
    }

    /// Returns the call with the whole script.
    pub(crate) fn full(&self) -> Cmd {
        let mut full = redis::cmd("EVAL");
        full.arg(self.script.source);
        self.short_arguments().skip(2).for_each(|argument| full.write_arg(argument));
        full
    }

    /// Adds the channel of observers as the last argument, if the claim takes part in an election.
    fn with_observers(self, claim: &ClaimEntry) -> Self {
        match &claim.observers {
            Some(observers) => self.arg(observers.as_str()),
            None => self,
        }
    }

    /// All keys are at the same server as this one.
    pub(crate) fn first_key(&self) -> &[u8] {
        self.short_arguments().nth(3).unwrap_or_default()
    }

    fn short_arguments(&self) -> impl Iterator<Item = &[u8]> {
        self.short.args_iter().filter_map(|argument| match argument {
            Arg::Simple(bytes) => Some(bytes),
            _ => None,
        })
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
    /// How long queue and lapses of a lock, and the metadata of a holder, outlive their last use.
    pub(crate) linger_ms: u64,
}

impl ScriptParams {
    pub(crate) fn acquire(&self, claim: &ClaimEntry, queue: bool, metadata: &str) -> Call {
        let mode = if queue { "wait" } else { "try" };
        self.call_of_waiter(&ACQUIRE, claim).arg(mode).arg(metadata).with_observers(claim)
    }

    pub(crate) fn confirm(&self, claim: &ClaimEntry) -> Call {
        self.call_of_waiter(&CONFIRM, claim).with_observers(claim)
    }

    pub(crate) fn release(&self, claim: &ClaimEntry) -> Call {
        self.release_of(&claim.keys, claim.id).with_observers(claim)
    }

    /// Returns the call that ends a claim that need not be one of this session.
    pub(crate) fn release_of(&self, keys: &LockKeys, claim: impl fmt::Display) -> Call {
        self.ending(&RELEASE, keys, claim)
    }

    /// Returns the call that ends a hold whose pin still lasts for `rest_ms`.
    pub(crate) fn leave(&self, claim: &ClaimEntry, rest_ms: u64) -> Call {
        self.call(&LEAVE, &claim.keys, claim.id).arg(rest_ms)
    }

    /// Returns a call that may end a hold, of a claim that need not be one of this session.
    pub(crate) fn ending(&self, script: &'static Script, keys: &LockKeys, claim: impl fmt::Display) -> Call {
        self.call(script, keys, claim).arg(self.counter_ttl_ms)
    }

    /// Returns a call about a claim that may have to wait.
    fn call_of_waiter(&self, script: &'static Script, claim: &ClaimEntry) -> Call {
        self.call(script, &claim.keys, claim.id).arg(self.ttl_ms).arg(&*self.client)
    }

    fn call(&self, script: &'static Script, keys: &LockKeys, claim: impl fmt::Display) -> Call {
        Call::about(script, keys.of_claim()).text(claim).arg(self.linger_ms)
    }

    /// Returns the heartbeat of held locks.
    pub(crate) fn renew(&self, held: &[HeldLock]) -> Call {
        let keys: Vec<&str> = held.iter().map(|held| &*held.lock).collect();
        let call = Call::about(&RENEW, &keys).arg(self.ttl_ms);
        let call = held.iter().fold(call, |call, held| call.arg(keys::value(held.claim, held.token)));
        // Only where a hold is pinned: otherwise all have the ttl.
        if held.iter().all(|held| held.lifetime_ms == self.ttl_ms) {
            return call;
        }
        held.iter().fold(call, |call, held| call.arg(held.lifetime_ms))
    }

    /// Returns the heartbeat of waiting claims.
    pub(crate) fn heartbeat(&self, waiting: &[(ClaimId, LockKeys)]) -> Call {
        let keys: Vec<&String> = waiting.iter().flat_map(|(_, keys)| keys.of_claim()).collect();
        let call = Call::about(&HEARTBEAT, &keys).arg(self.ttl_ms).arg(&*self.client).arg(self.linger_ms);
        waiting.iter().fold(call, |call, (claim, _)| call.text(claim))
    }
}

/// The state of a claim at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimState {
    Granted(FencingToken),
    /// In the queue.
    Queued(Wait),
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

/// What the server answers about a claim in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Of the lock.
    pub(crate) pttl: Pttl,
    /// No token so far is above this one, and each later one is.
    pub(crate) last_token: FencingToken,
}

/// Parses the answer of `acquire` and `confirm`.
pub(crate) fn parse_claim_state(answer: Value) -> Result<ClaimState, RequestError> {
    let (state, number, last_token): (String, i64, Option<u64>) = match answer {
        Value::Int(token) => {
            let token = u64::try_from(token).map_err(|_| RequestError::unexpected("a negative token"))?;
            return Ok(ClaimState::Granted(FencingToken::new(token)));
        }
        Value::Array(parts) if parts.len() == 2 => {
            let (state, number) = redis::from_redis_value(Value::Array(parts))?;
            (state, number, None)
        }
        answer => redis::from_redis_value(answer)?,
    };
    match &*state {
        "queued" => {
            let last_token = last_token.ok_or_else(|| RequestError::unexpected("a wait without a token"))?;
            Ok(ClaimState::Queued(Wait { pttl: number, last_token: FencingToken::new(last_token) }))
        }
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

/// What the answer of `release` and `break` is the sum of.
const WAS_HELD: u64 = 1;
const IS_UNSERVED: u64 = 2;

pub(crate) fn parse_release(answer: Value) -> Result<Released, RequestError> {
    let sum: u64 = redis::from_redis_value(answer)?;
    if sum > WAS_HELD + IS_UNSERVED {
        return Err(RequestError::unexpected(format!("unknown state of a release: {sum}")));
    }
    Ok(Released { was_held: sum & WAS_HELD != 0, is_unserved: sum & IS_UNSERVED != 0 })
}

/// Parses the answer of `renew`: for each lock whether it is held.
pub(crate) fn parse_renewals(answer: Value, asked: usize) -> Result<Vec<bool>, RequestError> {
    one_each(redis::from_redis_value(answer)?, asked)
}

/// Parses the answer of `heartbeat`: `None` for a claim that does not wait there (any more).
pub(crate) fn parse_waiters(answer: Value, asked: usize) -> Result<Vec<Option<Wait>>, RequestError> {
    let answers: Vec<(Pttl, u64)> = redis::from_redis_value(answer)?;
    let wait = |(pttl, last)| Wait { pttl, last_token: FencingToken::new(last) };
    let waits = answers.into_iter().map(|answer| (answer.0 >= PTTL_MIN).then(|| wait(answer)));
    one_each(waits.collect(), asked)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetime_is_never_shorter_than_what_was_asked_for() {
        let asked = [0, 1, 1_000_000, 1_000_001, u64::MAX].map(|ns| lifetime_ms(Duration::from_nanos(ns)));
        assert_eq!(asked[..4], [1, 1, 1, 2]);
        assert!(asked[4] <= LIFETIME_MS_MAX && lifetime_ms(Duration::MAX) == LIFETIME_MS_MAX);
    }

    /// It may be long, and nothing for a log.
    #[test]
    fn answer_of_another_form_is_quoted_in_part() {
        let fault = parse_release(Value::BulkString(vec![b'x'; 100 * QUOTED_CHARACTERS])).unwrap_err();
        let message = fault.message();
        assert!(message.contains("xxx") && message.len() < 2 * QUOTED_CHARACTERS, "{message}");
    }
}
