//! Which node of the set is at each address of the URL.
//!
//! Failure cases, in which two clients could get majorities that share no node:
//!
//! * The URL names more or fewer nodes than the set has, or nodes of different sets: refused when the client connects.
//! * Two addresses lead to one node, by an alias or a proxy: the node counts once.
//! * Nodes exchange their addresses while a client runs: every request names the marker that its address had, so none is
//!   answered at the new one. The session ends, and the next one finds the nodes where they are.
//! * An address turns out later to lead to a node of another set: it does not count.
//! * An address leads to a server without data. The server cannot know whether it is a node that lost its data or a new
//!   server. The client takes it for the node that it has met at that address before, or for the node that had this
//!   name at the set-up. Otherwise no client brings it back.
//!
//! So clients need not spell addresses alike: the markers identify the nodes.

use std::sync::{Arc, Mutex, MutexGuard};

use lockkit_core::{ErrorKind, support::lock};
use tokio_util::sync::CancellationToken;

use super::marker::{Marker, NodeIdentity, join_names, split_names};
use crate::{
    error::{Effect, RequestError},
    redlock::wire::NodeState,
};

/// What a client knows about the set that it uses.
#[derive(Debug)]
pub(crate) struct Members {
    /// By address, as in the URL.
    names: Vec<String>,
    state: Mutex<MemberState>,
    /// Cancelled when another node of the set was found at the address of a known one.
    exchanged: CancellationToken,
}

#[derive(Debug)]
struct MemberState {
    set: Option<NodeSet>,
    /// By address: the number of the node that was found there.
    numbers: Vec<Option<usize>>,
    /// By address: the marker of that node. Every request names it.
    markers: Vec<Option<Arc<str>>>,
}

impl MemberState {
    fn update_markers(&mut self) {
        let marker = |number: &Option<usize>| Some(self.set.as_ref()?.identity((*number)?).ready().into());
        self.markers = self.numbers.iter().map(marker).collect();
    }
}

/// The set that a majority belongs to.
#[derive(Debug)]
struct NodeSet {
    /// The identity of one of its nodes.
    identity: NodeIdentity,
    /// The names of its nodes at the set-up.
    names: Vec<String>,
}

impl NodeSet {
    fn identity(&self, number: usize) -> NodeIdentity {
        NodeIdentity { number, ..self.identity.clone() }
    }
}

impl Members {
    pub(crate) fn new(names: Vec<String>) -> Self {
        let (numbers, markers) = (vec![None; names.len()], vec![None; names.len()]);
        let state = Mutex::new(MemberState { set: None, numbers, markers });
        Self { names, state, exchanged: CancellationToken::new() }
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Sets the client's set, by one node of a majority that agrees.
    pub(crate) fn choose_set(&self, identity: &NodeIdentity, names: &str) {
        let mut state = self.lock();
        state.set = Some(NodeSet { identity: identity.clone(), names: split_names(names) });
        state.update_markers();
    }

    /// Records which node was found at this address.
    ///
    /// # Errors
    ///
    /// The node must not count: it is a node of another set, was found at another address too, or has the address of
    /// another node, which ends the session.
    pub(crate) fn admit(&self, address: usize, found: &NodeState) -> Result<(), RequestError> {
        let Marker::Ready(identity) = Marker::parse(&found.marker) else { return Ok(()) };
        let mut state = self.lock();
        if state.set.as_ref().is_some_and(|set| set.identity(identity.number) != identity) {
            return Err(other_set_fault());
        }
        if state.numbers.get(address).is_some_and(|known| known.is_some_and(|known| known != identity.number))
        {
            self.exchanged.cancel();
            return Err(refused("it is at the address of another node".to_owned()));
        }
        let twice = state.numbers.iter().position(|number| *number == Some(identity.number));
        if let Some(other) = twice.filter(|other| *other != address) {
            let name = self.names.get(other).map_or("", String::as_str);
            return Err(refused(format!("it is the same node as {name}")));
        }
        if let Some(number) = state.numbers.get_mut(address)
            && number.replace(identity.number).is_none()
        {
            state.update_markers();
        }
        Ok(())
    }

    /// Returns whether this node counts in another set.
    pub(crate) fn is_of_another_set(&self, found: &NodeState) -> bool {
        let Marker::Ready(identity) = Marker::parse(&found.marker) else { return false };
        self.lock().set.as_ref().is_some_and(|set| set.identity(identity.number) != identity)
    }

    /// Waits until nodes have exchanged their addresses.
    pub(crate) async fn exchanged(&self) {
        self.exchanged.cancelled().await;
    }

    /// Returns the marker of the node at this address.
    pub(crate) fn marker(&self, address: usize) -> Option<Arc<str>> {
        self.lock().markers.get(address).cloned().flatten()
    }

    /// Returns which node a server without data at this address must be: the one that was found there before, or the
    /// one with its name.
    pub(crate) fn expected_identity(&self, address: usize) -> Option<NodeIdentity> {
        let state = self.lock();
        let set = state.set.as_ref()?;
        let by_name = || {
            let name = self.names.get(address)?;
            let number = 1 + set.names.iter().position(|one| one == name)?;
            (!state.numbers.contains(&Some(number))).then_some(number)
        };
        let number = state.numbers.get(address).copied().flatten().or_else(by_name)?;
        Some(set.identity(number))
    }

    /// Returns the names of the set's nodes at the set-up, as each node stores them.
    pub(crate) fn names_of_set(&self) -> String {
        self.lock().set.as_ref().map(|set| join_names(&set.names)).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, MemberState> {
        lock(&self.state)
    }
}

pub(crate) fn other_set_fault() -> RequestError {
    refused("it is a node of another set".to_owned())
}

fn refused(message: String) -> RequestError {
    RequestError::new(Effect::Refused, ErrorKind::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(number: usize) -> NodeIdentity {
        NodeIdentity { set: "5f0c".to_owned(), max_ttl_ms: 60_000, number, set_size: 3 }
    }

    fn node_state(identity: &NodeIdentity) -> NodeState {
        NodeState {
            marker: identity.ready(),
            highest: 0,
            names: "a:1\nb:1\nc:1".to_owned(),
            records_last_us: 0,
        }
    }

    fn members(names: [&str; 3]) -> Members {
        let members = Members::new(names.map(str::to_owned).into());
        members.choose_set(&identity(2), &node_state(&identity(2)).names);
        members
    }

    #[test]
    fn nodes_are_identified_by_markers_not_names() {
        let members = members(["x:1", "c:1", "y:1"]);
        members.admit(0, &node_state(&identity(3))).unwrap();
        members.admit(1, &node_state(&identity(1))).unwrap();
        assert_eq!(members.marker(0).as_deref().map(str::to_owned), Some(identity(3).ready()));
        assert_eq!(
            (
                members.marker(1).as_deref().map(str::to_owned),
                members.marker(2).as_deref().map(str::to_owned)
            ),
            (Some(identity(1).ready()), None)
        );
        assert_eq!(members.expected_identity(0), Some(identity(3)), "it was found there");
        assert_eq!(members.expected_identity(2), None, "no node of the set had that name");
    }

    #[test]
    fn node_of_another_set_and_node_found_twice_do_not_count() {
        let members = members(["a:1", "b:1", "c:1"]);
        members.admit(0, &node_state(&identity(1))).unwrap();
        members.admit(0, &node_state(&identity(1))).unwrap();
        for wrong in [
            identity(1),
            NodeIdentity { set: "0000".to_owned(), ..identity(2) },
            NodeIdentity { set_size: 5, ..identity(2) },
            NodeIdentity { max_ttl_ms: 1, ..identity(2) },
        ] {
            assert_eq!(members.admit(1, &node_state(&wrong)).unwrap_err().kind(), ErrorKind::InvalidConfig);
            assert_eq!(members.marker(1).as_deref().map(str::to_owned), None, "{wrong}");
        }
    }

    #[test]
    fn node_known_at_a_later_address_does_not_count_at_an_earlier_one() {
        let members = members(["a:1", "b:1", "c:1"]);
        members.admit(2, &node_state(&identity(1))).unwrap();
        let fault = members.admit(0, &node_state(&identity(1))).unwrap_err();
        assert!(fault.message().contains("the same node as c:1"), "{fault:?}");
        assert_eq!(members.marker(0).as_deref(), None);
    }

    #[test]
    fn exchange_of_addresses_is_noticed_and_changes_no_marker() {
        let members = members(["a:1", "b:1", "c:1"]);
        for number in 0..3 {
            members.admit(number, &node_state(&identity(number + 1))).unwrap();
        }
        assert!(!members.exchanged.is_cancelled(), "each is where it was");
        members.admit(0, &node_state(&identity(2))).unwrap_err();
        assert!(members.exchanged.is_cancelled());
        assert_eq!(
            members.marker(0).as_deref().map(str::to_owned),
            Some(identity(1).ready()),
            "votes are counted by address"
        );
    }

    #[test]
    fn empty_server_is_the_node_of_its_name_unless_that_is_elsewhere() {
        let members = members(["a:1", "x:1", "c:1"]);
        assert_eq!(members.expected_identity(2), Some(identity(3)));
        members.admit(1, &node_state(&identity(3))).unwrap();
        assert_eq!(members.expected_identity(2), None, "it was found at another address");
    }
}
