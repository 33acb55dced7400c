//! The backend's own script files, sent without the backend.

use std::{sync::LazyLock, time::Duration};

use anyhow::{Context, Result, bail};
use lockkit_core::{LockName, Metadata, Proposal, backend::ClaimId};
use lockkit_testbed::{Redis, RedisMasters, Reply};

use super::encoded;

macro_rules! scripts {
    ($($name:ident: $($file:literal),+;)+) => {$(
        pub static $name: LazyLock<&str> =
            LazyLock::new(|| concat!($(include_str!(concat!($file, ".lua"))),+));
    )+};
}

include!("../../../src/redlock/scripts/list.rs");

/// How long counters outlive their last use, in ms.
pub const KEEP_MS: &str = "100000";

/// How long records are kept, in ms.
pub const RECORD_KEEP_MS: &str = "50000";

/// The marker of a node that counts.
pub const MARKER: &str = "ready 60000 5f0c1d2e3b4a5968 1/3";

pub const NODE: &str = "lockkit:redlock";

/// Metadata with a proposal.
fn metadata(number: u64) -> String {
    Metadata::of_this_process(None).with_proposal(Proposal::new("", number)).to_json()
}

/// One claim to one lock at single nodes.
#[derive(Debug)]
pub struct Claimant {
    pub lock: String,
    pub claim: String,
    pub ttl_ms: u64,
    pub marker: String,
}

impl Claimant {
    pub fn new(name: &LockName, ttl_ms: u64) -> Self {
        let (claim, marker) = (ClaimId::random().to_string(), MARKER.to_owned());
        Self { lock: encoded(name), claim, ttl_ms, marker }
    }

    pub fn side(&self, what: &str) -> String {
        format!("lockkit:{{{}}}:{what}", self.lock)
    }

    /// Runs a script about the lock and one more key. Returns its number.
    fn run(&self, node: &Redis, script: &str, other_key: &str, more: &[&str]) -> Result<i64> {
        let mut words = vec!["EVAL", script, "3", &*self.lock, other_key, NODE, &*self.claim];
        words.extend(more);
        words.push(&*self.marker);
        node.cli(&words)?.number().context("no number")
    }

    fn run_on_counter(&self, node: &Redis, script: &str, more: &[&str]) -> Result<i64> {
        self.run(node, script, &self.side("fence"), more)
    }

    /// The counter; 0: busy, -1: the node does not count.
    pub fn ask(&self, node: &Redis, proposal: u64) -> Result<i64> {
        let ttl = self.ttl_ms.to_string();
        self.run_on_counter(node, *ASK, &[&metadata(1), &ttl, KEEP_MS, &proposal.to_string()])
    }

    pub fn write_back(&self, node: &Redis, token: i64) -> Result<i64> {
        self.run_on_counter(node, *WRITE_BACK, &[&token.to_string(), KEEP_MS])
    }

    /// With the first proposal.
    pub fn restore(&self, node: &Redis, token: i64) -> Result<i64> {
        self.restore_with(node, token, 1)
    }

    pub fn restore_with(&self, node: &Redis, token: i64, proposal: u64) -> Result<i64> {
        let ttl = self.ttl_ms.to_string();
        self.run_on_counter(node, *RESTORE, &[&metadata(proposal), &ttl, KEEP_MS, &token.to_string()])
    }

    pub fn proclaim(&self, node: &Redis, number: u64) -> Result<i64> {
        self.run_on_counter(node, *PROCLAIM, &[&metadata(number), KEEP_MS])
    }

    pub fn write_record(&self, node: &Redis, token: i64, number: u64, text: &str) -> Result<i64> {
        let more = [&token.to_string(), &number.to_string(), text, RECORD_KEEP_MS];
        self.run(node, *WRITE_RECORD, &self.side("record"), &more)
    }

    /// The record, and the token up to which records may be lost; `None` from a node that has lost its data.
    pub fn read_record(&self, node: &Redis) -> Result<Option<(String, i64)>> {
        let reply = node.cli(&["EVAL", *READ_RECORD, "2", &self.side("record"), NODE, &self.marker])?;
        match reply.list() {
            [] => Ok(None),
            [record, lost] => Ok(Some((record.text().to_owned(), lost.number().context("no number")?))),
            other => bail!("{other:?}"),
        }
    }

    /// The claim that has the lock, and its counter; `None` from a node that has lost its data.
    pub fn inspect(&self, node: &Redis) -> Result<Option<(String, i64)>> {
        let keys = ["EVAL", *INSPECT, "3", &self.lock, &self.side("fence"), NODE];
        let reply = node.cli(&[&keys[..], &["1000", "", &self.marker]].concat())?;
        match reply.list() {
            [] => Ok(None),
            [claim, counter, ..] => {
                Ok(Some((claim.text().to_owned(), counter.number().context("no number")?)))
            }
            other => bail!("{other:?}"),
        }
    }

    /// The number of the proposal in the lock; 0 for none.
    pub fn proposed(&self, node: &Redis) -> Result<u64> {
        let value = node.cli(&["GET", &self.lock])?;
        let metadata = value.text().strip_prefix(&*self.claim).unwrap_or_default();
        let metadata = Metadata::from_json(metadata.as_bytes());
        Ok(metadata.and_then(|metadata| metadata.proposal).map_or(0, |proposal| proposal.number))
    }

    /// Releases a grant, or cleans up if there is no channel. Returns 1 if the claim had the lock, otherwise 0.
    pub fn release(&self, node: &Redis, channel: &str) -> Result<i64> {
        node.cli(&["EVAL", *RELEASE, "1", &self.lock, &self.claim, channel])?.number().context("no number")
    }

    /// Releases a grant for which a restore was sent.
    pub fn release_restored(&self, node: &Redis, token: i64) -> Result<i64> {
        self.run_on_counter(node, *RELEASE_RESTORED, &["released", &token.to_string(), KEEP_MS])
    }

    /// Breaks the hold, whose token is at most `above`. Returns 1 if the claim had the lock, otherwise 0.
    pub fn break_hold(&self, node: &Redis, above: i64) -> Result<i64> {
        self.run_on_counter(node, *BREAK, &[&above.to_string(), KEEP_MS, "released", "broken"])
    }

    /// 1, 0 or -1; `None` from a node that has lost its data.
    pub fn renew(&self, node: &Redis) -> Result<Option<i64>> {
        let (counter_key, ttl) = (self.side("fence"), self.ttl_ms.to_string());
        let keys = ["EVAL", *RENEW, "3", &self.lock, &counter_key, NODE];
        let words = [&keys[..], &[&ttl, KEEP_MS, &self.claim, &self.marker]].concat();
        Ok(node.cli(&words)?.list().first().and_then(Reply::number))
    }
}

/// A client asks `asked` nodes, writes the token back at `written` of them, and dies. Its keys have expired when this
/// returns. Returns the token, if a majority has acknowledged it.
pub fn die(nodes: &RedisMasters, name: &LockName, asked: usize, written: usize) -> Result<Option<u64>> {
    const TTL_MS: u64 = 300;
    let mut dead = Claimant::new(name, TTL_MS);
    let marker = |node: usize| {
        Ok::<_, anyhow::Error>(nodes.node(node).cli(&["HGET", NODE, "marker"])?.text().to_owned())
    };
    let mut highest = 0;
    for node in 0..asked {
        dead.marker = marker(node)?;
        let counter = dead.ask(nodes.node(node), 0)?;
        anyhow::ensure!(counter > 0, "{counter}");
        highest = highest.max(counter);
    }
    let token = highest + 1;
    let mut acknowledged = 0;
    for node in 0..written {
        dead.marker = marker(node)?;
        // Late if the key has expired.
        acknowledged += usize::from(dead.write_back(nodes.node(node), token)? == token);
    }
    std::thread::sleep(Duration::from_millis(TTL_MS));
    let is_granted = acknowledged > nodes.len() / 2;
    Ok(is_granted.then(|| token.unsigned_abs()))
}
