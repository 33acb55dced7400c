//! Claims and holds: `claim_task.rs`, `ending.rs` and `releases.rs` of the keeper.

use super::*;

impl State {
    pub(super) fn actions_of_task(&self, model: &Keeper, number: usize, actions: &mut Vec<Action>) {
        let task = &self.tasks[number];
        match task.phase {
            Phase::New | Phase::Done => {}
            Phase::Starting if self.current.is_none() && !task.given_up => {}
            Phase::Acquiring => {
                if self.entry == ServerEntry::Free && self.sessions[task.session].alive {
                    actions.push(Action::Grant(number));
                }
                if self.entry != ServerEntry::Free && task.tries && self.sessions[task.session].alive {
                    actions.push(Action::Busy(number));
                }
                let has_ended = self.sessions[task.session].ended;
                if task.given_up || has_ended && model.has(Step::AttemptOutlivesSession) {
                    actions.push(Action::RunTask(number));
                }
            }
            Phase::Keeping => {
                // The task reads the clock too: it latches the loss, then ends the hold.
                let hold = &task.hold;
                let lapsed = hold.left == 0 && model.has(Step::LossIsLatched);
                if hold.phase != HoldPhase::Held || lapsed {
                    actions.push(Action::RunTask(number));
                }
            }
            Phase::Releasing { .. } => {
                if self.sessions[task.session].ended {
                    actions.push(Action::RunTask(number));
                }
                if model.is(RELEASES_REFUSED) {
                    if task.releasing_for >= TTL {
                        actions.push(Action::GiveUpRelease(number));
                    }
                    return;
                }
                actions.push(Action::Release(number));
                if self.faults.lost > 0 {
                    actions.extend([Action::LoseRelease(number, false), Action::LoseRelease(number, true)]);
                }
            }
            _ => actions.push(Action::RunTask(number)),
        }
    }

    pub(super) fn run_task(&mut self, model: &Keeper, number: usize) {
        let has = |step| model.has(step);
        let task = &mut self.tasks[number];
        let session = self.sessions[task.session];
        task.phase = match task.phase {
            Phase::Starting if task.given_up => return self.settle_failure(number),
            Phase::Starting => {
                task.session = self.current.unwrap_or_default();
                Phase::Acquiring
            }
            // Given up, or the session has ended. Nothing was granted.
            Phase::Acquiring if task.given_up => return self.settle_failure(number),
            Phase::Acquiring => Phase::Starting,
            // `is_current`.
            Phase::Granted if session.ended || session.left == 0 => Phase::Releasing { again: true },
            Phase::Granted => {
                task.hold.left = session.left;
                Phase::Current
            }
            Phase::Current => {
                task.hold = Hold { phase: HoldPhase::Held, guards: 0, ..task.hold };
                Phase::Inserted
            }
            Phase::Inserted => {
                if session.ended && has(Step::NewHoldChecksSession) {
                    task.hold.lose();
                }
                Phase::Checked
            }
            // One step: under the mutex of the table.
            Phase::Checked if has(Step::TableUpdatedWithAnswers) => {
                task.phase = Phase::Keeping;
                if self.share(model, number) {
                    self.table = OwnerEntry::Held(number);
                }
                return;
            }
            Phase::Checked => {
                task.phase = Phase::Answered;
                self.share(model, number);
                return;
            }
            Phase::Answered => {
                task.phase = Phase::Keeping;
                if self.table == OwnerEntry::Waiting(number) {
                    self.table = OwnerEntry::Held(number);
                }
                return;
            }
            Phase::Counting => {
                task.phase = Phase::Keeping;
                self.share(model, number);
                return;
            }
            Phase::Keeping => return self.end_hold(model, number),
            Phase::Releasing { again } => return self.given_back(number, again),
            other => other,
        };
    }

    /// Gives shares of the hold to the claim's callers and, unless these have left, to the owner's waiting ones, all in one
    /// step or one by one. Returns whether any share exists.
    fn share(&mut self, model: &Keeper, number: usize) -> bool {
        let serves_the_owner = model.has(Step::GrantServesTheOwner) && !self.tasks[number].given_up;
        let waiting = match self.table {
            OwnerEntry::Waiting(waiting) if serves_the_owner => waiting,
            _ => number,
        };
        let is_served =
            |caller: &Caller| caller.waits_for().is_some_and(|task| task == number || task == waiting);
        let at_once = if model.has(Step::SharesCountedFirst) { CALLERS } else { 1 };
        for caller in self.callers.iter_mut().filter(|caller| is_served(caller)).take(at_once) {
            caller.state = CallerState::Guard(number);
            self.tasks[number].hold.guards += 1;
            if self.tasks[number].hold.phase == HoldPhase::Releasing {
                self.broken = Some(SHARE_IS_HELD);
            }
        }
        if self.callers.iter().any(is_served) {
            self.tasks[number].phase = Phase::Counting;
            return true;
        }
        self.tasks[waiting].given_up = true;
        self.tasks[waiting].answered = true;
        // What it was before makes no difference from here on.
        self.tasks[number] =
            ClaimTask { answered: true, given_up: false, tries: false, ..self.tasks[number] };
        let hold = &mut self.tasks[number].hold;
        if hold.guards == 0 && hold.phase == HoldPhase::Held && model.has(Step::UntakenGrantReleased) {
            hold.phase = HoldPhase::Releasing;
        }
        hold.guards > 0
    }

    /// The server has answered a try that the lock is held.
    pub(super) fn settle_busy(&mut self, number: usize) {
        for caller in self.callers.iter_mut().filter(|caller| caller.waits_for() == Some(number)) {
            caller.state = CallerState::Idle;
        }
        self.done(number);
    }

    pub(super) fn settle_failure(&mut self, number: usize) {
        for caller in self.callers.iter_mut().filter(|caller| caller.waits_for() == Some(number)) {
            caller.state = CallerState::Idle;
            self.broken = Some(TRUE_ANSWER);
        }
        self.done(number);
    }

    pub(super) fn end_hold(&mut self, model: &Keeper, number: usize) {
        let task = &mut self.tasks[number];
        task.hold.latch();
        let expired = task.hold.phase == HoldPhase::Lost && task.hold.left == 0;
        if expired && model.has(Step::DeadHoldEndsSession) {
            self.sessions[task.session].abandoned = true;
        }
        task.expired = expired;
        task.phase = Phase::Releasing { again: false };
        if self.table == OwnerEntry::Held(number) {
            self.table = OwnerEntry::Empty;
        }
    }

    pub(super) fn release(&mut self, number: usize) {
        self.take_entry_away(number);
        if let Phase::Releasing { again } = self.tasks[number].phase {
            self.given_back(number, again);
        }
    }

    pub(super) fn give_up_release(&mut self, model: &Keeper, number: usize) {
        if model.has(Step::RefusedReleaseEndsSession) {
            self.sessions[self.tasks[number].session].abandoned = true;
        }
        if let Phase::Releasing { again } = self.tasks[number].phase {
            self.given_back(number, again);
        }
    }

    pub(super) fn lose_release(&mut self, model: &Keeper, number: usize, done: bool) {
        self.faults.lost -= 1;
        if done {
            self.take_entry_away(number);
        }
        if !model.has(Step::ReleaseRepeats) {
            self.done(number);
        }
    }

    pub(super) fn given_back(&mut self, number: usize, again: bool) {
        match again {
            true if self.tasks[number].given_up => self.settle_failure(number),
            true => {
                self.tasks[number].phase = Phase::Starting;
                self.tasks[number].releasing_for = 0;
            }
            false => self.done(number),
        }
    }

    /// Ends the task. Only what guards still see of its hold remains.
    pub(super) fn done(&mut self, number: usize) {
        if self.table == OwnerEntry::Waiting(number) {
            self.table = OwnerEntry::Empty;
        }
        let hold = self.tasks[number].hold;
        let hold = if hold.guards > 0 { hold } else { Hold::default() };
        self.tasks[number] = ClaimTask { phase: Phase::Done, hold, ..ClaimTask::default() };
    }

    pub(super) fn take_entry_away(&mut self, number: usize) {
        if self.is_of(number) {
            self.entry = ServerEntry::Free;
        }
    }
}
