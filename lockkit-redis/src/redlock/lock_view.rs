//! Looking at a lock at all nodes.

use std::collections::HashMap;

use super::{
    node_call::NodeCall,
    nodes::{NodeFault, Nodes},
    wire::{LockState, lock_state},
};
use crate::error::RequestError;

/// What the nodes that count have of a lock, and which of the others failed.
#[derive(Debug, Default)]
pub(super) struct LockView {
    pub(super) seen: Vec<LockState>,
    faults: Vec<NodeFault>,
}

impl LockView {
    /// Asks all nodes, until `is_enough`; then the other nodes have a moment left.
    pub(super) async fn take(
        nodes: &Nodes,
        inspect: NodeCall,
        is_enough: impl Fn(&[LockState]) -> bool,
    ) -> Self {
        let mut round = nodes.ask(inspect, |_, answer| lock_state(answer));
        let mut view = Self::default();
        while let Some((number, answer)) = round.next(is_enough(&view.seen)).await {
            match answer {
                Ok(Some(state)) => view.seen.push(state),
                Ok(None) => view.faults.push((number, None)),
                Err(fault) => view.faults.push((number, Some(fault))),
            }
        }
        view
    }

    /// Returns the error if these answers do not suffice.
    pub(super) fn no_majority(&self, nodes: &Nodes) -> RequestError {
        nodes.no_majority(&self.faults)
    }
}

/// Returns the value that a majority has.
pub(super) fn majority_value<'a, T: Eq + std::hash::Hash + ?Sized>(
    all: impl Iterator<Item = &'a T>,
    majority: usize,
) -> Option<&'a T> {
    votes(all).into_iter().find(|(_, count)| *count >= majority).map(|(one, _)| one)
}

/// Returns how often each value occurs.
pub(super) fn votes<'a, T: Eq + std::hash::Hash + ?Sized>(
    all: impl Iterator<Item = &'a T>,
) -> HashMap<&'a T, usize> {
    let mut votes = HashMap::new();
    for one in all {
        *votes.entry(one).or_default() += 1;
    }
    votes
}
