//! A claim, as the backend drives it.

use super::*;

impl State {
    pub(super) fn actions_of(&self, model: &Redis, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        let may_start = number.may_start(|earlier| self.claims[earlier.index()].phase == Phase::New);
        match claim.phase {
            Phase::New if may_start => actions.push(Action::Start(number)),
            Phase::New | Phase::Ended | Phase::Dead => {}
            Phase::Acquiring | Phase::Releasing => self.requests_of(number, actions),
            Phase::Waiting => {
                if model.has(Step::Recheck) || claim.message == Message::Arrived {
                    self.requests_of(number, actions);
                }
                if self.faults.lost > 0 {
                    actions.push(Action::DelayHeartbeat(number));
                }
            }
            Phase::Answered => actions.push(Action::ReceiveLate(number)),
            Phase::Held => {
                actions.extend([Action::Renew(number), Action::Release(number)]);
                if self.faults.lost > 0 {
                    actions.push(Action::DelayRenewal(number));
                }
            }
        }
        self.ends_of(number, actions);
        self.messages_to(model, number, actions);
    }

    /// The claim's script, and what may happen to it.
    fn requests_of(&self, number: ClaimNo, actions: &mut Vec<Action>) {
        actions.push(Action::Run(number));
        if self.faults.lost > 0 {
            actions.extend([Action::LoseReply(number), Action::Delay(number)]);
        }
        if self.faults.late > 0 && self.claims[number.index()].phase != Phase::Releasing {
            actions.push(Action::RunWithLateReply(number));
        }
    }

    /// What ends the claim: the server's refusal, its caller, the death of its client, the lapse of its entry.
    fn ends_of(&self, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        let is_refusable = matches!(claim.phase, Phase::Acquiring | Phase::Waiting | Phase::Releasing);
        if self.faults.refusals > 0 && is_refusable {
            actions.push(Action::Refuse(number));
        }
        let lives = matches!(claim.phase, Phase::Acquiring | Phase::Waiting | Phase::Answered | Phase::Held);
        if self.faults.cancels > 0 && lives && claim.phase != Phase::Held {
            actions.push(Action::GiveUp(number));
        }
        if self.faults.deaths > 0 && lives {
            actions.push(Action::Die(number));
        }
        let may_lapse = claim.is_left() || self.faults.lapses > 0;
        if may_lapse && self.server.queue.contains(&number) && !self.server.lapsed[number.index()] {
            actions.push(Action::Lapse(number));
        }
    }

    /// The late answer and the messages that the claim may receive.
    fn messages_to(&self, model: &Redis, number: ClaimNo, actions: &mut Vec<Action>) {
        let claim = &self.claims[number.index()];
        if claim.late_answer.is_some() {
            actions.push(Action::ReceiveLateWait(number));
        }
        if claim.message == Message::Sent && claim.phase == Phase::Waiting {
            actions.push(Action::Deliver(number));
            if self.faults.lost > 0 {
                actions.push(Action::LoseMessage(number));
            }
            if self.faults.duplicates > 0 {
                actions.push(Action::DeliverTwice(number));
            }
        }
        let is_of_client = |push: Push| push.claim.client() == number.client();
        let takes =
            |push: Push| push.claim == number || is_of_client(push) && !model.has(Step::PushNamesClaim);
        if self.copy.is_some_and(takes) {
            actions.push(Action::DeliverAgain(number));
        }
    }

    pub(super) fn claim(&mut self, claim: ClaimNo) -> &mut Claim {
        &mut self.claims[claim.index()]
    }

    pub(super) fn script_of(&self, claim: ClaimNo) -> Script {
        match self.claims[claim.index()].phase {
            Phase::Acquiring => Script::Acquire,
            Phase::Releasing => Script::Release,
            _ => Script::Confirm,
        }
    }

    pub(super) fn request(&self, claim: ClaimNo, script: Script) -> Request {
        let token = if script == Script::Renew { self.tokens.of(claim) } else { 0 };
        Request { claim, script, token }
    }

    /// The script runs. An answer that grants is late, and in scenes with pushes an answer to a waiter.
    pub(super) fn call_with_late_reply(&mut self, model: &Redis, number: ClaimNo) {
        let answer = self.run(model, self.request(number, self.script_of(number)));
        if answer == Reply::Queued && model.is(PUSHED) {
            self.faults.late -= 1;
            self.claim(number).late_answer = Some((self.server.counter, self.has_failed_over));
            return;
        }
        let Reply::Granted(token) = answer else { return self.receive(model, number, answer) };
        self.faults.late -= 1;
        let claim = self.claim(number);
        claim.forget_message();
        (claim.phase, claim.late_token) = (Phase::Answered, token);
    }

    /// The late answer arrives. The deadline counts from the sending, so the client knows by itself whether it has
    /// passed.
    pub(super) fn receive_late(&mut self, model: &Redis, number: ClaimNo) {
        let claim = self.claim(number);
        let (token, expired) = (std::mem::take(&mut claim.late_token), std::mem::take(&mut claim.expired));
        match expired && model.has(Step::DeadlineFromSending) {
            true => claim.phase = Phase::Releasing,
            false => self.grant(number, token),
        }
    }

    /// The late answer to a waiter arrives, perhaps after a push that was sent later.
    pub(super) fn receive_late_wait(&mut self, number: ClaimNo) {
        let claim = self.claim(number);
        if let Some(answer) = claim.late_answer.take() {
            claim.phase = Phase::Waiting;
            (claim.answered, claim.answered_by_new_master) = answer;
        }
    }

    pub(super) fn give_up(&mut self, number: ClaimNo) {
        let claim = self.claim(number);
        *claim = Claim { phase: Phase::Releasing, excused: claim.excused, ..Claim::default() };
    }

    /// The lock's key expires, perhaps before the answer or the push that grants it has arrived.
    pub(super) fn expire(&mut self) {
        let Some((number, token)) = self.server.lock.take() else { return };
        let claim = self.claim(number);
        let is_pushed = matches!(claim.phase, Phase::Acquiring | Phase::Waiting) && claim.late_token > 0;
        claim.expired |= claim.phase == Phase::Answered || is_pushed;
        if let Some(copy) = self.copy.as_mut().filter(|copy| (copy.claim, copy.token) == (number, token)) {
            copy.expired = true;
        }
    }

    /// The push that is on its way to a claim.
    pub(super) fn push_to(&self, number: ClaimNo) -> Push {
        let Claim { late_token, expired, pushed_by_new_master, .. } = self.claims[number.index()];
        Push { claim: number, token: late_token, expired, by_new_master: pushed_by_new_master }
    }

    pub(super) fn receive_push(&mut self, model: &Redis, number: ClaimNo) {
        let push = self.push_to(number);
        self.claim(number).forget_message();
        self.take_push(model, number, push);
    }

    /// A push arrives again. Its claim may hold the lock by now or have ended; then the client ignores it.
    pub(super) fn receive_copy(&mut self, model: &Redis, number: ClaimNo) {
        let Some(push) = self.copy.take() else { return };
        match self.claims[number.index()].phase {
            Phase::Waiting => self.take_push(model, number, push),
            Phase::Releasing | Phase::Ended if !model.has(Step::PushGrantsWaiter) => {
                self.take_push(model, number, push);
            }
            _ => {}
        }
    }

    /// The client looks at a push that grants the lock.
    ///
    /// Its deadline counts from the sending of the request whose answer it has received. If the lock was granted after
    /// that answer, the key does not expire before that deadline; otherwise the client knows nothing of the key.
    fn take_push(&mut self, model: &Redis, number: ClaimNo, push: Push) {
        let has_failed_over = self.has_failed_over;
        let claim = self.claim(number);
        let follows_answer = push.token > claim.answered;
        let is_of_former_master = has_failed_over && !push.by_new_master && claim.answered_by_new_master;
        let is_too_late = push.expired && follows_answer && model.has(Step::PushCountsFromAnswer);
        if is_too_late
            || !follows_answer && model.has(Step::PushAfterAnswer)
            || is_of_former_master && model.has(Step::PushOfSameMaster)
        {
            // Now it is a hint only. Another push may still be on its way.
            if claim.message == Message::None {
                claim.message = Message::Arrived;
            }
            return;
        }
        if is_of_former_master {
            self.broken = Some(NO_FORMER_GRANT);
        }
        self.grant(number, push.token);
    }

    /// The claim ends with the error. What it may have left is withdrawn, once.
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
        let Claim { excused, .. } = *self.claim(number);
        *self.claim(number) = Claim { phase: Phase::Ended, excused, ..Claim::default() };
        self.tokens.end(number);
    }

    pub(super) fn delay(&mut self, request: Request) {
        self.faults.lost -= 1;
        self.late.push(request);
        self.late.sort_unstable();
    }

    pub(super) fn call(&mut self, model: &Redis, number: ClaimNo) {
        let answer = self.run(model, self.request(number, self.script_of(number)));
        self.receive(model, number, answer);
    }

    fn receive(&mut self, model: &Redis, number: ClaimNo, answer: Reply) {
        match answer {
            Reply::Granted(token) => self.grant(number, token),
            Reply::Queued => {
                let (counter, has_failed_over) = (self.server.counter, self.has_failed_over);
                let claim = self.claim(number);
                claim.phase = Phase::Waiting;
                if model.is(PUSHED) {
                    (claim.answered, claim.answered_by_new_master) = (counter, has_failed_over);
                }
                if claim.message == Message::Arrived {
                    claim.message = Message::None;
                }
            }
            // It is withdrawn. In the code the keeper then makes a new claim.
            Reply::EntryGone => self.claim(number).phase = Phase::Releasing,
            Reply::Done => self.end(number),
        }
    }

    pub(super) fn grant(&mut self, number: ClaimNo, token: Token) {
        if !self.tokens.grant(number, token) {
            self.broken = Some(TOKENS_RISE);
        }
        let claim = self.claim(number);
        *claim = Claim { phase: Phase::Held, excused: claim.excused, ..Claim::default() };
    }

    /// The heartbeat of a hold.
    pub(super) fn renew(&mut self, model: &Redis, number: ClaimNo) {
        let token = self.tokens.of(number);
        let lock = self.server.lock.filter(|(claim, _)| *claim == number);
        match lock.map(|(_, its)| its) {
            Some(its) if its == token => {}
            Some(_) if !model.has(Step::HeartbeatChecksToken) => self.broken = Some(NO_STALE_RENEWAL),
            _ => self.claim(number).phase = Phase::Releasing,
        }
    }

    pub(super) fn forget_old_tokens(&mut self) {
        let phase = |claim: ClaimNo| self.claims[claim.index()].phase;
        let acquires = |claim| matches!(phase(claim), Phase::Acquiring | Phase::Waiting | Phase::Answered);
        self.tokens.forget_old(acquires, |claim| matches!(phase(claim), Phase::Ended | Phase::Dead));
    }
}

impl Claim {
    /// Whether nobody renews or removes its entry any more.
    pub(super) fn is_left(&self) -> bool {
        self.phase == Phase::Dead || self.excused
    }

    pub(super) fn forget_message(&mut self) {
        (self.message, self.late_token, self.expired) = (Message::None, 0, false);
        self.pushed_by_new_master = false;
    }
}
