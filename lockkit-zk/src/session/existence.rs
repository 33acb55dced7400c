//! Which nodes exist: reads by path, which cost no log and no quorum.
//!
//! A read shows what this session's server knows. That is at least as new as the session's last answer from the leader
//! (see [`wire`](crate::wire)), and may be older than what the leader knows now. A node that is shown may be gone; a
//! node of the session's own that is missing is gone.

use zookeeper_client::{Error as ClientError, MultiReadResult, Stat};

use crate::{
    error::RequestError,
    keys::Form,
    wire::{CreatedNode, Server},
};

/// Nodes in one request.
const NODES_PER_REQUEST: usize = 500;

/// Bytes of the paths in one request: a server closes the connection at a request longer than its jute.maxbuffer, by
/// default 1 MiB.
const NAME_BYTES_PER_REQUEST: usize = 512 * 1024;

/// Identifies a node to look for.
#[derive(Clone, Debug)]
pub(crate) struct NodeId {
    path: String,
    /// The transaction that created it, where its path alone does not identify it.
    czxid: Option<i64>,
}

impl NodeId {
    /// Returns the id of any node with this path.
    pub(crate) fn by_path(path: &str) -> Self {
        Self { path: path.to_owned(), czxid: None }
    }

    /// Returns the id of this node, which no later one with the same path has.
    pub(crate) fn of(node: &CreatedNode, form: Form) -> Self {
        Self { path: node.path.clone(), czxid: form.names_recur().then_some(node.czxid) }
    }

    fn matches(&self, stat: Option<&Stat>) -> bool {
        stat.is_some_and(|stat| self.czxid.is_none_or(|czxid| czxid == stat.czxid))
    }
}

impl Server {
    /// Returns whether each of these nodes exists.
    pub(crate) async fn nodes_exist(&self, nodes: &[NodeId]) -> Result<Vec<bool>, RequestError> {
        let mut exist = Vec::with_capacity(nodes.len());
        for part in split_into_requests(nodes) {
            exist.extend(match part.iter().any(|node| node.czxid.is_some()) {
                true => self.exist_by_creation(part).await?,
                false => self.exist_by_path(part).await?,
            });
        }
        Ok(exist)
    }

    /// Sends one multi-read. It asks for children, which these nodes do not have, because data may be a mebibyte each.
    async fn exist_by_path(&self, nodes: &[NodeId]) -> Result<Vec<bool>, RequestError> {
        let client = self.client()?;
        let mut reads = client.new_multi_reader();
        for node in nodes {
            reads.add_get_children(&node.path)?;
        }
        let exists = |answer| match answer {
            MultiReadResult::Error { err: ClientError::NoNode } => Ok(false),
            // The server checks that the node exists before it checks permissions.
            MultiReadResult::Error { err: ClientError::NoAuth } => Ok(true),
            MultiReadResult::Error { err } => Err(err.into()),
            _ => Ok(true),
        };
        self.multi_read(reads, nodes.len()).await?.into_iter().map(exists).collect()
    }

    /// Sends one request per node, all before the first answer is awaited. A multi-read would return their data, too.
    async fn exist_by_creation(&self, nodes: &[NodeId]) -> Result<Vec<bool>, RequestError> {
        let client = self.client()?;
        let requests: Vec<_> = nodes.iter().map(|node| client.check_stat(&node.path)).collect();
        let mut exist = Vec::with_capacity(nodes.len());
        for (node, request) in nodes.iter().zip(requests) {
            exist.push(node.matches(self.answer(request).await?.as_ref()));
        }
        Ok(exist)
    }
}

/// Splits the nodes into parts that each fit into one request.
fn split_into_requests(mut nodes: &[NodeId]) -> Vec<&[NodeId]> {
    let mut parts = Vec::new();
    while !nodes.is_empty() {
        let mut bytes = 0;
        let fits = |node: &&NodeId| {
            bytes += node.path.len();
            bytes <= NAME_BYTES_PER_REQUEST
        };
        let count = nodes.iter().take(NODES_PER_REQUEST).take_while(fits).count().max(1);
        let (part, rest) = nodes.split_at(count);
        parts.push(part);
        nodes = rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded_by_number_and_by_size() {
        let lengths = |count, path_bytes| {
            let nodes = vec![NodeId::by_path(&"x".repeat(path_bytes)); count];
            split_into_requests(&nodes).iter().map(|part| part.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(0, 10), [0; 0]);
        assert_eq!(lengths(1001, 10), [500, 500, 1]);
        assert_eq!(lengths(5, 200 * 1024), [2, 2, 1]);
        assert_eq!(lengths(2, NAME_BYTES_PER_REQUEST + 1), [1, 1]);
    }
}
