//! A connection and the claims made over it as a [`Session`].
//!
//! Redis knows no sessions: every lock has a lifetime of its own. What is not told here: [`acquire`](crate::acquire) is
//! the life of a claim up to its grant, [`renew`](crate::renew) the beats, [`server`](crate::server) the connection.
//!
//! * The session is closed: every acquire takes back what is its own, everything held is released. What the server does
//!   not confirm ends with its ttl.
//! * A hold's release is not answered: it is repeated; it names its claim, and can end no other.
//! * It is not answered before the lock must have ended by itself: then the hold is forgotten. Whoever waited for the
//!   answer was told that there is none.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lockkit_core::{
    Clock, Error, ErrorKind, Result,
    backend::{Acquired, Beat, Claim, Grant, Loss, Session},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    claims::{Claims, Place},
    error::Fault,
    expiry::Lookouts,
    keys::Layout,
    renew,
    replicas::Replicas,
    scripts::{Terms, leaves_unserved},
    server::Server,
};

/// Further calls that a release makes to find the next waiter behind lapsed ones, of which each call drops some hundreds:
/// as many as a client that died may have left, without making its caller wait for too long.
const HAND_OVER_CALLS_MAX: u32 = 200;

/// A session.
#[derive(Debug)]
pub(crate) struct RedisSession {
    pub(crate) server: Server,
    pub(crate) layout: Layout,
    pub(crate) terms: Terms,
    pub(crate) ttl: Duration,
    /// Whether claims queue, or race.
    pub(crate) queues: bool,
    pub(crate) clock: Clock,
    pub(crate) claims: Arc<Claims>,
    pub(crate) lookouts: Lookouts,
    /// Where a grant counts only with replicas that know of it.
    pub(crate) replicas: Option<Replicas>,
    pub(crate) closed: CancellationToken,
}

impl RedisSession {
    async fn release_place(&self, place: &Place) -> Result<(), Fault> {
        place.begin_release(self.clock.now());
        self.end_at_server(place).await?;
        self.claims.forget(place.id);
        Ok(())
    }

    /// Ends a claim at the server, whatever it has there.
    pub(crate) async fn end_at_server(&self, place: &Place) -> Result<(), Fault> {
        let release = self.terms.release(place.id, &place.keys);
        let mut is_unserved = leaves_unserved(self.server.run(&release).await?)?;
        // The claim has ended. What follows makes the hand-over prompt: should it fail, or not be enough, the next
        // heartbeat of any waiter finds that nobody holds the lock, and that waiter goes on.
        for _ in 0..HAND_OVER_CALLS_MAX {
            if !is_unserved {
                break;
            }
            match self.server.run(&release).await.and_then(leaves_unserved) {
                Ok(is_still_unserved) => is_unserved = is_still_unserved,
                Err(fault) => {
                    debug!(?fault, claim = ?place.id, "the next waiter was not found yet");
                    break;
                }
            }
        }
        Ok(())
    }

    /// Forgets holds that must have ended so long ago: a ttl after the last beat of each, which was on its way when its
    /// release began.
    pub(crate) fn forget_ended(&self, ago: Duration) {
        self.claims.forget_ended(self.clock.now(), self.ttl + self.server.request_timeout() + ago);
    }
}

#[async_trait]
impl Session for RedisSession {
    fn ttl(&self) -> Duration {
        self.ttl
    }

    async fn acquire(&self, claim: Claim) -> Result<Acquired> {
        self.acquire_claim(&claim).await
    }

    async fn renew(&self, held: &[Grant]) -> Beat {
        if self.closed.is_cancelled() {
            return renew::unknown_beat(held, &Fault::session_over());
        }
        self.beat(held).await
    }

    async fn release(&self, grant: &Grant) -> Result<()> {
        if self.closed.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "release").with_lock(grant.name()));
        }
        let Some(place) = self.claims.get(grant.claim()) else { return Ok(()) };
        self.release_place(&place).await.map_err(|fault| fault.into_error("release").with_lock(grant.name()))
    }

    async fn lost(&self) -> Loss {
        // Redis tells no loss; after a close the question has an answer.
        self.closed.cancelled().await;
        Loss::Session
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        self.claims.all_settled().await;
        self.forget_ended(Duration::ZERO);
        let places = self.claims.all();
        let releases = places.iter().map(|place| self.release_place(place));
        let unconfirmed = futures_util::future::join_all(releases).await.into_iter().find_map(Result::err);
        unconfirmed.map_or(Ok(()), |fault| Err(fault.into_error("close")))
    }
}

/// A session that nobody closed: what it holds ends with its ttl, what waits in it ends here.
impl Drop for RedisSession {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}
