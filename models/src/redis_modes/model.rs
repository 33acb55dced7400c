//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::frame::recorded;

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
        match action {
            Action::Start(claim, mode) => state.start(claim, mode),
            Action::Run(claim) => state.call(self, claim),
            Action::LoseReply(claim) => state.lose_reply(self, claim),
            Action::Deliver(claim) => state.claims[claim.index()].message = Message::Arrived,
            Action::LoseMessage(claim) => {
                state.faults.lost -= 1;
                state.claims[claim.index()].message = Message::None;
            }
            Action::Release(claim) | Action::Miss(claim) => {
                state.claims[claim.index()].phase = Phase::Releasing;
            }
            Action::DelayRenewal(claim) => state.delay_renewal(claim),
            Action::RenewLate(nth) => {
                let renewal = state.late.remove(nth);
                state.renew_late(self, renewal);
            }
            Action::GiveUp(claim) => state.give_up(claim),
            Action::Expire(claim) => state.expire(self, claim),
            Action::Lapse(claim) => state.lapse(claim),
            Action::Die(claim) => state.die(claim),
        }
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
