//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::{actions::actions, frame::recorded};

actions! { |model: &RedisModes, state: State|
    /// A caller asks for the lock.
    Start(claim: ClaimNo, mode: Mode) => state.start(claim, mode),
    /// The claim's script runs and is answered.
    Run(claim: ClaimNo) fair => state.call(model, claim),
    /// The claim's script runs; the answer is lost.
    LoseReply(claim: ClaimNo) => state.lose_reply(model, claim),
    /// The message that a claim was granted the lock arrives.
    Deliver(claim: ClaimNo) fair => state.claims[claim.index()].message = Message::Arrived,
    /// That message is lost.
    LoseMessage(claim: ClaimNo) => {
        state.faults.lost -= 1;
        state.claims[claim.index()].message = Message::None;
    },
    /// The guard is dropped.
    Release(claim: ClaimNo) fair => state.claims[claim.index()].phase = Phase::Releasing,
    /// The heartbeat does not find the entry of a hold.
    Miss(claim: ClaimNo) fair => state.claims[claim.index()].phase = Phase::Releasing,
    /// A renewal is delayed.
    DelayRenewal(claim: ClaimNo) => state.delay_renewal(claim),
    /// A delayed renewal is executed.
    RenewLate(nth: usize) fair => {
        let renewal = state.late.remove(nth);
        state.renew_late(model, renewal);
    },
    /// The caller gives up.
    GiveUp(claim: ClaimNo) => state.give_up(claim),
    /// The lifetime of a holder's entry passes.
    Expire(claim: ClaimNo) fair if state.has_ended(claim) => state.expire(model, claim),
    /// A waiter's deadline passes at the server.
    Lapse(claim: ClaimNo) fair if state.has_ended(claim) => state.lapse(claim),
    /// A client dies.
    Die(claim: ClaimNo) => state.die(claim),
}

impl Model for RedisModes {
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
        actions.extend((0..state.late.len()).map(Action::RenewLate));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        action.apply(self, &mut state);
        state.forget_ended();
        rank::compress(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LIMITS, |_, state: &State| {
                modes::may_hold_together(state.holders().map(|claim| claim.mode))
            }),
            recorded!(TOKENS_RISE),
            recorded!(IN_ORDER),
            recorded!(SERVED),
            Property::always(NO_ORPHAN, |_, state: &State| !state.is_at_rest() || !state.has_orphan()),
            Property::sometimes("all claims are granted", |model, state: &State| {
                usize::from(state.tokens.grants) == model.count()
            }),
            Property::sometimes("two claims hold together", |_, state: &State| state.holders().count() > 1),
        ]
    }
}
