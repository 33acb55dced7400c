//! The leader of a lock, as a majority of the nodes shows it, and what it proclaims.
//!
//! * A node does not answer: the others decide if they can. If the lock may be held at nodes that did not answer, the
//!   result is not "no leader" but an error, and the caller asks again.
//! * The counters of the nodes with the leader's claim differ, and a node that would decide does not answer: the token
//!   is not known, which is an error too. Nodes have different counters only where one of them had a higher counter than
//!   the client's clock when it was asked.
//! * A proclaim reaches a majority: from then on every answer shows it or a later one. Both the readers and the proclaim
//!   had a majority of nodes with the claim, and the node that they share keeps the highest number. A node that loses
//!   its data meanwhile gets the newest proposal when the holder restores the lock there.
//! * A proclaim reaches only a minority: one reader may see it, and the next one may not, until the holder's repeated
//!   request reaches a majority. Once the hold is lost it may never be seen again.
//! * A late copy of an earlier proclaim, ask or restore: a node keeps the number of the claim's last proposal with the
//!   counter, and refuses lower ones, also after it has lost the lock.
//!   What remains is a copy of a restore that is delayed for longer than the longest ttl, and reaches a node that has
//!   lost its data and counts again, before the next heartbeat does: that node has the earlier proposal until the next
//!   proclaim.
//! * Another program has the lock: it stores no metadata and has no token, so there is no leader.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::{
    ErrorKind, FencingToken, LockName, Metadata, Result,
    backend::{Elections, Grant, LeaderEntry, LeaderWatch, Polling},
};

use crate::{
    error::{Effect, RequestError},
    keys::LockKeys,
    redlock::{
        lock_view::{LockView, majority_value, votes},
        session::RedlockSession,
        wire::{LockState, inspect},
    },
};

/// What the answers of some nodes say about the leader.
#[derive(Debug, PartialEq, Eq)]
enum LeaderView {
    Leader(LeaderEntry),
    /// No claim has a majority.
    Nobody,
    /// A claim has a majority; a node that did not answer decides on its token.
    TokenUnknown,
    /// Nodes that did not answer decide.
    Undecided,
}

#[async_trait]
impl Elections for RedlockSession {
    async fn leader(&self, name: &LockName) -> Result<Option<LeaderEntry>> {
        let keys = self.layout.keys(name)?;
        self.find_leader(&keys).await.map_err(|fault| fault.into_error("read the leader").with_lock(name))
    }

    /// The nodes publish releases only, each on its own: polling finds every change.
    async fn watch(&self, name: &LockName) -> Result<Box<dyn LeaderWatch>> {
        self.layout.keys(name)?;
        Ok(Box::new(Polling))
    }

    async fn proclaim(&self, grant: &Grant, metadata: &Metadata) -> Result<bool> {
        self.proclaim_held(grant, metadata)
            .await
            .map_err(|fault| fault.into_error("proclaim").with_lock(grant.name()))
    }
}

impl RedlockSession {
    async fn find_leader(&self, keys: &LockKeys) -> Result<Option<LeaderEntry>, RequestError> {
        if self.closed.is_cancelled() {
            return Err(RequestError::session_closed());
        }
        let nodes = &self.context.nodes;
        let decide = |seen: &[LockState]| leadership(seen, nodes.count(), nodes.majority());
        let is_decided =
            |seen: &[LockState]| matches!(decide(seen), LeaderView::Leader(_) | LeaderView::Nobody);
        let view = LockView::take(nodes, inspect(keys), is_decided).await;
        match decide(&view.seen) {
            LeaderView::Leader(entry) => Ok(Some(entry)),
            LeaderView::Nobody => Ok(None),
            LeaderView::TokenUnknown => Err(token_unknown()),
            LeaderView::Undecided => Err(view.no_majority(nodes)),
        }
    }

    async fn proclaim_held(&self, grant: &Grant, metadata: &Metadata) -> Result<bool, RequestError> {
        let Some(won) = self.held(grant)? else { return Ok(false) };
        let metadata: Arc<str> = metadata.to_json().into();
        won.set_metadata(Arc::clone(&metadata));
        self.write_held(self.context.requests.proclaim(&won.attempt, &metadata)).await
    }
}

fn token_unknown() -> RequestError {
    RequestError::new(
        Effect::Busy,
        ErrorKind::Unavailable,
        "the nodes that answered have different counters for the leader: its token is not known",
    )
}

/// Decides by the answers of nodes that count. `count`: of all nodes.
fn leadership(seen: &[LockState], count: usize, majority: usize) -> LeaderView {
    let missing = count.saturating_sub(seen.len());
    let values = votes(seen.iter().map(|one| &*one.value).filter(|value| !value.is_empty()));
    let Some((value, having_it)) = values.into_iter().max_by_key(|(_, having_it)| *having_it) else {
        return if seen.len() >= majority { LeaderView::Nobody } else { LeaderView::Undecided };
    };
    if having_it < majority {
        let may_be_held = having_it + missing >= majority;
        return if may_be_held { LeaderView::Undecided } else { LeaderView::Nobody };
    }
    let having = || seen.iter().filter(|one| one.value == value);
    if !having().any(|one| one.has_metadata) {
        // Another program.
        return LeaderView::Nobody;
    }
    // A counter that a majority has for this claim is its token.
    let Some(token) = majority_value(having().map(|one| &one.counter), majority) else {
        return LeaderView::TokenUnknown;
    };
    let newest = having()
        .filter_map(|one| Metadata::from_json(&one.metadata))
        .max_by_key(|metadata| metadata.proposal.as_ref().map(|proposal| proposal.number));
    LeaderView::Leader(LeaderEntry::of_metadata(FencingToken::new(*token), newest))
}

#[cfg(test)]
mod tests {
    use lockkit_core::Proposal;

    use super::*;

    fn node(value: &str, counter: u64, number: u64) -> LockState {
        let metadata = Metadata::of_this_process(None).with_proposal(Proposal::new("", number));
        LockState {
            value: value.into(),
            counter,
            metadata: metadata.to_json().into_bytes(),
            has_metadata: true,
            pttl: -1,
        }
    }

    fn of_three(seen: &[LockState]) -> LeaderView {
        leadership(seen, 3, 2)
    }

    fn found(seen: &[LockState]) -> (u64, u64) {
        match of_three(seen) {
            LeaderView::Leader(entry) => (entry.token.get(), entry.proposal.number),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn leader_has_a_majority_and_its_highest_proposal() {
        assert_eq!(found(&[node("a", 7, 1), node("a", 7, 5)]), (7, 5));
        assert_eq!(found(&[node("a", 7, 5), node("b", 9, 8), node("a", 7, 2)]), (7, 5));
        let bare = LockState { metadata: Vec::new(), ..node("a", 7, 1) };
        assert_eq!(found(&[bare.clone(), node("a", 7, 3)]), (7, 3), "one has too long metadata");
        assert_eq!(found(&[bare.clone(), bare]), (7, 0));
    }

    #[test]
    fn nobody_leads_only_if_no_claim_can_have_a_majority() {
        for (seen, expected) in [
            (vec![], LeaderView::Undecided),
            (vec![node("", 7, 1)], LeaderView::Undecided),
            (vec![node("", 7, 1), node("", 7, 1)], LeaderView::Nobody),
            (vec![node("", 7, 1), node("a", 7, 1)], LeaderView::Undecided),
            (vec![node("", 7, 1), node("a", 7, 1), node("", 7, 1)], LeaderView::Nobody),
            (vec![node("a", 7, 1), node("b", 7, 1), node("", 7, 1)], LeaderView::Nobody),
        ] {
            assert_eq!(of_three(&seen), expected, "{seen:?}");
        }
    }

    #[test]
    fn token_needs_a_majority() {
        assert_eq!(of_three(&[node("a", 7, 1), node("a", 9, 1)]), LeaderView::TokenUnknown);
        assert_eq!(found(&[node("a", 7, 1), node("a", 9, 1), node("a", 7, 1)]), (7, 1));
    }

    #[test]
    fn another_program_is_no_leader() {
        let foreign = || LockState { metadata: Vec::new(), has_metadata: false, ..node("f00d", 7, 1) };
        assert_eq!(of_three(&[foreign(), foreign()]), LeaderView::Nobody);
    }
}
