//! The conditions of the properties.

use super::*;

impl State {
    /// The claims that believe to hold the lock.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.phase == Phase::Held)
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let moves =
            |claim: &Claim| matches!(claim.phase, Phase::Acquiring | Phase::Counted | Phase::Releasing);
        self.late.is_empty() && !self.claims.iter().any(moves)
    }

    pub(super) fn has_orphan(&self) -> bool {
        let has_ended = |claim: &ClaimNo| self.claims[claim.index()].phase == Phase::Ended;
        let has_entry =
            |claim: ClaimNo| self.server.holders[claim.index()] > 0 || self.server.queue.contains(&claim);
        ClaimNo::all().filter(has_ended).any(has_entry)
    }
}
