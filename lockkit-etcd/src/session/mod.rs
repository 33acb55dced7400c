//! An etcd lease as a [`Session`].
//!
//! The parts: [`acquire`] and [`release`] are the life of a claim, [`heartbeat`] renews the lease, [`watch`] receives
//! handoffs and deletions. What else a holder can do is in [`powers`].
//!
//! Failure cases:
//!
//! * The lease ends at the server: it was revoked, or expired while the server could not be reached. The watch reports
//!   the deletion of the epoch key at once; otherwise the next heartbeat or request notices. The session is lost.
//! * An operator breaks a hold. The transaction that deletes its keys puts the client's key `broken`, and the watch
//!   reports it at once; otherwise the next heartbeat finds the keys gone.
//! * The session is closed, or dropped without `close`. All its work ends at once; the lease deletes what is left at
//!   the server, except pinned keys.

mod acquire;
mod entry;
mod epoch;
mod heartbeat;
mod key_pool;
mod late_bump;
mod order;
mod powers;
mod registry;
mod release;
mod rewrite;
mod single;
#[cfg(test)]
pub(crate) mod tests;
mod waiting;
mod watch;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Clock, LockName, Result,
    backend::{Acquired, Claim, ClaimId, Elections, Grant, Loss, Pins, Records, Renewals, Session},
    support::{BrokenHolds, RecentlyBusy, SessionState},
};

use self::{
    entry::QueueEntry,
    epoch::Epoch,
    key_pool::KeyPool,
    late_bump::LateBump,
    watch::{StreamTask, Watches},
};
pub(crate) use self::{order::Stretch, registry::ClaimRegistry};
use crate::{
    call::Server,
    client::{PutOptions, Txn, TxnOp, TxnResponse},
    error::{Effect, RequestError},
    keys::{ClientKeys, Layout, QueuePath},
    lease::Lease,
    login::LoginNumber,
    wire::{EntryKeys, revision_of},
};

/// How long a lock counts as busy after a try has found it held. A try for it sends a read first: a transaction that may
/// write goes through the consensus log, even if its compare fails. A wrong guess costs one read.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// A session: one lease, one watch stream, the client's two own keys, and its claims.
#[derive(Debug)]
pub(crate) struct EtcdSession {
    server: Server,
    layout: Layout,
    lease: Lease,
    keys: ClientKeys,
    epoch: Epoch,
    claims: Arc<ClaimRegistry>,
    watches: Arc<Watches>,
    state: SessionState,
    recently_busy: RecentlyBusy,
    key_pool: KeyPool,
    late_bump: LateBump,
    broken: Arc<BrokenHolds>,
}

impl EtcdSession {
    /// Grants a lease, puts the client's own two keys, and starts to watch them.
    pub(crate) async fn open(
        server: Server,
        layout: Layout,
        ttl: Duration,
        clock: Clock,
    ) -> Result<Self, RequestError> {
        let lease = Lease::grant(&server, ttl, clock).await?;
        let session = Self {
            keys: layout.client(lease.id()),
            server,
            layout,
            lease,
            epoch: Epoch::default(),
            claims: Arc::default(),
            watches: Arc::default(),
            state: SessionState::default(),
            recently_busy: RecentlyBusy::new(BUSY_FOR),
            key_pool: KeyPool::default(),
            late_bump: LateBump::default(),
            broken: Arc::default(),
        };
        if let Err(fault) = session.begin().await {
            // If the revocation fails too, the lease expires after its ttl.
            let _ = session.lease.revoke(&session.server).await;
            return Err(fault);
        }
        Ok(session)
    }

    /// Puts the client's own two keys, and starts the task that watches them.
    async fn begin(&self) -> Result<(), RequestError> {
        let put = |key: &str| TxnOp::put(key, "", Some(PutOptions::new().with_lease(self.lease.id())));
        let keys = Txn::new().and_then([put(&self.keys.handoff_key), put(&self.keys.epoch)]);
        let answer = self.server.txn(keys).await?;
        self.epoch.observe(revision_of(answer.header())?);
        let mut stream_task = StreamTask {
            server: self.server.clone(),
            state: self.state.clone(),
            keys: self.keys.clone(),
            claims: Arc::clone(&self.claims),
            watches: Arc::clone(&self.watches),
            broken: Arc::clone(&self.broken),
            next: None,
            login: LoginNumber::default(),
        };
        let first = stream_task.open().await?;
        tokio::spawn(stream_task.run(first));
        Ok(())
    }

    fn entry_keys<'a>(&'a self, entry: &'a QueueEntry) -> EntryKeys<'a> {
        let guard = entry.exclusive.as_ref();
        EntryKeys { queue: &entry.queue, key: &entry.key, client: &self.keys, guard }
    }

    /// Returns whether a try has recently found the lock held.
    fn was_recently_busy(&self, name: &LockName) -> bool {
        self.recently_busy.contains(name, self.lease.now())
    }

    /// Returns a key for a claim: one that an earlier claim has left, or a new one.
    fn take_key(&self, queue: &QueuePath, id: ClaimId) -> String {
        self.key_pool.take(queue).unwrap_or_else(|| queue.key(self.lease.id(), id))
    }

    /// Lets later claims use a key. No request that names it may be in doubt.
    fn put_back_key(&self, queue: &QueuePath, key: String) {
        self.key_pool.put_back(queue, key);
    }

    /// Sends a transaction. Ends the session if the reply says that the lease is gone.
    async fn txn(&self, txn: Txn) -> Result<TxnResponse, RequestError> {
        let answer = self.state.unless_over(self.server.txn(txn)).await;
        self.end_if_lease_gone(answer)
    }

    fn end_if_lease_gone<T>(&self, answer: Result<T, RequestError>) -> Result<T, RequestError> {
        if answer.as_ref().is_err_and(|fault| fault.effect == Effect::LeaseGone) {
            self.state.mark_lost();
        }
        answer
    }
}

#[async_trait]
impl Session for EtcdSession {
    fn ttl(&self) -> Duration {
        self.lease.ttl()
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        self.acquire_claim(&claim).await
    }

    async fn renew(&self, held: &[Grant]) -> Renewals {
        self.heartbeat(held).await
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        self.release_grant(grant).await.map_err(|fault| fault.into_error("release").with_lock(grant.name()))
    }

    async fn lost(&self) -> Loss {
        tokio::select! {
            biased;
            () = self.state.over() => Loss::Session,
            hold = self.broken.next() => Loss::Grant(hold),
        }
    }

    async fn close(&self) -> Result<()> {
        self.state.mark_closed();
        self.revoke_released_pins().await;
        if self.has_pins_under_its_lease() {
            // The lease is not renewed any more, and ends when they may end, or later.
            return Ok(());
        }
        match self.lease.revoke(&self.server).await {
            Err(fault) if fault.effect != Effect::LeaseGone => Err(fault.into_error("close")),
            _ => Ok(()),
        }
    }

    fn elections(&self) -> Option<&dyn Elections> {
        self.layout.powers().elections.then_some(self)
    }

    fn records(&self) -> Option<&dyn Records> {
        self.layout.powers().records.then_some(self)
    }

    fn pins(&self) -> Option<&dyn Pins> {
        self.layout.powers().pins.then_some(self)
    }
}

/// Ends the tasks of a session that was not closed; its lease expires at the server.
impl Drop for EtcdSession {
    fn drop(&mut self) {
        self.state.mark_closed();
    }
}
