//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::frame::recorded;

impl Model for Etcd {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = || Client { epoch: 1, ..Client::default() };
        vec![State {
            epoch_last: [1; CLIENTS],
            epochs: [1; CLIENTS],
            clients: [client(), client()],
            faults: self.faults,
            ..State::default()
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for claim in ClaimNo::all() {
            state.actions_of(self, claim, actions);
            if state.faults.deletes > 0 && state.keys[claim.index()].is_some() {
                actions.push(Action::Delete(claim));
            }
        }
        actions.extend((0..state.late.len()).map(Action::ExecuteLate));
        match state.keys[ClaimNo::FOREIGN.index()] {
            None if state.faults.foreign > 0 => actions.push(Action::ForeignComes),
            Some(_) if state.foreign_holds => actions.push(Action::ForeignGoes),
            Some(_) if state.is_foreign_first() => actions.push(Action::ForeignIsFirst),
            _ => {}
        }
        for client in 0..CLIENTS {
            let Client { session_ended, lease_gone, .. } = state.clients[client];
            if !state.handoffs[client].is_empty() && !session_ended {
                actions.push(Action::Deliver(client));
                if state.faults.lost > 0 {
                    actions.push(Action::LoseHandoff(client));
                }
            }
            if state.faults.lapses > 0 && !session_ended {
                actions.push(Action::Lapse(client));
            }
            let early = !self.has(Step::DeadlineBeforeExpiry) && state.faults.lapses > 0;
            let may_expire = session_ended || early;
            if may_expire && !lease_gone {
                actions.push(Action::Expire(client));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Start(claim) => state.start(self, claim),
            Action::Send(claim) => state.send(self, claim, false),
            Action::SendAfterStaleRead(claim) => state.send(self, claim, true),
            Action::SendLate(claim) => state.send_late(self, claim),
            Action::Execute(claim) => state.end(self, claim),
            Action::Receive(claim) => state.receive(self, claim),
            Action::LoseReply(claim) => state.lose_reply(claim),
            Action::ExecuteLate(nth) => {
                let request = state.late.remove(nth);
                state.execute(self, request);
            }
            Action::GiveUp(claim) => state.give_up(claim),
            Action::Deliver(client) => state.deliver(self, client),
            Action::LoseHandoff(client) => state.lose_handoff(client),
            Action::Recheck(claim) => state.read_queue(self, claim),
            Action::Notify(claim) if self.has(Step::ReadBeforeGrant) => {
                state.claims[claim.index()].notified = true
            }
            Action::Notify(claim) => state.grant(claim, false),
            Action::LoseEvent(claim) => state.claims[claim.index()].predecessor = None,
            Action::Release(claim) | Action::Miss(claim) => {
                state.claims[claim.index()].phase = Phase::Leaving
            }
            Action::Lapse(client) => {
                state.faults.lapses -= 1;
                state.end_session(self, client);
            }
            Action::Refuse(claim) => state.refuse(self, claim),
            Action::ForeignComes => state.foreign_comes(),
            Action::ForeignIsFirst => state.foreign_holds = true,
            Action::ForeignGoes => state.foreign_goes(),
            Action::Expire(client) => state.expire(client),
            Action::Delete(key) => state.delete(key),
        }
        state.forget_old_tokens();
        let highest = rank::compress(&mut state);
        state.created_last = highest[CREATED];
        state.epoch_last = [highest[EPOCH], highest[EPOCH + 1]];
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                state.holders().count() + usize::from(state.foreign_holds) <= 1
            }),
            recorded!(TOKENS_RISE),
            Property::always(IN_ORDER, |_, state: &State| !state.has_overtaken()),
            recorded!(NO_FOREIGN_DELETE),
            recorded!(FIRST_FINDS_NO_KEY),
            Property::always(NO_ORPHAN, |_, state: &State| !state.is_at_rest() || !state.has_orphan()),
            Property::sometimes("all claims are granted", |model, state: &State| {
                usize::from(state.tokens.grants) == model.count()
            }),
        ]
    }
}
