//! The conditions of the properties.

use super::*;

impl State {
    pub(super) fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().filter(|claim| claim.phase == Phase::Held && !claim.evicted)
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
            let claim = &self.claims[node.claim.index()];
            claim.phase != Phase::Ended && claim.own == Some(*node)
        };
        let will_end = |node: &Node| !node.session.1 && self.clients[node.session.0].second_session;
        self.nodes.iter().any(|node| !is_owned(node) && !will_end(node))
    }
}
