//! What the data of a claim's node say: the claim's metadata as JSON, or what it proposes as plain text.
//!
//! With [`Names::Raw`](crate::Names::Raw), a candidate's data are the value that it proposes, and nothing else: Curator's
//! `LeaderSelector` takes the data for the id of a participant, and `getLeader()` returns it. Everywhere else the data
//! are JSON. An ordinary lock has JSON in both cases.
//!
//! Plain text has no room for the number of the proposal. There it is the version of the data plus one: 1 when the node
//! is created, and one more with each value proclaimed.

use lockkit_core::{
    FencingToken, Metadata, Proposal,
    backend::{Claim, ClaimId, LeaderEntry},
    limits::PROPOSAL_BYTES_MAX,
};

use crate::{keys, wire::CreatedNode};

/// How the candidates of one configuration write what they propose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProposalForm {
    /// As part of the metadata.
    Json,
    /// As the node's whole data.
    Plain,
}

impl ProposalForm {
    /// Returns the data with which a claim creates its node.
    pub(crate) fn of_claim(self, claim: &Claim) -> String {
        let plain = match self {
            Self::Json => None,
            Self::Plain => plain_value(claim.metadata()),
        };
        plain.unwrap_or_else(|| keys::data(claim.id(), &claim.metadata_json()))
    }

    /// Returns the data of a claim's node with these metadata.
    pub(crate) fn write(self, claim: ClaimId, metadata: &Metadata) -> String {
        let plain = match self {
            Self::Json => None,
            Self::Plain => plain_value(metadata),
        };
        plain.unwrap_or_else(|| keys::data(claim, &metadata.to_json()))
    }

    /// Returns what a holder's node says, whichever program wrote it.
    pub(crate) fn read(self, data: &[u8], czxid: i64, version: i32) -> LeaderEntry {
        let token = CreatedNode::token_of(czxid);
        match self {
            Self::Json => LeaderEntry::of_metadata(token, Metadata::from_json(data)),
            Self::Plain => own_metadata(data).map_or_else(
                || LeaderEntry::new(token, plain_proposal(data, version), None),
                |metadata| LeaderEntry::of_metadata(token, Some(metadata)),
            ),
        }
    }

    /// Returns whether these data already say what is to be written as the proposal of this number, or a later one. The
    /// same plain text may have been proclaimed before, so its version counts, too. Plain text does not show that it is
    /// later: others may have written, which raises the version.
    pub(crate) fn is_written(self, written: &[u8], version: i32, data: &str, number: u64) -> bool {
        let is_same = written == data.as_bytes();
        match self {
            Self::Json => is_same || proposed(written) > number,
            Self::Plain => is_same && number_of(version) >= number,
        }
    }

    /// Returns the leader's entry where its data may not be read.
    pub(crate) fn unreadable(token: FencingToken) -> LeaderEntry {
        LeaderEntry::of_metadata(token, None)
    }
}

/// Returns the proposed value; `None` without one, and for a value that reads like the data of an ordinary lock: that
/// is written as JSON, which every reader understands.
fn plain_value(metadata: &Metadata) -> Option<String> {
    let value = metadata.proposal.as_ref().map(|proposal| &proposal.value);
    value.filter(|value| own_metadata(value.as_bytes()).is_none()).cloned()
}

/// Returns the number of the proposal in these data; 0 if there is none.
fn proposed(data: &[u8]) -> u64 {
    own_metadata(data).and_then(|metadata| metadata.proposal).map_or(0, |proposal| proposal.number)
}

/// Parses the data of a lockkit client's node; `None` for everything else.
fn own_metadata(data: &[u8]) -> Option<Metadata> {
    Metadata::from_json(data).filter(|_| data.starts_with(keys::DATA_START.as_bytes()))
}

/// Returns what another program's data propose, or the plain text of a candidate; empty if it is no text of a
/// proposal's size.
fn plain_proposal(data: &[u8], version: i32) -> Proposal {
    let text = std::str::from_utf8(data).ok().filter(|text| text.len() <= PROPOSAL_BYTES_MAX);
    text.map_or_else(Proposal::default, |text| Proposal::new(text, number_of(version)))
}

/// Returns the number of the proposal that is plain text in the data of this version.
fn number_of(version: i32) -> u64 {
    u64::from(version.unsigned_abs()) + 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate(value: &str, number: u64) -> Metadata {
        Metadata::of_this_process(Some("x")).with_proposal(Proposal::new(value, number))
    }

    #[test]
    fn plain_data_of_a_candidate_are_its_value() {
        let written = ProposalForm::Plain.write(ClaimId::random(), &candidate("node-1:8080", 3));
        assert_eq!(written, "node-1:8080");
        let read = ProposalForm::Plain.read(written.as_bytes(), 7, 2);
        assert_eq!((read.token.get(), read.proposal), (7, Proposal::new("node-1:8080", 3)));
    }

    #[test]
    fn ordinary_lock_proposes_nothing_in_both_forms() {
        let metadata = Metadata::of_this_process(Some("x"));
        for form in [ProposalForm::Json, ProposalForm::Plain] {
            let read = form.read(form.write(ClaimId::random(), &metadata).as_bytes(), 7, 0);
            assert_eq!(
                (read.proposal, read.metadata),
                (Proposal::default(), Some(metadata.clone())),
                "{form:?}"
            );
        }
    }

    #[test]
    fn longest_proposal_is_read() {
        let longest = "x".repeat(PROPOSAL_BYTES_MAX);
        let read = ProposalForm::Plain.read(longest.as_bytes(), 7, 0);
        assert_eq!(read.proposal, Proposal::new(longest, 1));
    }

    #[test]
    fn junk_proposes_nothing() {
        for junk in [&[0xff; 100][..], &[b'x'; PROPOSAL_BYTES_MAX + 1]] {
            for form in [ProposalForm::Json, ProposalForm::Plain] {
                assert_eq!(form.read(junk, 7, 0).proposal, Proposal::default(), "{form:?}");
            }
        }
    }

    #[test]
    fn value_that_reads_like_a_lock_is_still_a_value() {
        let value = keys::data(ClaimId::random(), &Metadata::of_this_process(None).to_json());
        let written = ProposalForm::Plain.write(ClaimId::random(), &candidate(&value, 1));
        assert_eq!(ProposalForm::Plain.read(written.as_bytes(), 7, 0).proposal, Proposal::new(value, 1));
    }

    /// Metadata without the id of a claim: no client of this library has written that to a contender's node.
    #[test]
    fn json_of_another_program_is_its_proposal() {
        let foreign = Metadata::of_this_process(Some("x")).to_json();
        let read = ProposalForm::Plain.read(foreign.as_bytes(), 7, 0);
        assert_eq!((read.proposal, read.metadata), (Proposal::new(foreign.clone(), 1), None));
        assert_eq!(ProposalForm::Plain.write(ClaimId::random(), &candidate(&foreign, 1)), foreign);
    }

    #[test]
    fn json_of_the_same_number_and_another_value_is_not_written_yet() {
        let id = ClaimId::random();
        let [written, other] = ["a", "b"].map(|value| ProposalForm::Json.write(id, &candidate(value, 2)));
        assert!(ProposalForm::Json.is_written(written.as_bytes(), 1, &written, 2));
        assert!(!ProposalForm::Json.is_written(written.as_bytes(), 1, &other, 2));
        assert!(ProposalForm::Json.is_written(written.as_bytes(), 1, &other, 1), "a later one is there");
    }

    #[test]
    fn same_plain_text_of_a_later_number_is_not_written_yet() {
        for (version, number, expected) in [(0, 1, true), (0, 2, false), (1, 2, true), (2, 2, true)] {
            assert_eq!(ProposalForm::Plain.is_written(b"x", version, "x", number), expected);
        }
        assert!(!ProposalForm::Plain.is_written(b"y", 5, "x", 2));
        assert!(ProposalForm::Json.is_written(b"x", 0, "x", 9));
    }

    proptest! {
        #[test]
        fn every_value_is_read_as_it_was_written(value in ".{0,40}") {
            for form in [ProposalForm::Json, ProposalForm::Plain] {
                let written = form.write(ClaimId::random(), &candidate(&value, 1));
                let read = form.read(written.as_bytes(), 7, 0);
                prop_assert_eq!(read.proposal, Proposal::new(value.clone(), 1));
            }
        }
    }
}
