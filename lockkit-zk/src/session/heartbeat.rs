//! A heartbeat: a request through the leader proves the session alive, and reads behind it find the node of each hold.
//!
//! 1. A transaction checks the client's own node. It goes through leader and quorum, and each of their servers logs
//!    some 110 bytes, however many holds there are. Its answer counts for [`Liveness`](crate::liveness).
//! 2. After that answer, [reads by path](super::existence) look for the nodes of all holds, at the session's server
//!    only.
//!
//! What the reads prove: a server answers the check after it has applied it, and everything committed before it. A
//! later read of the session is at least as new, even at another server: a server refuses a session that has seen newer
//! state than its own. So a node deleted before the check was proposed is not shown; a transaction with a check per
//! hold would prove the same. A node deleted after the check may still be shown until the next heartbeat.
//!
//! The reads do not prove that the session is alive: a follower that has lost its leader answers reads. A hold that is
//! shown lasts exactly as long as the session's lease; no read extends it.
//!
//! Failure cases:
//!
//! * The answer is late: the heartbeat reports [`Renewal::Unknown`], its requests continue, and their results count
//!   from when they were sent. The next heartbeat that ends reports them. If every answer is late, each heartbeat
//!   reports the results of an earlier one.
//! * The server is silent: at most [`UNANSWERED_MAX`] heartbeats wait for it.
//! * No connection: nothing is sent before there is one; otherwise a backlog of old requests would be sent with it.
//! * A hold's node is gone: it is missing in an answer that shows the others.
//! * An operator has deleted the client's own node: the answer still counts, and the node is created again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkit_core::{
    ErrorKind,
    backend::{ClaimId, Grant, Renewal, Renewals},
    support::{SessionOver, bounded, lock},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{ZkSession, existence::NodeId};
use crate::{
    error::{Effect, RequestError},
    keys::Layout,
    wire::Server,
};

/// Heartbeats per ttl. A lease counts from a heartbeat answered a margin (a quarter of a ttl, if the tick is not
/// configured) before the last one; ten per ttl keep the known lease above half a ttl while nothing fails.
pub(crate) const HEARTBEATS_PER_TTL: u32 = 10;

/// A heartbeat reports after a ttl divided by this, before the next one starts.
const REPORT_TIMEOUT_DIVISOR: u32 = 12;

/// Unanswered heartbeats of one session, at most. They are sent a tenth of a ttl apart or more, and after a ttl without
/// an answer the session is over.
const UNANSWERED_MAX: usize = 10;

/// A hold and its node.
type HoldNode = (ClaimId, NodeId);

/// The unanswered heartbeats of a session, and their results that no heartbeat has reported yet.
#[derive(Debug)]
pub(crate) struct Heartbeats {
    results: Arc<Mutex<HeartbeatResults>>,
    unanswered: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct HeartbeatResults {
    /// Whether a request through the leader was answered.
    leader_answered: bool,
    /// Whether the nodes of these holds exist.
    holds: HashMap<ClaimId, bool>,
}

impl HeartbeatResults {
    fn record(&mut self, ids: impl IntoIterator<Item = ClaimId>, exist: impl IntoIterator<Item = bool>) {
        for (id, exists) in ids.into_iter().zip(exist) {
            // Two heartbeats may report in any order: a node that one of them has missed stays missing.
            *self.holds.entry(id).or_insert(true) &= exists;
        }
    }
}

impl Default for Heartbeats {
    fn default() -> Self {
        Self { results: Arc::default(), unanswered: Arc::new(Semaphore::new(UNANSWERED_MAX)) }
    }
}

impl ZkSession {
    pub(crate) async fn heartbeat(&self, held: &[Grant]) -> Renewals {
        let nodes: HashMap<ClaimId, NodeId> = held
            .iter()
            .filter_map(|grant| Some((grant.claim(), self.granted_nodes.get(grant.claim())?.node)))
            .map(|(id, node)| (id, NodeId::of(&node, self.layout.form)))
            .collect();
        let report_timeout = report_timeout(self.request_timeout, self.ttl);
        let hold_nodes = nodes.iter().map(|(id, node)| (*id, node.clone())).collect();
        let outcome = bounded(report_timeout, self.send(report_timeout, hold_nodes)).await;
        let results = std::mem::take(&mut *lock(&self.heartbeats.results));
        let error = outcome.err().unwrap_or_else(RequestError::no_reply);
        let (armed_at, is_over) = (self.server.liveness.armed_at(), self.server.state.is_over());
        let unknown = || Renewal::Unknown(error.clone().into_error("renew"));
        let session = match results.leader_answered {
            _ if is_over => Renewal::Gone,
            true => Renewal::Renewed { armed_at },
            false => unknown(),
        };
        let hold = |grant: &Grant| match results.holds.get(&grant.claim()) {
            _ if is_over || !nodes.contains_key(&grant.claim()) => Renewal::Gone,
            Some(true) => Renewal::Renewed { armed_at },
            Some(false) => Renewal::Gone,
            None => unknown(),
        };
        Renewals::new(session, held.iter().map(|grant| (grant.claim(), hold(grant))).collect())
    }

    /// Sends a heartbeat and waits for its result. The heartbeat continues when this future is dropped.
    async fn send(&self, report_timeout: Duration, hold_nodes: Vec<HoldNode>) -> Result<(), RequestError> {
        self.server.connected(report_timeout).await?;
        let Ok(permit) = Arc::clone(&self.heartbeats.unanswered).acquire_owned().await else {
            return Err(SessionOver.into());
        };
        let heartbeat = Heartbeat {
            server: Arc::clone(&self.server),
            layout: self.layout.clone(),
            results: Arc::clone(&self.heartbeats.results),
            _permit: permit,
        };
        tokio::spawn(heartbeat.run(hold_nodes)).await.unwrap_or_else(|_| Err(RequestError::no_reply()))
    }
}

/// Returns how long a heartbeat waits for its result.
fn report_timeout(request_timeout: Duration, ttl: Duration) -> Duration {
    request_timeout.min(ttl / REPORT_TIMEOUT_DIVISOR)
}

/// One heartbeat that was sent.
struct Heartbeat {
    server: Arc<Server>,
    layout: Layout,
    results: Arc<Mutex<HeartbeatResults>>,
    _permit: OwnedSemaphorePermit,
}

impl Heartbeat {
    async fn run(self, hold_nodes: Vec<HoldNode>) -> Result<(), RequestError> {
        let is_missing = self.server.check(&[&self.layout.client(self.server.session_id())]).await?.is_some();
        lock(&self.results).leader_answered = true;
        let (ids, nodes): (Vec<ClaimId>, Vec<NodeId>) = hold_nodes.into_iter().unzip();
        let exist = self.server.nodes_exist(&nodes).await?;
        lock(&self.results).record(ids, exist);
        match is_missing {
            true => create_client_node(&self.server, &self.layout).await,
            false => Ok(()),
        }
    }
}

/// Creates the client's own node, and the directories above it.
pub(crate) async fn create_client_node(server: &Server, layout: &Layout) -> Result<(), RequestError> {
    let node = layout.client(server.session_id());
    for is_last in [false, true] {
        match server.create(&node, "").await {
            Err(error) if error.effect == Effect::Missing => {
                if is_last {
                    let what = "an operator deletes the directory of the clients' own nodes";
                    return Err(RequestError::new(Effect::Busy, ErrorKind::Unavailable, what));
                }
                server.make_directory(&layout.clients()).await?;
            }
            Err(error) if error.effect != Effect::Exists => return Err(error),
            _ => break,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_reports_before_the_next_one_starts() {
        let ttl = Duration::from_secs(6);
        assert!(report_timeout(Duration::MAX, ttl) < ttl / HEARTBEATS_PER_TTL);
        assert_eq!(report_timeout(Duration::from_millis(10), ttl), Duration::from_millis(10));
    }

    #[test]
    fn node_missed_by_one_of_two_heartbeats_is_gone() {
        for answers in [[[true, false], [true, true]], [[true, true], [true, false]]] {
            let (mut results, ids) = (HeartbeatResults::default(), [ClaimId::random(), ClaimId::random()]);
            answers.into_iter().for_each(|exist| results.record(ids, exist));
            assert_eq!((results.holds[&ids[0]], results.holds[&ids[1]]), (true, false));
        }
    }
}
