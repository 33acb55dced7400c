//! A connection and the claims made over it as a [`Session`].
//!
//! Redis has no sessions: every lock has a lifetime of its own. [`acquire`](crate::acquire) follows a claim up to its
//! grant, [`release`](crate::release) ends it, [`heartbeat`](crate::heartbeat) renews it, and [`server`](crate::server)
//! keeps the connection.
//!
//! When the session is closed, every running acquire withdraws its claim. Everything held is released, except what is
//! pinned. What the server does not confirm expires with its ttl.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Error, ErrorKind, LockName, Result,
    backend::{Acquired, Claim, Elections, Grant, Loss, Pins, Records, Renewals, Session},
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::RequestError, expiry::ExpiryChecks, heartbeat, keys::Layout, powers::Observers,
    registry::ClaimRegistry, replicas::Replicas, server::Server, wire::ScriptParams,
};

/// A session.
#[derive(Debug)]
pub(crate) struct RedisSession {
    pub(crate) server: Server,
    pub(crate) layout: Layout,
    pub(crate) params: ScriptParams,
    pub(crate) ttl: Duration,
    /// Whether claims queue; otherwise they poll.
    pub(crate) queues: bool,
    pub(crate) clock: Clock,
    pub(crate) claims: Arc<ClaimRegistry>,
    pub(crate) observers: Arc<Observers>,
    pub(crate) expiry_checks: ExpiryChecks,
    /// Set where a grant counts only when replicas acknowledged it.
    pub(crate) replicas: Option<Replicas>,
    pub(crate) closed: CancellationToken,
}

#[async_trait]
impl Session for RedisSession {
    fn ttl(&self) -> Duration {
        self.ttl
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        self.acquire_claim(&claim).await
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        if self.closed.is_cancelled() {
            return heartbeat::unknown_renewals(held, &RequestError::session_closed());
        }
        self.heartbeat(held).await
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        self.check_open("release", grant.name())?;
        let Some(entry) = self.claims.get(grant.claim()) else { return Ok(()) };
        self.release_claim(&entry).await.map_err(|fault| fault.into_error("release").with_lock(grant.name()))
    }

    async fn lost(&self) -> Loss {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Loss::Session,
            // Nothing else is reported: when a lock expires, Redis runs nothing.
            broken = self.claims.broken.next() => Loss::Grant(broken),
        }
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        self.claims.all_settled().await;
        self.forget_ended(Duration::ZERO);
        let entries = self.claims.all();
        let endings = entries.iter().map(|entry| self.end_with_session(entry));
        let unconfirmed = futures_util::future::join_all(endings).await.into_iter().find_map(Result::err);
        unconfirmed.map_or(Ok(()), |fault| Err(fault.into_error("close")))
    }

    fn elections(&self) -> Option<&dyn Elections> {
        Some(self)
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }

    fn pins(&self) -> Option<&dyn Pins> {
        Some(self)
    }
}

impl RedisSession {
    /// Fails once the session is closed.
    pub(crate) fn check_open(&self, operation: &'static str, name: &LockName) -> Result<()> {
        if self.closed.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, operation).with_lock(name));
        }
        Ok(())
    }
}

/// Ends the waits of a session that was dropped without a close. Its holds expire with their ttl.
impl Drop for RedisSession {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}
