//! What the properties ask of a state.

use super::*;

impl State {
    pub(super) fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.phase == Phase::Held && !claim.robbed)
    }

    pub(super) fn has_overtaken(&self) -> bool {
        let place = |claim: &Claim| self.nodes.iter().position(|node| Some(*node) == claim.own);
        let waiters = || self.claims.iter().filter(|claim| claim.phase == Phase::Waiting).filter_map(place);
        self.holders().filter_map(place).any(|holder| waiters().any(|waiter| waiter < holder))
    }

    pub(super) fn is_at_rest(&self) -> bool {
        let rests =
            |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Waiting | Phase::Held | Phase::Ended);
        self.claims.iter().all(rests) && self.clients.iter().all(|client| client.view == self.nodes)
    }

    pub(super) fn has_orphan(&self) -> bool {
        let is_owned = |node: &Node| {
            let claim = &self.claims[usize::from(node.claim)];
            claim.phase != Phase::Ended && claim.own == Some(*node)
        };
        let will_end =
            |node: &Node| !node.session.1 && self.clients[usize::from(node.session.0)].second_session;
        self.nodes.iter().any(|node| !is_owned(node) && !will_end(node))
    }

    /// Whether somebody waits for a lock that nobody holds or will lose, and no waiter has a reason to look.
    pub(super) fn is_stuck(&self, model: &ZooKeeper) -> bool {
        let waits = |claim: &ClaimNo| self.claims[usize::from(*claim)].phase == Phase::Waiting;
        let looks = |claim: ClaimNo| {
            let mut actions = Vec::new();
            self.actions_of_waiter(model, claim, &mut actions);
            !actions.is_empty()
        };
        let held = self.claims.iter().any(|claim| claim.phase == Phase::Held);
        let ending = self.clients.iter().any(|client| client.second_session && !client.first_expired);
        let mut waiters = (0..CLAIMS as ClaimNo).filter(waits).peekable();
        waiters.peek().is_some() && !held && !ending && !waiters.any(looks)
    }
}
