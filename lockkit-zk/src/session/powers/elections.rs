//! Who holds a lock and what it proposes, and how a holder changes that: [`Elections`].
//!
//! The leader is the contender with the lowest number, as for everybody who waits, and as for Curator's
//! `LeaderSelector`. What it proposes is in the data of its node.
//!
//! Failure cases:
//!
//! * A follower answers reads from its own copy, which may be old. So [`leader`](Elections::leader) first sends a
//!   request through leader and quorum, and reads behind its answer (see [`wire`](crate::wire)). A `sync` is less: a
//!   leader that was deposed and does not know it yet still answers that.
//! * The leader's node vanishes between the list and the read: the list is read again. A node that is read has been the
//!   leader's since the list, because numbers rise.
//! * The reply to a proclaim is lost, or a late copy of it arrives after a later one: every write expects the version
//!   of the data that was read before. So a copy of an earlier write is refused, and a repeated proclaim finds its own
//!   write by reading.
//! * The read before a write is old, or somebody else wrote meanwhile: the write is refused, and the data are read
//!   again, behind a request through the leader.
//! * The holder's node is gone: it is written nowhere, because no other claim gets a node of that name. Where names
//!   recur, that cannot be said, so those forms offer no elections.

use async_trait::async_trait;
use lockkit_core::{
    LockName, Metadata, Result,
    backend::{Elections, Grant, LeaderEntry, LeaderWatch},
    support::bounded,
};

use super::leader_watch::ZkLeaderWatch;
use crate::{
    error::{Effect, RequestError},
    node_data::ProposalForm,
    sequence::in_order,
    session::ZkSession,
    wire::{CreatedNode, Server},
};

#[async_trait]
impl Elections for ZkSession {
    async fn leader(&self, name: &LockName) -> Result<Option<LeaderEntry>> {
        let lock = self.layout.lock(name)?;
        self.request("read leader", name, self.read_leader(&lock)).await
    }

    async fn watch(&self, name: &LockName) -> Result<Box<dyn LeaderWatch>> {
        let lock = self.layout.lock(name)?;
        let watch = ZkLeaderWatch::start(&self.server, lock);
        Ok(Box::new(self.request("watch leader", name, watch).await?))
    }

    async fn proclaim(&self, grant: &Grant, metadata: &Metadata) -> Result<bool> {
        let Some(granted) = self.granted_nodes.get(grant.claim()) else { return Ok(false) };
        let data = self.layout.proposals().write(grant.claim(), metadata);
        let number = metadata.proposal.as_ref().map_or(0, |proposal| proposal.number);
        let written = self.write_proposal(&granted.node.path, &data, number);
        self.request("proclaim", grant.name(), written).await
    }
}

impl ZkSession {
    /// Sends requests that the keeper repeats: none without a connection, where they would pile up.
    pub(super) async fn request<T>(
        &self,
        operation: &'static str,
        name: &LockName,
        requests: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T> {
        let answer = async {
            self.server.connected(self.request_timeout).await?;
            requests.await
        };
        bounded(self.request_timeout, answer).await.map_err(|error| {
            // The session has ended, but nobody has closed the client.
            let is_lost = error.may_succeed_in_another_session() && !self.server.state.is_closed();
            let error = if is_lost { RequestError::no_reply() } else { error };
            error.into_error(operation).with_lock(name)
        })
    }

    async fn read_leader(&self, lock: &str) -> Result<Option<LeaderEntry>, RequestError> {
        // The answer does not matter, only that the request goes through the leader.
        self.server.check(&[&self.client_node]).await?;
        loop {
            let Some(leader) = self.server.first_contender(lock).await? else { return Ok(None) };
            match self.server.data(&leader).await {
                Ok((data, stat)) => {
                    return Ok(Some(self.layout.proposals().read(&data, stat.czxid, stat.version)));
                }
                Err(error) if error.effect == Effect::Missing => {}
                Err(error) if error.is_denied() => {
                    if let Some(stat) = self.server.stat(&leader).await? {
                        let token = CreatedNode::token_of(stat.czxid);
                        return Ok(Some(ProposalForm::unreadable(token)));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the data of a holder's node; returns `false` if the node is gone.
    async fn write_proposal(&self, path: &str, data: &str, number: u64) -> Result<bool, RequestError> {
        loop {
            let (written, version) = match self.server.data(path).await {
                Ok((written, stat)) => (written, stat.version),
                Err(error) if error.effect == Effect::Missing => return Ok(false),
                Err(error) => return Err(error),
            };
            if self.layout.proposals().is_written(&written, version, data, number) {
                // By an earlier request with a lost reply. What was read may be old, and the hold over.
                return Ok(self.server.check(&[path]).await?.is_none());
            }
            match self.server.set_data(path, data, version).await {
                Ok(()) => return Ok(true),
                Err(error) if error.effect == Effect::Missing => return Ok(false),
                // Behind a request through the leader, the next read shows what was written.
                Err(error) if error.effect == Effect::OtherVersion => {
                    self.server.check(&[&self.client_node]).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Server {
    /// Returns the path of the contender that is before all others.
    async fn first_contender(&self, lock: &str) -> Result<Option<String>, RequestError> {
        match self.children(lock).await {
            Ok(children) => Ok(first_of(lock, children)),
            Err(error) if error.effect == Effect::Missing => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the path of the first contender among these children.
pub(super) fn first_of(lock: &str, children: Vec<String>) -> Option<String> {
    in_order(children).first().map(|child| format!("{lock}/{child}"))
}
