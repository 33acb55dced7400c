//! The backend's own script files, sent without the backend.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use lockkit_core::{LockName, Metadata, Proposal, backend::ClaimId};
use lockkit_testbed::{Redis, RedisMasters, Reply};

use super::encoded;

macro_rules! claim_script {
    ($file:literal) => {
        concat!(
            include_str!("../../src/scripts/value.lua"),
            include_str!("../../src/redlock/scripts/node.lua"),
            include_str!("../../src/redlock/scripts/claim.lua"),
            include_str!(concat!("../../src/redlock/scripts/", $file, ".lua"))
        )
    };
}

pub const ASK: &str = claim_script!("ask");
pub const WRITE_BACK: &str = claim_script!("write_back");
pub const PROCLAIM: &str = claim_script!("proclaim");
pub const RELEASE: &str = claim_script!("release");
pub const RESTORE: &str = claim_script!("restore");
pub const WRITE_RECORD: &str = claim_script!("write_record");
pub const READ_RECORD: &str = concat!(
    include_str!("../../src/redlock/scripts/node.lua"),
    include_str!("../../src/redlock/scripts/read_record.lua")
);
pub const RENEW: &str = concat!(
    include_str!("../../src/scripts/value.lua"),
    include_str!("../../src/redlock/scripts/node.lua"),
    include_str!("../../src/redlock/scripts/renew.lua")
);
pub const NOTE_EMPTY: &str = concat!(
    include_str!("../../src/redlock/scripts/node.lua"),
    include_str!("../../src/redlock/scripts/note_empty.lua")
);
pub const LOOK: &str = concat!(
    include_str!("../../src/redlock/scripts/node.lua"),
    include_str!("../../src/redlock/scripts/look.lua")
);
pub const MARK: &str = concat!(
    include_str!("../../src/redlock/scripts/node.lua"),
    include_str!("../../src/redlock/scripts/mark.lua")
);

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

    /// Runs a script. Returns the status and the number of the reply.
    pub fn run(&self, node: &Redis, script: &str, more: &[&str]) -> Result<(String, i64)> {
        let [fence, metadata, record] = ["fence", "metadata", "record"].map(|what| self.side(what));
        let ttl = self.ttl_ms.to_string();
        let mut words = vec!["EVAL", script, "5", NODE, &*self.lock, &*fence, &*metadata, &*record];
        words.extend([&*self.marker, &*self.claim, &*ttl, "100000"]);
        words.extend(more);
        match node.cli(&words)?.list() {
            [status, number] => Ok((status.text().to_owned(), number.number().context("no number")?)),
            other => bail!("{other:?}"),
        }
    }

    pub fn ask(&self, node: &Redis, proposal: u64) -> Result<(String, i64)> {
        self.run(node, ASK, &[&proposal.to_string(), &metadata(1)])
    }

    pub fn write_back(&self, node: &Redis, token: i64) -> Result<(String, i64)> {
        self.run(node, WRITE_BACK, &[&token.to_string()])
    }

    pub fn restore(&self, node: &Redis, token: i64) -> Result<(String, i64)> {
        self.run(node, RESTORE, &[&token.to_string(), &metadata(1)])
    }

    pub fn proclaim(&self, node: &Redis, number: u64) -> Result<(String, i64)> {
        self.run(node, PROCLAIM, &[&metadata(number)])
    }

    pub fn write_record(&self, node: &Redis, token: i64, number: u64, text: &str) -> Result<(String, i64)> {
        self.run(node, WRITE_RECORD, &[&token.to_string(), &number.to_string(), text, "50000"])
    }

    /// The record, and the token up to which records may be lost; `None` from a node that has lost its data.
    pub fn read_record(&self, node: &Redis) -> Result<Option<(String, i64)>> {
        let reply = node.cli(&["EVAL", READ_RECORD, "2", NODE, &self.side("record"), &self.marker])?;
        match reply.list() {
            [] => Ok(None),
            [record, lost] => Ok(Some((record.text().to_owned(), lost.number().context("no number")?))),
            other => bail!("{other:?}"),
        }
    }

    /// The number of the proposal; 0 for none.
    pub fn proposed(&self, node: &Redis) -> Result<u64> {
        let text = node.cli(&["HGET", &self.side("metadata"), &self.claim])?;
        let metadata = Metadata::from_json(text.text().as_bytes());
        Ok(metadata.and_then(|metadata| metadata.proposal).map_or(0, |proposal| proposal.number))
    }

    pub fn release(&self, node: &Redis, token: i64) -> Result<(String, i64)> {
        self.run(node, RELEASE, &[&token.to_string(), "released"])
    }

    /// 1, 0 or -1; `None` from a node that has lost its data.
    pub fn renew(&self, node: &Redis) -> Result<Option<i64>> {
        let (fence, metadata, ttl) = (self.side("fence"), self.side("metadata"), self.ttl_ms.to_string());
        let keys = ["EVAL", RENEW, "4", NODE, &self.lock, &fence, &metadata];
        let words = [&keys[..], &[&self.marker, &ttl, "100000", &self.claim]].concat();
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
        let (status, counter) = dead.ask(nodes.node(node), 0)?;
        anyhow::ensure!(status == "mine", "{status}");
        highest = highest.max(counter);
    }
    let token = highest + 1;
    let mut acknowledged = 0;
    for node in 0..written {
        dead.marker = marker(node)?;
        // Late if the key has expired.
        acknowledged += usize::from(dead.write_back(nodes.node(node), token)?.0 == "mine");
    }
    std::thread::sleep(Duration::from_millis(TTL_MS));
    let is_granted = acknowledged > nodes.len() / 2;
    Ok(is_granted.then(|| token.unsigned_abs()))
}
