//! The first set-up of a set of nodes.
//!
//! It gives each node a [marker](super::marker): the set's number, which is thrown for it, and which of the nodes it is.
//! A node without it has lost its data, and must not count until it is safe: see [`rejoin`](super::rejoin). So the set-up
//! is told from a loss only by an explicit [`init`].
//!
//! It has two steps, so that it can be interrupted: all nodes get a first marker, then all get the one that counts. Each is
//! given only where the node still has what was seen there.
//!
//! * It is interrupted in the first step: no node counts, nothing was ever locked. The next run throws a new number, and
//!   begins anew.
//! * It is interrupted in the second step: the next run goes on with the number that nodes count with. A node that has the
//!   first marker *of that number* has had no other since, and so has lost nothing.
//! * Two runs at the same time: one of them finds a node changed, and says so. Both begin each step at the same node, so that
//!   the one that loses leaves nothing among what the other has made. That takes URLs with the same names: otherwise each may
//!   spoil what the other has made, so that nothing can be locked until the operator deletes the markers.
//! * Two addresses lead to one node: it is found with the marker that it was given as another one.

use std::{collections::HashMap, sync::Arc};

use lockkit_core::{ErrorKind, Result};

use super::{
    RedlockConfig,
    calls::{Found, Request, found, mark},
    join::{ANEW, agree, invalid, look_at_all, twice},
    marker::{Marker, Seat, joined, milliseconds, new_set},
    nodes::{Nodes, Tell},
};
use crate::error::{Effect, Fault};

/// What [`init`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetUp {
    /// The nodes were new, or half set up; now they are set up.
    Done,
    /// They were set up before; nothing has changed.
    Before,
}

/// Sets up the nodes of a configuration: once, before the first client connects, while all of them can be reached. Again
/// it does nothing; after an interruption it goes on where it was.
///
/// From then on these nodes are one set. The configuration of every client must lead to each of them exactly once; what
/// they are called there does not matter, but for a node that has lost its data: it is let in only by clients that knew it
/// before, or call it as it was called here. To get another set, end all clients, wait for the longest ttl, delete the key
/// `lockkit:redlock` at every node of the old one, and set the new one up.
///
/// It must not be used to bring nodes back that have lost their data: clients do that by themselves, and it refuses to while
/// one node has its data. Nodes that have *all* lost them cannot be told from new ones: it sets them up at once, although
/// holders may rely on their locks for up to one longest ttl. So end all clients and wait for that long first, and do not run
/// it in a script that starts such nodes; tokens then rise as far as the clocks of the clients agree.
///
/// Runs at the same time must call the nodes by the same names.
///
/// # Errors
///
/// `Unavailable` while a node cannot be reached; `InvalidConfig` for nodes that belong to another set, were set up with
/// another longest ttl, or of which some have lost their data; the message says what to do.
///
/// # Cancel safety
///
/// A dropped future may leave the set-up half done: clients lock once a majority of the nodes counts, and the others, which
/// never did, do without until this is run again.
pub async fn init(config: &RedlockConfig) -> Result<SetUp> {
    set_up(config).await.map_err(|fault| fault.into_error("init"))
}

async fn set_up(config: &RedlockConfig) -> Result<SetUp, Fault> {
    let nodes = config.connect(config.request_timeout());
    let seen = every(&nodes, look_at_all(&nodes).await)?;
    agree(&nodes, seen.iter().enumerate(), config.max_ttl)?;
    let prepared = if seen.iter().any(|found| matches!(Marker::parse(&found.marker), Marker::Ready(_))) {
        // Not of one moment. But before a node counts, all have their first marker: a node without it now has lost it.
        let seen = every(&nodes, look_at_all(&nodes).await)?;
        agree(&nodes, seen.iter().enumerate(), config.max_ttl)?;
        half_set_up(&seen)?
    } else {
        prepare(&nodes, &seen, milliseconds(config.max_ttl)).await?
    };
    if prepared.is_empty() {
        return Ok(SetUp::Before);
    }
    let step = |node: Prepared| Exchange { seen: node.seat.preparing(), next: node.seat.ready(), node };
    exchange(&nodes, prepared.into_iter().map(step).collect()).await?;
    Ok(SetUp::Done)
}

/// A node that has the first marker, or is to have it.
struct Prepared {
    address: usize,
    seat: Seat,
    /// What the nodes of its set are called.
    names: String,
}

/// The first step: gives a new set's markers to all nodes, none of which has ever counted.
async fn prepare(nodes: &Nodes, seen: &[Found], max_ttl_ms: u64) -> Result<Vec<Prepared>, Fault> {
    let (set, names) = (new_set(), joined(nodes.members.names()));
    let prepared = |address: usize| {
        let seat = Seat { set: set.clone(), max_ttl_ms, number: address + 1, of: nodes.count() };
        Prepared { address, seat, names: names.clone() }
    };
    let steps = seen.iter().enumerate().map(|(address, found)| {
        let node = prepared(address);
        Exchange { seen: found.marker.clone(), next: node.seat.preparing(), node }
    });
    exchange(nodes, steps.collect()).await?;
    Ok((0..nodes.count()).map(prepared).collect())
}

/// The nodes that still need the second step, where some of the set count already.
fn half_set_up(seen: &[Found]) -> Result<Vec<Prepared>, Fault> {
    let markers: Vec<Marker> = seen.iter().map(|found| Marker::parse(&found.marker)).collect();
    let Some(ready) = markers.iter().find_map(|marker| match marker {
        Marker::Ready(seat) => Some(seat),
        _ => None,
    }) else {
        return Err(changed());
    };
    let mut prepared = Vec::new();
    let (mut lost, mut of_other_runs) = (0, 0);
    for (address, (marker, found)) in markers.iter().zip(seen).enumerate() {
        match marker {
            Marker::Ready(_) => {}
            Marker::Preparing(seat) if seat.set == ready.set => {
                prepared.push(Prepared { address, seat: seat.clone(), names: found.names.clone() });
            }
            Marker::Preparing(_) => of_other_runs += 1,
            _ => lost += 1,
        }
    }
    if of_other_runs > 0 {
        return Err(invalid(format!(
            "{of_other_runs} of {} nodes were prepared by another run of `lockkit init`: they have lost their data since the \
             set-up, or two runs at the same time called the nodes by different names. No client lets them in: {ANEW}",
            markers.len()
        )));
    }
    if lost == 0 {
        return Ok(prepared);
    }
    Err(invalid(format!(
        "{lost} of {} nodes have lost their data: clients let them in again by themselves, {} ms after they found out, \
         while a majority has its data, and where they knew the node before or call it as it was called at the set-up. \
         Otherwise: {ANEW}",
        markers.len(),
        ready.max_ttl_ms
    )))
}

/// One node's next marker, and the one that it must still have.
struct Exchange {
    seen: String,
    next: String,
    node: Prepared,
}

/// Gives nodes their next markers; every one of them must have been as it was seen. One comes first, the same for all runs:
/// of two that are at it at the same time one meets the other there, before it has changed anything else.
async fn exchange(nodes: &Nodes, mut steps: Vec<Exchange>) -> Result<(), Fault> {
    steps.sort_by(|one, other| nodes.name(one.node.address).cmp(nodes.name(other.node.address)));
    let rest = steps.split_off(steps.len().min(1));
    exchange_at_once(nodes, steps).await?;
    exchange_at_once(nodes, rest).await
}

async fn exchange_at_once(nodes: &Nodes, mut steps: Vec<Exchange>) -> Result<(), Fault> {
    steps.sort_by_key(|step| step.node.address);
    let request = |step: &Exchange| mark(&step.next, &step.seen, 0, &step.node.names);
    let requests: Arc<HashMap<usize, Request>> =
        Arc::new(steps.iter().map(|step| (step.node.address, request(step))).collect());
    let limit = nodes.limit;
    let mut round = nodes.at(steps.iter().map(|step| step.node.address), |address, node, tell: Tell<_>| {
        let requests = Arc::clone(&requests);
        async move {
            if let Some(request) = requests.get(&address) {
                tell.tell(node.run(limit, request).await.and_then(found));
            }
        }
    });
    let mut answers = Vec::new();
    while let Some(answer) = round.next(false).await {
        answers.push(answer);
    }
    let markers = every(nodes, answers)?;
    for (step, found) in steps.iter().zip(markers) {
        match Marker::parse(&found.marker) {
            _ if found.marker == step.next => {}
            Marker::Preparing(seat) | Marker::Ready(seat) if seat.set == step.node.seat.set => {
                return Err(twice(nodes, step.node.address, seat.number - 1));
            }
            _ => return Err(changed()),
        }
    }
    Ok(())
}

fn changed() -> Fault {
    Fault::new(Effect::Busy, ErrorKind::Unavailable, "a node has changed meanwhile: run it again")
}

/// What the nodes have answered, in their order; none may be missing.
fn every<T>(nodes: &Nodes, mut answers: Vec<(usize, Result<T, Fault>)>) -> Result<Vec<T>, Fault> {
    answers.sort_by_key(|(address, _)| *address);
    let faults: Vec<_> =
        answers.iter().filter_map(|(address, answer)| Some((*address, answer.as_ref().err()?))).collect();
    if !faults.is_empty() {
        return Err(nodes.not_all(faults.into_iter()));
    }
    Ok(answers.into_iter().filter_map(|(_, answer)| answer.ok()).collect())
}
