//! Nodes that have lost their data come back.
//!
//! Such a node has lost keys that holders rely on, and counters that tokens must stay above. So it counts again only
//!
//! 1. when every lock that anybody may have held by its word has ended: one longest ttl after it was found without its
//!    marker. A note in the marker's place tells whether it was emptied again meanwhile; then the time starts anew. It is
//!    measured by the client's own clock: the node's may step.
//! 2. with a counter that is not below any that a majority among the *other* nodes has, read after that time.
//!
//! * Fewer others are in order: nothing is done. Which of the data is lost is for the operator to judge.
//! * Several clients do this at the same time: they find each other's note, and the first to come through is enough.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lockkit_core::{Clock, backend::retry_pauses, limits::RETRY_PAUSE_MAX};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    calls::{mark, marked, note_empty},
    nodes::Nodes,
    setup::{self, EMPTY},
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
    /// It was emptied again.
    Again,
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
                Ok(Step::Operator) => {
                    warn!(node = self.name(number), "it has lost its data, and too few others are in order");
                    return;
                }
                Ok(Step::Again) => {}
                Err(fault) => {
                    tracing::debug!(?fault, node = self.name(number), "not brought back yet");
                    tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)).await;
                }
            }
        }
    }

    /// Once through the two conditions.
    async fn pass(&self, number: usize) -> Result<Step, Fault> {
        let ready = setup::ready(self.max_ttl);
        if self.highest_of_others(number, &ready).await.is_none() {
            return Ok(Step::Operator);
        }
        let Some(node) = self.nodes.get(number) else { return Ok(Step::Done) };
        let note = format!("{EMPTY}{:032x}", fastrand::u128(..));
        let (note, _) = marked(node.run(self.nodes.limit, &note_empty(&note)).await?)?;
        if note == ready {
            return Ok(Step::Done);
        }
        if !note.starts_with(EMPTY) {
            return Ok(Step::Operator);
        }
        info!(node = node.name(), wait = ?self.max_ttl, "it has lost its data, and is left out for a while");
        self.wait().await;
        let Some(highest) = self.highest_of_others(number, &ready).await else { return Ok(Step::Operator) };
        let call = mark(&ready, &note, highest);
        let (found, _) = marked(node.run(self.nodes.limit, &call).await?)?;
        if found == ready {
            info!(node = node.name(), "it counts again");
            return Ok(Step::Done);
        }
        Ok(Step::Again)
    }

    /// The highest counter that a majority among the other nodes has; `None` where so many are not in order.
    async fn highest_of_others(&self, number: usize, ready: &str) -> Option<u64> {
        let states = setup::look_at_all(&self.nodes).await;
        let others: Vec<u64> = states
            .into_iter()
            .filter(|(other, _)| *other != number)
            .filter_map(|(_, answer)| {
                answer.ok().filter(|(marker, _)| marker == ready).map(|(_, highest)| highest)
            })
            .collect();
        (others.len() >= self.nodes.majority()).then(|| others.into_iter().max()).flatten()
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

    fn name(&self, number: usize) -> String {
        self.nodes.get(number).map(|node| node.name().to_owned()).unwrap_or_default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<usize>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
