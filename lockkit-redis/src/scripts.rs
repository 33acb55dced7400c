//! The scripts, what they are asked, and what they answer.
//!
//! A script is named by its digest, and sent in full where the server does not have it (any more).

use std::sync::LazyLock;

use lockkit_core::{FencingToken, Metadata, backend::ClaimId};
use redis::{Cmd, Value};

use crate::{
    error::Fault,
    keys::{CHANNEL, LockKeys},
};

/// Characters of an unexpected answer that an error repeats.
const QUOTED_CHARACTERS: usize = 100;

macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+)))
    };
}

pub(crate) static ACQUIRE: LazyLock<Script> = script!("value", "lock", "acquire");
pub(crate) static CONFIRM: LazyLock<Script> = script!("value", "lock", "confirm");
pub(crate) static RELEASE: LazyLock<Script> = script!("value", "lock", "release");
pub(crate) static RENEW: LazyLock<Script> = script!("value", "renew");
pub(crate) static BEAT: LazyLock<Script> = script!("beat");
pub(crate) static INSPECT: LazyLock<Script> = script!("value", "inspect");

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
}

/// One execution of a script.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    script: &'static Script,
    keys: Vec<String>,
    arguments: Vec<String>,
}

impl Call {
    pub(crate) fn new(script: &'static Script, keys: Vec<String>, arguments: Vec<String>) -> Self {
        Self { script, keys, arguments }
    }

    /// Names the script by its digest.
    pub(crate) fn short(&self) -> Cmd {
        self.command("EVALSHA", &self.script.digest)
    }

    /// Carries the script along.
    pub(crate) fn full(&self) -> Cmd {
        self.command("EVAL", self.script.source)
    }

    /// All keys lie where this one lies.
    pub(crate) fn first_key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    fn command(&self, command: &str, script: &str) -> Cmd {
        let mut cmd = redis::cmd(command);
        cmd.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        cmd
    }
}

/// What all scripts about single claims of a session have in common.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Hexadecimal digits.
    pub(crate) client: String,
    pub(crate) ttl_ms: u64,
    /// How long a counter outlives its last use.
    pub(crate) keep_ms: u64,
    /// How long what lies beside a lock otherwise outlives its last use.
    pub(crate) linger_ms: u64,
}

impl Terms {
    pub(crate) fn acquire(&self, claim: ClaimId, keys: &LockKeys, queue: bool, metadata: &Metadata) -> Call {
        let mode = if queue { "wait" } else { "try" };
        let more = [self.client.clone(), mode.to_owned(), metadata.to_json()];
        self.call(&ACQUIRE, claim, keys, more)
    }

    pub(crate) fn confirm(&self, claim: ClaimId, keys: &LockKeys) -> Call {
        self.call(&CONFIRM, claim, keys, [self.client.clone()])
    }

    pub(crate) fn release(&self, claim: ClaimId, keys: &LockKeys) -> Call {
        self.call(&RELEASE, claim, keys, [])
    }

    fn call<const N: usize>(
        &self,
        script: &'static Script,
        claim: ClaimId,
        keys: &LockKeys,
        more: [String; N],
    ) -> Call {
        let mut arguments =
            vec![claim.to_string(), self.ttl_ms.to_string(), self.keep_ms.to_string(), CHANNEL.to_owned()];
        arguments.push(self.linger_ms.to_string());
        arguments.extend(more);
        Call { script, keys: keys.all().to_vec(), arguments }
    }

    /// The beat of held locks: each lock's key, and the grant that it is held by.
    pub(crate) fn renew(&self, held: &[(String, ClaimId, FencingToken)]) -> Call {
        let values = held.iter().map(|(_, claim, token)| format!("{claim}:{}", token.get()));
        Call {
            script: &RENEW,
            keys: held.iter().map(|(lock, ..)| lock.clone()).collect(),
            arguments: std::iter::once(self.ttl_ms.to_string()).chain(values).collect(),
        }
    }

    /// The heartbeat of waiting claims.
    pub(crate) fn beat(&self, waiting: &[(ClaimId, LockKeys)]) -> Call {
        let keys = waiting
            .iter()
            .flat_map(|(_, keys)| [keys.lock(), keys.queue(), keys.deadlines(), keys.metadata()]);
        let common = [self.ttl_ms.to_string(), self.client.clone(), self.linger_ms.to_string()];
        let claims = waiting.iter().map(|(claim, _)| claim.to_string());
        Call {
            script: &BEAT,
            keys: keys.map(str::to_owned).collect(),
            arguments: common.into_iter().chain(claims).collect(),
        }
    }
}

/// Looks at a lock: this many waiters at most, and this much metadata of each.
pub(crate) fn inspect(keys: &LockKeys, waiters_max: usize, metadata_bytes_max: usize) -> Call {
    let arguments = vec![waiters_max.to_string(), metadata_bytes_max.to_string()];
    Call { script: &INSPECT, keys: keys.all().to_vec(), arguments }
}

/// How a claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Granted(FencingToken),
    /// In the queue.
    Queued(Pttl),
    /// Nobody has the lock, and the queue has more lapsed waiters than one script drops: the same has to be asked again.
    Unserved,
    /// Somebody else holds the lock, and nothing was written.
    Busy(Pttl),
    /// Nothing of it is there.
    Gone,
}

/// How long the lock lives, in milliseconds; -1 without an end, -2 when nobody holds it.
pub(crate) type Pttl = i64;

const PTTL_MIN: Pttl = -2;

/// What `acquire` and `confirm` answer.
pub(crate) fn standing(answer: Value) -> Result<Standing, Fault> {
    let (word, number): (String, i64) = redis::from_redis_value(answer)?;
    match &*word {
        "granted" => Ok(Standing::Granted(FencingToken::new(number.unsigned_abs()))),
        "queued" => Ok(Standing::Queued(number)),
        "unserved" => Ok(Standing::Unserved),
        "busy" => Ok(Standing::Busy(number)),
        "gone" => Ok(Standing::Gone),
        _ => Err(Fault::nonsense(format!("a claim stands {word:?}"))),
    }
}

/// What `release` answers: whether the next one in the queue was not found yet.
pub(crate) fn leaves_unserved(answer: Value) -> Result<bool, Fault> {
    let (_had_it, is_unserved): (bool, bool) = redis::from_redis_value(answer)?;
    Ok(is_unserved)
}

/// What `renew` answers, one each for what was asked.
pub(crate) fn verdicts(answer: Value, asked: usize) -> Result<Vec<bool>, Fault> {
    one_each(redis::from_redis_value(answer)?, asked)
}

/// What `beat` answers, one each for what was asked: the PTTL of the lock that a claim waits for, `None` when it does not
/// wait there (any more).
pub(crate) fn waits(answer: Value, asked: usize) -> Result<Vec<Option<Pttl>>, Fault> {
    let answers: Vec<Pttl> = redis::from_redis_value(answer)?;
    one_each(answers.into_iter().map(|pttl| (pttl >= PTTL_MIN).then_some(pttl)).collect(), asked)
}

fn one_each<T>(answers: Vec<T>, asked: usize) -> Result<Vec<T>, Fault> {
    if answers.len() == asked {
        Ok(answers)
    } else {
        Err(Fault::nonsense(format!("{} answers instead of {asked}", answers.len())))
    }
}

/// What `inspect` answers: the value of the lock, the holder's metadata, and who waits with what metadata.
pub(crate) type Inspected = (Vec<u8>, Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>);

pub(crate) fn inspected(answer: Value) -> Result<Inspected, Fault> {
    let (value, metadata, waiters): (Vec<u8>, Vec<u8>, Vec<Vec<u8>>) = redis::from_redis_value(answer)?;
    let pairs = waiters.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    Ok((value, metadata, pairs.collect()))
}

impl From<redis::ParsingError> for Fault {
    fn from(error: redis::ParsingError) -> Self {
        // It repeats the whole answer.
        let text: String = error.to_string().chars().take(QUOTED_CHARACTERS).collect();
        Self::nonsense(format!("an answer of another form: {text}"))
    }
}
