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

    /// A hold that nobody has a share of, or an entry that nothing will take away.
    pub(super) fn has_orphan(&self) -> bool {
        let unheld = |life: &Life| {
            life.phase == Phase::Keeping && life.hold.phase == HoldPhase::Held && life.hold.guards == 0
        };
        let left_behind = match self.entry {
            Entry::Of { life, session } => {
                self.lives[life].phase == Phase::Done && !self.sessions[session].ended
            }
            Entry::Free => false,
        };
        left_behind || self.lives.iter().any(unheld)
    }
}
