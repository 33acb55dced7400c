//! Warnings for nodes that may lose acknowledged writes, logged when a client connects.

use std::sync::Arc;

use tracing::{debug, warn};

use crate::{
    redlock::{node::Node, nodes::Nodes, round::ReplySender},
    server_info::ServerInfo,
};

/// Reads each node's `INFO` in the background.
pub(crate) fn warn_in_background(nodes: &Nodes) {
    let round = nodes.at_all(|_, node, _: ReplySender<()>| async move {
        match node.info().await {
            Ok(Some(info)) => log_warnings(&node, &info),
            unknown => debug!(
                node = node.name(),
                ?unknown,
                "cannot read INFO: not known whether the node keeps its data"
            ),
        }
    });
    round.in_background();
}

fn log_warnings(node: &Arc<Node>, info: &ServerInfo) {
    debug!(node = node.name(), ?info, "INFO was read");
    if info.loses_writes_on_restart() {
        warn!(
            node = node.name(),
            "without an append-only file, a restart from a snapshot loses grants, and no client can detect it; set appendonly \
             yes and appendfsync always, or no persistence at all"
        );
    }
    if info.has_replicas() {
        warn!(
            node = node.name(),
            replicas = info.replicas,
            "the node has replicas: a promoted replica lacks grants that had not reached it, and no client can detect it; the \
             nodes of Redlock must not fail over"
        );
    }
    if info.may_evict() {
        warn!(
            node = node.name(),
            policy = info.eviction_policy,
            "the node may evict locks when memory is short; set maxmemory-policy to noeviction"
        );
    }
}
