//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::frame::recorded;

impl Model for EtcdModes {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { revision: 1, faults: self.faults, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for claim in ClaimNo::all() {
            state.actions_of(self, claim, actions);
            if state.faults.deletes > 0 && state.keys[claim.index()] > 0 {
                actions.push(Action::OperatorDeletes(claim));
            }
        }
        for client in 0..CLIENTS {
            let Client { session_ended, lease_gone } = state.clients[client];
            if state.faults.lapses > 0 && !session_ended {
                actions.push(Action::Lapse(client));
            }
            let early = !self.has(Step::DeadlineBeforeExpiry) && state.faults.lapses > 0;
            if (session_ended || early) && !lease_gone {
                actions.push(Action::Expire(client));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Start(claim, mode) => state.start(claim, mode),
            Action::Enqueue(claim) => state.enqueue(self, claim),
            Action::Receive(claim) => state.receive(self, claim),
            Action::LoseReply(claim) => state.lose_reply(claim),
            Action::Deliver(claim) => state.deliver(self, claim),
            Action::LoseHandoff(claim) => state.lose_handoff(claim),
            Action::Recheck(claim) => state.recheck(self, claim),
            Action::Release(claim) | Action::Miss(claim) => {
                state.claims[claim.index()].phase = Phase::Leaving;
            }
            Action::GiveUp(claim) => state.give_up(claim),
            Action::ReadQueue(claim) => state.read_queue(self, claim),
            Action::Delete(claim) => state.leave(self, claim),
            Action::DeleteUnanswered(claim) => state.leave_unanswered(self, claim),
            Action::HandOff(claim) => {
                state.hand_off(self, claim);
                state.end(claim);
            }
            Action::Lapse(client) => state.end_session(client),
            Action::Expire(client) => state.expire(client),
            Action::OperatorDeletes(claim) => state.operator_deletes(self, claim),
        }
        state.forget_ended();
        state.created_last = rank::compress(&mut state)[CREATED];
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LIMITS, |_, state: &State| {
                modes::may_hold_together(state.holders().map(|claim| claim.mode))
            }),
            recorded!(TOKENS_RISE),
            Property::always(IN_ORDER, |model, state: &State| !state.has_overtaken(model)),
            Property::sometimes("all claims are granted", |model, state: &State| {
                usize::from(state.grants) == model.count()
            }),
            Property::sometimes("two claims hold together", |_, state: &State| state.holders().count() > 1),
        ]
    }
}
