//! What is true in the end.

use super::*;

impl State {
    /// Whether every node counts. With only a minority in order it is for an operator to judge which data are lost.
    pub(super) fn is_settled(&self) -> bool {
        let emptied = self.nodes.iter().filter(|node| node.unmarked).count();
        self.broken.is_some() || emptied == 0 || NODES - emptied < MAJORITY
    }

    /// Requests are executed, claims without a majority give up, keys of claims that are over go, clients bring nodes back.
    /// Holders need not release, but one whose beat no majority answers ends with its deadline.
    pub(super) fn is_bound(&self, action: &Action) -> bool {
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
            Action::Expire(node) => self.nodes[*node].key.is_some_and(|claim| !self.lives(claim)),
            Action::Release(client) => {
                let claim = self.claim(*client);
                self.nodes.iter().filter(|node| node.key == Some(claim)).count() < MAJORITY
            }
            Action::Begin(..) | Action::Break(..) | Action::Restart(_) => false,
        }
    }
}
