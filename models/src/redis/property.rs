//! The conditions of the properties.

use super::*;

impl State {
    pub(super) fn is_waiting(&self, claim: ClaimNo) -> bool {
        self.claims[claim.index()].phase == Phase::Waiting && !self.server.lapsed[claim.index()]
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let rests = |claim: &Claim| {
            let is_notified = claim.phase == Phase::Waiting && claim.message != Message::None;
            !is_notified && !matches!(claim.phase, Phase::Acquiring | Phase::Answered | Phase::Releasing)
        };
        self.late.is_empty() && self.claims.iter().all(rests)
    }

    pub(super) fn has_orphan(&self) -> bool {
        let left = |claim: ClaimNo| {
            let owner = &self.claims[claim.index()];
            owner.phase == Phase::Ended && !owner.excused && !self.has_failed_over
        };
        self.server.lock.is_some_and(|(claim, _)| left(claim))
            || self.server.queue.iter().any(|claim| left(*claim))
    }
}
