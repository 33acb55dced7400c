//! Nodes that have lost their data come back.
//!
//! Such a node has lost keys that holders rely on, and counters that tokens must stay above. So it counts again only
//!
//! 1. when every lock that anybody may have held by its word has ended: one longest ttl after it was found without its
//!    marker. A note in the marker's place tells whether it was emptied again meanwhile; then the time starts anew. It is
//!    measured by the client's own clock: the node's may step.
//! 2. with a counter that is not below any that a majority among the *other* nodes has, read after that time.
//!
//! * It is not known to be the set's node of that place ([`members`](super::members)): it may be a server that was never
//!   part of the set, while clients elsewhere go on with the node that it would stand for. Nothing is done.
//! * Its set-up was interrupted: it never counted, and does when `init` has been run again.
//! * Fewer others are in order: nothing is done. Which of the data is lost is for the operator to judge.
//! * Several clients do this at the same time: they find each other's note, and the first to come through is enough.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lockkit_core::{Clock, backend::retry_pauses, limits::RETRY_PAUSE_MAX};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    calls::{Found, found, look, mark, note_empty},
    join::look_at_all,
    marker::{Marker, note},
    nodes::Nodes,
    validity,
};
use crate::error::Fault;

/// Brings nodes back. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Rejoining {
    nodes: Nodes,
    max_ttl: Duration,
    clock: Clock,
    closed: CancellationToken,
    /// The nodes that are being brought back.
    under_way: Arc<Mutex<HashSet<usize>>>,
}

/// How far a node is.
enum Step {
    /// It counts.
    Done,
    /// The others cannot tell what it must know.
    Operator,
    /// Nobody here knows that it is of this set.
    Stranger,
    /// Its set-up was interrupted between the two steps.
    HalfSetUp,
    /// It was emptied again.
    Again,
}

/// What a node's word about itself is worth.
pub(super) enum Sign {
    Counts,
    /// It counts, but in a set that was set up since, or of other nodes.
    AnotherSet,
    /// It does not count.
    None,
}

impl Rejoining {
    pub(super) fn new(nodes: Nodes, max_ttl: Duration, clock: Clock, closed: CancellationToken) -> Self {
        Self { nodes, max_ttl, clock, closed, under_way: Arc::default() }
    }

    /// A node has said that it has no marker.
    pub(super) fn found_empty(&self, number: usize) {
        if !self.lock().insert(number) {
            return;
        }
        let rejoining = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = rejoining.closed.cancelled() => {}
                () = rejoining.bring_back(number) => {}
            }
            rejoining.lock().remove(&number);
        });
    }

    async fn bring_back(&self, number: usize) {
        let mut pauses = retry_pauses();
        loop {
            match self.pass(number).await {
                Ok(Step::Done) => return,
                Ok(step @ (Step::Operator | Step::Stranger | Step::HalfSetUp)) => {
                    let why = match step {
                        Step::Stranger => "it is not known to be a node of this set",
                        Step::HalfSetUp => "it is half set up: run `lockkit init` again",
                        _ => "it has lost its data, and too few others are in order",
                    };
                    warn!(node = self.nodes.name(number), why, "this node does not count");
                    // Whoever finds it so again says so again.
                    return tokio::time::sleep(RETRY_PAUSE_MAX).await;
                }
                Ok(Step::Again) => {}
                Err(fault) => {
                    tracing::debug!(?fault, node = self.nodes.name(number), "not brought back yet");
                    tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
                }
            }
        }
    }

    /// Once through the two conditions.
    async fn pass(&self, number: usize) -> Result<Step, Fault> {
        let (nodes, limit) = (&self.nodes, self.nodes.limit);
        if self.highest_of_others(number).await.is_none() {
            return Ok(Step::Operator);
        }
        let Some(node) = nodes.get(number) else { return Ok(Step::Done) };
        let Some(seat) = nodes.members.rightful(number) else {
            return self.meets_stranger(number).await;
        };
        let (ready, names) = (seat.ready(), nodes.members.names_of_set());
        let met = found(node.run(limit, &note_empty(&note())).await?)?;
        match Marker::parse(&met.marker) {
            Marker::Missing => {}
            _ if self.counts(number, &met) => return Ok(Step::Done),
            Marker::Preparing(_) => return Ok(Step::HalfSetUp),
            _ => return Ok(Step::Stranger),
        }
        info!(node = node.name(), wait = ?self.max_ttl, "it has lost its data, and is left out for a while");
        self.wait().await;
        let Some(highest) = self.highest_of_others(number).await else { return Ok(Step::Operator) };
        if nodes.members.rightful(number) != Some(seat) {
            // It was found at another address meanwhile.
            return Ok(Step::Stranger);
        }
        let call = mark(&ready, &met.marker, highest, &names);
        let met = found(node.run(limit, &call).await?)?;
        if self.counts(number, &met) {
            info!(node = node.name(), "it counts again");
            return Ok(Step::Done);
        }
        Ok(Step::Again)
    }

    /// A server that is not known to be of the set: it counts if it says so itself.
    async fn meets_stranger(&self, number: usize) -> Result<Step, Fault> {
        let Some(node) = self.nodes.get(number) else { return Ok(Step::Done) };
        let met = found(node.run(self.nodes.limit, &look()).await?)?;
        Ok(match Marker::parse(&met.marker) {
            _ if self.counts(number, &met) => Step::Done,
            Marker::Preparing(_) => Step::HalfSetUp,
            _ => Step::Stranger,
        })
    }

    /// Whether what a node says of itself makes it count.
    pub(super) fn counts(&self, number: usize, met: &Found) -> bool {
        let members = &self.nodes.members;
        members.admit(number, met).is_ok() && members.marker(number).as_ref() == Some(&met.marker)
    }

    /// What a node says of itself; one that does not count is looked after.
    pub(super) fn sign(&self, number: usize, met: &Found) -> Sign {
        if self.counts(number, met) {
            return Sign::Counts;
        }
        self.found_empty(number);
        if self.nodes.members.is_of_another_set(met) { Sign::AnotherSet } else { Sign::None }
    }

    /// The highest counter that a majority among the other nodes has; `None` where so many are not in order.
    async fn highest_of_others(&self, number: usize) -> Option<u64> {
        // By marker, which names the node.
        let others: HashMap<String, u64> = look_at_all(&self.nodes)
            .await
            .into_iter()
            .filter(|(other, _)| *other != number)
            .filter_map(|(other, answer)| {
                answer.ok().filter(|met| self.counts(other, met)).map(|met| (met.marker, met.highest))
            })
            .collect();
        (others.len() >= self.nodes.majority()).then(|| others.into_values().max()).flatten()
    }

    /// Until whatever relied on the node has ended.
    async fn wait(&self) {
        let whole = validity::quarantine(self.max_ttl);
        let start = self.clock.now();
        loop {
            let waited = self.clock.now().since(start);
            let Some(rest) = whole.checked_sub(waited).filter(|rest| !rest.is_zero()) else { return };
            tokio::time::sleep(rest).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<usize>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
