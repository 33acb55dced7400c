//! Bringing back nodes that have lost their data.
//!
//! Such a node has lost keys that holders rely on, and counters that tokens must stay above. It counts again only
//!
//! 1. when every lock that it granted before must have ended: one longest ttl after it was found without its marker. A
//!    note in place of the marker shows if it is emptied again meanwhile; then the time starts again. The client's own
//!    clock measures the time, because the node's clock may step.
//! 2. with a counter that is at least the highest one of a majority of the set, read from *other* nodes after that
//!    time.
//! 3. noting up to which token, and for how long, it may lack [records](super::super::records).
//!
//! * The client does not know the node ([`members`](super::members)): it may be a server that was never part of the
//!   set, while other clients still use the node that it would replace. Nothing is done.
//! * Its set-up was interrupted: it never counted, and will once `init` has run again.
//! * Too few other nodes count: nothing is done. The operator must judge which data is lost.
//! * Several clients do this at once: they find each other's note, and the first one to finish suffices.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkit_core::{Clock, backend::retry_pauses, lease, limits::RETRY_PAUSE_MAX, support::lock};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    join::look_at_all,
    marker::{Marker, empty_note},
};
use crate::{
    error::RequestError,
    redlock::{
        nodes::Nodes,
        wire::{LostData, NodeState, look, mark, node_state, note_empty},
    },
};

/// Brings nodes back. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Rejoiner {
    nodes: Nodes,
    max_ttl: Duration,
    clock: Clock,
    closed: CancellationToken,
    /// Nodes that are being brought back.
    in_progress: Arc<Mutex<HashSet<usize>>>,
}

/// The result of one pass.
enum RejoinStep {
    /// The node counts.
    Done,
    /// Too few other nodes count to know the counters.
    TooFewOthers,
    /// This client does not know that the node is part of the set.
    UnknownNode,
    /// The node's set-up was interrupted between the two steps.
    HalfSetUp,
    /// The node was emptied again.
    EmptiedAgain,
}

/// Whether a node counts, by its state.
pub(crate) enum NodeStatus {
    Counts,
    /// It counts in a set that was set up since, or in a set of other nodes.
    AnotherSet,
    /// It has no marker that counts.
    NotCounting,
}

impl Rejoiner {
    pub(crate) fn new(nodes: Nodes, max_ttl: Duration, clock: Clock, closed: CancellationToken) -> Self {
        Self { nodes, max_ttl, clock, closed, in_progress: Arc::default() }
    }

    /// Starts to bring back a node that was found without its marker, unless that is under way.
    pub(crate) fn start_rejoin(&self, number: usize) {
        if !self.lock().insert(number) {
            return;
        }
        let rejoiner = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = rejoiner.closed.cancelled() => {}
                () = rejoiner.rejoin(number) => {}
            }
            rejoiner.lock().remove(&number);
        });
    }

    async fn rejoin(&self, number: usize) {
        let mut pauses = retry_pauses();
        loop {
            match self.try_rejoin(number).await {
                Ok(RejoinStep::Done) => return,
                Ok(step @ (RejoinStep::TooFewOthers | RejoinStep::UnknownNode | RejoinStep::HalfSetUp)) => {
                    let why = match step {
                        RejoinStep::UnknownNode => "this client does not know it as a node of this set",
                        RejoinStep::HalfSetUp => "its set-up is not finished: run `lockkit init` again",
                        _ => "it has lost its data, and too few other nodes count",
                    };
                    warn!(node = self.nodes.name(number), why, "this node does not count");
                    // The next request that finds the node so starts again.
                    return tokio::time::sleep(RETRY_PAUSE_MAX).await;
                }
                Ok(RejoinStep::EmptiedAgain) => {}
                Err(fault) => {
                    tracing::debug!(?fault, node = self.nodes.name(number), "not brought back yet");
                    pauses.wait().await;
                }
            }
        }
    }

    /// One pass through the two conditions.
    async fn try_rejoin(&self, number: usize) -> Result<RejoinStep, RequestError> {
        let (nodes, limit) = (&self.nodes, self.nodes.limit);
        if self.known_by_others(number).await.is_none() {
            return Ok(RejoinStep::TooFewOthers);
        }
        let Some(node) = nodes.get(number) else { return Ok(RejoinStep::Done) };
        let Some(identity) = nodes.members.expected_identity(number) else {
            return self.check_unknown_node(number).await;
        };
        let (ready, names) = (identity.ready(), nodes.members.names_of_set());
        let state = node_state(node.run(limit, &note_empty(&empty_note())).await?)?;
        match Marker::parse(&state.marker) {
            Marker::Missing => {}
            _ if self.counts(number, &state) => return Ok(RejoinStep::Done),
            Marker::Preparing(_) => return Ok(RejoinStep::HalfSetUp),
            _ => return Ok(RejoinStep::UnknownNode),
        }
        info!(node = node.name(), wait = ?self.max_ttl, "this node has lost its data, and does not count for a while");
        self.wait_for_quarantine().await;
        let Some(lost) = self.known_by_others(number).await else { return Ok(RejoinStep::TooFewOthers) };
        if nodes.members.expected_identity(number) != Some(identity) {
            // The node was found at another address meanwhile.
            return Ok(RejoinStep::UnknownNode);
        }
        let call = mark(&ready, &state.marker, &names, lost);
        let state = node_state(node.run(limit, &call).await?)?;
        if self.counts(number, &state) {
            info!(node = node.name(), "this node counts again");
            return Ok(RejoinStep::Done);
        }
        Ok(RejoinStep::EmptiedAgain)
    }

    /// Checks whether a node that this client does not know counts by its own marker.
    async fn check_unknown_node(&self, number: usize) -> Result<RejoinStep, RequestError> {
        let Some(node) = self.nodes.get(number) else { return Ok(RejoinStep::Done) };
        let state = node_state(node.run(self.nodes.limit, &look()).await?)?;
        Ok(match Marker::parse(&state.marker) {
            _ if self.counts(number, &state) => RejoinStep::Done,
            Marker::Preparing(_) => RejoinStep::HalfSetUp,
            _ => RejoinStep::UnknownNode,
        })
    }

    /// Returns whether a node in this state counts.
    pub(crate) fn counts(&self, number: usize, state: &NodeState) -> bool {
        let members = &self.nodes.members;
        members.admit(number, state).is_ok() && members.marker(number).as_deref() == Some(&*state.marker)
    }

    /// Classifies a node by its state. Starts to bring it back if it does not count.
    pub(crate) fn status(&self, number: usize, state: &NodeState) -> NodeStatus {
        if self.counts(number, state) {
            return NodeStatus::Counts;
        }
        self.start_rejoin(number);
        if self.nodes.members.is_of_another_set(state) {
            NodeStatus::AnotherSet
        } else {
            NodeStatus::NotCounting
        }
    }

    /// Returns what the node may have lost, by the others; `None` if fewer than a majority of the set count among them.
    async fn known_by_others(&self, number: usize) -> Option<LostData> {
        // By marker, so that no node counts twice.
        let others: HashMap<String, NodeState> = look_at_all(&self.nodes)
            .await
            .into_iter()
            .filter(|(other, _)| *other != number)
            .filter_map(|(other, answer)| {
                answer
                    .ok()
                    .filter(|state| self.counts(other, state))
                    .map(|state| (state.marker.clone(), state))
            })
            .collect();
        if others.len() < self.nodes.majority() {
            return None;
        }
        let records_last = others.values().map(|state| state.records_last_us).max()?;
        // The servers' clocks differ in rate.
        let records_last = lease::quarantine(Duration::from_micros(records_last));
        Some(LostData {
            highest: others.values().map(|state| state.highest).max()?,
            records_last_us: u64::try_from(records_last.as_micros()).unwrap_or(u64::MAX),
        })
    }

    /// Waits until every lock that relied on the node has ended.
    async fn wait_for_quarantine(&self) {
        let whole = lease::quarantine(self.max_ttl);
        let start = self.clock.now();
        loop {
            let waited = self.clock.now().since(start);
            let Some(rest) = whole.checked_sub(waited).filter(|rest| !rest.is_zero()) else { return };
            tokio::time::sleep(rest).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<usize>> {
        lock(&self.in_progress)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    use lockkit_conformance::direct::{HANG, until};
    use lockkit_core::{BootInstant, limits::RETRY_PAUSE_MIN};
    use lockkit_testbed::RedisMasters;
    use tokio::time::Instant;

    use super::{
        super::marker::{NodeIdentity, join_names},
        *,
    };
    use crate::{
        RedisConfig,
        redlock::{RedlockConfig, node_call::NODE},
    };

    /// Returns a clock that stands still until the test starts it: then each reading is an hour later.
    fn held_clock() -> (Clock, Arc<AtomicBool>) {
        let (hours, is_started) = (AtomicU64::new(0), Arc::new(AtomicBool::new(false)));
        let started = Arc::clone(&is_started);
        let next = move || {
            let hours = hours.fetch_add(started.load(SeqCst).into(), SeqCst);
            BootInstant::from_start(Duration::from_secs(3600 * hours))
        };
        (Clock::new(next), is_started)
    }

    fn identity(number: usize, set_size: usize) -> NodeIdentity {
        NodeIdentity { set: "5f0c".to_owned(), max_ttl_ms: 1, number, set_size }
    }

    /// The nodes of a set at these names. The first ones of them count.
    fn set_of(masters: &RedisMasters, names: &[String], counting: usize) -> Nodes {
        let nodes = RedlockConfig::new(RedisConfig::new(names).unwrap()).unwrap().connect(HANG);
        nodes.members.choose_set(&identity(1, names.len()), &join_names(names));
        for node in 0..counting {
            let marker = identity(node + 1, names.len()).ready();
            masters.node(node).cli(&["HSET", NODE, "marker", &marker]).unwrap();
        }
        nodes
    }

    /// Else two servers would count as the same node, and two majorities need not share a server.
    #[tokio::test(flavor = "multi_thread")]
    async fn node_found_elsewhere_during_the_quarantine_is_not_brought_back() {
        const MAX_TTL: Duration = Duration::from_millis(1);
        let masters = RedisMasters::start(4).unwrap();
        let at = |node: usize| masters.node(node).endpoint();
        // Nobody listens at the fourth one for the moment.
        let names = [at(0), at(1), at(2), "127.0.0.1:1".to_owned(), at(3)];
        let nodes = set_of(&masters, &names, 3);
        let (clock, is_started) = held_clock();
        let rejoiner = Rejoiner::new(nodes.clone(), MAX_TTL, clock, CancellationToken::new());
        let rejoining = tokio::spawn(async move { rejoiner.try_rejoin(4).await });
        let marker = || masters.node(3).cli(&["HGET", NODE, "marker"]).unwrap();
        until("the note is written", async || marker().text().starts_with("empty ")).await;
        let found = NodeState {
            marker: identity(5, 5).ready(),
            highest: 0,
            names: join_names(&names),
            records_last_us: 0,
        };
        nodes.members.admit(3, &found).unwrap();
        is_started.store(true, SeqCst);
        let step = tokio::time::timeout(HANG, rejoining).await.unwrap().unwrap();
        assert!(matches!(step, Ok(RejoinStep::UnknownNode)));
        assert!(marker().text().starts_with("empty "));
    }

    /// A lock may be granted until then, with a higher token.
    #[tokio::test(flavor = "multi_thread")]
    async fn emptied_node_learns_what_the_others_have_after_the_quarantine() {
        let masters = RedisMasters::start(3).unwrap();
        let names = [0, 1, 2].map(|node| masters.node(node).endpoint());
        let (nodes, (clock, is_started)) = (set_of(&masters, &names, 2), held_clock());
        let rejoiner = Rejoiner::new(nodes, Duration::from_millis(1), clock, CancellationToken::new());
        let rejoining = tokio::spawn(async move { rejoiner.try_rejoin(2).await });
        let field = |name| masters.node(2).cli(&["HGET", NODE, name]).unwrap();
        until("the note is written", async || field("marker").text().starts_with("empty ")).await;
        masters.node(1).cli(&["HSET", NODE, "highest", "7"]).unwrap();
        is_started.store(true, SeqCst);
        let step = tokio::time::timeout(HANG, rejoining).await.unwrap().unwrap();
        assert!(matches!(step, Ok(RejoinStep::Done)));
        assert_eq!(field("highest").text(), "7");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn node_that_is_emptied_again_waits_again() {
        let masters = RedisMasters::start(3).unwrap();
        let names = [0, 1, 2].map(|node| masters.node(node).endpoint());
        let (nodes, (clock, is_started)) = (set_of(&masters, &names, 2), held_clock());
        let rejoiner = Rejoiner::new(nodes, Duration::from_millis(1), clock, CancellationToken::new());
        let rejoining = tokio::spawn(async move { rejoiner.rejoin(2).await });
        let marker = || masters.node(2).cli(&["HGET", NODE, "marker"]).unwrap();
        until("the note is written", async || marker().text().starts_with("empty ")).await;
        masters.node(2).cli(&["DEL", NODE]).unwrap();
        is_started.store(true, SeqCst);
        tokio::time::timeout(HANG, rejoining).await.unwrap().unwrap();
        assert_eq!(marker().text(), identity(3, 3).ready());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn emptied_node_learns_the_highest_that_any_other_node_has() {
        let masters = RedisMasters::start(2).unwrap();
        let names = [masters.node(0).endpoint(), masters.node(1).endpoint(), "127.0.0.1:1".to_owned()];
        let nodes = set_of(&masters, &names, 2);
        for (node, highest, records_until) in [(0, "7", "0"), (1, "5", "9000000000000000")] {
            let words = ["HSET", NODE, "highest", highest, "records_until", records_until];
            masters.node(node).cli(&words).unwrap();
        }
        let rejoiner = Rejoiner::new(nodes, HANG, Clock::boot(), CancellationToken::new());
        let lost = rejoiner.known_by_others(2).await.unwrap();
        assert!(lost.highest == 7 && lost.records_last_us > 1_000_000_000_000_000, "{lost:?}");
    }

    /// Each try asks all nodes.
    #[tokio::test(flavor = "multi_thread")]
    async fn tries_at_an_unreachable_node_have_pauses() {
        const TRIES: u32 = 8;
        let masters = RedisMasters::start(2).unwrap();
        let names = [masters.node(0).endpoint(), masters.node(1).endpoint(), "127.0.0.1:1".to_owned()];
        let rejoiner =
            Rejoiner::new(set_of(&masters, &names, 2), HANG, Clock::boot(), CancellationToken::new());
        let scripts = || masters.node(0).calls("evalsha").unwrap() + masters.node(0).calls("eval").unwrap();
        let (start, before) = (Instant::now(), scripts());
        rejoiner.start_rejoin(2);
        until("it has tried", async || scripts() - before > u64::from(TRIES)).await;
        assert!(start.elapsed() > RETRY_PAUSE_MIN * (TRIES - 1), "{:?}", start.elapsed());
        rejoiner.closed.cancel();
    }

    /// Every request that finds an empty node would start again at once.
    #[tokio::test(start_paused = true)]
    async fn node_that_cannot_be_brought_back_is_left_alone_for_a_while() {
        let unreachable = RedisConfig::new(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]).unwrap();
        let nodes = RedlockConfig::new(unreachable).unwrap().connect(Duration::from_secs(1));
        let rejoiner = Rejoiner::new(nodes, HANG, Clock::boot(), CancellationToken::new());
        rejoiner.start_rejoin(0);
        tokio::time::sleep(RETRY_PAUSE_MAX - Duration::from_millis(1)).await;
        assert!(rejoiner.lock().contains(&0));
        let left = async {
            while rejoiner.lock().contains(&0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(2 * RETRY_PAUSE_MAX, left).await.expect("it can be started again");
    }

    /// The clocks of clients and nodes differ in rate.
    #[tokio::test(start_paused = true)]
    async fn emptied_node_waits_for_longer_than_the_longest_ttl() {
        const MAX_TTL: Duration = Duration::from_secs(3600);
        let unreachable = RedisConfig::new(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]).unwrap();
        let nodes = RedlockConfig::new(unreachable).unwrap().connect(Duration::from_secs(1));
        let start = Instant::now();
        let rejoiner = Rejoiner::new(nodes, MAX_TTL, Clock::tokio(), CancellationToken::new());
        rejoiner.wait_for_quarantine().await;
        assert!(start.elapsed() >= lease::quarantine(MAX_TTL) && lease::quarantine(MAX_TTL) > MAX_TTL);
    }
}
