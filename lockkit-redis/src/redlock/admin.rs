//! Looking at a lock without taking part in it.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use lockkit_core::{
    FencingToken, LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection},
};

use super::{
    RedlockBackend,
    calls::{inspect, inspected},
    join::{join, look_at},
    nodes::{Nodes, Tell},
};
use crate::{error::Fault, keys::LockKeys};

/// What one node knows of a lock: value, counter, metadata.
type Seen = (Vec<u8>, u64, Vec<u8>);

#[async_trait]
impl Admin for RedlockBackend {
    /// Who has the lock at a majority of the nodes. Waiters leave nothing there.
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let keys = self.config.layout().keys(name)?;
        // Connections of their own: kept ones would belong to the runtime that first asked.
        let nodes = self.config.connect(self.config.request_timeout());
        let seen =
            self.look(&nodes, &keys).await.map_err(|fault| fault.into_error("inspect").with_lock(name))?;
        Ok(Inspection::new(holder(&keys, &seen, nodes.majority()), Vec::new()))
    }
}

impl RedlockBackend {
    async fn look(&self, nodes: &Nodes, keys: &LockKeys) -> Result<Vec<Seen>, Fault> {
        join(nodes, &look_at(nodes).await, self.config.max_ttl)?;
        let (call, limit) = (Arc::new(inspect(keys)), nodes.limit);
        let mut round = nodes.at_all(|_, node, tell: Tell<Result<Seen, Fault>>| {
            let call = Arc::clone(&call);
            async move { tell.tell(node.run(limit, &call).await.and_then(inspected)) }
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

/// The holder at a majority of the nodes. What lies at the nodes is the secret that releases the lock. It is shown only
/// beside metadata, which no other program has: the entry of any other holder is the lock's key.
fn holder(keys: &LockKeys, seen: &[Seen], majority: usize) -> Option<Contender> {
    let value =
        by_majority(seen.iter().map(|(value, ..)| value), majority).filter(|value| !value.is_empty())?;
    let having = || seen.iter().filter(|one| one.0 == *value);
    let Some(metadata) = having().find_map(|(_, _, metadata)| Metadata::from_json(metadata)) else {
        return Some(Contender::new(keys.lock(), None, None));
    };
    // The counter that a majority has beside it is its token.
    let token = by_majority(having().map(|one| &one.1), majority).map(|token| FencingToken::new(*token));
    Some(Contender::new(String::from_utf8_lossy(value), token, Some(metadata)))
}

/// The value that so many have.
fn by_majority<'a, T: Eq + std::hash::Hash>(
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

    fn seen(value: &str, counter: u64) -> Seen {
        (value.into(), counter, Metadata::of_this_process(Some("me")).to_json().into_bytes())
    }

    fn holder_of(seen: &[Seen]) -> Option<Contender> {
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
        // Metadata may have been lost at a node.
        let found = holder_of(&[foreign("a"), seen("a", 7), foreign("a")]).unwrap();
        assert_eq!((&*found.entry, found.token), ("a", Some(FencingToken::new(7))));
    }
}
