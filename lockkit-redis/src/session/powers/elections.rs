//! Elections: the leader is the holder of the lock, and its proposal is part of its metadata.
//!
//! Failure cases:
//!
//! * A former leader proclaims: the script compares the whole value of the lock, and writes nothing.
//! * A reply is lost, and a copy of the request arrives after a later one: the script finds a proposal with a higher
//!   number, and writes nothing.
//! * The server is at its memory limit: a proclaim is served. It replaces metadata of bounded size.
//! * A message is lost, or its leader dies: see [`observers`](super::observers).
//! * The holder has no proposal: it publishes nothing. Observers notice it when they re-check.
//! * After a failover, a demoted master may answer until the connection is replaced.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::{
    LockName, Metadata, Result,
    backend::{Elections, Grant, LeaderEntry, LeaderWatch},
};
use tokio::time::Instant;

use super::{
    observers::RedisLeaderWatch,
    wire::{self, parse_leader},
};
use crate::{
    error::RequestError,
    keys::LockKeys,
    session::{RedisSession, waiting::lock_end},
};

#[async_trait]
impl Elections for RedisSession {
    async fn leader(&self, name: &LockName) -> Result<Option<LeaderEntry>> {
        self.check_open("leader", name)?;
        let leader = self.read_leader(&self.layout.keys(name)?).await;
        leader.map_err(|fault| fault.into_error("leader").with_lock(name))
    }

    async fn watch(&self, name: &LockName) -> Result<Box<dyn LeaderWatch>> {
        self.check_open("watch", name)?;
        let watch = self.watch_leader(&self.layout.keys(name)?).await;
        Ok(Box::new(watch.map_err(|fault| fault.into_error("watch").with_lock(name))?))
    }

    async fn proclaim(&self, grant: &Grant, metadata: &Metadata) -> Result<bool> {
        self.check_open("proclaim", grant.name())?;
        let call = self.params.proclaim(grant, &self.layout.keys(grant.name())?, metadata);
        let is_held = self.write_if_held(&call).await;
        is_held.map_err(|fault| fault.into_error("proclaim").with_lock(grant.name()))
    }
}

impl RedisSession {
    async fn read_leader(&self, keys: &LockKeys) -> Result<Option<LeaderEntry>, RequestError> {
        let (leader, pttl) = parse_leader(self.server.run(&wire::leader(keys)).await?)?;
        self.observers.note_end(&keys.leader_channel(), lock_end(pttl));
        Ok(leader)
    }

    async fn watch_leader(&self, keys: &LockKeys) -> Result<RedisLeaderWatch, RequestError> {
        let answer_by = Instant::now() + self.server.request_timeout();
        // Fails at once while the server is known to be unreachable.
        self.server.connection(answer_by).await?;
        let mut watch = RedisLeaderWatch::new(Arc::clone(&self.observers), keys.leader_channel());
        let subscribed = tokio::time::timeout_at(answer_by, watch.subscribed()).await;
        subscribed.unwrap_or_else(|_| Err(RequestError::no_reply()))?;
        // So that the watch wakes when the present leader has died.
        self.read_leader(keys).await?;
        Ok(watch)
    }
}
