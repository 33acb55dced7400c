//! The actions, their effects, and the properties.

use stateright::{Model, Property};

use super::*;
use crate::frame::recorded;

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
        match action {
            Action::Start(client, proposal) => state.start(client, proposal),
            Action::Execute(client, node) => state.execute(self, client, node),
            Action::Break(client, node) => state.break_connection(client, node),
            Action::ExecuteLate(node, nth) => state.execute_late(self, node, nth),
            Action::WriteBack(client) => state.write_back(client),
            Action::GiveUp(client) => state.end(client),
            Action::Renew(client) => state.renew(self, client),
            Action::Restore(client, node) => state.restore(self, client, node),
            Action::Release(client) => {
                state.releases.add(state.claim(client));
                state.end(client);
            }
            Action::ExecuteRelease(node, claim) => state.execute_release(self, node, claim),
            Action::Expire(node) => state.expire(node),
            Action::Restart(node) => state.restart(self, node),
            Action::Learn(node) => state.learn(node),
            Action::Mark(node) => state.mark(self, node),
        }
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
