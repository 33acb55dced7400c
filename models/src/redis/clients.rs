//! What a claim does: `acquire.rs` and `renew.rs` of the backend.

use super::*;

impl State {
    pub(super) fn actions_of(&self, model: &Redis, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[usize::from(number)];
        let before_is_new =
            !number.is_multiple_of(2) && self.claims[usize::from(number) - 1].phase == Phase::New;
        match claim.phase {
            Phase::New if !before_is_new => actions.push(Action::Start(number)),
            Phase::New | Phase::Ended => {}
            Phase::Acquiring | Phase::Releasing => {
                actions.push(Action::Run(number));
                if self.faults.lost > 0 {
                    actions.extend([Action::LoseAnswer(number), Action::Delay(number)]);
                }
                if self.faults.late > 0 && claim.phase == Phase::Acquiring {
                    actions.push(Action::RunUnheard(number));
                }
            }
            Phase::Waiting => {
                if model.has(Step::Recheck) || claim.message == Message::Arrived {
                    actions.push(Action::Run(number));
                    if self.faults.lost > 0 {
                        actions.extend([Action::LoseAnswer(number), Action::Delay(number)]);
                    }
                    if self.faults.late > 0 {
                        actions.push(Action::RunUnheard(number));
                    }
                }
                if self.faults.lost > 0 {
                    actions.push(Action::DelayBeat(number));
                }
            }
            Phase::Answered => actions.push(Action::Hear(number)),
            Phase::Held => {
                actions.extend([Action::Renew(number), Action::Release(number)]);
                if self.faults.lost > 0 {
                    actions.push(Action::DelayRenewal(number));
                }
            }
            Phase::Dead => {}
        }
        if self.faults.refusals > 0
            && matches!(claim.phase, Phase::Acquiring | Phase::Waiting | Phase::Releasing)
        {
            actions.push(Action::Refuse(number));
        }
        let lives = matches!(claim.phase, Phase::Acquiring | Phase::Waiting | Phase::Answered | Phase::Held);
        if self.faults.cancels > 0 && lives && claim.phase != Phase::Held {
            actions.push(Action::GiveUp(number));
        }
        if self.faults.deaths > 0 && lives {
            actions.push(Action::Die(number));
        }
        let may_lapse = claim.phase == Phase::Dead || claim.excused || self.faults.lapses > 0;
        if may_lapse && self.server.queue.contains(&number) && !self.server.lapsed[usize::from(number)] {
            actions.push(Action::Lapse(number));
        }
        if claim.message == Message::Sent && claim.phase == Phase::Waiting {
            actions.push(Action::Deliver(number));
            if self.faults.lost > 0 {
                actions.push(Action::LoseMessage(number));
            }
        }
    }

    pub(super) fn claim(&mut self, claim: ClaimNo) -> &mut Claim {
        &mut self.claims[usize::from(claim)]
    }

    pub(super) fn script_of(&self, claim: ClaimNo) -> Script {
        match self.claims[usize::from(claim)].phase {
            Phase::Acquiring => Script::Acquire,
            Phase::Releasing => Script::Release,
            _ => Script::Confirm,
        }
    }

    pub(super) fn request(&self, claim: ClaimNo, script: Script) -> Request {
        let token = if script == Script::Renew { self.claims[usize::from(claim)].token } else { 0 };
        Request { claim, script, token }
    }

    /// The script runs; an answer that the claim has the lock is late.
    pub(super) fn call_unheard(&mut self, model: &Redis, number: ClaimNo) {
        let answer = self.run(model, self.request(number, self.script_of(number)));
        let Answer::Granted(token) = answer else { return self.hear(number, answer) };
        self.faults.late -= 1;
        let claim = self.claim(number);
        (claim.phase, claim.answered, claim.message) = (Phase::Answered, token, Message::None);
    }

    /// The late answer arrives. Whether the deadline has passed is no news of the server: it counts from the sending.
    pub(super) fn hear_late(&mut self, model: &Redis, number: ClaimNo) {
        let claim = self.claim(number);
        let (token, expired) = (std::mem::take(&mut claim.answered), std::mem::take(&mut claim.expired));
        match expired && model.has(Step::DeadlineFromSending) {
            true => claim.phase = Phase::Releasing,
            false => self.grant(number, token),
        }
    }

    pub(super) fn give_up(&mut self, number: ClaimNo) {
        let claim = self.claim(number);
        (claim.phase, claim.answered, claim.expired) = (Phase::Releasing, 0, false);
    }

    /// The lock's key expires, perhaps before its claim has heard that it is its own.
    pub(super) fn expire(&mut self) {
        let Some((claim, _)) = self.server.lock.take() else { return };
        let claim = self.claim(claim);
        claim.expired |= claim.phase == Phase::Answered;
    }

    /// The claim ends with the error; what it may have left is taken back, once.
    pub(super) fn refuse(&mut self, model: &Redis, number: ClaimNo) {
        self.faults.refusals -= 1;
        let claim = self.claim(number);
        let ends = claim.phase == Phase::Releasing;
        match ends || !model.has(Step::RefusalWithdraws) {
            true => {
                claim.excused |= ends;
                self.end(number);
            }
            false => claim.phase = Phase::Releasing,
        }
    }

    fn end(&mut self, number: ClaimNo) {
        let Claim { token, excused, .. } = *self.claim(number);
        *self.claim(number) = Claim { phase: Phase::Ended, token, excused, ..Claim::default() };
    }

    pub(super) fn delay(&mut self, request: Request) {
        self.faults.lost -= 1;
        self.late.push(request);
        self.late.sort_unstable();
    }

    pub(super) fn call(&mut self, model: &Redis, number: ClaimNo) {
        let answer = self.run(model, self.request(number, self.script_of(number)));
        self.hear(number, answer);
    }

    fn hear(&mut self, number: ClaimNo, answer: Answer) {
        match answer {
            Answer::Granted(token) => self.grant(number, token),
            Answer::Queued => {
                let claim = self.claim(number);
                claim.phase = Phase::Waiting;
                if claim.message == Message::Arrived {
                    claim.message = Message::None;
                }
            }
            // `EntryGone`: withdrawn, and claimed anew by the keeper.
            Answer::Gone => self.claim(number).phase = Phase::Releasing,
            Answer::Done => self.end(number),
        }
    }

    pub(super) fn grant(&mut self, number: ClaimNo, token: Token) {
        let floor = std::mem::take(&mut self.claim(number).floor);
        let known = self.claims.iter().any(|other| other.token == token);
        if token <= floor || known {
            self.broken = Some(TOKENS_RISE);
        }
        let claim = self.claim(number);
        (claim.phase, claim.token, claim.message) = (Phase::Held, token, Message::None);
        self.token_last = self.token_last.max(token);
        self.grants += 1;
    }

    /// The beat of a hold.
    pub(super) fn renew(&mut self, model: &Redis, number: ClaimNo) {
        let token = self.claim(number).token;
        let lock = self.server.lock.filter(|(claim, _)| *claim == number);
        match lock.map(|(_, its)| its) {
            Some(its) if its == token => {}
            Some(_) if !model.has(Step::BeatChecksToken) => self.broken = Some(NO_STALE_RENEWAL),
            _ => self.claim(number).phase = Phase::Releasing,
        }
    }

    pub(super) fn forget_old_tokens(&mut self) {
        let acquires =
            |claim: &&Claim| matches!(claim.phase, Phase::Acquiring | Phase::Waiting | Phase::Answered);
        let floor = self.claims.iter().filter(acquires).map(|claim| claim.floor).min().unwrap_or(Token::MAX);
        let over = |claim: &&mut Claim| matches!(claim.phase, Phase::Ended | Phase::Dead);
        for claim in self.claims.iter_mut().filter(over).filter(|claim| claim.token <= floor) {
            claim.token = 0;
        }
    }
}
