//! Claim tasks: `life.rs` and `releases.rs` of the keeper.

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
                if self.entry != Entry::Free && life.tries && self.sessions[life.session].alive {
                    actions.push(Action::Busy(number));
                }
                let has_ended = self.sessions[life.session].ended;
                if life.given_up || has_ended && model.has(Step::AttemptOutlivesSession) {
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
                if model.refuses {
                    if life.releasing_for >= TTL {
                        actions.push(Action::GiveUpRelease(number));
                    }
                    return;
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
                life.hold = Hold { phase: HoldPhase::Held, guards: 0, ..life.hold };
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
                life.phase = Phase::Keeping;
                if self.share(model, number) {
                    self.table = Place::Held(number);
                }
                return;
            }
            Phase::Looked => {
                life.phase = Phase::Told;
                self.share(model, number);
                return;
            }
            Phase::Told => {
                life.phase = Phase::Keeping;
                if self.table == Place::Pending(number) {
                    self.table = Place::Held(number);
                }
                return;
            }
            Phase::Counting => {
                life.phase = Phase::Keeping;
                self.share(model, number);
                return;
            }
            Phase::Keeping => return self.end_hold(model, number),
            Phase::Releasing { again } => return self.given_back(number, again),
            other => other,
        };
    }

    /// Gives the claim's callers, and those of the owner that wait, their shares of the hold: all of them in one step, or
    /// one by one. Whether there is one.
    fn share(&mut self, model: &Keeper, number: usize) -> bool {
        let waiting = match self.table {
            Place::Pending(waiting) if model.has(Step::GrantServesTheOwner) => waiting,
            _ => number,
        };
        let is_served =
            |caller: &Caller| matches!(caller.is, Is::Waiting(life) if life == number || life == waiting);
        let at_once = if model.has(Step::SharesCountedFirst) { CALLERS } else { 1 };
        for caller in self.callers.iter_mut().filter(|caller| is_served(caller)).take(at_once) {
            caller.is = Is::Guard(number);
            self.lives[number].hold.guards += 1;
            if self.lives[number].hold.phase == HoldPhase::Releasing {
                self.broken = Some(SHARE_IS_HELD);
            }
        }
        if self.callers.iter().any(is_served) {
            self.lives[number].phase = Phase::Counting;
            return true;
        }
        self.lives[waiting].given_up = true;
        self.lives[waiting].over = true;
        // Nobody looks at what it was before.
        self.lives[number] = Life { over: true, given_up: false, tries: false, ..self.lives[number] };
        let hold = &mut self.lives[number].hold;
        if hold.guards == 0 && hold.phase == HoldPhase::Held && model.has(Step::UntakenGrantReleased) {
            hold.phase = HoldPhase::Releasing;
        }
        hold.guards > 0
    }

    /// A try is answered that the lock is held.
    pub(super) fn settle_busy(&mut self, number: usize) {
        for caller in self.callers.iter_mut().filter(|caller| caller.is == Is::Waiting(number)) {
            caller.is = Is::Idle;
        }
        self.done(number);
    }

    pub(super) fn settle_failure(&mut self, number: usize) {
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
            true => {
                self.lives[number].phase = Phase::Starting;
                self.lives[number].releasing_for = 0;
            }
            false => self.done(number),
        }
    }

    /// Nothing of the life is left but what guards still see of its hold.
    pub(super) fn done(&mut self, number: usize) {
        if self.table == Place::Pending(number) {
            self.table = Place::Empty;
        }
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
