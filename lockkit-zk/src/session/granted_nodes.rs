//! The nodes of the holds of a backend's sessions.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use lockkit_core::{FencingToken, LockName, backend::ClaimId, support::lock};

use crate::wire::CreatedNode;

/// The nodes of all holds of a backend's sessions.
#[derive(Debug, Default)]
pub(crate) struct GrantedNodes(Mutex<HashMap<ClaimId, GrantedNode>>);

/// The node of a claim that was granted.
#[derive(Clone, Debug)]
pub(crate) struct GrantedNode {
    pub(crate) session: i64,
    pub(crate) name: LockName,
    pub(crate) node: CreatedNode,
}

impl GrantedNodes {
    pub(crate) fn insert(&self, id: ClaimId, granted: GrantedNode) {
        self.lock().insert(id, granted);
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<GrantedNode> {
        self.lock().get(&id).cloned()
    }

    pub(crate) fn remove(&self, id: ClaimId) {
        self.lock().remove(&id);
    }

    pub(crate) fn remove_session(&self, session: i64) {
        self.lock().retain(|_, granted| granted.session != session);
    }

    /// Returns the path of a guard's node.
    pub(crate) fn path(&self, name: &LockName, token: FencingToken) -> Option<String> {
        let granted = self.lock();
        let found = granted.values().find(|granted| granted.node.token() == token && granted.name == *name);
        found.map(|granted| granted.node.path.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, GrantedNode>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A holder that has not noticed its loss yet must not be given the node of the one that came after it.
    #[test]
    fn path_is_that_of_the_grant_with_this_token() {
        let (granted, name) = (GrantedNodes::default(), LockName::new("a").unwrap());
        for czxid in 1..=20 {
            let node = CreatedNode { path: format!("/a/{czxid}"), czxid };
            granted.insert(ClaimId::random(), GrantedNode { session: 1, name: name.clone(), node });
        }
        for czxid in 1..=20 {
            assert_eq!(granted.path(&name, CreatedNode::token_of(czxid)), Some(format!("/a/{czxid}")));
        }
        assert_eq!(granted.path(&name, CreatedNode::token_of(21)), None);
        assert_eq!(granted.path(&LockName::new("b").unwrap(), CreatedNode::token_of(1)), None);
    }

    /// The next session of a client may hold locks before the last one is dropped.
    #[test]
    fn end_of_a_session_forgets_its_own_nodes_only() {
        let (granted, name) = (GrantedNodes::default(), LockName::new("a").unwrap());
        let ids = [1, 2, 3].map(|session| {
            let node = CreatedNode { path: format!("/a/{session}"), czxid: session };
            let (id, granted_node) = (ClaimId::random(), GrantedNode { session, name: name.clone(), node });
            granted.insert(id, granted_node);
            id
        });
        granted.remove_session(2);
        assert_eq!(ids.map(|id| granted.get(id).is_some()), [true, false, true]);
    }
}
