//! What an operator asks of a set of nodes, without a session.
//!
//! Failure cases of a break:
//!
//! * The hold has ended meanwhile, or the inspection was outdated: no majority has the claim any more, which no other
//!   hold uses. Nothing is broken.
//! * Too few nodes answer: the outcome is unknown. The nodes that were reached have ended the hold, and its client, if
//!   it gets their message, ends it at the others.
//! * A heartbeat restores the lock at a node that has ended the hold: every node that is reached raises its counter above
//!   the token, and so refuses.
//! * The message is lost: the next heartbeat finds that no majority has the lock.

mod listing;

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::{
    FencingToken, LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection, Page},
};

use super::{
    RedlockBackend,
    lock_view::{LockView, majority_value, votes},
    membership::{join, look_at_majority},
    nodes::Nodes,
    wire::{LockState, break_hold, inspect_with_remaining, was_broken},
};
use crate::{error::RequestError, keys::LockKeys};

/// The value of another program in an inspection of a node.
const OF_ANOTHER_PROGRAM: &[u8] = b"?";

/// The requests of an operator.
///
/// * `inspect` shows the holder by a majority of the nodes, and the time until no majority has the lock any more.
///   Waiters are not visible, because they leave nothing there. `Unavailable` if silent nodes decide on the holder.
/// * `list` shows the locks that a majority of the nodes has, or may have with those that are silent: what only a minority
///   has is held by nobody. It reads the keys of all nodes for each page, so it is for nodes that keep little but locks.
///   Needs the right `+scan`. Raw names cannot be listed: a lock cannot be distinguished from other strings.
/// * `break_lock` ends a hold at a majority of the nodes. It cannot distinguish two holds of other programs: it ends the
///   one that has the lock when the requests arrive. It never ends a hold of this library instead.
#[async_trait]
impl Admin for RedlockBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let keys = self.config.layout().keys(name)?;
        let looked = async {
            let nodes = self.joined_nodes().await?;
            Ok::<_, RequestError>((look_at_lock(&nodes, &keys).await?, nodes.majority()))
        };
        let (seen, majority) = looked.await.map_err(|fault| fault.into_error("inspect").with_lock(name))?;
        Ok(Inspection::new(holder(&keys, &seen, majority), Vec::new()))
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        listing::page(self, prefix, after, limit).await
    }

    async fn break_lock(&self, name: &LockName, contender: &Contender) -> Result<bool> {
        let keys = self.config.layout().keys(name)?;
        let broken = self.end_hold(&keys, contender).await;
        broken.map_err(|fault| fault.into_error("break").with_lock(name))
    }
}

impl RedlockBackend {
    /// Connects to the nodes. A new connection for each call: a kept one would belong to the runtime of the first call.
    async fn joined_nodes(&self) -> Result<Nodes, RequestError> {
        let nodes = self.config.connect(self.config.request_timeout());
        join(&nodes, &look_at_majority(&nodes).await, self.config.max_ttl)?;
        Ok(nodes)
    }

    /// Ends the hold of this contender at the nodes. Returns whether it was held.
    async fn end_hold(&self, keys: &LockKeys, contender: &Contender) -> Result<bool, RequestError> {
        let nodes = self.joined_nodes().await?;
        let seen = look_at_lock(&nodes, keys).await?;
        let Some(value) = held_value(&seen, nodes.majority()) else { return Ok(false) };
        let is_same = |holder: &Contender| {
            // The token is not known if too few nodes have it; the entry is that of one hold in any case.
            let is_token =
                holder.token.is_none() || contender.token.is_none() || holder.token == contender.token;
            holder.entry == contender.entry && is_token
        };
        if !holder(keys, &seen, nodes.majority()).as_ref().is_some_and(is_same) {
            return Ok(false);
        }
        let value = if value == OF_ANOTHER_PROGRAM { "".into() } else { String::from_utf8_lossy(value) };
        let above = highest_counter(&seen);
        let keep_ms = u64::try_from(self.config.counter_ttl().as_millis()).unwrap_or(u64::MAX);
        let request = break_hold(keys, &value, above, keep_ms);
        let mut round = nodes.ask(request, |_, answer| was_broken(answer));
        let (mut ended, mut was_held, mut faults) = (0, false, Vec::new());
        while let Some((node, answer)) = round.next(ended >= nodes.majority()).await {
            match answer {
                Ok(Some(had)) => {
                    ended += 1;
                    was_held |= had;
                }
                Ok(None) => faults.push((node, None)),
                Err(fault) => faults.push((node, Some(fault))),
            }
        }
        if ended < nodes.majority() {
            return Err(nodes.no_majority(&faults));
        }
        Ok(was_held)
    }
}

/// Looks at a lock until it is known whether a majority has it.
async fn look_at_lock(nodes: &Nodes, keys: &LockKeys) -> Result<Vec<LockState>, RequestError> {
    let is_known = |seen: &[LockState]| !is_undecided(seen, nodes.count(), nodes.majority());
    let view = LockView::take(nodes, inspect_with_remaining(keys), is_known).await;
    if is_known(&view.seen) { Ok(view.seen) } else { Err(view.no_majority(nodes)) }
}

/// Returns whether no majority is known to have the lock, but nodes that have not answered may have it too. `count`: of
/// all nodes.
fn is_undecided(seen: &[LockState], count: usize, majority: usize) -> bool {
    let values = seen.iter().map(|one| &*one.value).filter(|value| !value.is_empty());
    let best = votes(values).into_values().max().unwrap_or_default();
    best < majority && best + count.saturating_sub(seen.len()) >= majority
}

/// Returns the highest counter: at least the token of the grant, which a majority has as its counter, or a higher one.
/// Nodes that missed the grant have lower ones.
fn highest_counter(seen: &[LockState]) -> u64 {
    seen.iter().map(|one| one.counter).max().unwrap_or_default()
}

/// Returns the value that a majority of the nodes has, if any.
fn held_value(seen: &[LockState], majority: usize) -> Option<&[u8]> {
    let value = majority_value(seen.iter().map(|one| &*one.value), majority);
    value.filter(|value| !value.is_empty())
}

/// Returns the holder at a majority of the nodes. The value of a lock is the secret that releases it. It is shown only
/// together with metadata, which no other program writes; any other holder is shown by the lock's key.
fn holder(keys: &LockKeys, seen: &[LockState], majority: usize) -> Option<Contender> {
    let value = held_value(seen, majority)?;
    let having = || seen.iter().filter(|one| one.value == value);
    let contender = match having().find_map(|one| Metadata::from_json(&one.metadata)) {
        None => Contender::new(keys.lock(), None, None),
        Some(metadata) => {
            // A counter that a majority has for this value is its token.
            let token = majority_value(having().map(|one| &one.counter), majority);
            let token = token.map(|token| FencingToken::new(*token));
            Contender::new(String::from_utf8_lossy(value), token, Some(metadata))
        }
    };
    let mut left: Vec<Option<u64>> = having().map(|one| u64::try_from(one.pttl).ok()).collect();
    // The longest times first; without an end before all others.
    left.sort_unstable_by_key(|left| std::cmp::Reverse(left.unwrap_or(u64::MAX)));
    match left.get(majority - 1) {
        Some(Some(left)) => Some(contender.with_remaining(Duration::from_millis(*left))),
        _ => Some(contender),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Layout, Names};

    fn seen(value: &str, counter: u64) -> LockState {
        let metadata = Metadata::of_this_process(Some("me")).to_json().into_bytes();
        LockState { value: value.into(), counter, metadata, has_metadata: true, pttl: -1 }
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

    /// A node that has ended the hold would restore it, if only counters above a lower one were refused.
    #[test]
    fn break_raises_counters_above_that_of_the_hold() {
        let seen = [seen("a", 7), seen("", 3), seen("a", 7)];
        let token = holder_of(&seen).unwrap().token;
        assert_eq!(token.map(FencingToken::get), Some(highest_counter(&seen)));
    }

    #[test]
    fn nobody_is_the_holder_only_if_silent_nodes_cannot_make_a_majority() {
        let one = |value| seen(value, 7);
        for (seen, is_open) in [
            (vec![], true),
            (vec![one("")], true),
            (vec![one(""), one("")], false),
            (vec![one(""), one("a")], true),
            (vec![one("b"), one("a")], true),
            (vec![one("a"), one("a")], false),
            (vec![one("a"), one("b"), one("")], false),
        ] {
            assert_eq!(is_undecided(&seen, 3, 2), is_open, "{seen:?}");
        }
    }

    #[test]
    fn lock_remains_as_long_as_a_majority_has_it() {
        let remaining = |nodes: &[(&str, i64)]| {
            let seen: Vec<_> =
                nodes.iter().map(|&(value, pttl)| LockState { pttl, ..seen(value, 7) }).collect();
            holder_of(&seen).unwrap().remaining
        };
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(remaining(&[("a", 10), ("a", 30), ("a", 20)]), ms(20));
        assert_eq!(remaining(&[("a", 10), ("b", 30), ("a", 20)]), ms(10));
        assert_eq!(remaining(&[("a", -1), ("a", 30), ("a", 20)]), ms(30));
        assert_eq!(remaining(&[("a", -1), ("a", -1), ("a", 20)]), None);
    }

    #[test]
    fn value_of_another_program_is_not_shown() {
        let foreign = |value: &str| LockState { metadata: Vec::new(), has_metadata: false, ..seen(value, 7) };
        let found = holder_of(&[foreign("s3cret"), foreign("s3cret"), foreign("")]).unwrap();
        assert_eq!((&*found.entry, found.token, found.metadata), ("app:x", None, None));
        // A node may have lost the metadata.
        let found = holder_of(&[foreign("a"), seen("a", 7), foreign("a")]).unwrap();
        assert_eq!((&*found.entry, found.token), ("a", Some(FencingToken::new(7))));
    }
}
