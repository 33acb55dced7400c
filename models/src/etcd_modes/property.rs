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
        let rule = model.full();
        let must_wait = |claim: &ClaimNo| {
            let created = self.keys[claim.index()];
            created > 0 && !self.is_admitted(&rule, *claim, created)
        };
        let first = ClaimNo::all().filter(must_wait).map(|claim| self.keys[claim.index()]).min();
        first.is_some_and(|first| self.holders().any(|holder| first < holder.own))
    }
}
