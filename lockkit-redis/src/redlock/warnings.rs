//! Nodes that may lose what they have acknowledged are warned of when a client connects. Nobody waits for that.

use std::sync::Arc;

use tracing::{debug, warn};

use super::{
    node::Node,
    nodes::{Nodes, Round},
};
use crate::probe::Probe;

/// Asks each node about itself, in the background.
pub(super) fn begin(nodes: &Nodes) {
    let limit = nodes.limit;
    let _: Round<()> = nodes.at_all(|_, node, _| async move {
        match node.info(limit).await {
            Ok(info) => tell(&node, &Probe::parse(&info)),
            Err(fault) => debug!(node = node.name(), ?fault, "whether it keeps its data is not known"),
        }
    });
}

fn tell(node: &Arc<Node>, probe: &Probe) {
    debug!(node = node.name(), ?probe, "asked about itself");
    if probe.forgets() {
        warn!(
            node = node.name(),
            "it has no append-only file: after a restart from a snapshot it has forgotten grants, and nobody can tell; set \
             appendonly yes and appendfsync always, or no persistence at all"
        );
    }
    if probe.has_replicas() {
        warn!(
            node = node.name(),
            replicas = probe.replicas,
            "it has replicas: one that is promoted in its place lacks what had not reached it, grants too, and nobody can \
             tell; the nodes of Redlock must not fail over"
        );
    }
    if probe.may_evict() {
        warn!(
            node = node.name(),
            policy = probe.eviction,
            "it throws keys away when memory is short, locks too; maxmemory-policy should be noeviction"
        );
    }
}
