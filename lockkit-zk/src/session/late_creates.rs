//! Creates without an answer whose node was not found: the server may still execute them.
//!
//! A request through the leader does not prove that no earlier one follows. A server compares the connection of a
//! request with that of its session when it executes it, not when it reads it (`SessionTrackerImpl.checkSession`), and
//! all connections to one server are equal there. While the session is at another server, a request of an old
//! connection is refused. But the next connection to the first server, were it an attempt that the client has given up,
//! admits what the server has read from an earlier one and not executed yet ([decision
//! 0048](../../docs/decisions/0048-zookeeper-executes-late-creates.md)).
//!
//! Such a node may become the first in its queue, and would hold the lock for nobody for as long as its session lives. It
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
//! * A server that is only compatible cannot list the nodes of a session (ZooKeeper can since 3.6). It says so, or closes the
//!   connection again and again: late nodes stay there, and nothing lists them any more.

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

/// Creates that a session may remember, some ten megabytes. Beyond that it is abandoned.
const LATE_CREATES_MAX: usize = 100_000;

/// Lists without an answer, one after the other, until the server counts as one that has none. The request before each
/// list was answered.
const LISTS_UNANSWERED_MAX: u32 = 20;

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
    marks: Mutex<HashSet<Vec<u8>>>,
    inserted: Notify,
}

impl LateCreates {
    pub(crate) fn new(server: Arc<Server>, layout: Layout) -> Self {
        let (marks, inserted) = (Mutex::default(), Notify::new());
        Self { remembered: Arc::new(Remembered { server, layout, marks, inserted }), task: OnceLock::new() }
    }

    /// Remembers a create whose node was not found, for a claim that creates no other one.
    pub(crate) fn insert(&self, claim: ClaimId) {
        let remembered = &self.remembered;
        let mut marks = lock(&remembered.marks);
        if marks.len() >= LATE_CREATES_MAX {
            warn!("session abandoned: too many creates are without an answer");
            return remembered.server.state.mark_lost();
        }
        marks.insert(mark(remembered.layout.form, claim));
        drop(marks);
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

/// Returns how the name of a claim's node starts, or its data where the name does not identify the claim. The marks of all
/// claims have the same length.
fn mark(form: Form, claim: ClaimId) -> Vec<u8> {
    match form {
        Form::Curator => keys::node_prefix(form, claim).into_bytes(),
        Form::Bare | Form::Single => keys::data_prefix(claim).into_bytes(),
    }
}

impl Remembered {
    /// Deletes the late nodes after each insertion and each new connection.
    async fn watch(self: Arc<Self>) {
        let mut connection_states = self.server.connection_states();
        loop {
            tokio::select! {
                () = self.server.state.over() => return,
                () = self.inserted.notified() => {}
                () = connected(&mut connection_states) => {}
            }
            if let Err(error) = self.delete_nodes().await {
                debug!(?error, "nodes that are created late will not be deleted");
                return;
            }
        }
    }

    /// Deletes those of the nodes that exist. Repeats that until it is answered.
    async fn delete_nodes(&self) -> Result<(), RequestError> {
        let (mut pauses, mut unanswered) = (retry_pauses(), 0);
        while !lock(&self.marks).is_empty() {
            let listed = self.own_nodes(&mut unanswered).await;
            let deleted = match listed {
                Ok(paths) => self.delete_late(paths).await,
                Err(error) => Err(error),
            };
            match deleted {
                Err(error) if error.is_transient() && unanswered < LISTS_UNANSWERED_MAX => {
                    debug!(?error, "late nodes not found yet, retrying");
                }
                deleted => return deleted,
            }
            pauses.wait().await;
        }
        Ok(())
    }

    /// Lists the session's own nodes behind a request through the leader; counts the lists without an answer.
    async fn own_nodes(&self, unanswered: &mut u32) -> Result<Vec<String>, RequestError> {
        let client_node = self.layout.client(self.server.session_id());
        self.server.check(&[&client_node]).await?;
        let listed = self.server.own_nodes(self.layout.directory()).await;
        *unanswered = if listed.is_ok() { 0 } else { *unanswered + 1 };
        listed.map(|paths| paths.into_iter().filter(|path| *path != client_node).collect())
    }

    /// Deletes those of these nodes that were created late.
    async fn delete_late(&self, paths: Vec<String>) -> Result<(), RequestError> {
        let nodes = match self.layout.form {
            Form::Curator => paths.into_iter().map(NodeText::of_name).collect(),
            Form::Bare | Form::Single => self.server.read_all(paths).await?,
        };
        for NodeText { node, text } in nodes {
            let Some(mark) = self.found(&text) else { continue };
            let removed = self.server.remove(&self.layout, &node).await;
            removed.inspect_err(|error| self.server.abandon_if_refused(error))?;
            debug!(node = node.path, "created late; deleted");
            // A request is executed once.
            lock(&self.marks).remove(&mark);
        }
        Ok(())
    }

    /// Returns the mark that this text starts with.
    fn found(&self, text: &[u8]) -> Option<Vec<u8>> {
        let marks = lock(&self.marks);
        let bytes = marks.iter().next()?.len();
        text.get(..bytes).filter(|start| marks.contains(*start)).map(<[u8]>::to_vec)
    }
}

/// A node, and the text that shows whose it is.
struct NodeText {
    node: CreatedNode,
    text: Vec<u8>,
}

impl NodeText {
    /// Returns a node whose name shows whose it is. Its path is enough to delete it.
    fn of_name(path: String) -> Self {
        let node = CreatedNode { path, czxid: 0 };
        Self { text: node.name().as_bytes().to_vec(), node }
    }
}

impl Server {
    /// Reads the data of these nodes, as far as they exist and may be read. All requests are sent before the first answer
    /// is awaited.
    async fn read_all(&self, paths: Vec<String>) -> Result<Vec<NodeText>, RequestError> {
        let client = self.client()?;
        let requests: Vec<_> = paths.iter().map(|path| client.get_data(path)).collect();
        let mut nodes = Vec::new();
        for (path, request) in paths.iter().zip(requests) {
            match self.answer(request).await {
                Ok((text, stat)) => {
                    let node = CreatedNode { path: path.clone(), czxid: stat.czxid };
                    nodes.push(NodeText { node, text });
                }
                Err(error) if error.effect == Effect::Missing || error.is_denied() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(nodes)
    }
}

/// Waits for the next connection.
async fn connected(states: &mut StateWatcher) {
    while states.changed().await == ConnectionState::Disconnected {}
}

#[cfg(test)]
mod tests {
    use lockkit_conformance::direct::{acquire, fresh_name, is_entry_gone, release, start, until};
    use lockkit_core::backend::{Grant, Session};
    use lockkit_testbed::Proxy;

    use super::*;
    use crate::session::{
        existence::NodeId,
        tests::{session_at, shared},
    };

    /// Each of them takes some hundred bytes for as long as the session lives.
    #[tokio::test(flavor = "multi_thread")]
    async fn session_with_too_many_creates_in_doubt_is_abandoned() {
        let session = session_at(&shared().endpoint(), Form::Curator).await;
        for _ in 0..LATE_CREATES_MAX {
            session.late_creates.insert(ClaimId::random());
        }
        assert!(!session.server.state.is_over(), "it remembers as many");
        session.late_creates.insert(ClaimId::random());
        assert!(session.server.state.is_over());
    }

    /// Otherwise the session's nodes would be listed after each new connection.
    #[tokio::test(flavor = "multi_thread")]
    async fn create_is_forgotten_once_its_late_node_is_deleted() {
        /// `ZooDefs.OpCode.getData`, and `KeeperException.Code.NOAUTH`.
        const GET_DATA: i32 = 4;
        const NO_AUTH: i32 = -102;
        let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
        let session = session_at(&proxy.endpoint(), Form::Curator).await;
        let client: Arc<dyn Session> = session.clone();
        let name = fresh_name();
        release(&client, &acquire(&client, &name).await).await;
        // To the look-up, a node that it may not read does not exist, like one that the server creates later.
        proxy.refuse_requests(GET_DATA, NO_AUTH, 1);
        proxy.swallow_reply(1);
        assert!(is_entry_gone(&start(&client, &name).ends().await));
        let late_creates = &session.late_creates;
        assert!(late_creates.task.get().is_some(), "it was not remembered");
        until("it is forgotten", async || lock(&late_creates.remembered.marks).is_empty()).await;
    }

    /// The server lists the session's nodes in any order. Some of them may be gone by now, or may not be read.
    #[tokio::test(flavor = "multi_thread")]
    async fn late_node_is_deleted_wherever_it_is_listed() {
        /// `ZooDefs.OpCode.getData`, and `KeeperException.Code.NOAUTH`.
        const GET_DATA: i32 = 4;
        const NO_AUTH: i32 = -102;
        for form in [Form::Curator, Form::Bare, Form::Single] {
            let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
            let session = session_at(&proxy.endpoint(), form).await;
            let client: Arc<dyn Session> = session.clone();
            let [hidden, held, late] = [(); 3].map(|()| fresh_name());
            let hidden = acquire(&client, &hidden).await;
            let held = acquire(&client, &held).await;
            let late = acquire(&client, &late).await;
            let path = |grant: &Grant| session.granted_nodes.get(grant.claim()).unwrap().node.path;
            let (paths, gone) = ([path(&hidden), path(&held), path(&late)], format!("{}-gone", path(&held)));
            let remembered = &session.late_creates.remembered;
            lock(&remembered.marks).insert(mark(form, late.claim()));
            proxy.refuse_requests(GET_DATA, NO_AUTH, 1);
            let listed = vec![paths[0].clone(), paths[1].clone(), gone, paths[2].clone()];
            remembered.delete_late(listed).await.unwrap();
            let nodes = paths.map(|path| NodeId::by_path(&path));
            assert_eq!(session.server.nodes_exist(&nodes).await.unwrap(), [true, true, false], "{form:?}");
            assert!(lock(&remembered.marks).is_empty(), "{form:?}");
            release(&client, &held).await;
            release(&client, &hidden).await;
        }
    }

    /// A server that is busy now and then is not one that has no list. A list counts only behind a request through the
    /// leader.
    #[tokio::test(flavor = "multi_thread")]
    async fn only_lists_without_an_answer_in_a_row_count() {
        /// `ZooDefs.OpCode.multi` and `getEphemerals`, and `KeeperException.Code.THROTTLEDOP`.
        const MULTI: i32 = 14;
        const LIST_OWN: i32 = 103;
        const THROTTLED: i32 = -127;
        let proxy = Proxy::start_zookeeper(shared().endpoint()).unwrap();
        let session = session_at(&proxy.endpoint(), Form::Curator).await;
        let (mut unanswered, mut counts) = (0, Vec::new());
        for refused in [LIST_OWN, LIST_OWN, MULTI] {
            proxy.refuse_requests(refused, THROTTLED, 1);
            let listed = session.late_creates.remembered.own_nodes(&mut unanswered).await;
            assert!(listed.is_err(), "requests of kind {refused}: {listed:?}");
            counts.push(unanswered);
        }
        session.late_creates.remembered.own_nodes(&mut unanswered).await.unwrap();
        counts.push(unanswered);
        assert_eq!(counts, [1, 2, 2, 0]);
    }
}
