//! What the properties ask of a state.

use super::*;

impl State {
    pub(super) fn is_of(&self, number: usize) -> bool {
        matches!(self.entry, Entry::Of { life, .. } if life == number)
    }

    pub(super) fn believes_rightly(&self, number: usize) -> bool {
        let life = &self.lives[number];
        let believes =
            life.hold.is_held() && self.callers.iter().any(|caller| caller.is == Is::Guard(number));
        !believes || self.is_of(number) || self.sessions[life.session].revoked
    }

    /// One caller of the owner has a guard, and another one waits for the lock.
    pub(super) fn waits_behind_itself(&self) -> bool {
        let has_guard =
            |caller: &Caller| matches!(caller.is, Is::Guard(life) if self.lives[life].hold.is_held());
        let waits = |caller: &Caller| matches!(caller.is, Is::Waiting(life) if !self.lives[life].tries);
        self.callers.iter().any(has_guard) && self.callers.iter().any(waits)
    }

    /// A hold that nobody has a share of, or an entry that nothing will take away.
    pub(super) fn has_orphan(&self) -> bool {
        let unheld = |life: &Life| {
            life.phase == Phase::Keeping && life.hold.phase == HoldPhase::Held && life.hold.guards == 0
        };
        let left_behind = match self.entry {
            Entry::Of { life, session } => {
                let session = self.sessions[session];
                self.lives[life].phase == Phase::Done && !session.ended && !session.abandoned
            }
            Entry::Free => false,
        };
        left_behind || self.lives.iter().any(unheld)
    }
}
