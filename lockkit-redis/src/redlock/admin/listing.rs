//! The locks that a majority of the nodes has, in the order of their names; or may have, if nodes are silent.
//!
//! A cursor of one node means nothing to the others, so a page ends with a name, and every page reads the keys of all
//! nodes again. A lock that a majority has is at one node at least of any majority; so a majority of the nodes must
//! answer, to show their keys and to show who has each lock.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use lockkit_core::{
    LockName, Result,
    backend::{ListedLock, Page},
};

use super::{RedlockBackend, held_value, is_undecided};
use crate::{
    admin::{escape_glob, listable, parse_scan, scan},
    error::RequestError,
    keys::Layout,
    redlock::{
        lock_view::LockView,
        node::Node,
        nodes::Nodes,
        round::ReplySender,
        wire::{LockState, inspect},
    },
};

/// How many keys a node looks at in one request: few enough that other clients do not wait.
const KEYS_PER_SCAN: usize = 500;

/// How many locks are looked at together.
const LOCKS_AT_ONCE: usize = 32;

/// The names of one node, and whether there are more.
type Names = (BTreeSet<LockName>, bool);

/// Which names a page is about.
#[derive(Clone, Debug)]
struct WantedPage {
    layout: Layout,
    prefix: String,
    after: String,
    limit: usize,
}

/// Returns one page; `after` is the last name of the page before.
pub(super) async fn page(
    backend: &RedlockBackend,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Page> {
    let layout = listable(backend.config.layout())?;
    let after = after.unwrap_or_default().to_owned();
    let wanted = WantedPage { layout, prefix: prefix.to_owned(), after, limit: limit.max(1) };
    let found = async {
        let nodes = backend.joined_nodes().await?;
        let (names, is_last) = candidates(&nodes, &wanted).await?;
        let next = names.last().filter(|_| !is_last).map(|name| name.as_str().to_owned());
        Ok::<_, RequestError>(Page::new(held(&nodes, &wanted.layout, &names).await?, next))
    };
    found.await.map_err(|fault| fault.into_error("list locks"))
}

/// Returns the first names that a majority of the nodes may have, and whether they are the last ones.
async fn candidates(nodes: &Nodes, wanted: &WantedPage) -> Result<(Vec<LockName>, bool), RequestError> {
    let (limit, shared) = (nodes.limit, Arc::new(wanted.clone()));
    let mut round = nodes.at_all(|_, node, reply: ReplySender<Result<Names, RequestError>>| {
        let wanted = Arc::clone(&shared);
        async move { reply.send(names_of(&node, limit, &wanted).await) }
    });
    let (mut all, mut answered, mut is_last, mut faults) = (BTreeSet::new(), 0, true, Vec::new());
    while let Some((node, answer)) = round.next(answered >= nodes.majority()).await {
        match answer {
            Ok((names, has_more)) => {
                answered += 1;
                is_last &= !has_more;
                all.extend(names);
            }
            Err(fault) => faults.push((node, Some(fault))),
        }
    }
    if answered < nodes.majority() {
        return Err(nodes.no_majority(&faults));
    }
    is_last &= all.len() <= wanted.limit;
    Ok((all.into_iter().take(wanted.limit).collect(), is_last))
}

/// Returns the first names of this node.
async fn names_of(node: &Node, limit: Duration, wanted: &WantedPage) -> Result<Names, RequestError> {
    let pattern = escape_glob(&wanted.layout.beginning(&wanted.prefix)) + "*";
    let (mut names, mut has_more, mut cursor) = (BTreeSet::new(), false, 0);
    loop {
        let (next, keys) = parse_scan(node.query(limit, &scan(cursor, &pattern, KEYS_PER_SCAN)).await?)?;
        let found = keys.iter().filter_map(|key| wanted.layout.lock_of_key(key));
        names.extend(found.filter(|name| {
            name.as_str().starts_with(&wanted.prefix) && name.as_str() > wanted.after.as_str()
        }));
        while names.len() > wanted.limit {
            names.pop_last();
            has_more = true;
        }
        if next == 0 {
            return Ok((names, has_more));
        }
        cursor = next;
    }
}

/// Returns those of these locks that a majority of the nodes has, or may have.
async fn held(nodes: &Nodes, layout: &Layout, names: &[LockName]) -> Result<Vec<ListedLock>, RequestError> {
    let mut held = Vec::new();
    for some in names.chunks(LOCKS_AT_ONCE) {
        let looks = some.iter().map(|name| async {
            let keys = layout.keys(name).map_err(|error| RequestError::unexpected(error.to_string()))?;
            let is_enough = |seen: &[LockState]| !is_undecided(seen, nodes.count(), nodes.majority());
            let view = LockView::take(nodes, inspect(&keys), is_enough).await;
            if view.seen.len() < nodes.majority() {
                return Err(view.no_majority(nodes));
            }
            let may_be_held = held_value(&view.seen, nodes.majority()).is_some() || !is_enough(&view.seen);
            Ok(may_be_held.then(|| ListedLock::new(Some(name.clone()), keys.lock())))
        });
        held.extend(try_join_all(looks).await?.into_iter().flatten());
    }
    Ok(held)
}
