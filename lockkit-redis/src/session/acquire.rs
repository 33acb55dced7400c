//! A claim up to its grant: take the lock or join the queue, wait, and withdraw if nothing was granted.
//!
//! Failure cases:
//!
//! * A reply is lost: the request is repeated. The scripts find what an earlier copy of the same claim has done.
//! * The client crate repeats a request to a cluster by itself. The fault of the last copy shows nothing about the others.
//!   A waiting claim is then withdrawn as after a lost reply. A try is withdrawn once and fails: repeated, the withdrawal
//!   would take as long as the cluster refuses requests, and its caller would not learn why. What an earlier copy was
//!   granted then expires.
//! * The claim is given up, or the session is closed: the request under way is awaited (it has a time limit). Then
//!   everything of the claim is removed at the server; this is repeated until it is answered, at most for a ttl and the
//!   time limit of a request. No heartbeat extends its wait meanwhile. A copy that was never answered may arrive even
//!   later, on an abandoned connection. What it writes belongs to no claim and expires.
//! * The holder dies: Redis reports nothing. One waiter of each client re-checks when the lock expires.
//! * The message that the claim is next is lost: the next heartbeat finds that the claim no longer waits.
//! * Heartbeats are not answered, or are far apart: every waiter re-checks half a ttl, at most ten seconds, after the
//!   last answered one.
//! * Many lapsed claims are at the head of the queue: the server drops some hundreds per request and answers
//!   `unserved`. The request is repeated at once.
//! * The entry in the queue is lost (deleted, lapsed while this client was suspended, a failover): the next re-check
//!   reports it.
//! * An operator breaks the hold before its acquire has ended: the claim has no entry any more. If the message comes a
//!   moment later, the session reports the loss; if the keeper does not know the hold yet, its first heartbeat does.
//! * The message that the claim was granted the lock comes late, twice, from a former master, or after the lock has
//!   expired: it grants only if its token is above the last one in the last answer to the waiting claim. Then the lock
//!   was granted after that answer, so its lifetime counts from the sending of the request that was answered. Otherwise
//!   the message is a hint, and the lock is held from the answer to `confirm`: also if that request was sent more than a
//!   third of a ttl ago, if the connection was replaced since, and for candidates, whose `confirm` notifies observers.
//! * The message comes before an answer that was sent earlier, or an answer after a message that was sent later: it does
//!   not matter which comes first. Every answer is compared with the token by itself.
//! * The claim is given up when the message comes: the withdrawal releases the lock.
//! * The master has granted the lock, and nobody knows whether replicas have the grant: a waiting claim is withdrawn, and
//!   the keeper makes a new one, at the end of the queue. If it asked again and again, it would keep the lock from all
//!   others for as long as its connection to the replicas is cut.

use std::{sync::Arc, time::Duration};

use lockkit_core::{
    BootInstant, Error, FencingToken, Result,
    backend::{Acquired, Claim, Evidence, Grant, retry_pauses},
    limits::RECHECK_PAUSE_MAX,
};
use tokio::time::Instant;
use tracing::debug;

use super::{
    RedisSession,
    expiry::ExpiryCheck,
    registry::ClaimEntry,
    waiting::{Sending, WaitExtension},
};
use crate::{
    error::RequestError,
    keys,
    wire::{Call, ClaimState, parse_claim_state},
};

/// Pause between two tries without a queue, where nothing reports that the lock is free; plus or minus a half.
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// Share of a ttl, up to [`RECHECK_PAUSE_MAX`], after which a waiter re-checks unless a heartbeat has extended its
/// wait. It lapses at the server a whole ttl later, and heartbeats come three times per ttl.
const RECHECK_AFTER: f64 = 0.5;

/// Varies the re-check by this share of itself: waiters that were extended together do not re-check together.
const RECHECK_JITTER: f64 = 0.1;

/// Smallest share of that pause: a slow server is not asked without a pause.
const RECHECK_PAUSE_FLOOR: f64 = 0.2;

/// A message grants the lock only if the last answer to the waiting claim was requested at most ttl / 3 ago. Heartbeats
/// come that often; the lifetime of an older grant would have to be restarted at once.
const PUSH_WINDOW_SHARE: u32 = 3;

/// How a claim ended.
pub(crate) enum ClaimOutcome {
    Granted(FencingToken, BootInstant),
    GaveUp,
    EntryGone,
}

impl RedisSession {
    pub(crate) async fn acquire_claim(&self, claim: &Claim) -> Result<Acquired> {
        let is_candidate = claim.metadata().proposal.is_some();
        let entry = self.claims.enter(claim.id(), self.layout.keys(claim.name())?, is_candidate);
        let outcome = self.run_claim(claim, &entry).await;
        let answer = match outcome {
            Ok(ClaimOutcome::Granted(..)) if entry.take_broken() => Ok(Acquired::EntryGone),
            Ok(ClaimOutcome::Granted(token, armed_at)) => {
                let evidence = Evidence::key_value(entry.keys.lock(), keys::value(entry.id, token));
                let grant = Grant::new(claim, token, armed_at).with_evidence(evidence);
                self.claims.settle(&entry);
                return Ok(Acquired::Granted(grant));
            }
            Ok(ClaimOutcome::GaveUp) => Ok(Acquired::GaveUp),
            Ok(ClaimOutcome::EntryGone) => Ok(Acquired::EntryGone),
            Err(fault) => {
                if self.may_hide_an_earlier_copy(&fault) && !entry.may_have_entries() {
                    let withdrawn = Box::pin(self.end_at_server(&entry)).await;
                    debug!(?withdrawn, claim = ?entry.id, "an earlier copy may have been executed");
                }
                Err(self.error(claim, fault))
            }
        };
        if self.withdraw(&entry).await {
            self.claims.forget(claim.id());
        }
        self.claims.settle(&entry);
        answer
    }

    fn may_hide_an_earlier_copy(&self, fault: &RequestError) -> bool {
        self.layout.on_cluster() && fault.may_hide_an_earlier_copy()
    }

    fn error(&self, claim: &Claim, fault: RequestError) -> Error {
        fault.into_error("acquire").with_lock(claim.name())
    }

    async fn run_claim(&self, claim: &Claim, entry: &Arc<ClaimEntry>) -> Result<ClaimOutcome, RequestError> {
        let queues = claim.wait() && self.queues;
        let mut call = self.params.acquire(entry, queues, &claim.metadata_json());
        let mut confirms = false;
        let mut expiry_check = self.expiry_checks.join(entry.keys.lock());
        loop {
            let (state, sent) = match self.request(claim, entry, &call).await? {
                RequestOutcome::GaveUp => return Ok(ClaimOutcome::GaveUp),
                RequestOutcome::Answered(state, sent) => (state, sent),
            };
            let extension = match state {
                ClaimState::Granted(token) => {
                    return self.confirm_at_replicas(claim, entry, token, sent.at).await;
                }
                ClaimState::Gone => return Ok(ClaimOutcome::EntryGone),
                ClaimState::Busy(_) if !claim.wait() => {
                    claim.note_contended();
                    return Ok(ClaimOutcome::GaveUp);
                }
                ClaimState::Busy(pttl) => Some(WaitExtension::polled(sent, pttl)),
                ClaimState::Queued(wait) => Some(WaitExtension::queued(sent, wait)),
                ClaimState::Unserved => None,
            };
            if queues && !confirms {
                entry.mark_queued();
                (call, confirms) = (self.params.confirm(entry), true);
            }
            // Each request drops some hundreds of lapsed waiters, so this ends.
            let Some(extension) = extension else { continue };
            entry.extend(extension);
            claim.note_contended();
            tokio::select! {
                biased;
                () = claim.give_up() => return Ok(ClaimOutcome::GaveUp),
                () = self.closed.cancelled() => return Err(RequestError::session_closed()),
                () = entry.woken() => {}
                () = self.until_recheck(entry, &mut expiry_check) => {}
            }
            if let Some((token, armed_at)) = self.pushed_grant(entry) {
                return self.confirm_at_replicas(claim, entry, token, armed_at).await;
            }
        }
    }

    /// Returns what a message has granted to a waiting claim, and since when its lifetime counts; `None` if a confirm
    /// must show that.
    fn pushed_grant(&self, entry: &ClaimEntry) -> Option<(FencingToken, BootInstant)> {
        let (token, armed_at) = entry.take_pushed()?;
        let is_recent = self.clock.now().since(armed_at) <= self.ttl / PUSH_WINDOW_SHARE;
        (is_recent && entry.observers.is_none()).then_some((token, armed_at))
    }

    /// Returns the sending of a request that is sent now.
    pub(crate) fn sending(&self) -> Sending {
        Sending { at: self.clock.now(), gaps: self.claims.gaps() }
    }

    /// Waits until the waiter must re-check without a notification: heartbeats do not extend its wait, or the lock may
    /// have expired.
    async fn until_recheck(&self, entry: &ClaimEntry, expiry_check: &mut ExpiryCheck<'_>) {
        let jitter = fastrand::f64();
        let mut extensions = entry.extensions();
        let next_try = Instant::now() + poll_pause(self.ttl, jitter);
        loop {
            let Some(WaitExtension { sent, lock_ends, .. }) = *extensions.borrow_and_update() else { return };
            let recheck_at = if self.queues {
                Instant::now() + recheck_pause(self.ttl, self.clock.now().since(sent.at), jitter)
            } else {
                next_try
            };
            tokio::select! {
                () = tokio::time::sleep_until(recheck_at) => return,
                () = expiry_check.due(lock_ends) => return,
                // A heartbeat has extended the wait, as a re-check would.
                changed = extensions.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Sends a request until it is answered or the claim is given up.
    async fn request(
        &self,
        claim: &Claim,
        entry: &ClaimEntry,
        call: &Call,
    ) -> Result<RequestOutcome, RequestError> {
        let mut pauses = retry_pauses();
        loop {
            if claim.has_given_up() {
                return Ok(RequestOutcome::GaveUp);
            }
            if self.closed.is_cancelled() {
                return Err(RequestError::session_closed());
            }
            let sent = self.sending();
            let fault = match self.server.run(call).await.and_then(parse_claim_state) {
                Ok(state) => return Ok(RequestOutcome::Answered(state, sent)),
                Err(fault) => fault,
            };
            if fault.may_have_executed() || fault.may_be_from_script() {
                entry.mark_in_doubt();
            }
            // A claim that does not wait fails, unless an earlier request may have left an entry.
            if !fault.is_transient() || !claim.wait() && !entry.may_have_entries() {
                return Err(fault);
            }
            // A try whose earlier copy may be hidden has failed by now: it is not repeated until the refusals end.
            if self.may_hide_an_earlier_copy(&fault) {
                entry.mark_in_doubt();
            }
            debug!(?fault, claim = ?claim.id(), "not answered");
            tokio::select! {
                () = pauses.wait() => {}
                () = claim.give_up() => {}
                () = self.closed.cancelled() => {}
            }
        }
    }

    /// Removes what an ungranted claim may have left at the server. Returns whether its entry can be forgotten.
    async fn withdraw(&self, entry: &ClaimEntry) -> bool {
        if !entry.may_have_entries() {
            return true;
        }
        entry.end_wait();
        let (mut pauses, began) = (retry_pauses(), self.clock.now());
        let limit = self.ttl + self.server.request_timeout();
        loop {
            match self.end_at_server(entry).await {
                Ok(()) => return true,
                Err(fault) if self.clock.now().since(began) > limit => {
                    debug!(?fault, claim = ?entry.id, "not withdrawn: what it has left expires");
                    return true;
                }
                Err(fault) if fault.is_transient() && !self.closed.is_cancelled() => {
                    debug!(?fault, claim = ?entry.id, "not withdrawn yet");
                }
                Err(fault) => {
                    // Nothing extends it any more: it expires, or ends when the session is closed. A refused one is
                    // forgotten at once, or each acquire of a user without rights would leave an entry in the registry.
                    debug!(?fault, claim = ?entry.id, "cannot be withdrawn");
                    return !fault.is_transient();
                }
            }
            tokio::select! {
                () = pauses.wait() => {}
                () = self.closed.cancelled() => {}
            }
        }
    }
}

/// Returns the pause between two tries without a queue, for a random number below one.
fn poll_pause(ttl: Duration, jitter: f64) -> Duration {
    POLL_PAUSE.min(ttl / 3).mul_f64(jitter + 0.5)
}

/// Returns the time until the re-check of a waiter whose last extension was sent so long ago, for a random number below
/// one.
fn recheck_pause(ttl: Duration, since_sent: Duration, jitter: f64) -> Duration {
    let middle = ttl.mul_f64(RECHECK_AFTER).min(RECHECK_PAUSE_MAX);
    let after = middle.mul_f64(jitter.mul_add(2.0 * RECHECK_JITTER, 1.0 - RECHECK_JITTER));
    after.saturating_sub(since_sent).max(middle.mul_f64(RECHECK_PAUSE_FLOOR))
}

/// The outcome of a request about a claim.
enum RequestOutcome {
    /// The state of the claim, and the sending of the request.
    Answered(ClaimState, Sending),
    /// The caller no longer wants the lock.
    GaveUp,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use lockkit_conformance::direct::{LONG, bounded, fresh_name, is_gave_up, start, until};
    use lockkit_core::{
        Clock,
        backend::{Backend, BackendUrl},
    };

    use super::*;
    use crate::{
        RedisBackend, RedisConfig,
        tests::scripted::{Answer, ScriptedServer, greeting},
        wire::{HEARTBEAT, RELEASE},
    };

    /// Each such withdrawal would keep a task, and the place of a waiter. Its entry, extended by heartbeats, could still
    /// be granted the lock.
    #[tokio::test]
    async fn withdrawal_that_is_never_done_ends_and_its_claim_is_not_extended() {
        let (heartbeats, releases) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counted = (Arc::clone(&heartbeats), Arc::clone(&releases));
        let server = ScriptedServer::start(|_| {
            move |_, words: &[String]| {
                let script = words.get(1).map(String::as_str).unwrap_or_default();
                let answer = match (&*words[0], script) {
                    ("EVALSHA", script) if script == RELEASE.digest() => {
                        counted.1.fetch_add(1, SeqCst);
                        "-BUSY Redis is busy running a script.\r\n"
                    }
                    ("EVALSHA", script) if script == HEARTBEAT.digest() => {
                        counted.0.fetch_add(1, SeqCst);
                        "*1\r\n*2\r\n:60000\r\n:7\r\n"
                    }
                    ("EVALSHA", _) => "*3\r\n$6\r\nqueued\r\n:60000\r\n:7\r\n",
                    _ => return greeting(words),
                };
                Answer::Text(answer.to_owned())
            }
        });
        let url = format!("redis://{}/?request_timeout=5s", server.await.address);
        let backend = RedisBackend::new(RedisConfig::from_url(BackendUrl::parse(&url).unwrap()).unwrap());
        let session = backend.open_session(Duration::from_secs(1), Clock::boot()).await.unwrap();
        let waiting = start(&session, &fresh_name());
        until("it is extended", async || {
            bounded(session.renew(&[])).await;
            heartbeats.load(SeqCst) > 0
        })
        .await;
        waiting.control.give_up();
        until("it is being withdrawn", async || releases.load(SeqCst) > 0).await;
        let before = heartbeats.load(SeqCst);
        bounded(session.renew(&[])).await;
        assert_eq!(heartbeats.load(SeqCst), before);
        assert!(is_gave_up(&waiting.ends().await));
    }

    /// Its entry would stay in the queue for up to a ttl, and could be granted the lock.
    #[tokio::test]
    async fn withdrawal_that_was_not_executed_is_repeated() {
        let (asks, releases) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counted = (Arc::clone(&asks), Arc::clone(&releases));
        let server = ScriptedServer::start(|_| {
            move |_, words: &[String]| {
                let is_release = words.get(1).is_some_and(|script| script == RELEASE.digest());
                let count = if is_release { &counted.1 } else { &counted.0 };
                let answer = match &*words[0] {
                    "EVALSHA" => match (is_release, count.fetch_add(1, SeqCst)) {
                        (true, 0) => "-BUSY Redis is busy running a script.\r\n",
                        (true, _) => ":0\r\n",
                        (false, _) => "*3\r\n$6\r\nqueued\r\n:60000\r\n:7\r\n",
                    },
                    _ => return greeting(words),
                };
                Answer::Text(answer.to_owned())
            }
        });
        let url = format!("redis://{}/?request_timeout=60s", server.await.address);
        let backend = RedisBackend::new(RedisConfig::from_url(BackendUrl::parse(&url).unwrap()).unwrap());
        let session = backend.open_session(LONG, Clock::boot()).await.unwrap();
        let waiting = start(&session, &fresh_name());
        until("it has asked", async || asks.load(SeqCst) > 0).await;
        waiting.control.give_up();
        assert!(is_gave_up(&waiting.ends().await));
        assert_eq!(releases.load(SeqCst), 2);
    }

    /// Claims that ask at the same moments find the lock held by one of them again and again.
    #[test]
    fn pauses_of_tries_differ_and_are_short() {
        let bounds = |ttl| [poll_pause(ttl, 0.0), poll_pause(ttl, 1.0)];
        assert_eq!(bounds(Duration::from_secs(60)), [POLL_PAUSE / 2, POLL_PAUSE * 3 / 2]);
        assert_eq!(bounds(Duration::from_millis(60)), [10, 30].map(Duration::from_millis));
    }

    /// Else a server that answers after half a ttl only would be asked again at once, by each waiter.
    #[test]
    fn recheck_of_an_old_extension_has_a_pause_too() {
        let (ttl, ms) = (Duration::from_secs(10), Duration::from_millis);
        let after = |since_sent| [recheck_pause(ttl, since_sent, 0.0), recheck_pause(ttl, since_sent, 1.0)];
        assert_eq!(after(Duration::ZERO), [4500, 5500].map(ms));
        assert_eq!(after(ms(2000)), [2500, 3500].map(ms));
        assert_eq!(after(ms(4000)), [1000, 1500].map(ms));
        assert_eq!(after(ms(5_000_000)), [1000, 1000].map(ms));
    }
}
