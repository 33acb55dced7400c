//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::frame::recorded;

impl Model for ZooKeeper {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { next_number: FIRST_NUMBER, zxid: 1, faults: self.faults, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for claim in ClaimNo::all().take(self.count()) {
            state.actions_of(self, claim, actions);
        }
        for (number, client) in state.clients.iter().enumerate() {
            if client.view != state.nodes {
                actions.push(Action::CatchUp(number));
            }
            if state.heartbeats(number) {
                actions.push(Action::Heartbeat(number));
            }
            if state.faults.lapses > 0 && !client.second_session {
                actions.push(Action::Lapse(number));
            }
            let early = !self.has(Step::DeadlineBeforeExpiry) && state.faults.lapses > 0;
            if (client.second_session || early) && !client.first_expired {
                actions.push(Action::Expire(number));
            }
        }
        if state.faults.deletes > 0 {
            actions.extend((0..state.nodes.len()).map(Action::Break));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Start(claim) => state.start(claim),
            Action::Create(claim) => {
                let own = state.create(claim);
                state.created(claim, own);
            }
            Action::LoseCreate(claim, done) => state.lose_create(claim, done),
            Action::LookUp(claim) => state.look_up(self, claim),
            Action::List(claim) => state.list(self, claim),
            Action::ListLate(claim) => state.list_late(claim),
            Action::ReceiveLate(claim) => state.grant(self, claim),
            Action::Refuse(claim) => state.refuse(self, claim),
            Action::Recheck(claim) => state.recheck(claim),
            Action::Notify(claim) => state.notify(self, claim),
            Action::LoseEvent(claim) => {
                state.faults.lost -= 1;
                state.claim(claim).event_lost = true;
            }
            Action::Delete(claim) => {
                state.delete(claim);
                state.sync_with_leader(claim);
                state.forget(claim);
            }
            Action::LoseDelete(claim, done) => state.lose_delete(self, claim, done),
            Action::GiveUp(claim) => state.give_up(self, claim),
            Action::Release(claim) => state.claim(claim).phase = Phase::Deleting,
            Action::Heartbeat(client) => state.heartbeat(self, client),
            Action::CatchUp(client) => state.clients[client].view = state.nodes,
            Action::Lapse(client) => {
                state.faults.lapses -= 1;
                state.end_session(self, client);
            }
            Action::Expire(client) => state.expire(client),
            Action::Break(nth) => state.operator_deletes(nth),
        }
        state.forget_old_tokens();
        rank::compress(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| state.holders().count() <= 1),
            recorded!(TOKENS_RISE),
            Property::always(IN_ORDER, |_, state: &State| !state.has_overtaken()),
            Property::always(NO_ORPHAN, |_, state: &State| !state.is_at_rest() || !state.has_orphan()),
            Property::sometimes("all claims are granted", |model, state: &State| {
                usize::from(state.tokens.grants) == model.count()
            }),
        ]
    }
}

impl State {
    fn start(&mut self, number: ClaimNo) {
        self.tokens.begin(number);
        *self.claim(number) = Claim { phase: Phase::Creating, ..Claim::default() };
    }

    fn lose_create(&mut self, number: ClaimNo, done: bool) {
        self.faults.lost -= 1;
        if done {
            self.create(number);
        }
        self.claim(number).phase = Phase::LookingUp;
    }

    fn lose_delete(&mut self, model: &ZooKeeper, number: ClaimNo, done: bool) {
        self.faults.lost -= 1;
        if done {
            self.delete(number);
        }
        if !model.has(Step::DeleteRepeats) {
            self.forget(number);
        }
    }

    fn operator_deletes(&mut self, nth: usize) {
        self.faults.deletes -= 1;
        if nth == 0 {
            let first = self.nodes[nth].claim;
            self.claim(first).evicted = true;
        }
        self.remove(nth);
    }
}
