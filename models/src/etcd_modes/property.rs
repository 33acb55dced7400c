//! The conditions of the properties.

use super::*;

impl State {
    /// The claims that believe to hold the lock, except those that an operator has evicted: a heartbeat will report
    /// that.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.phase == Phase::Held && !claim.evicted)
    }

    /// Whether a claim holds although one before it is not admitted.
    pub(super) fn has_overtaken(&self, model: &EtcdModes) -> bool {
        // By the rule itself, also where the claims follow another one.
        let rule = EtcdModes { without: None, ..model.clone() };
        let must_wait = |claim: &ClaimNo| {
            let created = self.keys[claim.index()];
            created > 0 && !self.is_admitted(&rule, *claim, created)
        };
        let first = ClaimNo::all().filter(must_wait).map(|claim| self.keys[claim.index()]).min();
        first.is_some_and(|first| self.holders().any(|holder| first < holder.own))
    }

    /// Whether every claim that was started is granted or has ended.
    pub(super) fn is_settled(&self) -> bool {
        let settled = |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended);
        self.broken.is_some() || self.claims.iter().all(settled)
    }

    /// Requests are executed and answered, handoffs arrive, holders release, and the lease of an ended session expires.
    pub(super) fn is_fair(&self, action: &Action) -> bool {
        match action {
            Action::Enqueue(_)
            | Action::Receive(_)
            | Action::Deliver(_)
            | Action::Recheck(_)
            | Action::Release(_)
            | Action::Miss(_)
            | Action::ReadQueue(_)
            | Action::Delete(_)
            | Action::HandOff(_) => true,
            Action::Expire(client) => self.clients[*client].session_ended,
            _ => false,
        }
    }
}
