//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::frame::recorded;

impl Model for Redis {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { faults: self.faults, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for claim in ClaimNo::all().take(self.count()) {
            state.actions_of(self, claim, actions);
        }
        actions.extend((0..state.late.len()).map(Action::RunLate));
        let believes = |(claim, token): (ClaimNo, Token)| {
            let holds = state.claims[claim.index()].phase == Phase::Held && state.tokens.of(claim) == token;
            holds && self.has(Step::DeadlineBeforeExpiry)
        };
        if state.server.lock.is_some_and(|held| !believes(held)) {
            actions.push(Action::Expire);
        }
        match state.replica {
            None if state.faults.failovers > 0 => actions.push(Action::FallBehind),
            Some(_) => actions.push(Action::FailOver),
            None => {}
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Start(claim) => state.start(claim),
            Action::Run(claim) => state.call(self, claim),
            Action::LoseReply(claim) => state.lose_reply(self, claim),
            Action::Delay(claim) => state.delay(state.request(claim, state.script_of(claim))),
            Action::DelayHeartbeat(claim) => state.delay(state.request(claim, Script::Heartbeat)),
            Action::DelayRenewal(claim) => state.delay(state.request(claim, Script::Renew)),
            Action::RunWithLateReply(claim) => state.call_with_late_reply(self, claim),
            Action::ReceiveLate(claim) => state.receive_late(self, claim),
            Action::ReceiveLateWait(claim) => state.receive_late_wait(claim),
            Action::Refuse(claim) => state.refuse(self, claim),
            Action::RunLate(nth) => state.run_late(self, nth),
            Action::GiveUp(claim) => {
                state.faults.cancels -= 1;
                state.give_up(claim);
            }
            Action::Renew(claim) => state.renew(self, claim),
            Action::Release(claim) => state.claim(claim).phase = Phase::Releasing,
            Action::Expire => state.expire(),
            Action::Lapse(claim) => state.lapse(claim),
            Action::Die(claim) => state.die(claim),
            Action::Deliver(claim) => state.deliver(self, claim),
            Action::LoseMessage(claim) => {
                state.faults.lost -= 1;
                state.claim(claim).forget_message();
            }
            Action::DeliverTwice(claim) => {
                state.faults.duplicates -= 1;
                state.copy = Some(state.push_to(claim));
                state.deliver(self, claim);
            }
            Action::DeliverAgain(claim) => state.receive_copy(self, claim),
            Action::FallBehind => {
                state.faults.failovers -= 1;
                state.replica = Some(state.server);
            }
            Action::FailOver => {
                state.server = state.replica.take().unwrap_or_default();
                state.has_failed_over = true;
            }
        }
        state.forget_old_tokens();
        rank::compress(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                let holders = state.claims.iter().filter(|claim| claim.phase == Phase::Held).count();
                holders <= 1 || state.has_failed_over
            }),
            recorded!(TOKENS_RISE),
            recorded!(IN_ORDER),
            recorded!(NO_FOREIGN_RELEASE),
            recorded!(NO_STALE_RENEWAL),
            recorded!(NO_FORMER_GRANT),
            Property::always(NO_ORPHAN, |_, state: &State| !state.is_at_rest() || !state.has_orphan()),
            recorded!(NOT_TURNED_AWAY),
            Property::sometimes("all claims are granted", |model, state: &State| {
                usize::from(state.tokens.grants) == model.count()
            }),
        ]
    }
}

impl State {
    fn start(&mut self, number: ClaimNo) {
        self.tokens.begin(number);
        *self.claim(number) = Claim { phase: Phase::Acquiring, ..Claim::default() };
    }

    fn lose_reply(&mut self, model: &Redis, number: ClaimNo) {
        self.faults.lost -= 1;
        self.run(model, self.request(number, self.script_of(number)));
    }

    fn run_late(&mut self, model: &Redis, nth: usize) {
        let request = self.late.remove(nth);
        let over = matches!(self.claim(request.claim).phase, Phase::Ended | Phase::Dead);
        if request.script == Script::Acquire && over {
            self.claim(request.claim).excused = true;
        }
        self.run(model, request);
    }

    fn lapse(&mut self, number: ClaimNo) {
        let claim = self.claim(number);
        if claim.phase != Phase::Dead && !claim.excused {
            self.faults.lapses -= 1;
        }
        self.server.lapsed[number.index()] = true;
    }

    fn die(&mut self, number: ClaimNo) {
        self.faults.deaths -= 1;
        self.tokens.end(number);
        *self.claim(number) = Claim { phase: Phase::Dead, ..Claim::default() };
    }

    /// The message that a claim is next arrives. In scenes with pushes it grants; otherwise only without a step.
    fn deliver(&mut self, model: &Redis, number: ClaimNo) {
        if model.is(PUSHED) {
            self.receive_push(model, number);
        } else if model.has(Step::ConfirmBeforeGrant) {
            self.claim(number).message = Message::Arrived;
        } else {
            self.claim(number).message = Message::None;
            self.grant(number, self.minted_last);
        }
    }
}
