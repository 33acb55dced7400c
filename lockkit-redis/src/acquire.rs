//! A claim's life up to its grant: take the lock or a place in the queue, wait, and withdraw when it comes to nothing.
//!
//! Failure cases:
//!
//! * A reply is lost: the request is repeated. Scripts find what an earlier copy of the same claim has done.
//! * The claim is given up, or the session closed: the request that is under way is awaited (it has a time limit), then
//!   everything of the claim is taken back, again and again until that is answered. A copy that was never answered may
//!   arrive even later, on a connection that was given up: what it leaves is nobody's and ends with its ttl.
//! * The holder dies: nothing tells it; one waiter of each client looks when the holder's time is over.
//! * The message is lost that the claim is next: the next heartbeat finds that the claim does not wait any more.
//! * Heartbeats are not answered, or are far apart: every waiter looks for itself half a ttl, at most ten seconds, after the
//!   last one that was.
//! * The head of the queue is many claims that have lapsed: the server drops some hundreds per request; whoever asks is
//!   told so and asks again.
//! * The place in the queue is lost (deleted, lapsed while this client stood still, a failover): the next look says so.
//! * A message alone is no grant: the lock is held from the answer to `confirm` on, whose sending starts the lifetime.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    BootInstant, Error, FencingToken, Result,
    backend::{Acquired, Claim, Grant, retry_pauses},
    limits::{RECHECK_PAUSE_MAX, RETRY_PAUSE_MAX},
};
use tokio::time::Instant;
use tracing::debug;

use crate::{
    claims::{Kept, Place},
    error::Fault,
    expiry::Lookout,
    scripts::{Call, Standing, standing},
    session::RedisSession,
};

/// Without a queue nobody tells when the lock is free: pause between two tries, give or take a half.
const RACE_PAUSE: Duration = Duration::from_millis(100);

/// Share of a ttl, up to [`RECHECK_PAUSE_MAX`], after which a waiter looks that no heartbeat has kept waiting: its deadline at
/// the server is a whole ttl away, and heartbeats come three times in one.
const LOOK_AFTER: f64 = 0.5;

/// The look comes this share of itself earlier or later: waiters that were kept together do not look together.
const LOOK_JITTER: f64 = 0.1;

/// Share of that which a waiter pauses at least: a server that is slow is not asked without a pause.
const LOOK_PAUSE_MIN: f64 = 0.2;

/// How a claim ended.
enum End {
    Granted(FencingToken, BootInstant),
    GaveUp,
    EntryGone,
}

impl RedisSession {
    pub(crate) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let place = self.claims.enter(claim.id(), self.layout.keys(claim.name())?);
        let end = self.claim(claim, &place).await;
        let answer = match end {
            Ok(End::Granted(token, armed_at)) => {
                let grant = Grant::new(claim, token, armed_at);
                self.claims.settle(&place);
                return Ok(Acquired::Granted(grant));
            }
            Ok(End::GaveUp) => Ok(Acquired::GaveUp),
            Ok(End::EntryGone) => Ok(Acquired::EntryGone),
            Err(fault) => Err(self.error(claim, fault)),
        };
        if self.withdraw(&place).await {
            self.claims.forget(claim.id());
        }
        self.claims.settle(&place);
        answer
    }

    fn error(&self, claim: &Claim, fault: Fault) -> Error {
        fault.into_error("acquire").with_lock(claim.name())
    }

    async fn claim(&self, claim: &Claim, place: &Arc<Place>) -> Result<End, Fault> {
        let first =
            self.terms.acquire(claim.id(), &place.keys, claim.wait() && self.queues, claim.metadata());
        let confirm = self.terms.confirm(claim.id(), &place.keys);
        let mut lookout = self.lookouts.join(place.keys.lock());
        let (mut call, queues) = (&first, claim.wait() && self.queues);
        loop {
            let (standing, sent_at) = match self.ask(claim, place, call).await? {
                Answer::GaveUp => return Ok(End::GaveUp),
                Answer::Stands(standing, sent_at) => (standing, sent_at),
            };
            let pttl = match standing {
                Standing::Granted(token) => return self.assure(place, token, sent_at).await,
                Standing::Gone => return Ok(End::EntryGone),
                Standing::Busy(_) if !claim.wait() => {
                    claim.note_contended();
                    return Ok(End::GaveUp);
                }
                Standing::Busy(pttl) => Some(pttl),
                Standing::Queued(pttl) => Some(pttl),
                Standing::Unserved => None,
            };
            if queues {
                place.queued();
                call = &confirm;
            }
            // Each request has dropped some of those that have lapsed: the end of the queue is near.
            let Some(pttl) = pttl else { continue };
            claim.note_contended();
            place.keep(Kept::new(sent_at, pttl));
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(End::GaveUp),
                () = self.closed.cancelled() => return Err(Fault::session_over()),
                () = place.news() => {}
                () = self.pause(place, &mut lookout) => {}
            }
        }
    }

    /// Passes when a waiter must look although nothing has notified it: no heartbeat does it in its place, or nobody may
    /// hold the lock any more.
    async fn pause(&self, place: &Place, lookout: &mut Lookout) {
        let jitter = fastrand::f64();
        let mut kept = place.kept();
        let race_ends = Instant::now() + RACE_PAUSE.min(self.ttl / 3).mul_f64(jitter + 0.5);
        loop {
            let Some(Kept { sent_at, lock_ends }) = *kept.borrow_and_update() else { return };
            let look_at =
                if self.queues { Instant::now() + self.look_pause(sent_at, jitter) } else { race_ends };
            tokio::select! {
                () = tokio::time::sleep_until(look_at) => return,
                () = lookout.over(lock_ends) => return,
                // A heartbeat has done what a look is for.
                changed = kept.changed() => if changed.is_err() { return },
            }
        }
    }

    /// From now on, for a waiter that was kept waiting by a request that was sent then.
    fn look_pause(&self, sent_at: BootInstant, jitter: f64) -> Duration {
        let middle = self.ttl.mul_f64(LOOK_AFTER).min(RECHECK_PAUSE_MAX);
        let after = middle.mul_f64(jitter.mul_add(2.0 * LOOK_JITTER, 1.0 - LOOK_JITTER));
        after.saturating_sub(self.clock.now().since(sent_at)).max(middle.mul_f64(LOOK_PAUSE_MIN))
    }

    /// Sends a request until it is answered, or nobody wants the answer any more.
    async fn ask(&self, claim: &Claim, place: &Place, call: &Call) -> Result<Answer, Fault> {
        let mut pauses = retry_pauses();
        loop {
            if claim.has_given_up() {
                return Ok(Answer::GaveUp);
            }
            if self.closed.is_cancelled() {
                return Err(Fault::session_over());
            }
            let armed_at = self.clock.now();
            let fault = match self.server.run(call).await.and_then(standing) {
                Ok(standing) => return Ok(Answer::Stands(standing, armed_at)),
                Err(fault) => fault,
            };
            if fault.leaves_doubt() || fault.may_be_of_a_script() {
                place.put_in_doubt();
            }
            // A try does not wait for a server that is away, unless something of it may have got through.
            let worth_another = claim.wait() || place.may_have_left_something();
            if !fault.may_pass() || !worth_another {
                return Err(fault);
            }
            debug!(?fault, claim = ?claim.id(), "not answered");
            tokio::select! {
                () = tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)) => {}
                () = claim.give_up() => {}
                () = self.closed.cancelled() => {}
            }
        }
    }

    /// The claim holds the lock at the master; holds it as safely as is configured, or not at all.
    async fn assure(&self, place: &Place, token: FencingToken, armed_at: BootInstant) -> Result<End, Fault> {
        // Whatever goes wrong from here on, there is something to take back.
        place.put_in_doubt();
        if let Some(replicas) = &self.replicas {
            replicas.confirm(&self.terms.confirm(place.id, &place.keys), token).await?;
        }
        Ok(End::Granted(token, armed_at))
    }

    /// Takes back what a claim without a grant may have left at the server; whether there is nothing more to do.
    async fn withdraw(&self, place: &Place) -> bool {
        if !place.may_have_left_something() {
            return true;
        }
        let mut pauses = retry_pauses();
        loop {
            match self.end_at_server(place).await {
                Ok(()) => return true,
                Err(fault) if fault.may_pass() && !self.closed.is_cancelled() => {
                    debug!(?fault, claim = ?place.id, "not withdrawn yet");
                }
                Err(fault) => {
                    // Nobody moves its deadline any more: it ends with its ttl, or when the session is closed. One that
                    // was refused is not kept for that: each acquire of a user without rights would leave one.
                    debug!(?fault, claim = ?place.id, "cannot be withdrawn");
                    return !fault.may_pass();
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pauses.next().unwrap_or(RETRY_PAUSE_MAX)) => {}
                () = self.closed.cancelled() => {}
            }
        }
    }
}

/// What came of a request about a claim.
enum Answer {
    /// How the claim stands, and when the request was sent.
    Stands(Standing, BootInstant),
    /// Nobody wants the lock any more.
    GaveUp,
}
