//! What the properties ask of a state.

use super::*;

impl State {
    pub(super) fn is_waiting(&self, claim: ClaimNo) -> bool {
        self.claims[usize::from(claim)].phase == Phase::Waiting && !self.server.lapsed[usize::from(claim)]
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let rests = |claim: &Claim| {
            let told = claim.phase == Phase::Waiting && claim.message != Message::None;
            !told && !matches!(claim.phase, Phase::Acquiring | Phase::Releasing)
        };
        self.late.is_empty() && self.claims.iter().all(rests)
    }

    pub(super) fn has_orphan(&self) -> bool {
        let left = |claim: ClaimNo| {
            let owner = &self.claims[usize::from(claim)];
            owner.phase == Phase::Ended && !owner.excused && !self.has_failed_over
        };
        self.server.lock.is_some_and(|(claim, _)| left(claim))
            || self.server.queue.iter().any(|claim| left(*claim))
    }

    /// Whether somebody waits for a lock that nobody holds or will lose by itself, and no waiter has a reason to ask.
    pub(super) fn is_stuck(&self, model: &Redis) -> bool {
        let free = match self.server.lock {
            None => true,
            Some((claim, _)) => self.claims[usize::from(claim)].phase == Phase::Waiting,
        };
        let waits = self.claims.iter().any(|claim| claim.phase == Phase::Waiting);
        let asks = model.has(Step::Recheck);
        free && waits && !asks
    }
}
