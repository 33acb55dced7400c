//! Requests, and the connection that they go over.
//!
//! The client crate sends a request when it is called, in the order of the calls, and owns it from then on: a future
//! that is dropped takes nothing back. It has no time limit of its own: what is asked without a connection waits for the
//! next one, or for the end of the session. So whoever cannot wait that long bounds the wait, not the request.
//!
//! Failure cases:
//!
//! * The connection ends while a request is under way: an error of whatever kind, and the effect is unknown.
//! * The session is over: every pending request ends at once, on the word of the server or of [`Life`].
//! * A follower answers reads from its own copy, which may be old. It is as new as the last answered request of the same
//!   session that went through the leader, and what was proposed before that is decided then. A new connection of a
//!   session ends the requests of the old one. So after such a request a read is the last word on a lost reply.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockkit_core::{BootInstant, FencingToken};
use zookeeper_client::{
    Client, CreateMode, Error as ClientError, MultiReadResult, OneshotWatcher, SessionState, Stat,
    StateWatcher,
};

use crate::{
    access::Access,
    config::Parents,
    error::{Effect, Fault, failed_check},
    life::Life,
    proof::Proof,
    watchdog::Watchdog,
};

/// One session at a server.
pub(crate) struct Server {
    client: Connection,
    states: StateWatcher,
    session: i64,
    pub(crate) life: Life,
    pub(crate) proof: Arc<Proof>,
    access: Access,
    parents: Parents,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("life", &self.life).field("proof", &self.proof).finish_non_exhaustive()
    }
}

impl Server {
    pub(crate) fn new(client: Client, proof: Proof, access: Access, parents: Parents) -> Self {
        let (life, proof) = (Life::default(), Arc::new(proof));
        let (states, session) = (client.state_watcher(), client.session_id().0);
        let client = Connection(Arc::new(Mutex::new(Some(client))));
        let watchdog = Watchdog {
            states: states.clone(),
            life: life.clone(),
            proof: Arc::clone(&proof),
            client: client.clone(),
        };
        tokio::spawn(watchdog.watch());
        Self { client, states, session, life, proof, access, parents }
    }

    /// The session's id; together with its password, which never leaves the client crate, it is the power to end it.
    pub(crate) fn session(&self) -> i64 {
        self.session
    }

    /// Creates a node that ends with the session; a sequential one's name is completed by the server.
    pub(crate) async fn create(&self, path: &str, data: &str, is_sequential: bool) -> Result<Created, Fault> {
        let mode = if is_sequential { CreateMode::EphemeralSequential } else { CreateMode::Ephemeral };
        let options = mode.with_acls(self.access.as_acls());
        let (client, sent) = (self.client()?, self.proof.now());
        let created = client.create(path, data.as_bytes(), &options);
        let (stat, number) = self.through_leader(sent, created).await?;
        let path = if is_sequential { format!("{path}{number}") } else { path.to_owned() };
        Ok(Created { path, czxid: stat.czxid })
    }

    /// Creates a directory, and those above it.
    pub(crate) async fn make_directory(&self, path: &str) -> Result<(), Fault> {
        let made = match self.parents {
            Parents::Persistent => Err(Fault::from(ClientError::Unimplemented)),
            Parents::Container => self.mkdir(path, CreateMode::Container).await,
        };
        match made {
            // Compatible servers may have no containers.
            Err(fault) if fault.is_unsupported() => self.mkdir(path, CreateMode::Persistent).await,
            made => made,
        }
    }

    async fn mkdir(&self, path: &str, mode: CreateMode) -> Result<(), Fault> {
        let options = mode.with_acls(self.access.as_acls());
        let client = self.client()?;
        match self.answer(client.mkdir(path, &options)).await {
            // Of the directories above, only the chroot is never made.
            Err(fault) if fault.effect == Effect::Missing => {
                Err(Fault::invalid_config("the chroot does not exist"))
            }
            made => made,
        }
    }

    /// Deletes a node; `Ok` also when it is not there.
    pub(crate) async fn delete(&self, path: &str) -> Result<(), Fault> {
        let (client, sent) = (self.client()?, self.proof.now());
        match self.through_leader(sent, client.delete(path, None)).await {
            Err(fault) if fault.effect == Effect::Missing => Ok(()),
            answer => answer,
        }
    }

    /// Whether all these nodes are there, by the leader's word; otherwise the first that is not.
    pub(crate) async fn check(&self, paths: &[&str]) -> Result<Option<usize>, Fault> {
        let (client, sent) = (self.client()?, self.proof.now());
        let mut checks = client.new_multi_writer();
        for path in paths {
            checks.add_check_version(path, ANY_VERSION)?;
        }
        let committed = checks.commit();
        self.through_leader(sent, async { failed_check(committed.await) }).await
    }

    /// The names of a directory's children.
    pub(crate) async fn children(&self, path: &str) -> Result<Vec<String>, Fault> {
        let client = self.client()?;
        self.answer(client.list_children(path)).await
    }

    /// A node's data.
    pub(crate) async fn data(&self, path: &str) -> Result<(Vec<u8>, Stat), Fault> {
        let client = self.client()?;
        self.answer(client.get_data(path)).await
    }

    /// What is known of a node, which everybody may ask; `None` when it is not there.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<Stat>, Fault> {
        let client = self.client()?;
        self.answer(client.check_stat(path)).await
    }

    /// The data of several nodes; `None` for one that is not there or may not be read.
    pub(crate) async fn data_of_all(&self, paths: &[String]) -> Result<Vec<Option<(Vec<u8>, Stat)>>, Fault> {
        let client = self.client()?;
        let mut reads = client.new_multi_reader();
        for path in paths {
            reads.add_get_data(path)?;
        }
        let answers = self.answer(reads.commit()).await?;
        let data = |answer| match answer {
            MultiReadResult::Data { data, stat } => Some((data, stat)),
            _ => None,
        };
        Ok(answers.into_iter().map(data).collect())
    }

    /// Watches a node until its next change; `None` when it is not there.
    pub(crate) async fn watch(&self, path: &str) -> Result<Option<(Stat, OneshotWatcher)>, Fault> {
        let client = self.client()?;
        match self.answer(client.get_and_watch_data(path)).await {
            Ok((_, stat, watcher)) => Ok(Some((stat, watcher))),
            Err(fault) if fault.effect == Effect::Missing => Ok(None),
            // Whether it is there may be asked by everybody. (First of all it is read because a node that has gone
            // would leave a watch behind.)
            Err(fault) if fault.is_denied() => {
                let (stat, watcher) = self.answer(client.check_and_watch_stat(path)).await?;
                Ok(stat.map(|stat| (stat, watcher)))
            }
            Err(fault) => Err(fault),
        }
    }

    /// Waits for a connection, where there is none.
    pub(crate) async fn connected(&self, within: Duration) -> Result<(), Fault> {
        let connected = self.state(|state| state != SessionState::Disconnected);
        tokio::time::timeout(within, connected).await.map_err(|_| Fault::not_connected())
    }

    /// Lets the [watchdog](crate::watchdog) end the session; `Ok` when the server has confirmed it, or has ended it before.
    pub(crate) async fn close(&self, within: Duration) -> Result<(), Fault> {
        self.life.close();
        let closed = self.state(SessionState::is_terminated);
        tokio::time::timeout(within, closed).await.map_err(|_| Fault::no_reply())
    }

    /// Waits for a state of this kind.
    async fn state(&self, is_wanted: impl Fn(SessionState) -> bool) {
        let mut states = self.states.clone();
        let mut state = states.state();
        while !is_wanted(state) {
            state = states.changed().await;
        }
    }

    /// The answer to a request that goes through the leader: a proof of life.
    async fn through_leader<T>(
        &self,
        sent: BootInstant,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, Fault> {
        self.answer(request).await.inspect(|_| self.proof.answered(sent))
    }

    /// The answer to a request, unless the session is over.
    pub(crate) async fn answer<T>(
        &self,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, Fault> {
        let answer = async { request.await.map_err(Fault::from) };
        self.life.unless_over(answer).await.inspect_err(|fault| {
            if fault.effect == Effect::SessionOver {
                self.life.lose();
            }
        })
    }

    pub(crate) fn client(&self) -> Result<Client, Fault> {
        let client = self.client.lock().clone().filter(|_| !self.life.is_over());
        client.ok_or_else(Fault::session_over)
    }
}

/// The way to the server, until it is hung up.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Mutex<Option<Client>>>);

impl Connection {
    /// Ends the session at the server: so does the client crate when the last clone of its client goes.
    pub(crate) fn end(&self) {
        drop(self.lock().take());
    }

    fn lock(&self) -> MutexGuard<'_, Option<Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Any version of a node will do.
pub(crate) const ANY_VERSION: i32 = -1;

/// A node that was created.
#[derive(Clone, Debug)]
pub(crate) struct Created {
    pub(crate) path: String,
    pub(crate) czxid: i64,
}

impl Created {
    /// The transaction that created the node: these numbers rise with every grant, while those in the nodes' names begin
    /// anew with their directory.
    pub(crate) fn token(&self) -> FencingToken {
        FencingToken::new(self.czxid.unsigned_abs())
    }

    /// The node's name in its directory.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(&*self.path, |(_, name)| name)
    }
}

/// Gives up waiting for the answer after this time; what was asked for may still happen.
pub(crate) async fn bounded<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    tokio::time::timeout(timeout, request).await.unwrap_or_else(|_| Err(Fault::no_reply()))
}
