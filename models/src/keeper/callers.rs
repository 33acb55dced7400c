//! What callers do, and what they and the tasks share: `attempt.rs`, `hold.rs` and `reentry.rs` of the keeper.

use super::*;

impl State {
    pub(super) fn ask(&mut self, model: &Keeper, caller: usize, tries: bool) {
        self.callers[caller].asks_left -= 1;
        match self.table {
            Place::Held(life) => {
                self.look(model, life);
                let hold = &mut self.lives[life].hold;
                if hold.phase == HoldPhase::Held {
                    hold.guards += 1;
                    self.callers[caller].is = Is::Guard(life);
                    return;
                }
            }
            Place::Pending(life) if !tries => {
                let Life { over, given_up, .. } = self.lives[life];
                let gives_up = given_up && model.has(Step::NoJoinAfterGiveUp);
                if !over && !gives_up {
                    self.callers[caller].is = Is::Waiting(life);
                    return;
                }
            }
            Place::Pending(_) | Place::Empty => {}
        }
        if let Some(life) = self.lives.iter().position(|life| life.phase == Phase::New) {
            self.lives[life].phase = Phase::Starting;
            self.lives[life].tries = tries;
            if !tries {
                self.table = Place::Pending(life);
            }
            self.callers[caller].is = Is::Waiting(life);
        }
    }

    pub(super) fn leave(&mut self, caller: usize) {
        let Is::Waiting(life) = std::mem::replace(&mut self.callers[caller].is, Is::Idle) else { return };
        if !self.callers.iter().any(|other| other.is == Is::Waiting(life)) {
            self.lives[life].given_up = true;
        }
    }

    pub(super) fn drop_guard(&mut self, caller: usize) {
        let Is::Guard(life) = std::mem::replace(&mut self.callers[caller].is, Is::Idle) else { return };
        self.leave_hold(life);
        // Nobody else has a share: who released it has been told so.
        let hold = self.lives[life].hold;
        if hold.is_held() && !self.callers.iter().any(|other| other.is == Is::Guard(life)) {
            self.broken = Some(LAST_RELEASE_ENDS);
        }
    }

    pub(super) fn leave_hold(&mut self, life: usize) {
        let hold = &mut self.lives[life].hold;
        hold.latch();
        hold.guards -= 1;
        if hold.phase == HoldPhase::Held && hold.guards == 0 {
            hold.phase = HoldPhase::Releasing;
        }
        if hold.guards == 0 && self.lives[life].phase == Phase::Done {
            self.lives[life].hold = Hold::default();
        }
    }

    pub(super) fn look_at_guard(&mut self, model: &Keeper, caller: usize) {
        let Is::Guard(life) = self.callers[caller].is else { return };
        self.look(model, life);
        let hold = &mut self.lives[life].hold;
        match hold.is_held() {
            true if hold.seen_lost => self.broken = Some(LOST_IS_FINAL),
            true => {}
            // What is not latched may change again.
            false => hold.seen_lost |= hold.phase == HoldPhase::Held,
        }
    }

    /// Looks at the state of a hold, in which a deadline that has passed is a loss already.
    pub(super) fn look(&mut self, model: &Keeper, life: usize) {
        if model.has(Step::LossIsLatched) {
            self.lives[life].hold.latch();
        }
    }
}

impl Hold {
    /// As a guard sees it at this moment.
    pub(super) fn is_held(&self) -> bool {
        self.phase == HoldPhase::Held && self.left > 0
    }

    pub(super) fn latch(&mut self) {
        if self.phase == HoldPhase::Held && self.left == 0 {
            self.phase = HoldPhase::Lost;
        }
    }

    pub(super) fn lose(&mut self) {
        if self.phase == HoldPhase::Held {
            self.phase = HoldPhase::Lost;
        }
    }
}
