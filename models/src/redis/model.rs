//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::{actions::actions, frame::recorded};

actions! { |model: &Redis, state: State|
    /// A caller asks for the lock.
    Start(claim: ClaimNo) => state.start(claim),
    /// The claim's script runs and is answered.
    Run(claim: ClaimNo) fair => state.call(model, claim),
    /// The claim's script runs; the answer is lost.
    LoseReply(claim: ClaimNo) => state.lose_reply(model, claim),
    /// The claim's script will run later; its sender stops waiting.
    Delay(claim: ClaimNo) => state.delay(state.request(claim, state.script_of(claim))),
    /// A waiter's heartbeat is delayed.
    DelayHeartbeat(claim: ClaimNo) => state.delay(state.request(claim, Script::Heartbeat)),
    /// A holder's heartbeat is delayed.
    DelayRenewal(claim: ClaimNo) => state.delay(state.request(claim, Script::Renew)),
    /// A delayed script runs.
    RunLate(nth: usize) fair => state.run_late(model, nth),
    /// The claim's script runs; its answer is late.
    RunWithLateReply(claim: ClaimNo) => state.call_with_late_reply(model, claim),
    /// The late answer arrives.
    ReceiveLate(claim: ClaimNo) fair => state.receive_late(model, claim),
    /// The late answer to a waiter arrives.
    ReceiveLateWait(claim: ClaimNo) fair => state.receive_late_wait(claim),
    /// The server refuses the claim's request.
    Refuse(claim: ClaimNo) => state.refuse(model, claim),
    /// The caller gives up.
    GiveUp(claim: ClaimNo) => {
        state.faults.cancels -= 1;
        state.give_up(claim);
    },
    /// The holder's heartbeat runs and is answered.
    Renew(claim: ClaimNo) fair => state.renew(model, claim),
    /// The guard is dropped.
    Release(claim: ClaimNo) fair => state.claim(claim).phase = Phase::Releasing,
    /// The lock's key expires.
    Expire fair => state.expire(),
    /// A waiter's deadline passes at the server.
    Lapse(claim: ClaimNo) fair if state.claims[claim.index()].is_left() => state.lapse(claim),
    /// A client dies.
    Die(claim: ClaimNo) => state.die(claim),
    /// The message that a claim is next arrives.
    Deliver(claim: ClaimNo) fair => state.deliver(model, claim),
    /// That message is lost.
    LoseMessage(claim: ClaimNo) => {
        state.faults.lost -= 1;
        state.claim(claim).forget_message();
    },
    /// That message arrives, and will arrive again.
    DeliverTwice(claim: ClaimNo) => {
        state.faults.duplicates -= 1;
        state.copy = Some(state.push_to(claim));
        state.deliver(model, claim);
    },
    /// It arrives again; this claim takes it.
    DeliverAgain(claim: ClaimNo) fair => state.receive_copy(model, claim),
    /// A replica falls behind.
    FallBehind => {
        state.faults.failovers -= 1;
        state.replica = Some(state.server);
    },
    /// The replica becomes the master.
    FailOver => {
        state.server = state.replica.take().unwrap_or_default();
        state.has_failed_over = true;
    },
}

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
        action.apply(self, &mut state);
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
        if !claim.is_left() {
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
