//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::{actions::actions, frame::recorded};

actions! { |model: &Redlock, state: State|
    /// A client makes a claim and proposes a time.
    Start(client: usize, proposal: u8) => state.start(client, proposal),
    /// A node executes the request of the client's claim and answers.
    Execute(client: usize, node: usize) fair => state.execute(model, client, node),
    /// The connection breaks; the request that was sent over it is still on its way.
    Break(client: usize, node: usize) => state.break_connection(client, node),
    /// Such a request is executed.
    ExecuteLate(node: usize, nth: usize) fair => state.execute_late(model, node, nth),
    /// A majority has answered with different values, and the claim does not wait for the rest: it writes back.
    WriteBack(client: usize) fair => state.write_back(client),
    /// The claim gives up, or its deadline passes.
    GiveUp(client: usize) fair => state.end(client),
    /// The holder's heartbeat is answered.
    Renew(client: usize) fair => state.renew(model, client),
    /// The holder's heartbeat restores the key at a node.
    Restore(client: usize, node: usize) fair => state.restore(model, client, node),
    /// The guard is dropped, or its deadline passes.
    Release(client: usize) fair if state.lacks_majority(client) => {
        state.releases.add(state.claim(client));
        state.end(client);
    },
    /// The release of a claim is executed at a node.
    ExecuteRelease(node: usize, claim: ClaimNo) fair => state.execute_release(model, node, claim),
    /// The key at a node expires.
    Expire(node: usize)
        fair if state.nodes[node].key.is_some_and(|claim| !state.is_active(claim)) => state.expire(node),
    /// A node restarts empty.
    Restart(node: usize) => state.restart(model, node),
    /// The counters of the others are read for a node that was emptied.
    Learn(node: usize) fair => state.learn(node),
    /// The marker of that node is written again.
    Mark(node: usize) fair => state.mark(model, node),
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let counters = if self.is(COUNTERS_APART) { [0, 1, 2] } else { [0; NODES] };
        let nodes = counters.map(|counter| Node { counter, ..Node::default() });
        vec![State { nodes, faults: self.faults, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        for client in 0..CLIENTS {
            state.actions_of(self, client, actions);
        }
        let mut before = None;
        for (number, node) in state.nodes.iter().enumerate() {
            // Of identical nodes one is enough.
            if before.replace(node) == Some(node) {
                continue;
            }
            for client in 0..CLIENTS {
                state.actions_of_at(client, number, actions);
            }
            state.actions_at(self, number, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        action.apply(self, &mut state);
        state.forget_finished();
        state.nodes.sort_unstable();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| {
                let holders = state.clients.iter().filter(|client| client.phase == Phase::Held).count();
                holders <= 1 || state.expired_early
            }),
            recorded!(UNIQUE),
            recorded!(RISING),
            recorded!(NO_REVIVAL),
            recorded!(NO_RESIDUE),
            Property::sometimes("the first client's last claim is granted", |model, state: &State| {
                state.holds_last(model, 0)
            }),
            Property::sometimes("the second client's last claim is granted", |model, state: &State| {
                state.holds_last(model, 1)
            }),
            Property::sometimes("a token is written back", |_, state: &State| {
                state.nodes.iter().any(|node| node.progress.contains(&Progress::Written))
            }),
        ]
    }
}
