//! Requests, and the connection that they use.
//!
//! The client crate sends requests in the order of the calls, and owns each from then on: dropping the future cancels
//! nothing. It has no time limit: without a connection, a request waits for the next one, or for the end of the
//! session. A caller with a time limit bounds its wait, not the request.
//!
//! Failure cases:
//!
//! * The connection ends during a request: the error may be of any kind, and the effect is unknown.
//! * The session is over, by the server's report or marked in [`SessionState`]: every pending request ends at once.
//! * A follower answers reads from its own copy, which may be old. The copy is at least as new as the session's last
//!   answered request through the leader, and everything proposed before that request is decided in it. So a read
//!   behind such a request shows what a request without an answer has done. What it has not done yet, it may still do: a
//!   server may execute a request of an old connection after one of the new one (see `session/late_creates.rs`).

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lockkit_core::{
    BootInstant, FencingToken,
    support::{SessionOver, SessionState, lock},
};
use zookeeper_client::{
    Client, CreateMode, Error as ClientError, MultiReadResult, MultiReader, OneshotWatcher,
    SessionState as ConnectionState, Stat, StateWatcher,
};

use crate::{
    access::Access,
    config::Parents,
    error::{Effect, RequestError, failed_check},
    liveness::Liveness,
    session::LateDeletions,
    watchdog,
};

/// The requests of one session.
pub(crate) struct Server {
    client: Connection,
    connection_states: StateWatcher,
    session_id: i64,
    pub(crate) state: SessionState,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) access: Access,
    pub(crate) late_deletions: LateDeletions,
    parents: Parents,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("state", &self.state)
            .field("liveness", &self.liveness)
            .finish_non_exhaustive()
    }
}

impl Server {
    pub(crate) fn new(client: Client, liveness: Liveness, access: Access, parents: Parents) -> Self {
        let (state, liveness) = (SessionState::default(), Arc::new(liveness));
        let (connection_states, session_id) = (client.state_watcher(), client.session_id().0);
        let client = Connection(Arc::new(Mutex::new(Some(Arc::new(client)))));
        tokio::spawn(watchdog::watch(
            connection_states.clone(),
            state.clone(),
            Arc::clone(&liveness),
            client.clone(),
        ));
        Self {
            client,
            connection_states,
            session_id,
            state,
            liveness,
            access,
            late_deletions: LateDeletions::default(),
            parents,
        }
    }

    /// Returns the session's id. Only together with its password, which never leaves the client crate, can it end the
    /// session.
    pub(crate) fn session_id(&self) -> i64 {
        self.session_id
    }

    /// Creates a node that ends with the session.
    pub(crate) async fn create(&self, path: &str, data: &str) -> Result<CreatedNode, RequestError> {
        let options = CreateMode::Ephemeral.with_acls(self.access.as_acls());
        let (client, sent) = (self.client()?, self.liveness.now());
        let created = client.create(path, data.as_bytes(), &options);
        let (stat, _) = self.through_leader(sent, created).await?;
        Ok(CreatedNode { path: path.to_owned(), czxid: stat.czxid })
    }

    /// Creates a sequential node that ends with the session, and lists its directory, in one flight. The server answers
    /// the requests of a session in their order, so the list shows the node.
    ///
    /// The list is `None` if it failed.
    pub(crate) async fn create_and_list(
        &self,
        directory: &str,
        prefix: &str,
        data: &str,
    ) -> Result<(CreatedNode, Option<Vec<String>>), RequestError> {
        let options = CreateMode::EphemeralSequential.with_acls(self.access.as_acls());
        let (client, sent) = (self.client()?, self.liveness.now());
        let path = format!("{directory}/{prefix}");
        // Both are sent here, before the first await.
        let (created, listed) =
            (client.create(&path, data.as_bytes(), &options), client.list_children(directory));
        let (stat, number) = self.through_leader(sent, created).await?;
        let node = CreatedNode { path: format!("{path}{number}"), czxid: stat.czxid };
        Ok((node, self.answer(listed).await.ok()))
    }

    /// Creates a directory and its parents.
    pub(crate) async fn make_directory(&self, path: &str) -> Result<(), RequestError> {
        let made = match self.parents {
            Parents::Persistent => Err(RequestError::from(ClientError::Unimplemented)),
            Parents::Container => self.mkdir(path, CreateMode::Container).await,
        };
        match made {
            // Compatible servers may not support containers.
            Err(error) if error.is_unsupported() => self.mkdir(path, CreateMode::Persistent).await,
            made => made,
        }
    }

    async fn mkdir(&self, path: &str, mode: CreateMode) -> Result<(), RequestError> {
        let options = mode.with_acls(self.access.as_acls());
        let client = self.client()?;
        match self.answer(client.mkdir(path, &options)).await {
            // All parents are created, except the chroot.
            Err(error) if error.effect == Effect::Missing => {
                let chroot = client.path();
                Err(RequestError::invalid_config(format!(
                    "the chroot {chroot} does not exist; create it, or correct the path of the URL"
                )))
            }
            made => made,
        }
    }

    /// Deletes a node; `Ok` also if it is missing.
    pub(crate) async fn delete(&self, path: &str) -> Result<(), RequestError> {
        let (client, sent) = (self.client()?, self.liveness.now());
        match self.through_leader(sent, client.delete(path, None)).await {
            Err(error) if error.effect == Effect::Missing => Ok(()),
            answer => answer,
        }
    }

    /// Replaces a node's data, if they have this version.
    pub(crate) async fn set_data(&self, path: &str, data: &str, version: i32) -> Result<(), RequestError> {
        let (client, sent) = (self.client()?, self.liveness.now());
        let written = client.set_data(path, data.as_bytes(), Some(version));
        self.through_leader(sent, written).await.map(drop)
    }

    /// Asks the leader whether all these nodes exist; returns the index of the first that does not.
    pub(crate) async fn check(&self, paths: &[&str]) -> Result<Option<usize>, RequestError> {
        let (client, sent) = (self.client()?, self.liveness.now());
        let mut checks = client.new_multi_writer();
        for path in paths {
            checks.add_check_version(path, ANY_VERSION)?;
        }
        let committed = checks.commit();
        self.through_leader(sent, async { failed_check(committed.await) }).await
    }

    /// Returns the names of a directory's children.
    pub(crate) async fn children(&self, path: &str) -> Result<Vec<String>, RequestError> {
        let client = self.client()?;
        self.answer(client.list_children(path)).await
    }

    /// Returns the paths of the session's own nodes in this directory, and in those below.
    pub(crate) async fn own_nodes(&self, directory: &str) -> Result<Vec<String>, RequestError> {
        let client = self.client()?;
        self.answer(client.list_ephemerals(directory)).await
    }

    /// Returns the names of a directory's children behind a [sync](Self::behind_sync).
    pub(crate) async fn current_children(&self, path: &str) -> Result<Vec<String>, RequestError> {
        let client = self.client()?;
        let (synced, listed) = (client.sync(path), client.list_children(path));
        self.behind_sync(synced, listed).await
    }

    /// Returns the metadata of a node behind a [sync](Self::behind_sync); `None` if it is missing.
    pub(crate) async fn current_stat(&self, path: &str) -> Result<Option<Stat>, RequestError> {
        let client = self.client()?;
        let (synced, read) = (client.sync(path), client.check_stat(path));
        self.behind_sync(synced, read).await
    }

    /// Awaits a read that was sent right behind a sync. The session's server answers it after it has applied everything
    /// that its leader had committed when the sync arrived there. That costs no quorum and no log, so neither answer
    /// proves that the session is alive, nor that the leader still is the leader.
    async fn behind_sync<T>(
        &self,
        synced: impl Future<Output = Result<(), ClientError>>,
        read: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, RequestError> {
        let both = async {
            synced.await?;
            read.await
        };
        self.answer(both).await
    }

    /// Returns a node's data.
    pub(crate) async fn data(&self, path: &str) -> Result<(Vec<u8>, Stat), RequestError> {
        let client = self.client()?;
        self.answer(client.get_data(path)).await
    }

    /// Returns the metadata of a node, which needs no permission; `None` if it is missing.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<Stat>, RequestError> {
        let client = self.client()?;
        self.answer(client.check_stat(path)).await
    }

    /// Watches a node until its next change; `None` if it is missing.
    pub(crate) async fn watch(&self, path: &str) -> Result<Option<(Stat, OneshotWatcher)>, RequestError> {
        let client = self.client()?;
        match self.answer(client.get_and_watch_data(path)).await {
            Ok((_, stat, watcher)) => Ok(Some((stat, watcher))),
            Err(error) if error.effect == Effect::Missing => Ok(None),
            // Reading metadata needs no permission. It is only the second choice, because an `exists` of a missing node
            // leaves a watch behind.
            Err(error) if error.is_denied() => {
                let (stat, watcher) = self.answer(client.check_and_watch_stat(path)).await?;
                Ok(stat.map(|stat| (stat, watcher)))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until there is a connection.
    pub(crate) async fn connected(&self, within: Duration) -> Result<(), RequestError> {
        let connected = self.wait_for_connection(|state| state != ConnectionState::Disconnected);
        tokio::time::timeout(within, connected).await.map_err(|_| RequestError::not_connected())
    }

    /// Makes the [watchdog](crate::watchdog) end the session; `Ok` when the server has confirmed that, or ended it
    /// before.
    pub(crate) async fn close(&self, within: Duration) -> Result<(), RequestError> {
        self.state.mark_closed();
        let closed = self.wait_for_connection(ConnectionState::is_terminated);
        tokio::time::timeout(within, closed).await.map_err(|_| RequestError::no_reply())
    }

    /// Returns a watcher of the states from now on.
    pub(crate) fn connection_states(&self) -> StateWatcher {
        let mut connection_states = self.connection_states.clone();
        connection_states.state();
        connection_states
    }

    /// Waits for a connection state of this kind.
    async fn wait_for_connection(&self, is_wanted: impl Fn(ConnectionState) -> bool) {
        let mut connection_states = self.connection_states.clone();
        let mut state = connection_states.state();
        while !is_wanted(state) {
            state = connection_states.changed().await;
        }
    }

    /// Awaits the answer to a request through the leader, which counts for [`Liveness`].
    pub(crate) async fn through_leader<T>(
        &self,
        sent: BootInstant,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, RequestError> {
        self.answer(request).await.inspect(|_| self.liveness.answered(sent))
    }

    /// Awaits the answer to a request, or the end of the session.
    pub(crate) async fn answer<T>(
        &self,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, RequestError> {
        let answer = async { request.await.map_err(RequestError::from) };
        self.state.unless_over(answer).await.inspect_err(|error| {
            if error.effect == Effect::SessionOver {
                self.state.mark_lost();
            }
        })
    }

    /// Reads this many nodes with one request, and returns their results.
    pub(crate) async fn multi_read(
        &self,
        mut reads: MultiReader<'_>,
        count: usize,
    ) -> Result<Vec<MultiReadResult>, RequestError> {
        let results = self.answer(reads.commit()).await?;
        if results.len() != count {
            return Err(RequestError::unexpected(
                "a multi-read returned another number of results than requested",
            ));
        }
        Ok(results)
    }

    /// Returns the client, until the session is over. Shared, because a clone copies the session's password.
    pub(crate) fn client(&self) -> Result<Arc<Client>, RequestError> {
        let client = self.client.lock().clone().filter(|_| !self.state.is_over());
        client.ok_or_else(|| SessionOver.into())
    }
}

/// The connection to the server, until it is closed.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Mutex<Option<Arc<Client>>>>);

impl Connection {
    /// Ends the session at the server: the client crate does that when its client is dropped.
    pub(crate) fn end(&self) {
        drop(self.lock().take());
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        lock(&self.0)
    }
}

/// Matches any version of a node.
pub(crate) const ANY_VERSION: i32 = -1;

/// A node that was created.
#[derive(Clone, Debug)]
pub(crate) struct CreatedNode {
    pub(crate) path: String,
    pub(crate) czxid: i64,
}

impl CreatedNode {
    /// Returns the id of the transaction that created the node. It rises with every grant, while sequence numbers
    /// restart at 0 with a new directory.
    pub(crate) fn token(&self) -> FencingToken {
        Self::token_of(self.czxid)
    }

    /// Returns the token of a node that this transaction created.
    pub(crate) fn token_of(czxid: i64) -> FencingToken {
        FencingToken::new(czxid.unsigned_abs())
    }

    /// Returns the node's name in its directory.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(&*self.path, |(_, name)| name)
    }
}
