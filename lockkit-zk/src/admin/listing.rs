//! Which locks have contenders, in the order of their nodes' names.
//!
//! ZooKeeper has no pages: it returns all children of a node in one answer, here the names of all locks below the root.
//! So each page costs one answer of that size, and a request for each directory that it looks into. A server sends an
//! answer of any size: its `jute.maxbuffer` limits what it receives. (A Java client that lists the same root has a limit
//! of its own.)
//!
//! Failure cases:
//!
//! * A lock is released between the list and the read of its directory: it is left out, as one that was never held.
//! * Most directories are empty (persistent ones stay for good): a page reads [`DIRECTORIES_PER_PAGE`], and may
//!   then have no lock at all. The next page continues behind them.
//! * A page takes longer than the ttl of its session: each answer counts as a sign of life.
//! * A directory may not be read: its number of children needs no permission, so it is listed if it has one.

use lockkit_core::{
    Error, ErrorKind, Result,
    backend::{ListedLock, Page},
    support::bounded,
};

use crate::{
    ZkBackend,
    error::{Effect, RequestError},
    keys::{Layout, is_node_name},
    sequence::sequence,
    wire::Server,
};

/// Maximum number of directories that one page reads.
const DIRECTORIES_PER_PAGE: usize = 4096;

/// Directories that are asked for before the first answer is awaited. Each answer has the names of all its contenders.
const DIRECTORIES_AT_ONCE: usize = 64;

const LIST: &str = "list locks";

impl ZkBackend {
    pub(super) async fn list_locks(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        if after.is_some_and(|after| !is_node_name(after)) {
            let what = "`after` is not a cursor of this store: pass `Page::next` of the page before";
            return Err(Error::new(ErrorKind::InvalidConfig, LIST).with_message(what));
        }
        let page = async {
            let server = self.open().await?;
            let page = self.page(&server, prefix, after, limit.max(1)).await;
            self.close(server).await;
            page
        };
        page.await.map_err(|error: RequestError| error.of_own_session().into_error(LIST))
    }

    async fn page(
        &self,
        server: &Server,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, RequestError> {
        let (layout, time_limit) = (self.config.layout(), self.config.request_timeout);
        let listed = bounded(time_limit, server.children(layout.directory()));
        let mut nodes = match server.liveness.extended_by(listed).await {
            Err(error) if error.effect == Effect::Missing => Vec::new(),
            children => children?,
        };
        nodes.retain(|node| after.is_none_or(|after| node.as_str() > after) && layout.may_be(node, prefix));
        nodes.sort_unstable();
        let (mut locks, mut last) = (Vec::new(), None);
        'full: for some in nodes[..nodes.len().min(DIRECTORIES_PER_PAGE)].chunks(DIRECTORIES_AT_ONCE) {
            let paths: Vec<String> = some.iter().map(|node| layout.node(node)).collect();
            let asked = bounded(time_limit, server.have_contenders(&paths));
            let are_wanted = server.liveness.extended_by(asked).await?;
            for (node, is_wanted) in some.iter().zip(are_wanted) {
                last = Some(node);
                if is_wanted {
                    locks.push(ListedLock::new(layout.name(node), layout.node(node)));
                }
                if locks.len() == limit {
                    break 'full;
                }
            }
        }
        Ok(Page::new(locks, last.filter(|last| Some(*last) != nodes.last()).cloned()))
    }
}

impl Server {
    /// Returns whether each of these nodes is a lock with contenders: a queue that is not empty, or a lock node.
    async fn have_contenders(&self, paths: &[String]) -> Result<Vec<bool>, RequestError> {
        let client = self.client()?;
        let requests: Vec<_> = paths.iter().map(|path| client.get_children(path)).collect();
        let mut wanted = Vec::with_capacity(paths.len());
        for (path, request) in paths.iter().zip(requests) {
            wanted.push(match self.answer(request).await {
                Ok((children, stat)) => {
                    stat.ephemeral_owner != 0 || children.iter().any(|child| sequence(child).is_some())
                }
                Err(error) if error.effect == Effect::Missing => false,
                Err(error) if error.is_denied() => self
                    .stat(path)
                    .await?
                    .is_some_and(|stat| stat.ephemeral_owner != 0 || stat.num_children > 0),
                Err(error) => return Err(error),
            });
        }
        Ok(wanted)
    }
}

impl Layout {
    /// Returns whether this child of the root may belong to a lock whose name begins with `prefix`.
    fn may_be(&self, node: &str, prefix: &str) -> bool {
        self.is_lock(node)
            && match self.name(node) {
                Some(name) => name.as_str().starts_with(prefix),
                None => may_begin_with(node, prefix),
            }
    }
}

/// Returns whether a node whose name cannot be read back, because it was cut or because this library never writes it,
/// may belong to a lock whose name begins with `prefix`.
fn may_begin_with(node: &str, prefix: &str) -> bool {
    let encoded = lockkit_core::LockName::encode_prefix(prefix);
    let kept = node.split_once("%-").map_or(node, |(kept, _digest)| kept);
    node.starts_with(prefix) || kept.starts_with(&encoded) || (kept != node && encoded.starts_with(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_of_a_cut_name_is_listed_if_it_may_begin_with_the_prefix() {
        let node = format!("orders%2F{}%-0123", "x".repeat(20));
        for prefix in ["", "orders", "orders/", "orders/xx", &format!("orders/{}yyy", "x".repeat(20))] {
            assert!(may_begin_with(&node, prefix), "{prefix}");
        }
        for prefix in ["orders/y", "jobs"] {
            assert!(!may_begin_with(&node, prefix), "{prefix}");
        }
        assert!(may_begin_with("job:1", "job:") && !may_begin_with("job:1", "job:2"));
    }
}
