//! The conditions of liveness.

use super::*;

impl State {
    /// Whether every node counts. If only a minority does, an operator must judge which data are lost.
    pub(super) fn is_settled(&self) -> bool {
        let emptied = self.nodes.iter().filter(|node| node.unmarked).count();
        self.broken.is_some() || emptied == 0 || NODES - emptied < MAJORITY
    }

    /// Requests are executed, claims without a majority give up, keys of ended claims expire, clients bring nodes back.
    /// Holders need not release, but a hold whose heartbeat no majority answers ends with its deadline.
    pub(super) fn is_fair(&self, action: &Action) -> bool {
        match action {
            Action::Execute(..)
            | Action::ExecuteLate(..)
            | Action::WriteBack(_)
            | Action::GiveUp(_)
            | Action::Renew(_)
            | Action::Restore(..)
            | Action::ExecuteRelease(..)
            | Action::Learn(_)
            | Action::Mark(_) => true,
            Action::Expire(node) => self.nodes[*node].key.is_some_and(|claim| !self.is_active(claim)),
            Action::Release(client) => {
                let claim = self.claim(*client);
                self.nodes.iter().filter(|node| node.key == Some(claim)).count() < MAJORITY
            }
            Action::Start(..) | Action::Break(..) | Action::Restart(_) => false,
        }
    }
}
