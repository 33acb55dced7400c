//! Beats: the lifetimes of what is held and of what waits start anew.
//!
//! * A reply is lost: the beat tells nothing of the locks in that request, and the others are not affected.
//! * A lock has expired, was deleted, or has another value: that hold is gone. It is never brought back.
//! * Too few replicas have a renewal, where some must: the hold lives on, but only until its deadline.
//! * The session has waiting claims: their deadlines are moved in requests of their own. A claim that is no longer
//!   waiting there is woken, so that it looks for itself; of those whose lock nobody holds, one looks. Where that is not
//!   answered, each looks for itself in time ([`acquire`](crate::acquire)).

use std::collections::HashMap;

use lockkit_core::{
    BootInstant, ErrorKind, FencingToken,
    backend::{Beat, ClaimId, Grant, Renewal},
    limits::RELEASE_ANSWER_MAX,
};
use redis::{Value, cluster_routing::Slot};
use tokio::time::Instant;
use tracing::debug;

use crate::{
    claims::Kept,
    error::{Effect, Fault},
    scripts::{verdicts, waits},
    session::RedisSession,
};

/// Locks in one request.
const LOCKS_PER_REQUEST: usize = 500;

/// Share of a ttl that a beat may take: it must end before the next one, ttl / 3 later.
const BEATS_PER_TTL: u32 = 4;

/// A lock's key, and the grant that it is held by.
type Held = (String, ClaimId, FencingToken);

impl RedisSession {
    pub(crate) async fn beat(&self, held: &[Grant]) -> Beat {
        // Whoever waits for the end of a hold asks within that time, and is not to be told that all is well.
        self.forget_ended(RELEASE_ANSWER_MAX);
        let held: Vec<Held> = held.iter().filter_map(|grant| self.held(grant)).collect();
        let batches = self.batches(held, |(lock, ..)| lock);
        let armed_at = self.clock.now();
        let (renewed, alive, ()) = tokio::join!(
            futures_util::future::join_all(batches.iter().map(|batch| self.renew_batch(batch))),
            self.prove_alive(batches.is_empty()),
            self.beat_waiting(),
        );
        let mut holds = Vec::new();
        let mut answered = alive.map(|()| armed_at);
        for (batch, answers) in batches.iter().zip(renewed) {
            for ((_, claim, _), answer) in batch.iter().zip(answers) {
                match &answer {
                    Ok(_) => answered = Ok(armed_at),
                    Err(fault) if answered.is_err() => answered = Err(fault.clone()),
                    Err(_) => {}
                }
                holds.push((*claim, of_hold(answer, armed_at)));
            }
        }
        let session = match answered {
            Ok(armed_at) => Renewal::Renewed { armed_at },
            Err(fault) => unknown(&fault),
        };
        Beat::new(session, holds)
    }

    fn held(&self, grant: &Grant) -> Option<Held> {
        let place = self.claims.get(grant.claim());
        if place.is_none() {
            debug!(claim = ?grant.claim(), "asked for a hold that was released");
        }
        place.map(|place| {
            place.renew();
            (place.keys.lock().to_owned(), grant.claim(), grant.token())
        })
    }

    /// One answer for each hold, all of them within the time that a beat may take.
    async fn renew_batch(&self, batch: &[Held]) -> Vec<Result<bool, Fault>> {
        let deadline = Instant::now() + self.beat_window();
        match self.renew_together(batch, deadline, false).await {
            Ok(answers) => answers,
            Err(fault) if matches!(fault.effect, Effect::Split | Effect::Elsewhere) => {
                let single = batch.iter().map(|held| self.renew_moving(held, deadline));
                futures_util::future::join_all(single).await
            }
            Err(fault) => vec![Err(fault); batch.len()],
        }
    }

    /// A hold in a slot that is moving to another node of a cluster. A request that names a key that is not there, or not
    /// any more, would say nothing of the others.
    async fn renew_moving(&self, held: &Held, deadline: Instant) -> Result<bool, Fault> {
        let answers = self.renew_together(std::slice::from_ref(held), deadline, true).await?;
        match answers.into_iter().next() {
            // While the client crate has no connection to the slot's owner it asks any node, and the one that is importing
            // the slot would answer for a key that it does not have yet.
            Some(Ok(false)) | None => {
                let message = "not at the node that its slot is moving to";
                Err(Fault::new(Effect::Split, ErrorKind::Unavailable, message))
            }
            Some(answer) => answer,
        }
    }

    async fn renew_together(
        &self,
        batch: &[Held],
        deadline: Instant,
        asking: bool,
    ) -> Result<Vec<Result<bool, Fault>>, Fault> {
        let left = deadline.saturating_duration_since(Instant::now());
        let renew = self.terms.renew(batch);
        if let Some(replicas) = &self.replicas {
            return replicas.renew(left, &renew, batch.len(), asking).await;
        }
        let answers = self.server.run_with(left, &renew, None, asking).await?;
        let held = verdicts(answers.into_iter().next().unwrap_or(Value::Nil), batch.len())?;
        Ok(held.into_iter().map(Ok).collect())
    }

    /// With nothing held there is nothing to ask for but a sign of life.
    async fn prove_alive(&self, is_idle: bool) -> Result<(), Fault> {
        if is_idle { self.server.ping(self.beat_window()).await } else { Err(Fault::no_reply()) }
    }

    async fn beat_waiting(&self) {
        let queued = self.claims.queued();
        let listens = self.prove_listening(self.layout.on_cluster() && !queued.is_empty());
        let batches = self.batches(queued, |place| place.keys.lock());
        let beats = batches.iter().map(|batch| async move {
            let waiting: Vec<_> = batch.iter().map(|place| (place.id, place.keys.clone())).collect();
            let sent_at = self.clock.now();
            let answer = self.server.run_within(self.beat_window(), &self.terms.beat(&waiting)).await;
            match answer.and_then(|answer| waits(answer, batch.len())) {
                Ok(waits) => {
                    for (place, waits) in batch.iter().zip(waits) {
                        match waits {
                            Some(pttl) => place.keep(Kept::new(sent_at, pttl)),
                            None => place.wake(),
                        }
                    }
                }
                Err(fault) => debug!(?fault, "the beat of waiting claims was not answered"),
            }
        });
        tokio::join!(futures_util::future::join_all(beats), listens);
    }

    /// Of a cluster's nodes only the one that sends the messages can tell that it does, by being there.
    async fn prove_listening(&self, is_of_use: bool) {
        if is_of_use && let Err(fault) = self.server.ping_channel(self.beat_window()).await {
            debug!(?fault, "the server that messages come from did not answer");
        }
    }

    /// What goes into one request each: all that fits, and on a cluster only what lies in the same slot.
    fn batches<T>(&self, all: Vec<T>, lock: impl Fn(&T) -> &str) -> Vec<Vec<T>> {
        let mut by_slot: HashMap<Option<Slot>, Vec<Vec<T>>> = HashMap::new();
        for one in all {
            let slot = self.layout.on_cluster().then(|| Slot::for_key(lock(&one)));
            let batches = by_slot.entry(slot).or_default();
            match batches.last_mut() {
                Some(batch) if batch.len() < LOCKS_PER_REQUEST => batch.push(one),
                _ => batches.push(vec![one]),
            }
        }
        by_slot.into_values().flatten().collect()
    }

    fn beat_window(&self) -> std::time::Duration {
        self.server.request_timeout().min(self.ttl / BEATS_PER_TTL)
    }
}

/// A beat that tells nothing.
pub(crate) fn unknown_beat(held: &[Grant], fault: &Fault) -> Beat {
    let holds = held.iter().map(|grant| (grant.claim(), unknown(fault))).collect();
    Beat::new(unknown(fault), holds)
}

fn of_hold(answer: Result<bool, Fault>, armed_at: BootInstant) -> Renewal {
    match answer {
        Ok(true) => Renewal::Renewed { armed_at },
        Ok(false) => Renewal::Gone,
        Err(fault) => unknown(&fault),
    }
}

fn unknown(fault: &Fault) -> Renewal {
    Renewal::Unknown(fault.clone().into_error("renew"))
}
