//! A claim, as its client drives it.

use super::*;

impl State {
    pub(super) fn actions_of(&self, model: &RedisModes, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        let may_start = number.may_start(|earlier| self.claims[earlier.index()].phase == Phase::New);
        let runs = match claim.phase {
            Phase::Acquiring | Phase::Counted | Phase::Releasing => true,
            Phase::Waiting => model.waiters_recheck() || claim.message == Message::Arrived,
            Phase::New | Phase::Held | Phase::Ended | Phase::Dead => false,
        };
        if runs {
            actions.push(Action::Run(number));
            if self.faults.lost > 0 {
                actions.push(Action::LoseReply(number));
            }
        }
        match claim.phase {
            Phase::New if may_start => {
                actions.extend(model.modes().map(|mode| Action::Start(number, mode)));
            }
            Phase::Held => {
                actions.push(Action::Release(number));
                if self.server.holders[number.index()] != self.tokens.of(number) {
                    actions.push(Action::Miss(number));
                }
                if self.faults.lost > 0 {
                    actions.push(Action::DelayRenewal(number));
                }
            }
            Phase::Waiting if claim.message == Message::Sent => {
                actions.push(Action::Deliver(number));
                if self.faults.lost > 0 && !model.is(MESSAGES_ALONE) {
                    actions.push(Action::LoseMessage(number));
                }
            }
            _ => {}
        }
        if self.faults.cancels > 0 && matches!(claim.phase, Phase::Acquiring | Phase::Waiting) {
            actions.push(Action::GiveUp(number));
        }
        let lives = matches!(claim.phase, Phase::Acquiring | Phase::Waiting | Phase::Held);
        if self.faults.deaths > 0 && lives {
            actions.push(Action::Die(number));
        }
        self.actions_of_entry(model, number, actions);
    }

    fn actions_of_entry(&self, model: &RedisModes, number: ClaimNo, actions: &mut Vec<Action>) {
        let Server { holders, expired, queue, lapsed, .. } = &self.server;
        let phase = self.claims[number.index()].phase;
        let token = holders[number.index()];
        let believes = phase == Phase::Held && self.tokens.of(number) == token;
        let may_expire = !believes || !model.has(Step::DeadlineBeforeExpiry);
        if token > 0 && may_expire && !expired[number.index()] {
            actions.push(Action::Expire(number));
        }
        let may_lapse = phase == Phase::Dead || self.faults.lapses > 0;
        if may_lapse && queue.contains(&number) && !lapsed[number.index()] {
            actions.push(Action::Lapse(number));
        }
    }

    pub(super) fn start(&mut self, number: ClaimNo, mode: Mode) {
        self.tokens.begin(number);
        self.claims[number.index()] = Claim { phase: Phase::Acquiring, mode, ..Claim::default() };
    }

    /// The claim's script runs and is answered.
    pub(super) fn call(&mut self, model: &RedisModes, number: ClaimNo) {
        let reply = self.run(model, number);
        let claim = &mut self.claims[number.index()];
        match reply {
            Reply::Granted(token) => {
                (claim.phase, claim.message) = (Phase::Held, Message::None);
                if !self.tokens.grant(number, token) {
                    self.broken = Some(TOKENS_RISE);
                }
            }
            Reply::Counted => claim.phase = Phase::Counted,
            Reply::Queued => (claim.phase, claim.message) = (Phase::Waiting, Message::None),
            // It is withdrawn. The keeper then makes a new claim.
            Reply::EntryGone => (claim.phase, claim.message) = (Phase::Releasing, Message::None),
            Reply::Done => self.end(number, Phase::Ended),
        }
    }

    pub(super) fn lose_reply(&mut self, model: &RedisModes, number: ClaimNo) {
        self.faults.lost -= 1;
        self.run(model, number);
    }

    pub(super) fn delay_renewal(&mut self, claim: ClaimNo) {
        self.faults.lost -= 1;
        self.late.push(Renewal { claim, token: self.tokens.of(claim) });
        self.late.sort_unstable();
    }

    pub(super) fn give_up(&mut self, number: ClaimNo) {
        self.faults.cancels -= 1;
        let claim = &mut self.claims[number.index()];
        (claim.phase, claim.message) = (Phase::Releasing, Message::None);
    }

    pub(super) fn die(&mut self, number: ClaimNo) {
        self.faults.deaths -= 1;
        self.end(number, Phase::Dead);
    }

    pub(super) fn lapse(&mut self, number: ClaimNo) {
        if self.claims[number.index()].phase != Phase::Dead {
            self.faults.lapses -= 1;
        }
        self.server.lapsed[number.index()] = true;
    }

    pub(super) fn has_ended(&self, number: ClaimNo) -> bool {
        matches!(self.claims[number.index()].phase, Phase::Ended | Phase::Dead)
    }

    fn end(&mut self, number: ClaimNo, phase: Phase) {
        let Claim { mode, .. } = self.claims[number.index()];
        self.claims[number.index()] = Claim { phase, mode, ..Claim::default() };
        self.tokens.end(number);
    }

    /// Forgets of ended claims what nothing is compared with.
    pub(super) fn forget_ended(&mut self) {
        let phase = |claim: ClaimNo| self.claims[claim.index()].phase;
        let acquires = |claim| matches!(phase(claim), Phase::Acquiring | Phase::Counted | Phase::Waiting);
        self.tokens.forget_old(acquires, |claim| matches!(phase(claim), Phase::Ended | Phase::Dead));
        for number in ClaimNo::all() {
            let has_entry = self.server.holders[number.index()] > 0 || self.server.queue.contains(&number);
            let may_get_one = self.late.iter().any(|renewal| renewal.claim == number);
            let has_ended = self.has_ended(number);
            let claim = &mut self.claims[number.index()];
            if has_ended && !has_entry && !may_get_one {
                *claim = Claim { phase: claim.phase, ..Claim::default() };
            } else if has_ended {
                claim.message = Message::None;
            }
        }
    }
}
