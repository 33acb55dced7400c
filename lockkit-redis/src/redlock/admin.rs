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
        Ok(Inspection::new(holder(&seen, nodes.majority()), Vec::new()))
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

/// Whoever has the lock at a majority of the nodes.
fn holder(seen: &[Seen], majority: usize) -> Option<Contender> {
    let (value, metadata) = by_majority(seen.iter().map(|(value, ..)| value), majority)
        .filter(|value| !value.is_empty())
        .and_then(|value| seen.iter().find(|one| one.0 == *value).map(|one| (value, &one.2)))?;
    // The counter that a majority has beside it is its token.
    let counters = seen.iter().filter(|one| one.0 == *value).map(|one| &one.1);
    Some(Contender::new(
        String::from_utf8_lossy(value),
        by_majority(counters, majority).map(|token| FencingToken::new(*token)),
        Metadata::from_json(metadata),
    ))
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

    fn seen(value: &str, counter: u64) -> Seen {
        (value.into(), counter, Vec::new())
    }

    #[test]
    fn the_holder_has_a_majority_and_so_has_its_token() {
        let found = holder(&[seen("a", 7), seen("b", 9), seen("a", 7)], 2).unwrap();
        assert_eq!((&*found.entry, found.token), ("a", Some(FencingToken::new(7))));
        let found = holder(&[seen("a", 7), seen("a", 8), seen("", 8)], 2).unwrap();
        assert_eq!(found.token, None, "no majority has it");
        assert!(holder(&[seen("a", 7), seen("b", 7), seen("", 7)], 2).is_none());
        assert!(holder(&[seen("", 7), seen("", 7), seen("b", 7)], 2).is_none());
    }
}
