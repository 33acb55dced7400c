//! Beats: the lifetimes of what is held and of what waits start anew.
//!
//! * A reply is lost: the beat tells nothing of the locks in that request, and the others are not affected.
//! * A lock has expired, was deleted, or has another value: that hold is gone. It is never brought back.
//! * The session has waiting claims: their deadlines are moved in requests of their own. A claim that is no longer
//!   waiting there is woken, so that it looks for itself.

use lockkit_core::{
    BootInstant, FencingToken,
    backend::{Beat, ClaimId, Grant, Renewal},
};
use tracing::debug;

use crate::{error::Fault, scripts::verdicts, session::RedisSession};

/// Locks in one request.
const LOCKS_PER_REQUEST: usize = 500;

/// Share of a ttl that a beat may take: it must end before the next one, ttl / 3 later.
const BEATS_PER_TTL: u32 = 4;

/// A lock's key, and the grant that it is held by.
type Held = (String, ClaimId, FencingToken);

impl RedisSession {
    pub(crate) async fn beat(&self, held: &[Grant]) -> Beat {
        let held: Vec<Held> = held.iter().filter_map(|grant| self.held(grant)).collect();
        let batches: Vec<&[Held]> = held.chunks(LOCKS_PER_REQUEST).collect();
        let armed_at = self.clock.now();
        let (renewed, alive, ()) = tokio::join!(
            futures_util::future::join_all(batches.iter().map(|batch| self.renew_batch(batch))),
            self.prove_alive(held.is_empty()),
            self.beat_waiting(),
        );
        let mut holds = Vec::with_capacity(held.len());
        let mut answered = alive.map(|()| armed_at);
        for (batch, answer) in batches.iter().zip(renewed) {
            if answer.is_ok() || held.is_empty() {
                answered = Ok(armed_at);
            } else if let (Err(fault), Err(_)) = (&answer, &answered) {
                answered = Err(fault.clone());
            }
            holds.extend(
                batch.iter().enumerate().map(|(n, (_, claim, _))| (*claim, of_hold(&answer, n, armed_at))),
            );
        }
        let session = match answered {
            Ok(armed_at) => Renewal::Renewed { armed_at },
            Err(fault) => unknown(&fault),
        };
        Beat { session, holds }
    }

    fn held(&self, grant: &Grant) -> Option<Held> {
        let place = self.claims.get(grant.claim());
        if place.is_none() {
            debug!(claim = ?grant.claim(), "asked for a hold that was released");
        }
        place.map(|place| (place.keys.lock().to_owned(), grant.claim(), grant.token()))
    }

    async fn renew_batch(&self, batch: &[Held]) -> Result<Vec<bool>, Fault> {
        verdicts(self.server.run_within(self.beat_window(), &self.terms.renew(batch)).await?, batch.len())
    }

    /// With nothing held there is nothing to ask for but a sign of life.
    async fn prove_alive(&self, is_idle: bool) -> Result<(), Fault> {
        if is_idle { self.server.ping(self.beat_window()).await } else { Err(Fault::no_reply()) }
    }

    async fn beat_waiting(&self) {
        let queued = self.claims.queued();
        let beats = queued.chunks(LOCKS_PER_REQUEST).map(|batch| async move {
            let waiting: Vec<_> = batch.iter().map(|place| (place.id, place.keys.clone())).collect();
            let answer = self.server.run_within(self.beat_window(), &self.terms.beat(&waiting)).await;
            match answer.and_then(|answer| verdicts(answer, batch.len())) {
                Ok(waits) => {
                    let news = batch.iter().zip(waits).filter(|(_, waits)| !waits);
                    news.for_each(|(place, _)| place.wake());
                }
                Err(fault) => debug!(?fault, "the beat of waiting claims was not answered"),
            }
        });
        futures_util::future::join_all(beats).await;
    }

    fn beat_window(&self) -> std::time::Duration {
        self.server.request_timeout().min(self.ttl / BEATS_PER_TTL)
    }
}

fn of_hold(answer: &Result<Vec<bool>, Fault>, n: usize, armed_at: BootInstant) -> Renewal {
    match answer {
        Ok(held) if held.get(n) == Some(&true) => Renewal::Renewed { armed_at },
        Ok(_) => Renewal::Gone,
        Err(fault) => unknown(fault),
    }
}

fn unknown(fault: &Fault) -> Renewal {
    Renewal::Unknown(fault.clone().into_error("renew"))
}
