//! The first set-up of a set of nodes.
//!
//! It gives each node a [marker](super::marker) with the set's random id and the node's number. A node without its
//! marker has lost its data and must not count until that is safe, see [`rejoin`](super::rejoin). So only an explicit
//! [`init`] distinguishes a new node from a node that has lost its data.
//!
//! The set-up has two steps, so that it can be interrupted: first all nodes get a `preparing` marker, then all get the
//! `ready` marker. Each marker is written only if the node's marker is still the one that was read.
//!
//! * Interrupted in the first step: no node counts, so nothing was ever locked. The next run starts again with a new
//!   id.
//! * Interrupted in the second step: the next run continues with the id of the nodes that count. A node with the
//!   `preparing` marker *of that id* has had no other since, and so has lost nothing.
//! * Two runs at the same time: one of them finds a changed node and fails. Both start each step at the same node, so
//!   the losing run has changed no other node. This needs URLs with the same names. With different names, each run may
//!   spoil the other's markers, and nothing can be locked until the operator deletes them.
//! * Two addresses lead to one node: its marker turns out to be the one that was written for the other address.

use std::{collections::HashMap, sync::Arc};

use lockkit_core::{ErrorKind, Result};

use super::{
    join::{REPLACE_SET, check_one_set, invalid, look_at_all, same_server},
    marker::{Marker, NodeIdentity, join_names, milliseconds, random_set_id},
};
use crate::{
    error::{Effect, RequestError},
    redlock::{
        RedlockConfig,
        node_call::NodeCall,
        nodes::Nodes,
        round::ReplySender,
        wire::{LostData, NodeState, mark, node_state},
    },
};

/// The result of [`init`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetUp {
    /// The nodes were new or half set up, and are set up now.
    Done,
    /// They were set up before; nothing has changed.
    Before,
}

/// Sets up the nodes of a configuration: once, before the first client connects, while all of them can be reached.
/// Running it again changes nothing; after an interruption it continues.
///
/// From then on these nodes are one set. The configuration of every client must name each of them exactly once. The
/// names may differ between clients, with one exception: a node that has lost its data is brought back only by clients
/// that knew it before, or that use its name at the set-up. To change the set, stop all clients, wait for the longest
/// ttl, delete the key `lockkit:redlock` at every node of the old set, and set up the new one.
///
/// Do not use it to bring back nodes that have lost their data: clients do that, and `init` fails while one node has
/// its data. If *all* nodes have lost their data, they look like new ones, and `init` sets them up at once, although
/// holders may rely on their locks for up to one longest ttl. So stop all clients and wait for that time first, and do
/// not run it in a script that starts such nodes. Tokens then rise only as far as the clients' clocks agree.
///
/// Concurrent runs must use the same names for the nodes.
///
/// # Errors
///
/// `Unavailable` if a node cannot be reached. `InvalidConfig` if nodes belong to another set, were set up with another
/// longest ttl, or have lost their data while others have not. The message says what to do.
///
/// # Cancel safety
///
/// A dropped future may leave the set-up half done. Clients can lock once a majority of the nodes counts; the other
/// nodes do not count until `init` is run again.
pub async fn init(config: &RedlockConfig) -> Result<SetUp> {
    set_up(config).await.map_err(|fault| fault.into_error("init"))
}

async fn set_up(config: &RedlockConfig) -> Result<SetUp, RequestError> {
    let nodes = config.connect(config.request_timeout());
    let seen = require_all(&nodes, look_at_all(&nodes).await)?;
    check_one_set(&nodes, seen.iter().enumerate(), config.max_ttl)?;
    let prepared = if seen.iter().any(|found| matches!(Marker::parse(&found.marker), Marker::Ready(_))) {
        // The first look was not at one moment. All nodes have the `preparing` marker before any node counts, so a node
        // without a marker now has lost it.
        let seen = require_all(&nodes, look_at_all(&nodes).await)?;
        check_one_set(&nodes, seen.iter().enumerate(), config.max_ttl)?;
        nodes_to_finish(&seen)?
    } else {
        prepare(&nodes, &seen, milliseconds(config.max_ttl)).await?
    };
    if prepared.is_empty() {
        return Ok(SetUp::Before);
    }
    let step =
        |node: Prepared| MarkerSwap { seen: node.identity.preparing(), next: node.identity.ready(), node };
    swap_markers(&nodes, prepared.into_iter().map(step).collect()).await?;
    Ok(SetUp::Done)
}

/// A node that has the `preparing` marker, or is about to get it.
struct Prepared {
    address: usize,
    identity: NodeIdentity,
    /// The names of its set's nodes.
    names: String,
}

/// The first step: writes the `preparing` markers of a new set to all nodes, none of which has ever counted.
async fn prepare(nodes: &Nodes, seen: &[NodeState], max_ttl_ms: u64) -> Result<Vec<Prepared>, RequestError> {
    let (set, names) = (random_set_id(), join_names(nodes.members.names()));
    let prepared = |address: usize| {
        let identity =
            NodeIdentity { set: set.clone(), max_ttl_ms, number: address + 1, set_size: nodes.count() };
        Prepared { address, identity, names: names.clone() }
    };
    let steps = seen.iter().enumerate().map(|(address, found)| {
        let node = prepared(address);
        MarkerSwap { seen: found.marker.clone(), next: node.identity.preparing(), node }
    });
    swap_markers(nodes, steps.collect()).await?;
    Ok((0..nodes.count()).map(prepared).collect())
}

/// Returns the nodes that still need the second step, if some nodes of the set count already.
fn nodes_to_finish(seen: &[NodeState]) -> Result<Vec<Prepared>, RequestError> {
    let markers: Vec<Marker> = seen.iter().map(|found| Marker::parse(&found.marker)).collect();
    let Some(ready) = markers.iter().find_map(|marker| match marker {
        Marker::Ready(identity) => Some(identity),
        _ => None,
    }) else {
        return Err(changed_meanwhile());
    };
    let mut prepared = Vec::new();
    let (mut lost, mut of_other_runs) = (0, 0);
    for (address, (marker, found)) in markers.iter().zip(seen).enumerate() {
        match marker {
            Marker::Ready(_) => {}
            Marker::Preparing(identity) if identity.set == ready.set => {
                prepared.push(Prepared { address, identity: identity.clone(), names: found.names.clone() });
            }
            Marker::Preparing(_) => of_other_runs += 1,
            _ => lost += 1,
        }
    }
    if of_other_runs > 0 {
        return Err(invalid(format!(
            "{of_other_runs} of {} nodes were prepared by another run of `lockkit init`: they have lost their data \
             since the set-up, or two runs at the same time used different names for the nodes. No client brings \
             them back: {REPLACE_SET}",
            markers.len()
        )));
    }
    if lost == 0 {
        return Ok(prepared);
    }
    Err(invalid(format!(
        "{lost} of {} nodes have lost their data: clients bring them back {} ms after they find out, if a majority \
         has its data, and if the client knew the node before or uses its name at the set-up. Otherwise: {REPLACE_SET}",
        markers.len(),
        ready.max_ttl_ms
    )))
}

/// A node's next marker, and the one that it must still have.
struct MarkerSwap {
    seen: String,
    next: String,
    node: Prepared,
}

/// Gives nodes their next markers, each of which must still have the one that was read. One node comes first, the same
/// for all runs: of two concurrent runs, one fails there before it has changed any other node.
async fn swap_markers(nodes: &Nodes, mut steps: Vec<MarkerSwap>) -> Result<(), RequestError> {
    steps.sort_by(|one, other| nodes.name(one.node.address).cmp(nodes.name(other.node.address)));
    let rest = steps.split_off(steps.len().min(1));
    swap_at_once(nodes, steps).await?;
    swap_at_once(nodes, rest).await
}

async fn swap_at_once(nodes: &Nodes, mut steps: Vec<MarkerSwap>) -> Result<(), RequestError> {
    steps.sort_by_key(|step| step.node.address);
    let request = |step: &MarkerSwap| mark(&step.next, &step.seen, &step.node.names, LostData::default());
    let requests: Arc<HashMap<usize, NodeCall>> =
        Arc::new(steps.iter().map(|step| (step.node.address, request(step))).collect());
    let limit = nodes.limit;
    let mut round =
        nodes.at(steps.iter().map(|step| step.node.address), |address, node, reply: ReplySender<_>| {
            let requests = Arc::clone(&requests);
            async move {
                if let Some(request) = requests.get(&address) {
                    reply.send(node.run(limit, request).await.and_then(node_state));
                }
            }
        });
    let mut answers = Vec::new();
    while let Some(answer) = round.next(false).await {
        answers.push(answer);
    }
    let markers = require_all(nodes, answers)?;
    for (step, found) in steps.iter().zip(markers) {
        match Marker::parse(&found.marker) {
            _ if found.marker == step.next => {}
            Marker::Preparing(identity) | Marker::Ready(identity)
                if identity.set == step.node.identity.set =>
            {
                return Err(same_server(nodes, step.node.address, identity.number - 1));
            }
            _ => return Err(changed_meanwhile()),
        }
    }
    Ok(())
}

fn changed_meanwhile() -> RequestError {
    RequestError::new(Effect::Busy, ErrorKind::Unavailable, "a node changed during the set-up: run it again")
}

/// Returns the replies in the order of the nodes; an error if one is missing.
fn require_all<T>(
    nodes: &Nodes,
    mut answers: Vec<(usize, Result<T, RequestError>)>,
) -> Result<Vec<T>, RequestError> {
    answers.sort_by_key(|(address, _)| *address);
    let (mut replies, mut faults) = (Vec::new(), Vec::new());
    for (address, answer) in answers {
        match answer {
            Ok(reply) => replies.push(reply),
            Err(fault) => faults.push((address, Some(fault))),
        }
    }
    if faults.is_empty() { Ok(replies) } else { Err(nodes.not_all(&faults)) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use lockkit_conformance::direct::{HANG, bounded};

    use super::*;
    use crate::{
        RedisConfig,
        tests::scripted::{Answer, ScriptedServer, greeting},
    };

    /// It was looked at before the other run came, and another node after that run.
    #[tokio::test]
    async fn node_that_another_run_sets_up_during_the_first_look_has_lost_nothing() {
        let mut addresses = Vec::new();
        for number in 1..=3 {
            let looks = AtomicUsize::default();
            let server = ScriptedServer::start(|_| {
                move |_, words: &[String]| match &*words[0] {
                    "EVALSHA" => {
                        let is_before = looks.fetch_add(1, SeqCst) == 0 && number == 3;
                        let marker =
                            if is_before { String::new() } else { format!("ready 60000 5f0c {number}/3") };
                        let length = marker.len();
                        Answer::Text(format!("*4\r\n${length}\r\n{marker}\r\n:0\r\n$0\r\n\r\n:0\r\n"))
                    }
                    _ => greeting(words),
                }
            });
            addresses.push(server.await.address.to_string());
        }
        let nodes = RedisConfig::new(addresses).unwrap().request_timeout(HANG);
        let config = RedlockConfig::new(nodes).unwrap();
        assert_eq!(bounded(init(&config)).await.unwrap(), SetUp::Before);
    }
}
