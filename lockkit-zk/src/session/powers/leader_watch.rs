//! A watch on the leader of one lock: on the list of contenders, and on the data of the first.
//!
//! ZooKeeper's watches fire once, so each event is followed by new reads that watch again. Only then
//! [`changed`](LeaderWatch::changed) returns, and only if leader or data differ from those seen before: a candidate that
//! joins or leaves the queue is no reason to ask the ensemble again.
//!
//! Failure cases:
//!
//! * A change between event and new watch: the reads show it. A change after them fires the new watch.
//! * The reads are answered by a follower, and may be old: the same follower fires the watch when it applies the change.
//! * The connection breaks: the client crate watches again with what it has seen last, and the server reports what has
//!   changed meanwhile.
//! * Nobody has locked yet, or the server has removed the empty directory: a missing node can be watched only for its
//!   creation. The server keeps such a watch until it is removed; the client crate removes it when this is dropped.
//! * An event is lost: the keeper re-checks.
//! * The session is over, or the server refuses the reads: one last hint, so that the keeper asks and learns why.

use std::{fmt, future::pending, pin::Pin, sync::Arc};

use async_trait::async_trait;
use lockkit_core::backend::{LeaderWatch, retry_pauses};
use tracing::debug;
use zookeeper_client::OneshotWatcher;

use super::elections::first_of;
use crate::{
    error::{Effect, RequestError},
    wire::Server,
};

pub(super) struct ZkLeaderWatch {
    server: Arc<Server>,
    lock: String,
    watched: Watched,
    /// The event of `watched` has arrived.
    has_fired: bool,
    /// The last hint was given.
    has_ended: bool,
}

/// What was seen, and the event of its next change.
struct Watched {
    leader: Option<NodeVersion>,
    change: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The leader's node, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeVersion {
    path: String,
    czxid: i64,
    version: i32,
}

impl fmt::Debug for ZkLeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZkLeaderWatch")
            .field("lock", &self.lock)
            .field("leader", &self.watched.leader)
            .finish_non_exhaustive()
    }
}

impl ZkLeaderWatch {
    /// Returns when the watches are set.
    pub(super) async fn start(server: &Arc<Server>, lock: String) -> Result<Self, RequestError> {
        let watched = server.watch_leader(&lock).await?;
        Ok(Self { server: Arc::clone(server), lock, watched, has_fired: false, has_ended: false })
    }

    /// Sets the watches again; repeats that until it is answered.
    async fn watch_again(&mut self) -> Result<Watched, RequestError> {
        let mut pauses = retry_pauses();
        loop {
            match self.server.watch_leader(&self.lock).await {
                Err(error) if error.is_transient() => debug!(?error, "watch failed, retrying"),
                answer => return answer,
            }
            pauses.wait().await;
        }
    }
}

#[async_trait]
impl LeaderWatch for ZkLeaderWatch {
    async fn changed(&mut self) {
        while !self.has_ended {
            if !self.has_fired {
                tokio::select! {
                    biased;
                    () = self.server.state.over() => {}
                    () = &mut self.watched.change => {}
                }
                self.has_fired = true;
            }
            // The old watches are dropped after the new ones are set, or the client crate would remove and add them.
            let Ok(watched) = self.watch_again().await else {
                self.has_ended = true;
                return;
            };
            self.has_fired = false;
            let before = std::mem::replace(&mut self.watched, watched);
            if before.leader != self.watched.leader {
                return;
            }
        }
        pending().await
    }
}

impl Server {
    async fn watch_leader(&self, lock: &str) -> Result<Watched, RequestError> {
        loop {
            let Some((children, list)) = self.watch_children(lock).await? else {
                match self.watch_creation(lock).await? {
                    Some(creation) => {
                        return Ok(Watched { leader: None, change: Box::pin(either(creation, None)) });
                    }
                    None => continue,
                }
            };
            let Some(path) = first_of(lock, children) else {
                return Ok(Watched { leader: None, change: Box::pin(either(list, None)) });
            };
            // If it is gone by now, another contender may be the first.
            if let Some((stat, data)) = self.watch(&path).await? {
                let leader = Some(NodeVersion { path, czxid: stat.czxid, version: stat.version });
                return Ok(Watched { leader, change: Box::pin(either(list, Some(data))) });
            }
        }
    }

    /// Watches the list of a directory's children until its next change; `None` if the directory is missing.
    async fn watch_children(
        &self,
        path: &str,
    ) -> Result<Option<(Vec<String>, OneshotWatcher)>, RequestError> {
        let client = self.client()?;
        match self.answer(client.list_and_watch_children(path)).await {
            Err(error) if error.effect == Effect::Missing => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Watches a missing node until it is created; `None` if it exists.
    async fn watch_creation(&self, path: &str) -> Result<Option<OneshotWatcher>, RequestError> {
        let client = self.client()?;
        let (stat, watcher) = self.answer(client.check_and_watch_stat(path)).await?;
        Ok(stat.is_none().then_some(watcher))
    }
}

/// Waits for one of two events.
async fn either(one: OneshotWatcher, other: Option<OneshotWatcher>) {
    let other = async {
        match other {
            Some(other) => drop(other.changed().await),
            None => pending().await,
        }
    };
    tokio::select! {
        _ = one.changed() => {}
        () = other => {}
    }
}
