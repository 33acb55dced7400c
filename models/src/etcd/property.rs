//! The conditions of the properties.

use super::*;

impl State {
    pub(super) fn has_own_key(&self, claim: &Claim) -> bool {
        claim.key.is_some_and(|key| self.is_contender((key, claim.own)))
    }

    /// The claims that believe to hold the lock, except those that an operator has evicted: a heartbeat will report
    /// that.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.phase == Phase::Held && !claim.evicted)
    }

    pub(super) fn has_overtaken(&self) -> bool {
        let waiters =
            || self.claims.iter().filter(|claim| claim.phase == Phase::Waiting && self.has_own_key(claim));
        self.holders().any(|holder| waiters().any(|waiter| waiter.own < holder.own))
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let rests = |claim: &Claim| {
            claim.call == Call::Idle
                && matches!(claim.phase, Phase::New | Phase::Waiting | Phase::Held | Phase::Ended)
        };
        self.late.is_empty()
            && self.handoffs.iter().all(|handoffs| handoffs.is_empty())
            && self.claims.iter().all(rests)
    }

    pub(super) fn has_orphan(&self) -> bool {
        self.keys.iter().flatten().filter(|key| key.by != ClaimNo::FOREIGN).any(|key| {
            !self.clients[key.by.client()].session_ended && self.claims[key.by.index()].phase == Phase::Ended
        })
    }
}
