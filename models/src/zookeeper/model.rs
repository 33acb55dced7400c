//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::{actions::actions, frame::recorded};

actions! { |model: &ZooKeeper, state: State|
    /// A caller asks for the lock.
    Start(claim: ClaimNo) => state.start(claim),
    /// The create is executed and answered.
    Create(claim: ClaimNo) fair => {
        let own = state.create(claim);
        state.created(claim, own);
    },
    /// The answer is lost; true: the create was executed.
    LoseCreate(claim: ClaimNo, done: bool) => state.lose_create(claim, done),
    /// The claim's node is looked up.
    LookUp(claim: ClaimNo) fair => state.look_up(model, claim),
    /// The list is read.
    List(claim: ClaimNo) fair => state.list(model, claim),
    /// The list is read, and its answer is late.
    ListLate(claim: ClaimNo) => state.list_late(claim),
    /// The late answer arrives.
    ReceiveLate(claim: ClaimNo) fair => state.grant(model, claim),
    /// The server refuses the claim's request.
    Refuse(claim: ClaimNo) => state.refuse(model, claim),
    /// A waiter checks its own node and its predecessor.
    Recheck(claim: ClaimNo) fair => state.recheck(claim),
    /// The watch reports that the predecessor is gone.
    Notify(claim: ClaimNo) fair => state.notify(model, claim),
    /// That event is lost.
    LoseEvent(claim: ClaimNo) => {
        state.faults.lost -= 1;
        state.claim(claim).event_lost = true;
    },
    /// The claim's own node is deleted.
    Delete(claim: ClaimNo) fair => {
        state.delete(claim);
        state.sync_with_leader(claim);
        state.forget(claim);
    },
    /// The answer is lost; true: the deletion was executed.
    LoseDelete(claim: ClaimNo, done: bool) => state.lose_delete(model, claim, done),
    /// The caller gives up.
    GiveUp(claim: ClaimNo) => state.give_up(model, claim),
    /// The guard is dropped.
    Release(claim: ClaimNo) fair => state.claim(claim).phase = Phase::Deleting,
    /// A client's heartbeat ends. Its server shows the nodes of its holds, or they are lost.
    Heartbeat(client: usize) fair => state.heartbeat(model, client),
    /// A client's server catches up with the leader.
    CatchUp(client: usize) fair => state.clients[client].view = state.nodes,
    /// A client's deadline passes; it continues in a new session.
    Lapse(client: usize) => {
        state.faults.lapses -= 1;
        state.end_session(model, client);
    },
    /// The server ends a client's first session.
    Expire(client: usize) fair if state.clients[client].second_session => state.expire(client),
    /// An operator deletes a node.
    Break(nth: usize) => state.operator_deletes(nth),
}

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
        action.apply(self, &mut state);
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
