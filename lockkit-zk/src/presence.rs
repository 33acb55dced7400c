//! Which nodes are still there: reads by name, which cost no log and no quorum.
//!
//! A read shows what this session's server knows. That is at least as new as the last answer that the session had from
//! the leader (see [`call`](crate::call)), and may be older than what the leader knows now: a node that is shown may have
//! gone, a node of the session's own that is missing has gone.

use zookeeper_client::{Error as ClientError, MultiReadResult, Stat};

use crate::{
    call::{Created, Server},
    error::Fault,
    keys::Form,
};

/// Nodes in one request.
const NODES_PER_REQUEST: usize = 500;

/// Bytes of the names in one request: a server closes the connection at a request longer than its jute.maxbuffer, by
/// default 1 MiB.
const NAME_BYTES_PER_REQUEST: usize = 512 * 1024;

/// A node that is looked for.
#[derive(Clone, Debug)]
pub(crate) struct Sought {
    path: String,
    /// The transaction that created it, where its name alone does not identify it.
    czxid: Option<i64>,
}

impl Sought {
    /// Any node with this path.
    pub(crate) fn by_name(path: &str) -> Self {
        Self { path: path.to_owned(), czxid: None }
    }

    /// This node, and no later one with the same name.
    pub(crate) fn exactly(created: &Created, form: Form) -> Self {
        Self { path: created.path.clone(), czxid: form.names_recur().then_some(created.czxid) }
    }

    fn is(&self, found: Option<&Stat>) -> bool {
        found.is_some_and(|stat| self.czxid.is_none_or(|czxid| czxid == stat.czxid))
    }
}

impl Server {
    /// Whether each of these nodes is there.
    pub(crate) async fn are_there(&self, nodes: &[Sought]) -> Result<Vec<bool>, Fault> {
        let mut there = Vec::with_capacity(nodes.len());
        for part in in_requests(nodes) {
            there.extend(match part.iter().any(|node| node.czxid.is_some()) {
                true => self.look_exactly(part).await?,
                false => self.look_by_name(part).await?,
            });
        }
        Ok(there)
    }

    /// One multi-read. It asks for children, which these nodes do not have: data may be a mebibyte each.
    async fn look_by_name(&self, nodes: &[Sought]) -> Result<Vec<bool>, Fault> {
        let client = self.client()?;
        let mut reads = client.new_multi_reader();
        for node in nodes {
            reads.add_get_children(&node.path)?;
        }
        let answers = self.answer(reads.commit()).await?;
        if answers.len() != nodes.len() {
            return Err(Fault::unexpected("a multi-read has another number of answers than questions"));
        }
        let is_there = |answer| match answer {
            MultiReadResult::Error { err: ClientError::NoNode } => Ok(false),
            // Whether a node is there is looked at before who may read it.
            MultiReadResult::Error { err: ClientError::NoAuth } => Ok(true),
            MultiReadResult::Error { err } => Err(err.into()),
            _ => Ok(true),
        };
        answers.into_iter().map(is_there).collect()
    }

    /// One request each, all sent before the first answer is awaited. A multi-read would bring their data, too.
    async fn look_exactly(&self, nodes: &[Sought]) -> Result<Vec<bool>, Fault> {
        let client = self.client()?;
        let requests: Vec<_> = nodes.iter().map(|node| client.check_stat(&node.path)).collect();
        let mut there = Vec::with_capacity(nodes.len());
        for (node, request) in nodes.iter().zip(requests) {
            there.push(node.is(self.answer(request).await?.as_ref()));
        }
        Ok(there)
    }
}

/// Parts of which each fits into one request.
fn in_requests(mut nodes: &[Sought]) -> Vec<&[Sought]> {
    let mut parts = Vec::new();
    while !nodes.is_empty() {
        let mut bytes = 0;
        let fits = |node: &&Sought| {
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
            let nodes = vec![Sought::by_name(&"x".repeat(path_bytes)); count];
            in_requests(&nodes).iter().map(|part| part.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(0, 10), [0; 0]);
        assert_eq!(lengths(1001, 10), [500, 500, 1]);
        assert_eq!(lengths(5, 200 * 1024), [2, 2, 1]);
        assert_eq!(lengths(2, NAME_BYTES_PER_REQUEST + 1), [1, 1]);
    }
}
