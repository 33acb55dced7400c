//! Creates without an answer whose node was not found: the server may still execute them.
//!
//! A request through the leader does not prove that no earlier one follows. A server compares the connection of a
//! request with that of its session when it executes it, not when it reads it (`SessionTrackerImpl.checkSession`), and
//! all connections to one server are equal there. While the session is at another server, a request of an old
//! connection is refused. But the next connection to the first server, were it an attempt that the client has given up,
//! admits what the server has read from an earlier one and not executed yet ([decision
//! 0048](../../docs/decisions/0048-zookeeper-executes-late-creates.md)).
//!
//! Such a node gets first in its queue one day, and would hold the lock for nobody for as long as its session lives. It
//! appears only with a new connection: one to another server takes the session from the current connection, which then
//! ends at its next request through the leader. So after each new connection, behind a request through the leader, the
//! nodes of these creates are looked for and deleted. A claim ends with its unanswered create and another one follows, so
//! no node with its id is wanted.
//!
//! Failure cases:
//!
//! * The connection ends during that: all is repeated over the next one.
//! * The server refuses a deletion: the session is abandoned, as after every other withdrawal.
//! * The session ends: the server removes its nodes.
//! * A request stays in the network for longer than the server keeps its connection: it is never executed, so the create
//!   is forgotten then.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkit_core::{
    BootInstant,
    backend::{ClaimId, retry_pauses},
    support::lock,
};
use tracing::debug;

use crate::{error::RequestError, keys::Layout, wire::Server};

/// How long beyond a ttl a create is remembered. A server closes a connection that is silent for a session timeout; the
/// default implementation rounds that up by as much as twice 10 s (`NIOServerCnxnFactory`).
const REMEMBERED_BEYOND_TTL: Duration = Duration::from_secs(30);

/// Creates that are remembered per session, at most. Beyond that the oldest one is forgotten.
const LATE_CREATES_MAX: usize = 1024;

/// The creates of one session that may be executed late.
#[derive(Debug)]
pub(crate) struct LateCreates {
    server: Arc<Server>,
    layout: Layout,
    remembered: Duration,
    creates: Mutex<VecDeque<LateCreate>>,
}

#[derive(Debug)]
struct LateCreate {
    claim: ClaimId,
    lock_path: String,
    until: BootInstant,
}

impl LateCreates {
    pub(crate) fn new(server: Arc<Server>, layout: Layout, ttl: Duration) -> Arc<Self> {
        let remembered = ttl.saturating_add(REMEMBERED_BEYOND_TTL);
        Arc::new(Self { server, layout, remembered, creates: Mutex::default() })
    }

    /// Remembers a create whose node was not found, for a claim that creates no other one.
    pub(crate) fn insert(self: &Arc<Self>, claim: ClaimId, lock_path: &str) {
        let until = self.server.liveness.now().after(self.remembered);
        let mut creates = lock(&self.creates);
        if creates.is_empty() {
            tokio::spawn(Arc::clone(self).watch());
        }
        if creates.len() >= LATE_CREATES_MAX {
            creates.pop_front();
        }
        creates.push_back(LateCreate { claim, lock_path: lock_path.to_owned(), until });
    }

    /// Deletes their nodes after each new connection, until all are forgotten.
    async fn watch(self: Arc<Self>) {
        let mut connection_states = self.server.connection_states();
        // There may have been a new connection since the node was looked up.
        self.delete_nodes().await;
        while let Some(until) = self.forget() {
            let left = until.since(self.server.liveness.now());
            tokio::select! {
                () = self.server.state.over() => return,
                () = tokio::time::sleep(left) => {}
                _ = connection_states.changed() => self.delete_nodes().await,
            }
        }
    }

    /// Forgets what cannot be executed any more; returns until when the next one may be. After `None` this task has ended.
    fn forget(&self) -> Option<BootInstant> {
        let (mut creates, now) = (lock(&self.creates), self.server.liveness.now());
        while creates.front().is_some_and(|create| create.until <= now) {
            creates.pop_front();
        }
        creates.front().map(|create| create.until)
    }

    /// Deletes those of their nodes that exist. Repeats that until it is answered.
    async fn delete_nodes(&self) {
        let mut pauses = retry_pauses();
        while !self.server.state.is_over() {
            match self.delete_nodes_once().await {
                Err(error) if error.is_transient() => debug!(?error, "late nodes not found yet, retrying"),
                Err(error) => return self.server.abandon_if_refused(&error),
                Ok(()) => return,
            }
            pauses.wait().await;
        }
    }

    async fn delete_nodes_once(&self) -> Result<(), RequestError> {
        self.server.check(&[&self.layout.client(self.server.session_id())]).await?;
        for (lock_path, claims) in self.by_lock() {
            for node in self.server.nodes_of(&self.layout, &lock_path, &claims).await? {
                debug!(node = node.path, "created late; deleted");
                self.server.remove(&self.layout, &node).await?;
            }
        }
        Ok(())
    }

    fn by_lock(&self) -> HashMap<String, Vec<ClaimId>> {
        let mut by_lock = HashMap::<_, Vec<_>>::new();
        for create in lock(&self.creates).iter() {
            by_lock.entry(create.lock_path.clone()).or_default().push(create.claim);
        }
        by_lock
    }
}
