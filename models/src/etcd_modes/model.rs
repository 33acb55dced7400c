//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::{actions::actions, frame::recorded};

actions! { |model: &EtcdModes, state: State|
    /// A caller asks for the lock.
    Start(claim: ClaimNo, mode: Mode) => state.start(claim, mode),
    /// The enqueue is executed; its reply is on its way.
    Enqueue(claim: ClaimNo) fair => state.enqueue(model, claim),
    /// The reply to the enqueue arrives.
    Receive(claim: ClaimNo) fair => state.receive(model, claim),
    /// That reply is lost.
    LoseReply(claim: ClaimNo) => state.lose_reply(claim),
    /// The handoff to a claim arrives.
    Deliver(claim: ClaimNo) fair => state.deliver(model, claim),
    /// That handoff is lost.
    LoseHandoff(claim: ClaimNo) => state.lose_handoff(claim),
    /// The waiter reads the queue.
    Recheck(claim: ClaimNo) fair => state.recheck(model, claim),
    /// The guard is dropped.
    Release(claim: ClaimNo) fair => state.claims[claim.index()].phase = Phase::Leaving,
    /// The heartbeat does not find the key of a hold.
    Miss(claim: ClaimNo) fair => state.claims[claim.index()].phase = Phase::Leaving,
    /// The caller gives up.
    GiveUp(claim: ClaimNo) => state.give_up(claim),
    /// The queue is read before the key is created or deleted.
    ReadQueue(claim: ClaimNo) fair => state.read_queue(model, claim),
    /// The key is deleted, and the queue behind it read.
    Delete(claim: ClaimNo) fair => state.leave(model, claim),
    /// The same; the reply is lost.
    DeleteUnanswered(claim: ClaimNo) => state.leave_unanswered(model, claim),
    /// The handoffs are written.
    HandOff(claim: ClaimNo) fair => {
        state.hand_off(model, claim);
        state.end(claim);
    },
    /// A client's deadline passes without an acknowledged heartbeat.
    Lapse(client: usize) => state.end_session(client),
    /// The server ends the lease of a client.
    Expire(client: usize) fair if state.clients[client].session_ended => state.expire(client),
    /// An operator deletes a key.
    OperatorDeletes(claim: ClaimNo) => state.operator_deletes(model, claim),
}

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
        action.apply(self, &mut state);
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
