//! What the properties ask of a state.

use super::*;

impl State {
    pub(super) fn is_waiting(&self, claim: ClaimNo) -> bool {
        self.claims[usize::from(claim)].phase == Phase::Waiting && !self.server.lapsed[usize::from(claim)]
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let rests = |claim: &Claim| {
            let told = claim.phase == Phase::Waiting && claim.message != Message::None;
            !told && !matches!(claim.phase, Phase::Acquiring | Phase::Answered | Phase::Releasing)
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

    /// Whether every claim that was made is granted or over.
    pub(super) fn is_settled(&self) -> bool {
        let settled =
            |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended | Phase::Dead);
        self.broken.is_some() || self.claims.iter().all(settled)
    }

    /// Time passes for those who have died, and holders release.
    pub(super) fn is_bound(&self, action: &Action) -> bool {
        match action {
            Action::Run(_)
            | Action::RunLate(_)
            | Action::Hear(_)
            | Action::Renew(_)
            | Action::Release(_)
            | Action::TimeOut(_)
            | Action::Expire
            | Action::Deliver(_) => true,
            Action::Lapse(claim) => {
                let claim = &self.claims[usize::from(*claim)];
                claim.phase == Phase::Dead || claim.excused
            }
            _ => false,
        }
    }
}
