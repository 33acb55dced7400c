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
        self.keys.iter().flatten().any(|key| {
            !self.clients[key.by.client()].over && self.claims[key.by.index()].phase == Phase::Ended
        })
    }

    /// Whether somebody waits, nobody holds the lock or will end, and no waiter has a reason to look.
    pub(super) fn is_stuck(&self, model: &Etcd) -> bool {
        let mut waiters =
            ClaimNo::all().filter(|claim| self.claims[claim.index()].phase == Phase::Waiting).peekable();
        let over = self.clients.iter().any(|client| client.over && !client.lease_gone);
        let held = self.claims.iter().any(|claim| claim.phase == Phase::Held);
        let mut ends = |number: ClaimNo| {
            let claim = &self.claims[number.index()];
            let first = self.contenders().all(|(_, created)| created >= claim.own);
            let mut actions = Vec::new();
            self.actions_of_waiter(model, number, &mut actions);
            !actions.is_empty() && (first || !self.is_there(claim))
        };
        waiters.peek().is_some() && !held && !over && !waiters.any(&mut ends)
    }
}
