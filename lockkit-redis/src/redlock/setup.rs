//! The state of a set of nodes: set up, half set up, or never.
//!
//! Each node has a marker. It is written once, when the set is set up; a node without it has lost its data, and must not
//! count until it is safe: see [`rejoin`](super::rejoin). So the set-up is told from a loss only by an explicit [`init`].
//!
//! It has two steps, so that it can be interrupted: all nodes get a first marker, then all get the one that counts. As
//! long as no node has that, nothing was ever locked; when some have it, and the others the first one, none of them has
//! lost anything.

use std::{sync::Arc, time::Duration};

use lockkit_core::{ErrorKind, Result};

use super::{
    RedlockConfig,
    calls::{look, mark, marked},
    nodes::{Nodes, Tell},
};
use crate::{
    error::{Effect, Fault},
    scripts::Call,
};

/// What begins the text of an emptied node's marker.
pub(super) const EMPTY: &str = "empty ";

/// The marker of nodes that count.
pub(super) fn ready(max_ttl: Duration) -> String {
    format!("ready {}", max_ttl.as_millis())
}

/// The marker of nodes between the two steps of the set-up.
fn preparing(max_ttl: Duration) -> String {
    format!("preparing {}", max_ttl.as_millis())
}

/// Sets up the nodes of a configuration: once, before the first client connects, while all of them can be reached. Again
/// it does nothing; after an interruption it goes on where it was.
///
/// It must not be used to bring nodes back that have lost their data: it refuses to, and clients do that by themselves.
///
/// # Errors
///
/// `Unavailable` while a node cannot be reached; `InvalidConfig` for nodes that were set up with another longest ttl, or
/// of which some have lost their data; the message says what to do.
///
/// # Cancel safety
///
/// A dropped future may leave the set-up half done; no client locks there until it is done.
pub async fn init(config: &RedlockConfig) -> Result<()> {
    set_up(config).await.map_err(|fault| fault.into_error("init"))
}

async fn set_up(config: &RedlockConfig) -> Result<(), Fault> {
    let nodes = config.connect(config.request_timeout());
    let (ready, preparing) = (ready(config.max_ttl), preparing(config.max_ttl));
    let found = at_every(&nodes, look()).await?;
    let is_known = |marker: &String| *marker == ready || *marker == preparing;
    if let Some(other) = found.iter().find(|marker| is_set_up(marker) && !is_known(marker)) {
        return Err(of_other_ttl(other));
    }
    let count = |wanted: &str| found.iter().filter(|marker| *marker == wanted).count();
    let missing = found.len() - count(&ready) - count(&preparing);
    if count(&ready) > 0 && missing > 0 {
        return Err(invalid(format!(
            "{missing} of {} nodes have lost their data: clients let them in again by themselves, {} ms after \
             they found out, while a majority has its data. If it has not: {RECOVERY}",
            found.len(),
            config.max_ttl.as_millis()
        )));
    }
    // What others have left where there is no marker of ours, an emptied node's note, is replaced.
    for marker in found.iter().filter(|marker| !is_known(marker)) {
        at_every(&nodes, mark(&preparing, marker, 0)).await?;
    }
    let prepared = at_every(&nodes, mark(&ready, &preparing, 0)).await?;
    match prepared.iter().find(|marker| **marker != ready) {
        None => Ok(()),
        Some(_) => Err(Fault::new(
            Effect::Busy,
            ErrorKind::Unavailable,
            "a node has changed meanwhile: run it again",
        )),
    }
}

/// What the operator of a set without a majority can do.
const RECOVERY: &str = "stop all clients, wait that long, delete the key `lockkit:redlock` at every node, and run `lockkit \
                        init` again; tokens then rise as far as the clocks of the clients agree";

fn is_set_up(marker: &str) -> bool {
    !marker.is_empty() && !marker.starts_with(EMPTY)
}

fn of_other_ttl(marker: &str) -> Fault {
    invalid(format!(
        "the nodes are set up otherwise ({marker:.40}, in milliseconds): `max_ttl` must be the same for all clients"
    ))
}

fn invalid(message: String) -> Fault {
    Fault::new(Effect::Refused, ErrorKind::InvalidConfig, message)
}

/// The markers of all nodes after this; every node must answer.
async fn at_every(nodes: &Nodes, call: Call) -> Result<Vec<String>, Fault> {
    let answers = ask(nodes, call, |_| false).await;
    let (mut markers, mut faults) = (Vec::new(), Vec::new());
    for (number, answer) in answers {
        match answer {
            Ok((marker, _)) => markers.push(marker),
            Err(fault) => faults.push((number, fault)),
        }
    }
    if faults.is_empty() {
        return Ok(markers);
    }
    Err(nodes.not_all(faults.iter().map(|(number, fault)| (*number, fault))))
}

/// A node, its marker and its highest counter, or why there is no answer.
pub(super) type State = (usize, Result<(String, u64), Fault>);

/// Looks at the nodes; a majority with this marker says enough.
pub(super) async fn look_at(nodes: &Nodes, marker: &str) -> Vec<State> {
    ask(nodes, look(), |(_, answer)| answer.as_ref().is_ok_and(|(found, _)| found == marker)).await
}

/// Looks at all nodes.
pub(super) async fn look_at_all(nodes: &Nodes) -> Vec<State> {
    ask(nodes, look(), |_| false).await
}

/// Asks all nodes; a majority of answers that are good is enough.
async fn ask(nodes: &Nodes, call: Call, is_good: impl Fn(&State) -> bool) -> Vec<State> {
    let (call, limit) = (Arc::new(call), nodes.limit);
    let mut round = nodes.at_all(|_, node, tell: Tell<Result<(String, u64), Fault>>| {
        let call = Arc::clone(&call);
        async move { tell.tell(node.run(limit, &call).await.and_then(marked)) }
    });
    let mut states = Vec::new();
    loop {
        let good = states.iter().filter(|state| is_good(state)).count();
        let Some(state) = round.next(good >= nodes.majority()).await else { return states };
        states.push(state);
    }
}

/// Whether locks can be had of nodes in these states; otherwise why not, and what to do.
pub(super) fn check(nodes: &Nodes, states: &[State], max_ttl: Duration) -> Result<(), Fault> {
    let (ready, preparing) = (ready(max_ttl), preparing(max_ttl));
    let markers: Vec<&str> =
        states.iter().filter_map(|(_, answer)| Some(answer.as_ref().ok()?.0.as_str())).collect();
    let count = |wanted: &str| markers.iter().filter(|marker| **marker == wanted).count();
    if count(&ready) >= nodes.majority() {
        return Ok(());
    }
    if let Some(other) =
        markers.iter().find(|marker| is_set_up(marker) && **marker != ready && **marker != preparing)
    {
        return Err(of_other_ttl(other));
    }
    let empty = markers.iter().filter(|marker| !is_set_up(marker)).count();
    if count(&preparing) >= 1 {
        return Err(invalid("these nodes are half set up: run `lockkit init` again".to_owned()));
    }
    if empty == nodes.count() {
        return Err(invalid(
            "these nodes are not set up: run `lockkit init URL` once, before the first lock".to_owned(),
        ));
    }
    if nodes.count() - empty < nodes.majority() {
        return Err(invalid(format!(
            "{empty} of {} nodes have lost their data, which leaves no majority: {RECOVERY}",
            nodes.count()
        )));
    }
    let faults = states.iter().filter_map(|(number, answer)| match answer {
        Err(fault) => Some((*number, Some(fault))),
        Ok((marker, _)) => (!is_set_up(marker)).then_some((*number, None)),
    });
    Err(nodes.no_majority(faults))
}
