//! The conditions of the properties.

use super::*;

impl State {
    pub(super) fn is_of(&self, number: usize) -> bool {
        matches!(self.entry, ServerEntry::Of { task, .. } if task == number)
    }

    pub(super) fn believes_rightly(&self, number: usize) -> bool {
        let task = &self.tasks[number];
        let believes =
            task.hold.is_held() && self.callers.iter().any(|caller| caller.has_guard_of() == Some(number));
        !believes || self.is_of(number) || self.sessions[task.session].revoked
    }

    /// Whether one caller of the owner has a guard while another one waits for the lock.
    pub(super) fn waits_behind_itself(&self) -> bool {
        let has_guard =
            |caller: &Caller| caller.has_guard_of().is_some_and(|task| self.tasks[task].hold.is_held());
        let waits = |caller: &Caller| caller.waits_for().is_some_and(|task| !self.tasks[task].tries);
        self.callers.iter().any(has_guard) && self.callers.iter().any(waits)
    }

    /// Whether there is a hold without a share, or an entry that nothing will remove.
    pub(super) fn has_orphan(&self) -> bool {
        let unheld = |task: &ClaimTask| {
            task.phase == Phase::Keeping && task.hold.phase == HoldPhase::Held && task.hold.guards == 0
        };
        let left_behind = match self.entry {
            ServerEntry::Of { task, session } => {
                let session = self.sessions[session];
                self.tasks[task].phase == Phase::Done && !session.ended && !session.abandoned
            }
            ServerEntry::Free => false,
        };
        left_behind || self.tasks.iter().any(unheld)
    }
}
