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
//! session's own nodes are listed, and those of these claims are deleted. A claim ends with its unanswered create and
//! another one follows, so no node of it is wanted.
//!
//! Failure cases:
//!
//! * The connection ends during that: all is repeated over the next one.
//! * The connection changes while a node is looked up: all is repeated when that has not found it.
//! * The server refuses a deletion: the session is abandoned, as after every other withdrawal.
//! * The session ends: the server removes its nodes. If it is dropped, nothing here keeps it alive.
//! * A compatible server cannot list the nodes of a session (ZooKeeper can since 3.6): nothing is deleted.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, OnceLock},
};

use lockkit_core::{
    backend::{ClaimId, retry_pauses},
    support::lock,
};
use tokio::{sync::Notify, task::AbortHandle};
use tracing::{debug, warn};
use zookeeper_client::{SessionState as ConnectionState, StateWatcher};

use crate::{
    error::{Effect, RequestError},
    keys::{self, Form, Layout},
    wire::{CreatedNode, Server},
};

/// Creates that a session may remember: some ten megabytes, so that only a leak reaches it.
const LATE_CREATES_MAX: usize = 100_000;

/// The creates of one session that may be executed late.
#[derive(Debug)]
pub(crate) struct LateCreates {
    remembered: Arc<Remembered>,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug)]
struct Remembered {
    server: Arc<Server>,
    layout: Layout,
    /// How the names of their nodes start, or the data where the names do not identify the claim.
    starts: Mutex<HashSet<Vec<u8>>>,
    inserted: Notify,
}

impl LateCreates {
    pub(crate) fn new(server: Arc<Server>, layout: Layout) -> Self {
        let (starts, inserted) = (Mutex::default(), Notify::new());
        Self { remembered: Arc::new(Remembered { server, layout, starts, inserted }), task: OnceLock::new() }
    }

    /// Remembers a create whose node was not found, for a claim that creates no other one.
    pub(crate) fn insert(&self, claim: ClaimId) {
        let remembered = &self.remembered;
        let mut starts = lock(&remembered.starts);
        if starts.len() >= LATE_CREATES_MAX {
            warn!("session abandoned: too many creates are without an answer");
            return remembered.server.state.mark_lost();
        }
        starts.insert(start(remembered.layout.form, claim));
        drop(starts);
        remembered.inserted.notify_one();
        self.task.get_or_init(|| tokio::spawn(Arc::clone(remembered).watch()).abort_handle());
    }
}

impl Drop for LateCreates {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// Returns how the name of a claim's node starts, or its data; for each claim, this has the same length.
fn start(form: Form, claim: ClaimId) -> Vec<u8> {
    match form {
        Form::Curator => keys::node_prefix(form, claim).into_bytes(),
        Form::Bare | Form::Single => keys::data_prefix(claim).into_bytes(),
    }
}

impl Remembered {
    /// Deletes the late nodes after each insertion and each new connection.
    async fn watch(self: Arc<Self>) {
        let mut connection_states = self.server.connection_states();
        while !self.server.state.is_over() {
            tokio::select! {
                () = self.server.state.over() => {}
                () = self.inserted.notified() => self.delete_nodes().await,
                () = connected(&mut connection_states) => self.delete_nodes().await,
            }
        }
    }

    /// Deletes those of the nodes that exist. Repeats that until it is answered.
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
        let Self { server, layout, .. } = self;
        let client_node = layout.client(server.session_id());
        server.check(&[&client_node]).await?;
        for path in server.own_nodes(layout.directory()).await? {
            if path != client_node
                && let Some((start, node)) = self.late_node(path).await?
            {
                server.remove(layout, &node).await?;
                debug!(node = node.path, "created late; deleted");
                // A request is executed once.
                lock(&self.starts).remove(&start);
            }
        }
        Ok(())
    }

    /// Returns how the name or the data of a node start, if it was created late.
    async fn late_node(&self, path: String) -> Result<Option<(Vec<u8>, CreatedNode)>, RequestError> {
        let (text, czxid) = match self.layout.form {
            // Its path is enough to delete it.
            Form::Curator => (path.rsplit('/').next().unwrap_or_default().as_bytes().to_vec(), 0),
            Form::Bare | Form::Single => match self.server.data(&path).await {
                Ok((data, stat)) => (data, stat.czxid),
                Err(error) if error.effect == Effect::Missing || error.is_denied() => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let starts = lock(&self.starts);
        let start = starts.iter().next().and_then(|any| text.get(..any.len()));
        let found = start.filter(|start| starts.contains(*start));
        Ok(found.map(|start| (start.to_vec(), CreatedNode { path, czxid })))
    }
}

/// Waits for the next connection.
async fn connected(states: &mut StateWatcher) {
    while states.changed().await == ConnectionState::Disconnected {}
}
