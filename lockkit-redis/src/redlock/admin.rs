//! Inspecting a lock.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use lockkit_core::{
    FencingToken, LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection},
};

use super::{
    RedlockBackend,
    membership::{join, look_at_majority},
    nodes::{Nodes, ReplySender},
    wire::{inspect, inspected_lock},
};
use crate::{error::RequestError, keys::LockKeys};

/// A lock as one node has it: value, counter, metadata.
type LockAtNode = (Vec<u8>, u64, Vec<u8>);

#[async_trait]
impl Admin for RedlockBackend {
    /// Returns the holder by a majority of the nodes. Waiters are not visible, because they leave nothing there.
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let keys = self.config.layout().keys(name)?;
        // A new connection for each call: a kept one would belong to the runtime of the first call.
        let nodes = self.config.connect(self.config.request_timeout());
        let seen = self
            .look_at_lock(&nodes, &keys)
            .await
            .map_err(|fault| fault.into_error("inspect").with_lock(name))?;
        Ok(Inspection::new(holder(&keys, &seen, nodes.majority()), Vec::new()))
    }
}

impl RedlockBackend {
    async fn look_at_lock(&self, nodes: &Nodes, keys: &LockKeys) -> Result<Vec<LockAtNode>, RequestError> {
        join(nodes, &look_at_majority(nodes).await, self.config.max_ttl)?;
        let (call, limit) = (Arc::new(inspect(keys)), nodes.limit);
        let mut round = nodes.at_all(|_, node, reply: ReplySender<Result<LockAtNode, RequestError>>| {
            let call = Arc::clone(&call);
            async move { reply.send(node.run(limit, &call).await.and_then(inspected_lock)) }
        });
        let (mut seen, mut faults) = (Vec::new(), Vec::new());
        while let Some((number, answer)) = round.next(seen.len() >= nodes.majority()).await {
            match answer {
                Ok(one) => seen.push(one),
                Err(fault) => faults.push((number, fault)),
            }
        }
        if seen.len() >= nodes.majority() {
            return Ok(seen);
        }
        Err(nodes.no_majority(faults.iter().map(|(number, fault)| (*number, Some(fault)))))
    }
}

/// The holder at a majority of the nodes. The value of a lock is the secret that releases it. It is shown only together
/// with metadata, which no other program writes; any other holder is shown by the lock's key.
fn holder(keys: &LockKeys, seen: &[LockAtNode], majority: usize) -> Option<Contender> {
    let value =
        majority_value(seen.iter().map(|(value, ..)| value), majority).filter(|value| !value.is_empty())?;
    let having = || seen.iter().filter(|one| one.0 == *value);
    let Some(metadata) = having().find_map(|(_, _, metadata)| Metadata::from_json(metadata)) else {
        return Some(Contender::new(keys.lock(), None, None));
    };
    // A counter that a majority has for this value is its token.
    let token = majority_value(having().map(|one| &one.1), majority).map(|token| FencingToken::new(*token));
    Some(Contender::new(String::from_utf8_lossy(value), token, Some(metadata)))
}

/// The value that a majority of the nodes has.
fn majority_value<'a, T: Eq + std::hash::Hash>(
    all: impl Iterator<Item = &'a T>,
    majority: usize,
) -> Option<&'a T> {
    let mut votes: HashMap<&T, usize> = HashMap::new();
    for one in all {
        *votes.entry(one).or_default() += 1;
    }
    votes.into_iter().find(|(_, count)| *count >= majority).map(|(one, _)| one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Layout, Names};

    fn seen(value: &str, counter: u64) -> LockAtNode {
        (value.into(), counter, Metadata::of_this_process(Some("me")).to_json().into_bytes())
    }

    fn holder_of(seen: &[LockAtNode]) -> Option<Contender> {
        let keys = Layout::new("app:", Names::Raw, false).keys(&LockName::new("x").unwrap()).unwrap();
        holder(&keys, seen, 2)
    }

    #[test]
    fn holder_has_a_majority_and_so_has_its_token() {
        let found = holder_of(&[seen("a", 7), seen("b", 9), seen("a", 7)]).unwrap();
        assert_eq!((&*found.entry, found.token), ("a", Some(FencingToken::new(7))));
        let found = holder_of(&[seen("a", 7), seen("a", 8), seen("", 8)]).unwrap();
        assert_eq!(found.token, None, "no majority has it");
        assert!(holder_of(&[seen("a", 7), seen("b", 7), seen("", 7)]).is_none());
        assert!(holder_of(&[seen("", 7), seen("", 7), seen("b", 7)]).is_none());
    }

    #[test]
    fn value_of_another_program_is_not_shown() {
        let foreign = |value: &str| (value.into(), 7, Vec::new());
        let found = holder_of(&[foreign("s3cret"), foreign("s3cret"), foreign("")]).unwrap();
        assert_eq!((&*found.entry, found.token, found.metadata), ("app:x", None, None));
        // A node may have lost the metadata.
        let found = holder_of(&[foreign("a"), seen("a", 7), foreign("a")]).unwrap();
        assert_eq!((&*found.entry, found.token), ("a", Some(FencingToken::new(7))));
    }
}
