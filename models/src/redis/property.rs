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

    /// Whether every claim that was started is granted or has ended.
    pub(super) fn is_settled(&self) -> bool {
        let settled =
            |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended | Phase::Dead);
        self.broken.is_some() || self.claims.iter().all(settled)
    }

    /// Scripts run, answers arrive, holders release, and the entries of dead clients lapse.
    pub(super) fn is_fair(&self, action: &Action) -> bool {
        match action {
            Action::Run(_)
            | Action::RunLate(_)
            | Action::ReceiveLate(_)
            | Action::ReceiveLateWait(_)
            | Action::Renew(_)
            | Action::Release(_)
            | Action::Expire
            | Action::Deliver(_)
            | Action::DeliverAgain(_) => true,
            Action::Lapse(claim) => {
                let claim = &self.claims[claim.index()];
                claim.phase == Phase::Dead || claim.excused
            }
            _ => false,
        }
    }
}
