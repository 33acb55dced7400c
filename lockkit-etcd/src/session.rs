//! An etcd lease as a [`Session`].
//!
//! What is not told here: [`acquire`](crate::acquire) is the life of a claim up to its grant, [`release`](crate::release)
//! its end, [`watch`](crate::watch) how both hear of each other.
//!
//! Failure cases:
//!
//! * The lease ends at the server (revoked, expired while the server could not be reached): the deletion of the epoch
//!   key tells it at once, the next beat or any request at the latest. Everything of the session ends.
//! * The store goes back to a backup: a key that is there may be that of an earlier claim, which used it before the hold.
//!   An answer with a lower revision than one before it makes the beat compare create revisions.
//! * A key of a hold is deleted by an operator: the next beat misses it among the lease's keys.
//! * The session is closed, or dropped without: all work ends at once, the lease takes away what is left at the server.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use etcd_client::{PutOptions, Txn, TxnOp};
use lockkit_core::{
    Clock, Result,
    backend::{Acquired, Beat, Claim, ClaimId, Grant, Loss, Renewal, Session},
};
use tracing::debug;

use crate::{
    busy::BusyLately,
    call::{Server, bounded},
    claims::{Claims, Place},
    error::{Effect, Fault},
    keys::{ClientKeys, Layout},
    lease::Lease,
    life::{Epoch, Life},
    login::LoginNumber,
    spare::SpareKeys,
    txn::{self, Claiming, revision_of},
    watch::{Follower, Watches},
};

/// Share of a ttl that one step of a beat may take: a beat has two, and must end before the next one, ttl / 3 later.
const BEAT_STEPS_PER_TTL: u32 = 7;

/// Keys that are looked for in one transaction (etcd's limit is 128 operations).
const KEYS_PER_LOOK: usize = 100;

/// A session: one lease, one watch stream, two keys of its own, and the claims in its name.
#[derive(Debug)]
pub(crate) struct EtcdSession {
    pub(crate) server: Server,
    pub(crate) layout: Layout,
    pub(crate) lease: Lease,
    pub(crate) keys: ClientKeys,
    pub(crate) epoch: Epoch,
    pub(crate) claims: Arc<Claims>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) life: Life,
    pub(crate) busy_lately: BusyLately,
    pub(crate) spare_keys: SpareKeys,
}

impl EtcdSession {
    /// Grants a lease, puts the client's own two keys, and starts to watch them.
    pub(crate) async fn open(
        server: Server,
        layout: Layout,
        ttl: Duration,
        clock: Clock,
    ) -> Result<Self, Fault> {
        let lease = Lease::grant(&server, ttl, clock).await?;
        let session = Self {
            keys: layout.client(lease.id()),
            server,
            layout,
            lease,
            epoch: Epoch::default(),
            claims: Arc::default(),
            watches: Arc::default(),
            life: Life::default(),
            busy_lately: BusyLately::default(),
            spare_keys: SpareKeys::default(),
        };
        if let Err(fault) = session.begin().await {
            // Where this fails too, the lease ends with its ttl.
            let _ = session.lease.revoke(&session.server).await;
            return Err(fault);
        }
        Ok(session)
    }

    /// Puts the client's own two keys, and watches them from then on.
    async fn begin(&self) -> Result<(), Fault> {
        let put = |key: &str| TxnOp::put(key, "", Some(PutOptions::new().with_lease(self.lease.id())));
        let keys = Txn::new().and_then([put(&self.keys.mailbox), put(&self.keys.epoch)]);
        let answer = self.server.txn(keys).await?;
        self.epoch.moved_to(revision_of(answer.header())?);
        let mut follower = Follower {
            server: self.server.clone(),
            life: self.life.clone(),
            keys: self.keys.clone(),
            claims: Arc::clone(&self.claims),
            watches: Arc::clone(&self.watches),
            next: None,
            login: LoginNumber::default(),
        };
        let first = follower.open().await?;
        tokio::spawn(follower.run(first));
        Ok(())
    }

    pub(crate) fn claiming<'a>(&'a self, place: &'a Place) -> Claiming<'a> {
        Claiming { queue: &place.queue, key: &place.key, client: &self.keys }
    }

    /// A transaction; the session is over when it says that the lease has gone.
    pub(crate) async fn txn(&self, txn: Txn) -> Result<etcd_client::TxnResponse, Fault> {
        let answer = self.life.unless_over(self.server.txn(txn)).await;
        self.noticing_end(answer)
    }

    pub(crate) fn noticing_end<T>(&self, answer: Result<T, Fault>) -> Result<T, Fault> {
        if answer.as_ref().is_err_and(|fault| fault.effect == Effect::LeaseGone) {
            self.life.lose();
        }
        answer
    }

    fn beat_step(&self) -> Duration {
        self.server.request_timeout().min(self.lease.ttl() / BEAT_STEPS_PER_TTL)
    }

    /// Which of these holds still have their keys.
    async fn still_held(&self, held: &[Grant]) -> Result<HashSet<ClaimId>, Fault> {
        let step = self.beat_step();
        let listed: HashSet<Vec<u8>> = match bounded(step, self.lease.keys(&self.server)).await {
            Ok(keys) => keys.into_iter().collect(),
            // Such as a list that is longer than one message can be.
            Err(fault) if fault.effect == Effect::Refused => HashSet::new(),
            Err(fault) => return Err(fault),
        };
        let (mut there, mut doubtful) = (HashSet::new(), Vec::new());
        for grant in held {
            match self.claims.get(grant.claim()) {
                // A late copy of the enqueue may have brought a deleted key back; only its revision tells then.
                Some(place) if listed.contains(place.key.as_bytes()) && !place.needs_fence() => {
                    there.insert(grant.claim());
                }
                Some(place) => doubtful.push((grant.claim(), place)),
                None => debug!(claim = ?grant.claim(), "asked for a hold that was released"),
            }
        }
        // The list may be older than a grant that another member has answered: a loss needs a linearizable read. And a store
        // that went back to a backup may have the key as that of an earlier claim: then its create revision says so.
        bounded(step, async {
            for some in doubtful.chunks(KEYS_PER_LOOK) {
                there.extend(self.look_for(some).await?);
            }
            Ok(there)
        })
        .await
    }

    async fn look_for(&self, places: &[(ClaimId, Arc<Place>)]) -> Result<Vec<ClaimId>, Fault> {
        let keys = places.iter().map(|(_, place)| place.key.as_bytes());
        let answer = self.server.txn(txn::look_for(keys)).await?;
        let created = txn::found(&answer);
        let of_hold = |((id, place), created): (&(ClaimId, Arc<Place>), Option<txn::Revision>)| {
            (created.is_some() && created == place.own()).then_some(*id)
        };
        Ok(places.iter().zip(created).filter_map(of_hold).collect())
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

    async fn renew(&self, held: &[Grant]) -> Beat {
        let step = self.beat_step();
        let look = async { if held.is_empty() { Ok(HashSet::new()) } else { self.still_held(held).await } };
        let (renewed, there) = tokio::join!(self.lease.renew(&self.server, step), look);
        let (renewed, there) = (self.noticing_end(renewed), self.noticing_end(there));
        let unknown = |fault: &Fault| Renewal::Unknown(fault.clone().into_error("renew"));
        let session = match &renewed {
            _ if self.life.is_over() => Renewal::Gone,
            Ok(armed_at) => Renewal::Renewed { armed_at: *armed_at },
            Err(fault) => unknown(fault),
        };
        let hold = |grant: &Grant| match (&renewed, &there) {
            _ if self.life.is_over() => Renewal::Gone,
            (_, Ok(there)) if !there.contains(&grant.claim()) => Renewal::Gone,
            (Ok(armed_at), Ok(_)) => Renewal::Renewed { armed_at: *armed_at },
            (Err(fault), _) | (_, Err(fault)) => unknown(fault),
        };
        Beat::new(session, held.iter().map(|grant| (grant.claim(), hold(grant))).collect())
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        self.release_grant(grant).await.map_err(|fault| fault.into_error("release").with_lock(grant.name()))
    }

    async fn lost(&self) -> Loss {
        self.life.over().await;
        Loss::Session
    }

    async fn close(&self) -> Result<()> {
        self.life.close();
        match self.lease.revoke(&self.server).await {
            Err(fault) if fault.effect != Effect::LeaseGone => Err(fault.into_error("close")),
            _ => Ok(()),
        }
    }
}

/// A session that nobody closed ends with its lease; its stream ends here.
impl Drop for EtcdSession {
    fn drop(&mut self) {
        self.life.close();
    }
}
