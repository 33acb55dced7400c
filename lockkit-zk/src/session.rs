//! A ZooKeeper session as a [`Session`].
//!
//! What is not told here: [`acquire`](crate::acquire) and [`single`](crate::single) are the life of a claim up to its
//! grant, [`release`](crate::release) its end, [`beat`](crate::beat) and [`proof`](crate::proof) what keeps it believed.
//!
//! Failure cases:
//!
//! * The session ends at the server: the client crate learns it at its next connection, or very late; a client believes
//!   in its session only as long as [`Proof`] allows.
//! * The session is closed: all work ends at once, the server takes away what is left. Dropped without, or renewed no more, it
//!   ends after a ttl.

use std::{
    sync::{Arc, Once},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Result,
    backend::{Acquired, Beat, Claim, Grant, Loss, Session},
};
use tracing::warn;

use crate::{
    ZkConfig,
    beat::{Heartbeats, make_own_node},
    call::{Server, bounded},
    claims::Claims,
    connect::connect,
    error::{Effect, Fault},
    keys::Layout,
    presence::Sought,
    proof::Proof,
};

/// A session, the client's own node, and the claims in its name.
#[derive(Debug)]
pub(crate) struct ZkSession {
    pub(crate) server: Arc<Server>,
    pub(crate) layout: Layout,
    /// The client's own node.
    pub(crate) node: String,
    pub(crate) ttl: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) claims: Arc<Claims>,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) warn_of_numbers: Once,
}

impl ZkSession {
    /// Connects, and creates the client's own node.
    pub(crate) async fn open(
        config: &ZkConfig,
        claims: Arc<Claims>,
        ttl: Duration,
        clock: Clock,
    ) -> Result<Self, Fault> {
        let asked_at = clock.now();
        let client = connect(config, ttl).await?;
        let granted = client.session_timeout();
        if granted < ttl {
            warn!(asked = ?ttl, ?granted, "the server's longest session is shorter than the ttl asked for");
        }
        let proof = Proof::new(clock, granted, config.tick.unwrap_or(granted / 2), asked_at);
        let layout = config.layout();
        let server = Arc::new(Server::new(client, proof, config.acl(), config.parents));
        let session = Self {
            node: layout.client(server.session()),
            server,
            layout,
            ttl: granted,
            request_timeout: config.request_timeout,
            claims,
            heartbeats: Heartbeats::default(),
            warn_of_numbers: Once::new(),
        };
        match bounded(config.request_timeout, session.prepare()).await {
            Ok(()) => Ok(session),
            Err(fault) => {
                session.server.life.close();
                // It has lived as long as it could without an answer; nobody has closed a client.
                Err(if fault.effect == Effect::SessionOver { Fault::no_reply() } else { fault })
            }
        }
    }

    /// Creates the client's own node, and sends the kind of read that heartbeats need: ZooKeeper 3.5 does not know it, and
    /// would lose each hold after a ttl.
    async fn prepare(&self) -> Result<(), Fault> {
        make_own_node(&self.server, &self.layout).await?;
        self.server.are_there(&[Sought::by_name(&self.node)]).await.map(drop)
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

    async fn renew(&self, held: &[Grant]) -> Beat {
        self.beat(held).await
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        self.release_grant(grant).await.map_err(|fault| fault.into_error("release").with_lock(grant.name()))
    }

    async fn lost(&self) -> Loss {
        self.server.life.over().await;
        Loss::Session
    }

    async fn close(&self) -> Result<()> {
        self.server.close(self.request_timeout).await.map_err(|fault| fault.into_error("close"))
    }
}

/// A session that nobody closed is left to the [watchdog](crate::watchdog): somebody may still believe in a hold of it.
impl Drop for ZkSession {
    fn drop(&mut self) {
        self.claims.forget_session(self.server.session());
    }
}
