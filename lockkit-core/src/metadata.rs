//! The record about a holder or waiter that a backend stores with a claim, for people and `inspect`.

use std::{
    fmt::Write,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use crate::limits::PROPOSAL_BYTES_MAX;
use crate::limits::{LABEL_BYTES_MAX, METADATA_BYTES_MAX};

/// Host, process, label and time of a claim. It is informational; no protocol decision depends on it.
///
/// Stored as a JSON object of at most [`METADATA_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metadata {
    /// Host name of the claiming process.
    pub host: String,
    /// Process id of the claiming process.
    pub pid: u32,
    /// The label that the user set on the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When the claim was created, in milliseconds since 1970 by the wall clock of its host.
    pub since_ms: u64,
    /// What the claim proposes in an election.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<Proposal>,
}

/// The value that a candidate or leader of an election proposes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Proposal {
    /// The value, at most [`PROPOSAL_BYTES_MAX`] bytes of UTF-8.
    pub value: String,
    /// Rises with each value that a leader proclaims; 1 for the value of its campaign.
    pub number: u64,
}

impl Proposal {
    /// Creates a proposal.
    pub fn new(value: impl Into<String>, number: u64) -> Self {
        Self { value: value.into(), number }
    }
}

impl Metadata {
    /// Returns the record of a claim that this process creates now.
    pub fn of_this_process(label: Option<&str>) -> Self {
        Self {
            host: cut(&host_name(), LABEL_BYTES_MAX),
            pid: std::process::id(),
            label: label.map(|label| cut(label, LABEL_BYTES_MAX)),
            since_ms: now_ms(),
            proposal: None,
        }
    }

    /// Adds what the claim proposes in an election.
    #[must_use]
    pub fn with_proposal(mut self, proposal: Proposal) -> Self {
        self.proposal = Some(proposal);
        self
    }

    /// Returns the record as JSON of at most [`METADATA_BYTES_MAX`] bytes; a host and label whose escaped
    /// forms are longer are left out, a proposal never.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        if json.len() <= METADATA_BYTES_MAX {
            return json;
        }
        let short = Self { host: String::new(), label: None, ..self.clone() };
        serde_json::to_string(&short).unwrap_or_default()
    }

    /// Parses a record from an untrusted source; returns `None` if it is invalid or too long.
    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > METADATA_BYTES_MAX {
            return None;
        }
        serde_json::from_slice(bytes).ok()
    }
}

/// The metadata of a claim: a part that all claims of a client share, and what differs between them.
#[derive(Clone, Debug)]
pub(crate) struct ClaimMetadata {
    client: Arc<ClientMetadata>,
    since_ms: u64,
    proposal: Option<Arc<Proposal>>,
    /// Created on the first call of [`record`](Self::record).
    record: OnceLock<Box<Metadata>>,
}

/// The constant part of a client's metadata. Host and process are read once per client: the threads of its runtime do not
/// survive a fork, so it creates no claim in another process.
#[derive(Debug)]
pub(crate) struct ClientMetadata {
    host: String,
    pid: u32,
    label: Option<String>,
    /// The JSON up to the value of `since_ms`.
    json_start: String,
}

impl ClientMetadata {
    pub(crate) fn of_this_process(label: Option<&str>) -> Arc<Self> {
        ClaimMetadata::from(Metadata::of_this_process(label)).client
    }
}

impl ClaimMetadata {
    /// Returns the metadata of a claim that the client makes now.
    pub(crate) fn now(client: &Arc<ClientMetadata>, proposal: Option<Proposal>) -> Self {
        let (client, proposal) = (Arc::clone(client), proposal.map(Arc::new));
        Self { client, since_ms: now_ms(), proposal, record: OnceLock::new() }
    }

    pub(crate) fn proposal(&self) -> Option<&Proposal> {
        self.proposal.as_deref()
    }

    pub(crate) fn record(&self) -> &Metadata {
        let ClientMetadata { host, pid, label, .. } = &*self.client;
        self.record.get_or_init(|| {
            let (host, label, proposal) = (host.clone(), label.clone(), self.proposal.as_deref().cloned());
            Box::new(Metadata { host, pid: *pid, label, since_ms: self.since_ms, proposal })
        })
    }

    /// Returns what [`Metadata::to_json`] returns for the record.
    pub(crate) fn to_json(&self) -> String {
        let start = &self.client.json_start;
        if self.proposal.is_some() || start.len() + JSON_END_BYTES_MAX > METADATA_BYTES_MAX {
            return self.record().to_json();
        }
        let mut json = String::with_capacity(start.len() + JSON_END_BYTES_MAX);
        json.push_str(start);
        // Writing to a string cannot fail.
        let _ = write!(json, "{}}}", self.since_ms);
        json
    }
}

/// The longest number, and the brace behind it.
const JSON_END_BYTES_MAX: usize = 21;

impl From<Metadata> for ClaimMetadata {
    fn from(record: Metadata) -> Self {
        let Metadata { host, pid, label, since_ms, proposal } = record;
        let constant = Metadata { host, pid, label, since_ms: 0, proposal: None };
        let mut json_start = serde_json::to_string(&constant).unwrap_or_default();
        json_start.truncate(json_start.len().saturating_sub("0}".len()));
        let Metadata { host, label, .. } = constant;
        let client = Arc::new(ClientMetadata { host, pid, label, json_start });
        Self { client, since_ms, proposal: proposal.map(Arc::new), record: OnceLock::new() }
    }
}

/// Returns the milliseconds since 1970 by the wall clock.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    // Windows sets it for every process.
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// Returns at most `bytes_max` bytes of `text`, cut between characters.
fn cut(text: &str, bytes_max: usize) -> String {
    text.chars()
        .scan(0, |length, character| {
            *length += character.len_utf8();
            (*length <= bytes_max).then_some(character)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::PROPOSAL_BYTES_MAX;

    #[test]
    fn record_survives_its_json() {
        let record = Metadata::of_this_process(Some("nightly \"backup\"\n"));
        assert_eq!(Metadata::from_json(record.to_json().as_bytes()), Some(record));
    }

    #[test]
    fn foreign_values_are_rejected() {
        for foreign in [&b""[..], b"{", b"[]", b"{\"pid\":-1}", &[0xff; 40], &[b' '; METADATA_BYTES_MAX + 1]]
        {
            assert_eq!(Metadata::from_json(foreign), None);
        }
    }

    #[test]
    fn record_of_the_longest_length_is_the_longest_that_is_read() {
        let record = Metadata::of_this_process(None);
        let mut json = record.to_json();
        json.extend(std::iter::repeat_n(' ', METADATA_BYTES_MAX - json.len()));
        assert_eq!(Metadata::from_json(json.as_bytes()), Some(record));
        json.push(' ');
        assert_eq!(Metadata::from_json(json.as_bytes()), None);
    }

    #[test]
    fn escaped_texts_do_not_exceed_the_limit() {
        let proposal = Proposal::new("\u{1}".repeat(PROPOSAL_BYTES_MAX), u64::MAX);
        let hostile =
            Metadata::of_this_process(Some(&"\u{1}".repeat(10_000))).with_proposal(proposal.clone());
        assert!(hostile.to_json().len() <= METADATA_BYTES_MAX);
        let read = Metadata::from_json(hostile.to_json().as_bytes()).unwrap();
        assert_eq!(read.proposal, Some(proposal));
    }

    #[test]
    fn claim_with_a_record_that_is_too_long_has_a_json_that_is_read() {
        let record = Metadata { host: "h".repeat(METADATA_BYTES_MAX), ..Metadata::of_this_process(None) };
        let json = ClaimMetadata::from(record).to_json();
        assert!(Metadata::from_json(json.as_bytes()).is_some(), "{} bytes", json.len());
    }

    #[test]
    fn claims_of_a_client_have_the_json_of_their_records() {
        let labels = [None, Some(""), Some("nightly \"backup\"\n"), Some(&*"\u{1}".repeat(10_000))];
        for (label, proposal) in labels
            .into_iter()
            .flat_map(|label| [None, Some(Proposal::new("node-1", 3))].map(|proposal| (label, proposal)))
        {
            let claim = ClaimMetadata::now(&ClientMetadata::of_this_process(label), proposal.clone());
            let expected =
                Metadata { since_ms: claim.since_ms, proposal, ..Metadata::of_this_process(label) };
            assert_eq!(claim.record(), &expected);
            assert_eq!(claim.to_json(), expected.to_json());
            assert_eq!(ClaimMetadata::from(expected.clone()).record(), &expected);
        }
        let (before, claim) = (now_ms(), ClaimMetadata::now(&ClientMetadata::of_this_process(None), None));
        assert!(
            (before..=now_ms()).contains(&claim.record().since_ms),
            "the time of the claim, not of the client"
        );
    }
}
