//! What a client finds at the nodes when it connects: one set, or the reason why nothing can be locked there.

use std::{sync::Arc, time::Duration};

use lockkit_core::ErrorKind;

use super::{
    calls::{Found, found, look},
    marker::{Marker, Seat, milliseconds, split},
    nodes::{Nodes, Tell},
};
use crate::error::{Effect, Fault};

/// How a set of other nodes comes about, or one whose majority is lost.
pub(super) const ANEW: &str = "stop all clients, wait for the longest ttl, delete the key `lockkit:redlock` at every node, \
                               and run `lockkit init` with the URL of all nodes of the new set; tokens then rise as far \
                               as the clocks of the clients agree";

/// What a node knows of itself, or why there is no answer.
pub(super) type State = (usize, Result<Found, Fault>);

/// Looks at the nodes; a majority of those that count says enough.
pub(super) async fn look_at(nodes: &Nodes) -> Vec<State> {
    look_until(nodes, |(_, answer)| {
        answer.as_ref().is_ok_and(|found| matches!(Marker::parse(&found.marker), Marker::Ready(_)))
    })
    .await
}

/// Looks at all nodes.
pub(super) async fn look_at_all(nodes: &Nodes) -> Vec<State> {
    look_until(nodes, |_| false).await
}

/// A majority of answers that are good is enough.
async fn look_until(nodes: &Nodes, is_good: impl Fn(&State) -> bool) -> Vec<State> {
    let (request, limit) = (Arc::new(look()), nodes.limit);
    let mut round = nodes.at_all(|_, node, tell: Tell<Result<Found, Fault>>| {
        let request = Arc::clone(&request);
        async move { tell.tell(node.run(limit, &request).await.and_then(found)) }
    });
    let mut states = Vec::new();
    loop {
        let good = states.iter().filter(|state| is_good(state)).count();
        let Some(state) = round.next(good >= nodes.majority()).await else { return states };
        states.push(state);
    }
}

/// Settles which set the nodes in these states are, and which node is where.
///
/// # Errors
///
/// Nothing can be locked there: why not, and what to do.
pub(super) fn join(nodes: &Nodes, states: &[State], max_ttl: Duration) -> Result<(), Fault> {
    let answered = || states.iter().filter_map(|(address, answer)| Some((*address, answer.as_ref().ok()?)));
    agree(nodes, answered(), max_ttl)?;
    let ready: Vec<(Seat, &Found)> = answered()
        .filter_map(|(_, found)| match Marker::parse(&found.marker) {
            Marker::Ready(seat) => Some((seat, found)),
            _ => None,
        })
        .collect();
    if ready.len() < nodes.majority() {
        return Err(no_majority(nodes, states));
    }
    if let Some((seat, found)) = ready.first() {
        nodes.members.settle(seat, &found.names);
    }
    answered().try_for_each(|(address, found)| nodes.members.admit(address, found))
}

/// Why nodes of which no majority counts are of no use.
fn no_majority(nodes: &Nodes, states: &[State]) -> Fault {
    let markers: Vec<Marker> =
        states.iter().filter_map(|(_, answer)| Some(Marker::parse(&answer.as_ref().ok()?.marker))).collect();
    let empty = markers.iter().filter(|marker| **marker == Marker::Missing).count();
    if markers.iter().any(|marker| matches!(marker, Marker::Preparing(_))) {
        return invalid("these nodes are half set up: run `lockkit init` again".to_owned());
    }
    if empty == nodes.count() {
        return invalid(
            "these nodes are not set up, or all of them have lost their data. Before the first lock: run `lockkit init URL` \
             once. Where locks were held there before: stop all clients and wait for the longest ttl first, for a holder \
             may rely on its lock until then, and nobody else knows of it any more"
                .to_owned(),
        );
    }
    if nodes.count() - empty < nodes.majority() {
        return invalid(format!(
            "{empty} of {} nodes have lost their data, which leaves no majority: {ANEW}",
            nodes.count()
        ));
    }
    nodes.no_majority(states.iter().filter_map(|(address, answer)| match answer {
        Err(fault) => Some((*address, Some(fault))),
        Ok(found) => (Marker::parse(&found.marker) == Marker::Missing).then_some((*address, None)),
    }))
}

/// Whether these nodes can be one set, and the URL leads to each of them once.
pub(super) fn agree<'a>(
    nodes: &Nodes,
    found: impl Iterator<Item = (usize, &'a Found)>,
    max_ttl: Duration,
) -> Result<(), Fault> {
    let mut first: Option<(usize, Seat)> = None;
    let mut met: Vec<(usize, Seat)> = Vec::new();
    for (address, found) in found {
        let (seat, counts) = match Marker::parse(&found.marker) {
            Marker::Missing => continue,
            Marker::Preparing(seat) => (seat, false),
            Marker::Ready(seat) => (seat, true),
            Marker::Other => return Err(of_others(nodes, address, &found.marker)),
        };
        if let Some((other, _)) =
            met.iter().find(|(_, one)| (&one.set, one.number) == (&seat.set, seat.number))
        {
            return Err(twice(nodes, address, *other));
        }
        // What never counted may be prepared anew.
        if counts {
            fits(nodes, &seat, &found.names, max_ttl)?;
            if let Some((other, _)) = first.as_ref().filter(|(_, one)| one.set != seat.set) {
                return Err(mixed(nodes, address, *other));
            }
            first.get_or_insert((address, seat.clone()));
        }
        met.push((address, seat));
    }
    Ok(())
}

/// Whether the client is configured for this node's set.
fn fits(nodes: &Nodes, seat: &Seat, names: &str, max_ttl: Duration) -> Result<(), Fault> {
    if seat.of != nodes.count() {
        return Err(invalid(format!(
            "the set has {} nodes ({}), and {} are named: every client must name all nodes of the set, and no others. \
             For another set: {ANEW}",
            seat.of,
            split(names).join(", "),
            nodes.count()
        )));
    }
    if seat.max_ttl_ms != milliseconds(max_ttl) {
        return Err(invalid(format!(
            "the nodes are set up for a longest ttl of {} ms: `max_ttl` must be the same for all clients. For another \
             one: {ANEW}",
            seat.max_ttl_ms
        )));
    }
    Ok(())
}

fn of_others(nodes: &Nodes, address: usize, marker: &str) -> Fault {
    invalid(format!(
        "{} is set up by another version of lockkit ({marker:.60}): use that, or {ANEW}",
        nodes.name(address)
    ))
}

fn mixed(nodes: &Nodes, address: usize, other: usize) -> Fault {
    invalid(format!(
        "{} and {} are nodes of different sets: every client must name all nodes of one set, and no others. For another \
         set: {ANEW}",
        nodes.name(other),
        nodes.name(address)
    ))
}

/// Two addresses lead to one node.
pub(super) fn twice(nodes: &Nodes, address: usize, other: usize) -> Fault {
    invalid(format!(
        "{} and {} are the same server: every node must be another one",
        nodes.name(other),
        nodes.name(address)
    ))
}

pub(super) fn invalid(message: String) -> Fault {
    Fault::new(Effect::Refused, ErrorKind::InvalidConfig, message)
}
