//! Inspecting a lock.

use async_trait::async_trait;
use lockkit_core::{
    FencingToken, LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection},
};

use super::{
    RedlockBackend,
    membership::{join, look_at_majority},
    nodes::Nodes,
    view::{LockView, majority_value},
    wire::LockState,
};
use crate::{error::RequestError, keys::LockKeys};

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
    async fn look_at_lock(&self, nodes: &Nodes, keys: &LockKeys) -> Result<Vec<LockState>, RequestError> {
        join(nodes, &look_at_majority(nodes).await, self.config.max_ttl)?;
        let is_enough = |seen: &[LockState]| seen.len() >= nodes.majority();
        let view = LockView::take(nodes, keys, is_enough).await;
        if is_enough(&view.seen) { Ok(view.seen) } else { Err(view.no_majority(nodes)) }
    }
}

/// The holder at a majority of the nodes. The value of a lock is the secret that releases it. It is shown only together
/// with metadata, which no other program writes; any other holder is shown by the lock's key.
fn holder(keys: &LockKeys, seen: &[LockState], majority: usize) -> Option<Contender> {
    let value =
        majority_value(seen.iter().map(|one| &one.value), majority).filter(|value| !value.is_empty())?;
    let having = || seen.iter().filter(|one| one.value == *value);
    let Some(metadata) = having().find_map(|one| Metadata::from_json(&one.metadata)) else {
        return Some(Contender::new(keys.lock(), None, None));
    };
    // A counter that a majority has for this value is its token.
    let token =
        majority_value(having().map(|one| &one.counter), majority).map(|token| FencingToken::new(*token));
    Some(Contender::new(String::from_utf8_lossy(value), token, Some(metadata)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Layout, Names};

    fn seen(value: &str, counter: u64) -> LockState {
        let metadata = Metadata::of_this_process(Some("me")).to_json().into_bytes();
        LockState { value: value.into(), counter, metadata, is_described: true }
    }

    fn holder_of(seen: &[LockState]) -> Option<Contender> {
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
        let foreign = |value: &str| LockState { metadata: Vec::new(), is_described: false, ..seen(value, 7) };
        let found = holder_of(&[foreign("s3cret"), foreign("s3cret"), foreign("")]).unwrap();
        assert_eq!((&*found.entry, found.token, found.metadata), ("app:x", None, None));
        // A node may have lost the metadata.
        let found = holder_of(&[foreign("a"), seen("a", 7), foreign("a")]).unwrap();
        assert_eq!((&*found.entry, found.token), ("a", Some(FencingToken::new(7))));
    }
}
