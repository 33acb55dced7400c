//! What the properties ask of a state.

use super::*;

impl State {
    pub(super) fn is_there(&self, claim: &Claim) -> bool {
        claim.key.is_some_and(|key| self.is_contender((key, claim.own)))
    }

    /// Who believes to hold the lock, but for those whom an operator has robbed of it: they hear of it by a beat.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.phase == Phase::Held && !claim.robbed)
    }

    pub(super) fn has_overtaken(&self) -> bool {
        let waiters =
            || self.claims.iter().filter(|claim| claim.phase == Phase::Waiting && self.is_there(claim));
        self.holders().any(|holder| waiters().any(|waiter| waiter.own < holder.own))
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let rests = |claim: &Claim| {
            claim.call == Call::Idle
                && matches!(claim.phase, Phase::New | Phase::Waiting | Phase::Held | Phase::Ended)
        };
        self.strays.is_empty()
            && self.mails.iter().all(|mails| mails.is_empty())
            && self.claims.iter().all(rests)
    }

    pub(super) fn has_orphan(&self) -> bool {
        self.keys.iter().flatten().filter(|key| key.by != FOREIGN).any(|key| {
            !self.clients[key.by.client()].over && self.claims[key.by.index()].phase == Phase::Ended
        })
    }

    /// Whether every claim that was made is granted or over.
    pub(super) fn is_settled(&self) -> bool {
        let settled = |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended);
        self.broken.is_some() || self.claims.iter().all(settled)
    }

    /// Requests are executed and answered, mails arrive, holders release, and a lease that its client has left ends.
    pub(super) fn is_bound(&self, action: &Action) -> bool {
        match action {
            Action::Send(_)
            | Action::Execute(_)
            | Action::Receive(_)
            | Action::ExecuteLate(_)
            | Action::Deliver(_)
            | Action::Look(_)
            | Action::Told(_)
            | Action::Release(_)
            | Action::Miss(_)
            | Action::ForeignIsFirst
            | Action::ForeignGoes => true,
            Action::Expire(client) => self.clients[*client].over,
            _ => false,
        }
    }
}
