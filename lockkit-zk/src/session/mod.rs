//! A ZooKeeper session as a [`Session`].
//!
//! [`acquire`] and [`single`] take a claim to its grant, [`release`] ends a hold,
//! [`heartbeat`] and [`liveness`](crate::liveness) decide how long the session may be relied on.
//!
//! Failure cases:
//!
//! * The session ends at the server. The client crate reports that at its next connection, or very late; so a client
//!   relies on its session only for as long as [`Liveness`] allows.
//! * The session is closed: all work ends at once, and the server removes its nodes. A session that is dropped without
//!   a close, or not renewed, ends one ttl later.

mod acquire;
mod creation;
mod existence;
mod granted_nodes;
mod heartbeat;
mod late_creates;
mod late_deletions;
mod powers;
mod recently_busy;
mod release;
mod single;

use std::{
    sync::{Arc, Once},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Result,
    backend::{Acquired, Claim, Elections, Grant, Loss, Records, Renewals, Session},
    support::{RecentlyBusy, bounded},
};
use tracing::warn;

use self::{
    existence::NodeId,
    heartbeat::{Heartbeats, create_client_node},
    late_creates::LateCreates,
    recently_busy::BUSY_FOR,
};
pub(crate) use self::{
    granted_nodes::GrantedNodes, heartbeat::HEARTBEATS_PER_TTL, late_deletions::LateDeletions,
};
use crate::{
    ZkConfig,
    connect::connect,
    error::{Effect, RequestError},
    keys::Layout,
    liveness::Liveness,
    wire::Server,
};

/// A session, the client's own node, and the holds of the backend.
#[derive(Debug)]
pub(crate) struct ZkSession {
    server: Arc<Server>,
    layout: Layout,
    /// The client's own node.
    client_node: String,
    ttl: Duration,
    request_timeout: Duration,
    granted_nodes: Arc<GrantedNodes>,
    heartbeats: Heartbeats,
    numbers_warning: Once,
    recently_busy: RecentlyBusy,
    late_creates: LateCreates,
}

impl ZkSession {
    /// Connects, and creates the client's own node.
    pub(crate) async fn open(
        config: &ZkConfig,
        granted_nodes: Arc<GrantedNodes>,
        ttl: Duration,
        clock: Clock,
    ) -> Result<Self, RequestError> {
        let asked_at = clock.now();
        let client = connect(config, ttl).await?;
        let granted = client.session_timeout();
        if granted < ttl {
            warn!(requested = ?ttl, ?granted, "the server granted a shorter session than the ttl requested");
        }
        let liveness = Liveness::new(clock, granted, config.tick, asked_at);
        let layout = config.layout();
        let server = Arc::new(Server::new(client, liveness, config.acl(), config.parents));
        let late_creates = LateCreates::new(Arc::clone(&server), layout.clone());
        let session = Self {
            client_node: layout.client(server.session_id()),
            server,
            layout,
            ttl: granted,
            request_timeout: config.request_timeout,
            granted_nodes,
            heartbeats: Heartbeats::default(),
            numbers_warning: Once::new(),
            recently_busy: RecentlyBusy::new(BUSY_FOR),
            late_creates,
        };
        match bounded(config.request_timeout, session.prepare()).await {
            Ok(()) => Ok(session),
            Err(error) => {
                session.server.state.mark_closed();
                // The session outlived its lease without an answer. `Closed` would be wrong: nobody has closed the
                // client.
                Err(if error.effect == Effect::SessionOver { RequestError::no_reply() } else { error })
            }
        }
    }

    /// Creates the client's own node, and sends one multi-read, as heartbeats do. ZooKeeper 3.5 does not support it,
    /// and would lose each hold after a ttl.
    async fn prepare(&self) -> Result<(), RequestError> {
        create_client_node(&self.server, &self.layout).await?;
        self.server.nodes_exist(&[NodeId::by_path(&self.client_node)]).await.map(drop)
    }
}

#[async_trait]
impl Session for ZkSession {
    fn ttl(&self) -> Duration {
        self.ttl
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        self.acquire_claim(&claim).await
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        self.heartbeat(held).await
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        self.release_grant(grant).await.map_err(|error| error.into_error("release").with_lock(grant.name()))
    }

    async fn lost(&self) -> Loss {
        self.server.state.over().await;
        Loss::Session
    }

    async fn close(&self) -> Result<()> {
        self.server.close(self.request_timeout).await.map_err(|error| error.into_error("close"))
    }

    fn elections(&self) -> Option<&dyn Elections> {
        self.layout.form.powers().elections.then_some(self)
    }

    fn records(&self) -> Option<&dyn Records> {
        self.layout.form.powers().records.then_some(self)
    }
}

/// Does not end the session at the server: guards may still rely on its holds. The [watchdog](crate::watchdog) ends it
/// when its lease is over.
impl Drop for ZkSession {
    fn drop(&mut self) {
        self.granted_nodes.remove_session(self.server.session_id());
    }
}

#[cfg(test)]
mod tests;
