//! Callers, and what they share with the tasks: `attempt.rs`, `hold.rs` and `reentry.rs` of the keeper.

use super::*;

impl State {
    pub(super) fn ask(&mut self, model: &Keeper, caller: usize, tries: bool) {
        self.callers[caller].asks_left -= 1;
        match self.table {
            OwnerEntry::Held(task) => {
                self.read_hold(model, task);
                let hold = &mut self.tasks[task].hold;
                if hold.phase == HoldPhase::Held {
                    hold.guards += 1;
                    self.callers[caller].state = CallerState::Guard(task);
                    return;
                }
            }
            OwnerEntry::Waiting(task) if !tries => {
                let ClaimTask { answered, given_up, .. } = self.tasks[task];
                let gives_up = given_up && model.has(Step::NoJoinAfterGiveUp);
                if !answered && !gives_up {
                    self.callers[caller].state = CallerState::Waiting(task);
                    return;
                }
            }
            OwnerEntry::Waiting(_) | OwnerEntry::Empty => {}
        }
        if let Some(task) = self.tasks.iter().position(|task| task.phase == Phase::New) {
            self.tasks[task].phase = Phase::Starting;
            self.tasks[task].tries = tries;
            if !tries {
                self.table = OwnerEntry::Waiting(task);
            }
            self.callers[caller].state = CallerState::Waiting(task);
        }
    }

    pub(super) fn leave(&mut self, caller: usize) {
        let CallerState::Waiting(task) =
            std::mem::replace(&mut self.callers[caller].state, CallerState::Idle)
        else {
            return;
        };
        if !self.callers.iter().any(|other| other.waits_for() == Some(task)) {
            self.tasks[task].given_up = true;
        }
    }

    pub(super) fn drop_guard(&mut self, caller: usize) {
        let CallerState::Guard(task) = std::mem::replace(&mut self.callers[caller].state, CallerState::Idle)
        else {
            return;
        };
        self.leave_hold(task);
        // No other caller has a share, and this one sees its release as done.
        let hold = self.tasks[task].hold;
        if hold.is_held() && !self.callers.iter().any(|other| other.has_guard_of() == Some(task)) {
            self.broken = Some(LAST_RELEASE_ENDS);
        }
    }

    pub(super) fn leave_hold(&mut self, task: usize) {
        let hold = &mut self.tasks[task].hold;
        hold.latch();
        hold.guards -= 1;
        if hold.phase == HoldPhase::Held && hold.guards == 0 {
            hold.phase = HoldPhase::Releasing;
        }
        if hold.guards == 0 && self.tasks[task].phase == Phase::Done {
            self.tasks[task].hold = Hold::default();
        }
    }

    pub(super) fn ask_guard(&mut self, model: &Keeper, caller: usize) {
        let CallerState::Guard(task) = self.callers[caller].state else { return };
        self.read_hold(model, task);
        let hold = &mut self.tasks[task].hold;
        match hold.is_held() {
            true if hold.seen_lost => self.broken = Some(LOST_IS_FINAL),
            true => {}
            // Without the latch the state may change again.
            false => hold.seen_lost |= hold.phase == HoldPhase::Held,
        }
    }

    /// Reads the state of a hold, which latches a deadline that has passed.
    pub(super) fn read_hold(&mut self, model: &Keeper, task: usize) {
        if model.has(Step::LossIsLatched) {
            self.tasks[task].hold.latch();
        }
    }
}

impl Hold {
    /// What a guard reports at this moment.
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
