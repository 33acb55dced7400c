//! Who holds or waits: the record that a backend stores beside a claim, for people and `inspect`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::limits::{LABEL_BYTES_MAX, METADATA_BYTES_MAX};

/// Host, process, label and time of a claim. Never part of the protocol: nothing is decided by it.
///
/// Stored as a JSON object of at most [`METADATA_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Metadata {
    /// Host name of the claiming process.
    pub host: String,
    /// Process id of the claiming process.
    pub pid: u32,
    /// Free text that the user gave the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When the claim was made, in milliseconds since 1970 by the wall clock of its host.
    pub since_ms: u64,
}

impl Metadata {
    /// The record of a claim that this process makes now.
    pub fn of_this_process(label: Option<&str>) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self {
            host: cut(&gethostname::gethostname().to_string_lossy(), LABEL_BYTES_MAX),
            pid: std::process::id(),
            label: label.map(|label| cut(label, LABEL_BYTES_MAX)),
            since_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// The record as JSON; never longer than [`METADATA_BYTES_MAX`] (a label that escapes to more is left out).
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        if json.len() <= METADATA_BYTES_MAX {
            return json;
        }
        let short = Self { host: String::new(), label: None, ..self.clone() };
        serde_json::to_string(&short).unwrap_or_default()
    }

    /// Reads a record that anybody may have written: `None` for whatever is not one, or is too long.
    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > METADATA_BYTES_MAX {
            return None;
        }
        serde_json::from_slice(bytes).ok()
    }
}

/// At most `bytes_max` bytes of `text`, cut between characters.
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

    #[test]
    fn a_record_survives_its_json() {
        let record = Metadata::of_this_process(Some("nightly \"backup\"\n"));
        assert_eq!(Metadata::from_json(record.to_json().as_bytes()), Some(record));
    }

    #[test]
    fn foreign_values_are_no_record() {
        for foreign in [&b""[..], b"{", b"[]", b"{\"pid\":-1}", &[0xff; 40], &[b' '; METADATA_BYTES_MAX + 1]]
        {
            assert_eq!(Metadata::from_json(foreign), None);
        }
    }

    #[test]
    fn no_label_makes_the_record_too_long() {
        let hostile = Metadata::of_this_process(Some(&"\u{1}".repeat(10_000)));
        assert!(hostile.to_json().len() <= METADATA_BYTES_MAX);
        assert!(Metadata::from_json(hostile.to_json().as_bytes()).is_some());
    }
}
