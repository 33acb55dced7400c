//! Life tasks: `life.rs` of the keeper.

use super::*;

impl State {
    pub(super) fn actions_of_life(&self, model: &Keeper, number: usize, actions: &mut Vec<Action>) {
        let life = &self.lives[number];
        match life.phase {
            Phase::New | Phase::Done => {}
            Phase::Starting if self.current.is_none() && !life.given_up => {}
            Phase::Acquiring => {
                if self.entry == Entry::Free && self.sessions[life.session].alive {
                    actions.push(Action::Grant(number));
                }
                if life.given_up || self.sessions[life.session].ended {
                    actions.push(Action::Live(number));
                }
            }
            Phase::Keeping => {
                // The life task looks at the clock too: the latch, then the end.
                let hold = &life.hold;
                let lapsed = hold.left == 0 && model.has(Step::LossIsLatched);
                if hold.phase != HoldPhase::Held || lapsed {
                    actions.push(Action::Live(number));
                }
            }
            Phase::Releasing { .. } => {
                if self.sessions[life.session].ended {
                    actions.push(Action::Live(number));
                }
                actions.push(Action::Release(number));
                if self.lost > 0 {
                    actions.extend([Action::LoseRelease(number, false), Action::LoseRelease(number, true)]);
                }
            }
            _ => actions.push(Action::Live(number)),
        }
    }

    pub(super) fn live(&mut self, model: &Keeper, number: usize) {
        let has = |step| model.has(step);
        let life = &mut self.lives[number];
        let session = self.sessions[life.session];
        life.phase = match life.phase {
            Phase::Starting if life.given_up => return self.settle_failure(number),
            Phase::Starting => {
                life.session = self.current.unwrap_or_default();
                Phase::Acquiring
            }
            // Given up, or the session has ended: nothing was granted.
            Phase::Acquiring if life.given_up => return self.settle_failure(number),
            Phase::Acquiring => Phase::Starting,
            // `is_current`.
            Phase::Granted if session.ended || session.left == 0 => Phase::Releasing { again: true },
            Phase::Granted => {
                life.hold.left = session.left;
                Phase::Current
            }
            Phase::Current => {
                life.hold = Hold { phase: HoldPhase::Held, guards: 1, ..life.hold };
                Phase::Inserted
            }
            Phase::Inserted => {
                if session.ended && has(Step::LateHoldSeesTheEnd) {
                    life.hold.lose();
                }
                Phase::Looked
            }
            // One step: under the mutex of the table.
            Phase::Looked if has(Step::TableWithAnswers) => {
                return self.enter_table(number).answer(model, number, Phase::Keeping);
            }
            Phase::Looked => return self.answer(model, number, Phase::Told),
            Phase::Told => return self.enter_table(number).lives[number].phase = Phase::Keeping,
            Phase::Answered => return self.leave_own_share(model, number),
            Phase::Keeping => return self.end_hold(model, number),
            Phase::Releasing { again } => return self.given_back(number, again),
            other => other,
        };
    }

    pub(super) fn enter_table(&mut self, number: usize) -> &mut Self {
        if self.table == Place::Pending(number) {
            self.table = Place::Held(number);
        }
        self
    }

    pub(super) fn answer(&mut self, model: &Keeper, number: usize, next: Phase) {
        let life = &mut self.lives[number];
        life.over = true;
        life.phase = next;
        for caller in self.callers.iter_mut().filter(|caller| caller.is == Is::Waiting(number)) {
            caller.is = Is::Guard(number);
            life.hold.guards += 1;
        }
        match model.has(Step::OwnShareGoesFirst) {
            true => self.leave_own_share(model, number),
            false => life.phase = Phase::Answered,
        }
    }

    /// The share that the callers' shares were made of.
    pub(super) fn leave_own_share(&mut self, model: &Keeper, number: usize) {
        match model.has(Step::UntakenGrantReleased) {
            true => self.leave_hold(number),
            false => self.lives[number].hold.guards -= 1,
        }
        if self.lives[number].phase == Phase::Answered {
            self.lives[number].phase = Phase::Keeping;
        }
    }

    pub(super) fn settle_failure(&mut self, number: usize) {
        if self.table == Place::Pending(number) {
            self.table = Place::Empty;
        }
        for caller in self.callers.iter_mut().filter(|caller| caller.is == Is::Waiting(number)) {
            caller.is = Is::Idle;
            self.broken = Some(TRUE_ANSWER);
        }
        self.done(number);
    }

    pub(super) fn end_hold(&mut self, model: &Keeper, number: usize) {
        let life = &mut self.lives[number];
        life.hold.latch();
        let expired = life.hold.phase == HoldPhase::Lost && life.hold.left == 0;
        if expired && model.has(Step::DeadHoldAbandons) {
            self.sessions[life.session].abandoned = true;
        }
        life.expired = expired;
        life.phase = Phase::Releasing { again: false };
        if self.table == Place::Held(number) {
            self.table = Place::Empty;
        }
    }

    pub(super) fn release(&mut self, number: usize) {
        self.take_entry_away(number);
        if let Phase::Releasing { again } = self.lives[number].phase {
            self.given_back(number, again);
        }
    }

    pub(super) fn given_back(&mut self, number: usize, again: bool) {
        match again {
            true if self.lives[number].given_up => self.settle_failure(number),
            true => self.lives[number].phase = Phase::Starting,
            false => self.done(number),
        }
    }

    /// Nothing of the life is left but what guards still see of its hold.
    pub(super) fn done(&mut self, number: usize) {
        let hold = self.lives[number].hold;
        let hold = if hold.guards > 0 { hold } else { Hold::default() };
        self.lives[number] = Life { phase: Phase::Done, hold, ..Life::default() };
    }

    pub(super) fn take_entry_away(&mut self, number: usize) {
        if self.is_of(number) {
            self.entry = Entry::Free;
        }
    }
}
