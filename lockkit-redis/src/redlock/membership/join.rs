//! Connecting: whether the nodes of a URL are one set, or why nothing can be locked there.

use std::time::Duration;

use lockkit_core::ErrorKind;

use super::marker::{Marker, NodeIdentity, milliseconds, split_names};
use crate::{
    error::{Effect, RequestError},
    redlock::{
        nodes::Nodes,
        wire::{NodeState, look, node_state},
    },
};

/// How to replace a set, or to continue after a majority has lost its data.
pub(crate) const REPLACE_SET: &str = "stop all clients, wait for the longest ttl, delete the key `lockkit:redlock` at \
                                      every node, and run `lockkit init` with the URL of all nodes of the new set; \
                                      tokens then rise only as far as the clients' clocks agree";

/// A node's address index and its state, or why it did not reply.
pub(crate) type Observation = (usize, Result<NodeState, RequestError>);

/// Reads the nodes' states, until a majority of nodes that count has replied.
pub(crate) async fn look_at_majority(nodes: &Nodes) -> Vec<Observation> {
    look_until(nodes, |(_, answer)| {
        answer.as_ref().is_ok_and(|found| matches!(Marker::parse(&found.marker), Marker::Ready(_)))
    })
    .await
}

/// Reads the states of all nodes.
pub(crate) async fn look_at_all(nodes: &Nodes) -> Vec<Observation> {
    look_until(nodes, |_| false).await
}

/// Reads the nodes' states, until a majority of them is good.
async fn look_until(nodes: &Nodes, is_good: impl Fn(&Observation) -> bool) -> Vec<Observation> {
    let mut round = nodes.ask(look(), |_, answer| node_state(answer));
    let mut observations = Vec::new();
    loop {
        let good = observations.iter().filter(|observation| is_good(observation)).count();
        let Some(observation) = round.next(good >= nodes.majority()).await else { return observations };
        observations.push(observation);
    }
}

/// Decides which set these nodes are, and which node is at which address.
///
/// # Errors
///
/// Nothing can be locked there. The message says why, and what to do.
pub(crate) fn join(
    nodes: &Nodes,
    observations: &[Observation],
    max_ttl: Duration,
) -> Result<(), RequestError> {
    let answered =
        || observations.iter().filter_map(|(address, answer)| Some((*address, answer.as_ref().ok()?)));
    check_one_set(nodes, answered(), max_ttl)?;
    let ready: Vec<(NodeIdentity, &NodeState)> = answered()
        .filter_map(|(_, found)| match Marker::parse(&found.marker) {
            Marker::Ready(identity) => Some((identity, found)),
            _ => None,
        })
        .collect();
    if ready.len() < nodes.majority() {
        return Err(no_majority(nodes, observations));
    }
    if let Some((identity, found)) = ready.first() {
        nodes.members.choose_set(identity, &found.names);
    }
    answered().try_for_each(|(address, found)| nodes.members.admit(address, found))
}

/// Returns the error if no majority of the nodes counts.
fn no_majority(nodes: &Nodes, observations: &[Observation]) -> RequestError {
    let markers: Vec<Marker> = observations
        .iter()
        .filter_map(|(_, answer)| Some(Marker::parse(&answer.as_ref().ok()?.marker)))
        .collect();
    let empty = markers.iter().filter(|marker| **marker == Marker::Missing).count();
    if markers.iter().any(|marker| matches!(marker, Marker::Preparing(_))) {
        return invalid("the set-up of these nodes is not finished: run `lockkit init` again".to_owned());
    }
    if empty == nodes.count() {
        return invalid(
            "these nodes are not set up, or all of them have lost their data. Before the first lock: run `lockkit init URL` \
             once. If locks were held there before: stop all clients and wait for the longest ttl first, because a holder \
             may rely on its lock until then"
                .to_owned(),
        );
    }
    if nodes.count() - empty < nodes.majority() {
        return invalid(format!(
            "{empty} of {} nodes have lost their data, which leaves no majority: {REPLACE_SET}",
            nodes.count()
        ));
    }
    let faults = observations.iter().filter_map(|(address, answer)| match answer {
        Err(fault) => Some((*address, Some(fault.clone()))),
        Ok(found) => (Marker::parse(&found.marker) == Marker::Missing).then_some((*address, None)),
    });
    nodes.no_majority(&faults.collect::<Vec<_>>())
}

/// Checks that these nodes can be one set, and that the URL names each of them once.
pub(crate) fn check_one_set<'a>(
    nodes: &Nodes,
    found: impl Iterator<Item = (usize, &'a NodeState)>,
    max_ttl: Duration,
) -> Result<(), RequestError> {
    let mut first: Option<(usize, NodeIdentity)> = None;
    let mut seen: Vec<(usize, NodeIdentity)> = Vec::new();
    for (address, found) in found {
        let (identity, counts) = match Marker::parse(&found.marker) {
            Marker::Missing => continue,
            Marker::Preparing(identity) => (identity, false),
            Marker::Ready(identity) => (identity, true),
            Marker::Unrecognized => return Err(other_version(nodes, address, &found.marker)),
        };
        if let Some((other, _)) =
            seen.iter().find(|(_, one)| (&one.set, one.number) == (&identity.set, identity.number))
        {
            return Err(same_server(nodes, address, *other));
        }
        // A node that is only prepared never counted, so the next set-up may prepare it again.
        if counts {
            check_config(nodes, &identity, &found.names, max_ttl)?;
            if let Some((other, _)) = first.as_ref().filter(|(_, one)| one.set != identity.set) {
                return Err(different_sets(nodes, address, *other));
            }
            first.get_or_insert((address, identity.clone()));
        }
        seen.push((address, identity));
    }
    Ok(())
}

/// Checks that the client is configured for this node's set.
fn check_config(
    nodes: &Nodes,
    identity: &NodeIdentity,
    names: &str,
    max_ttl: Duration,
) -> Result<(), RequestError> {
    if identity.set_size != nodes.count() {
        return Err(invalid(format!(
            "the set has {} nodes ({}), but the URL names {}: every client must name all nodes of the set, and no others. \
             For another set: {REPLACE_SET}",
            identity.set_size,
            split_names(names).join(", "),
            nodes.count()
        )));
    }
    if identity.max_ttl_ms != milliseconds(max_ttl) {
        return Err(invalid(format!(
            "the nodes are set up for a longest ttl of {} ms: `max_ttl` must be the same for all clients. For another \
             one: {REPLACE_SET}",
            identity.max_ttl_ms
        )));
    }
    Ok(())
}

fn other_version(nodes: &Nodes, address: usize, marker: &str) -> RequestError {
    invalid(format!(
        "{} was set up by another version of lockkit ({marker:.60}): use that version, or {REPLACE_SET}",
        nodes.name(address)
    ))
}

fn different_sets(nodes: &Nodes, address: usize, other: usize) -> RequestError {
    invalid(format!(
        "{} and {} are nodes of different sets: every client must name all nodes of one set, and no others. For another \
         set: {REPLACE_SET}",
        nodes.name(other),
        nodes.name(address)
    ))
}

/// Returns the error if two addresses lead to one node.
pub(crate) fn same_server(nodes: &Nodes, address: usize, other: usize) -> RequestError {
    invalid(format!(
        "{} and {} are the same server: every node must be a different one",
        nodes.name(other),
        nodes.name(address)
    ))
}

pub(crate) fn invalid(message: String) -> RequestError {
    RequestError::new(Effect::Refused, ErrorKind::InvalidConfig, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RedisConfig, redlock::RedlockConfig};

    const MAX_TTL: Duration = Duration::from_secs(60);

    /// Nodes at addresses where no server listens.
    fn nodes() -> Nodes {
        let unreachable = RedisConfig::new(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]).unwrap();
        RedlockConfig::new(unreachable).unwrap().connect(Duration::from_secs(1))
    }

    fn found(marker: String) -> NodeState {
        NodeState { marker, highest: 0, names: String::new(), records_last_us: 0 }
    }

    /// A node that counts.
    fn ready(set: &str, number: usize) -> NodeState {
        found(NodeIdentity { set: set.to_owned(), max_ttl_ms: 60_000, number, set_size: 3 }.ready())
    }

    /// The one that is silent may have its data: then clients bring the empty one back.
    #[tokio::test]
    async fn set_is_to_be_replaced_only_if_no_majority_can_have_its_data() {
        let empty = || Ok(found(String::new()));
        let silent = Err(RequestError::no_reply());
        for (other, kind) in [(silent, ErrorKind::Unavailable), (empty(), ErrorKind::InvalidConfig)] {
            let observations = [(0, Ok(ready("5f0c", 1))), (1, empty()), (2, other)];
            let fault = join(&nodes(), &observations, MAX_TTL).unwrap_err();
            assert_eq!(fault.kind(), kind, "{fault:?}");
        }
    }

    /// A client would compare another marker than that version does, and a set-up would replace it.
    #[tokio::test]
    async fn node_of_another_version_is_refused() {
        let found = [ready("5f0c", 1), ready("5f0c", 2), found("ready 60000 5f0c 3/3 more".to_owned())];
        let fault = check_one_set(&nodes(), found.iter().enumerate(), MAX_TTL).unwrap_err();
        assert_eq!(fault.kind(), ErrorKind::InvalidConfig);
        for text in ["127.0.0.1:3", "another version", "5f0c 3/3 more"] {
            assert!(fault.message().contains(text), "{text}: {fault:?}");
        }
    }

    #[tokio::test]
    async fn refusal_names_both_addresses_that_do_not_fit() {
        for (third, message) in [
            (ready("0a0b", 3), "127.0.0.1:1 and 127.0.0.1:3 are nodes of different sets"),
            (ready("5f0c", 2), "127.0.0.1:2 and 127.0.0.1:3 are the same server"),
        ] {
            let found = [ready("5f0c", 1), ready("5f0c", 2), third];
            let fault = check_one_set(&nodes(), found.iter().enumerate(), MAX_TTL).unwrap_err();
            assert!(fault.message().starts_with(message), "{fault:?}");
        }
    }

    /// With a shorter one than the nodes were set up for, a client would bring an emptied node back too early.
    #[tokio::test]
    async fn longest_ttl_must_be_that_of_the_set() {
        let (nodes, found) = (nodes(), ready("5f0c", 1));
        for (max_ttl_ms, refused) in [
            (59_999, Some(ErrorKind::InvalidConfig)),
            (60_000, None),
            (60_001, Some(ErrorKind::InvalidConfig)),
        ] {
            let max_ttl = Duration::from_millis(max_ttl_ms);
            let checked = check_one_set(&nodes, [(0, &found)].into_iter(), max_ttl);
            assert_eq!(checked.err().map(|fault| fault.kind()), refused, "{max_ttl:?}");
        }
    }
}
