//! The requests of an operator.

use std::time::Duration;

use lockkit_core::{FencingToken, backend::ClaimId};
use redis::Value;

use crate::{
    broken::BROKEN,
    error::RequestError,
    keys::LockKeys,
    wire::{BREAK, Call, INSPECT, ScriptParams, WAITED_FOR, one_each},
};

/// A hold that is to be broken.
#[derive(Clone, Debug)]
pub(super) enum Broken {
    Hold(ClaimId, FencingToken),
    /// That of another program, whose value is not known.
    OfAnotherProgram,
}

impl Broken {
    /// Returns claim and token, as the scripts take them.
    fn parts(&self) -> [String; 2] {
        match self {
            Self::Hold(claim, token) => [claim.to_string(), token.get().to_string()],
            Self::OfAnotherProgram => Default::default(),
        }
    }
}

/// Returns the call that ends a hold.
pub(super) fn break_hold(params: &ScriptParams, keys: &LockKeys, broken: &Broken) -> Call {
    let [claim, token] = broken.parts();
    params.ending(&BREAK, keys, claim).arg(token).arg(keys.leader_channel()).arg(BROKEN)
}

/// Returns the call that continues the search for the next waiter, after the hold has ended. It names no claim: that of the
/// hold may wait again, or hold the lock with another token, if its client had no answer to its acquire.
pub(super) fn find_next(params: &ScriptParams, keys: &LockKeys) -> Call {
    params.release_of(keys, "").arg(keys.leader_channel())
}

/// Returns the call that inspects a lock: at most `waiters_max` waiters, and no metadata above `metadata_bytes_max`.
pub(super) fn inspect(keys: &LockKeys, waiters_max: usize, metadata_bytes_max: usize) -> Call {
    let arguments = vec![waiters_max.to_string(), metadata_bytes_max.to_string()];
    Call::new(&INSPECT, keys.of_claim().to_vec(), arguments)
}

/// What an inspection shows of a holder or a waiter.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The value of the lock, or the claim that waits.
    pub(super) text: Vec<u8>,
    /// The id of its client; empty if that is not known.
    pub(super) client: String,
    pub(super) metadata: Vec<u8>,
    /// How long the server keeps it; `None` without an end.
    pub(super) remaining: Option<Duration>,
}

/// Parses an inspection: the holder and the waiters.
pub(crate) fn parse_inspection(answer: Value) -> Result<(Option<Shown>, Vec<Shown>), RequestError> {
    type Parts = (Vec<u8>, Vec<u8>, Vec<u8>, i64);
    let shown: Vec<Parts> = redis::from_redis_value(answer)?;
    let mut shown = shown.into_iter().map(|(text, client, metadata, left)| Shown {
        text,
        client: String::from_utf8_lossy(&client).into_owned(),
        metadata,
        remaining: u64::try_from(left).ok().map(Duration::from_millis),
    });
    let holder = shown.next().ok_or_else(|| RequestError::unexpected("an inspection without a lock"))?;
    Ok(((!holder.text.is_empty()).then_some(holder), shown.collect()))
}

/// Returns the call that finds out which locks a listing must show because somebody waits for them.
pub(super) fn waited_for(locks: &[LockKeys], began_us: u64) -> Call {
    let names = locks.iter().flat_map(|keys| [keys.lock(), keys.queue(), keys.lapses()]);
    Call::new(&WAITED_FOR, names.map(str::to_owned).collect(), vec![began_us.to_string()])
}

/// Parses the answer of `waited_for`: one for each lock.
pub(super) fn parse_waited_for(answer: Value, asked: usize) -> Result<Vec<bool>, RequestError> {
    one_each(redis::from_redis_value(answer)?, asked)
}

/// Parses the answer of SCAN: the next cursor, 0 at the end, and keys. Keys that are not text are left out: they belong
/// to no lock.
pub(crate) fn parse_scan(answer: Value) -> Result<(u64, Vec<String>), RequestError> {
    let (cursor, found): (u64, Vec<Vec<u8>>) = redis::from_redis_value(answer)?;
    Ok((cursor, found.into_iter().filter_map(|key| String::from_utf8(key).ok()).collect()))
}

/// Parses the answer of TIME, in microseconds.
pub(super) fn parse_time(answer: Value) -> Result<u64, RequestError> {
    let (seconds, microseconds): (u64, u64) = redis::from_redis_value(answer)?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(microseconds))
}

/// Returns SCAN for keys that match this pattern.
pub(crate) fn scan(cursor: u64, pattern: &str, count: usize) -> redis::Cmd {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(count);
    scan
}

/// Returns a text as a part of a pattern that matches only itself.
pub(crate) fn escape_glob(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Layout, Names};

    /// The script ends the claim that it names, whatever has become of that since the break.
    #[test]
    fn search_for_the_next_waiter_ends_no_claim() {
        let lock = lockkit_core::LockName::new("x").unwrap();
        let keys = Layout::new("", Names::Encoded, false).keys(&lock).unwrap();
        let params = ScriptParams { client: String::new(), ttl_ms: 1, counter_ttl_ms: 1, linger_ms: 1 };
        let claim = |call: Call| match call.short().args_iter().nth(3 + keys.of_claim().len()) {
            Some(redis::Arg::Simple(claim)) => String::from_utf8(claim.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        };
        let broken = Broken::Hold(ClaimId::random(), FencingToken::new(1));
        assert_eq!(claim(break_hold(&params, &keys, &broken)), broken.parts()[0]);
        assert_eq!(claim(find_next(&params, &keys)), "");
    }

    #[test]
    fn pattern_of_a_text_has_no_special_letters_left() {
        assert_eq!(escape_glob(r"a*b?[c]\d"), r"a\*b\?\[c\]\\d");
        assert_eq!(escape_glob("app:%2Fö"), "app:%2Fö");
    }
}
