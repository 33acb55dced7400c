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

    /// Whether no caller waits, or none can be served: there is no session, and there will be none.
    pub(super) fn is_settled(&self, model: &Keeper) -> bool {
        let waits = self.callers.iter().any(|caller| matches!(caller.is, Is::Waiting(_)));
        let next = model.sessions > 1 && !self.sessions[1].ended;
        self.broken.is_some() || !waits || self.current.is_none() && !next
    }

    /// Tasks go on, the server answers, guards are dropped. Time passes, but not so fast that a beat which is due comes
    /// too late: a session that could be kept is.
    pub(super) fn is_bound(&self, model: &Keeper, action: &Action) -> bool {
        match action {
            Action::Drop(_)
            | Action::Live(_)
            | Action::Grant(_)
            | Action::Busy(_)
            | Action::Release(_)
            | Action::GiveUpRelease(_)
            | Action::SendBeat
            | Action::ReceiveBeat
            | Action::EndSession
            | Action::LoseAll(_)
            | Action::OpenSession
            | Action::CloseSession(_)
            | Action::Expire(_) => true,
            Action::Tick => {
                let mut others = Vec::new();
                self.actions_of_sessions(model, &mut others);
                !others.iter().any(|other| matches!(other, Action::SendBeat | Action::ReceiveBeat))
            }
            _ => false,
        }
    }
}
