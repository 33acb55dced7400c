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

    /// Whether every claim that was started is granted or has ended.
    pub(super) fn is_settled(&self) -> bool {
        let settled = |claim: &Claim| matches!(claim.phase, Phase::New | Phase::Held | Phase::Ended);
        self.broken.is_some() || self.claims.iter().all(settled)
    }

    /// Requests are answered, events arrive, holders release, and a session that its client has left expires.
    pub(super) fn is_fair(&self, action: &Action) -> bool {
        match action {
            Action::Create(_)
            | Action::LookUp(_)
            | Action::List(_)
            | Action::ReceiveLate(_)
            | Action::Recheck(_)
            | Action::Notify(_)
            | Action::Delete(_)
            | Action::Release(_)
            | Action::Heartbeat(_)
            | Action::CatchUp(_) => true,
            Action::Expire(client) => self.clients[*client].second_session,
            _ => false,
        }
    }
}
