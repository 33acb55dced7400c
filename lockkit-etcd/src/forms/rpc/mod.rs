//! A [`Session`] whose claims use the server's Lock RPC ([`Form::Rpc`](crate::Form::Rpc)).
//!
//! The RPC puts the key `NAME/<lease>` and returns when no older key is below `NAME/`. Its key is named after the lease,
//! so every claim has a lease of its own, which heartbeats renew. To release or to give up is to revoke that lease: it
//! deletes the key, and whatever of the claim is still under way fails, because its lease is gone.
//!
//! What the RPC cannot do:
//!
//! * It notices a release late: the server watches the predecessor from a past revision, and serves such watches every
//!   100 ms.
//! * It cannot try. A try reads the queue first, and writes nothing if a key is there. Otherwise it calls the RPC, and
//!   looks at the queue every 100 ms until the RPC is answered. If another claim was faster, the lease is revoked.
//! * It stores no metadata.
//! * Waits that are aborted at the same time, as by a connection that breaks, can block the RPC at that server for all
//!   clients, until it restarts (etcd #13336, also in 3.5). An RPC for a free lock still returns. So a waiter progresses
//!   by starting again, see below, but late and in no order.
//!
//! Failure cases:
//!
//! * The connection breaks while a claim waits. The server then deletes the claim's key, at any later time; so a repeated
//!   RPC might find a key that vanishes under it. The lease is revoked, and the claim starts again, with a new lease, at
//!   the end of the queue.
//! * The reply is lost on an open connection. A waiter looks at the queue after each re-check pause; if its key is first
//!   and the RPC stays silent for another second, the claim starts again. It may not take the lock: a server that has not finished the RPC
//!   deletes the key when the RPC is cancelled.
//! * The RPC returns although the key is gone: etcd 3.4 does not look (etcd #11456). Only a read that shows the claim's
//!   key, and no older one, grants.
//! * The reply to the request of a lease is lost: a lease without keys stays, for one ttl.
//! * The claim gives up: its lease is revoked, repeatedly until that is answered or the session is closed. No heartbeat
//!   renews the lease meanwhile, so this ends at the latest when the lease must have expired.
//! * There is no leader. etcd expires no lease then, and a new leader gives each lease its whole ttl again. So the time in
//!   which a lease must expire counts from the first heartbeat that is answered after the last one that was not. A change
//!   of leader between two answered heartbeats is not noticed: a lease that is forgotten may live for up to a ttl more.
//! * The server refuses the revocation, because a right was withdrawn: the claim is forgotten, so that a `close` does not
//!   fail for it. Its lease ends with its ttl.
//! * A release is never answered: its hold is forgotten when its lease must have expired.
//! * An operator deletes the key of a hold or revokes its lease: the next heartbeat finds out.
//! * The server does not answer heartbeats: each hold ends at its deadline. The leases of other holds go on.

mod claim;
mod heartbeat;
#[cfg(test)]
mod tests;
mod wire;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use lockkit_core::{
    BootInstant, Clock, Error, ErrorKind, Result,
    backend::{Acquired, Claim, ClaimId, Grant, Loss, Renewals, Session},
    support::{SessionOver, SessionState, lock},
};
use tracing::debug;

use crate::{
    call::Server,
    error::{Effect, RequestError},
    keys::Layout,
    lease::Lease,
    wire::Revision,
};

/// A session: the claims, each with its lease. At the server it is nothing.
#[derive(Debug)]
pub(crate) struct RpcSession {
    server: Server,
    layout: Layout,
    ttl: Duration,
    clock: Clock,
    state: SessionState,
    claims: Mutex<HashMap<ClaimId, Arc<RpcClaim>>>,
    /// Since when every heartbeat was answered; `None` if the latest one was not.
    answered_since: Mutex<Option<BootInstant>>,
}

/// A claim that may have a lease at the server.
#[derive(Debug)]
struct RpcClaim {
    lease: Lease,
    key: Vec<u8>,
    /// The create revision of the key, set by the grant.
    created: OnceLock<Revision>,
    /// When its release or its withdrawal began: no later heartbeat renews the lease.
    ended_at: OnceLock<BootInstant>,
}

impl RpcClaim {
    fn new(lease: Lease, key: Vec<u8>) -> Self {
        Self { lease, key, created: OnceLock::new(), ended_at: OnceLock::new() }
    }

    fn has_ended(&self) -> bool {
        self.ended_at.get().is_some()
    }
}

impl RpcSession {
    /// Learns which ttl the server grants.
    pub(crate) async fn open(
        server: Server,
        layout: Layout,
        ttl: Duration,
        clock: Clock,
    ) -> Result<Self, RequestError> {
        let probe = Lease::grant(&server, ttl, clock.clone()).await?;
        if let Err(fault) = probe.revoke(&server).await {
            debug!(?fault, "a lease without keys is left for its ttl");
        }
        let (state, claims) = (SessionState::default(), Mutex::default());
        let answered_since = Mutex::new(Some(clock.now()));
        Ok(Self { server, layout, ttl: probe.ttl(), clock, state, claims, answered_since })
    }

    /// Registers a claim, so that heartbeats renew its lease, and a close revokes it.
    fn enter(&self, id: ClaimId, entry: &Arc<RpcClaim>) -> Result<(), RequestError> {
        let mut claims = self.table();
        // Checked under the lock that `close` takes after it has closed the session. The lease has no keys yet.
        if self.state.is_over() {
            return Err(SessionOver.into());
        }
        claims.insert(id, Arc::clone(entry));
        Ok(())
    }

    /// Notes that a claim is being released or withdrawn.
    fn note_ended(&self, entry: &RpcClaim) {
        entry.ended_at.get_or_init(|| self.clock.now());
    }

    /// Notes whether a heartbeat was answered.
    fn note_heartbeat(&self, is_answered: bool) {
        let mut since = lock(&self.answered_since);
        *since = is_answered.then(|| since.unwrap_or_else(|| self.clock.now()));
    }

    /// Returns whether the lease of a claim must have expired: a heartbeat was under way at most when the claim ended, and
    /// there has been a leader for as long as a lease lives.
    fn must_have_expired(&self, entry: &RpcClaim) -> bool {
        let (Some(ended), Some(answered)) = (entry.ended_at.get(), *lock(&self.answered_since)) else {
            return false;
        };
        let lifetime = entry.lease.ttl() + self.server.request_timeout();
        answered.max(*ended).after(lifetime) < self.clock.now()
    }

    /// Forgets the claims whose leases must have expired.
    fn forget_expired(&self) {
        self.table().retain(|_, entry| !self.must_have_expired(entry));
    }

    async fn revoke(&self, id: ClaimId, entry: &RpcClaim) -> Result<(), RequestError> {
        match entry.lease.revoke(&self.server).await {
            Err(fault) if fault.effect != Effect::LeaseGone => Err(fault),
            _ => {
                self.table().remove(&id);
                Ok(())
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<RpcClaim>>> {
        lock(&self.claims)
    }
}

#[async_trait]
impl Session for RpcSession {
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
        if self.state.is_over() {
            return Err(Error::new(ErrorKind::Closed, "release").with_lock(grant.name()));
        }
        let entry = self.table().get(&grant.claim()).cloned();
        let Some(entry) = entry else { return Ok(()) };
        self.note_ended(&entry);
        let revoked = self.revoke(grant.claim(), &entry).await;
        revoked.map_err(|fault| fault.into_error("release").with_lock(grant.name()))
    }

    async fn lost(&self) -> Loss {
        // Nothing at the server carries all holds. Only a close ends a session.
        self.state.over().await;
        Loss::Session
    }

    async fn close(&self) -> Result<()> {
        self.state.mark_closed();
        let left: Vec<_> = self.table().iter().map(|(id, entry)| (*id, Arc::clone(entry))).collect();
        let revocations = join_all(left.iter().map(|(id, entry)| self.revoke(*id, entry))).await;
        match revocations.into_iter().find_map(Result::err) {
            Some(fault) => Err(fault.into_error("close")),
            None => Ok(()),
        }
    }
}

/// Ends the claims of a session that was dropped without a close. Their leases end with their ttl.
impl Drop for RpcSession {
    fn drop(&mut self) {
        self.state.mark_closed();
    }
}
