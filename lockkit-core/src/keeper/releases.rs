//! Giving entries back, and the releases that the store has not confirmed.
//!
//! The task of a claim sends its release. One that is not confirmed goes into a queue of its session, which a few
//! workers go through again and again: however many guards are dropped while releases fail, they leave entries in a
//! queue, not tasks. What can happen to them:
//!
//! * The store answers late, or its answer was lost: a later try is confirmed.
//! * The store refuses for good (a right was taken away while the lock was held): after one ttl the session is
//!   abandoned where it keeps entries alive; a hold with a lifetime of its own has ended by then.
//! * The session ends: that ends them all.
//! * The runtime ends: the queue is dropped, and each [`CleanupGuard`] in it answers its guard.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{Instrument, debug, debug_span, warn};

use super::{Keeper, caught, cleanup::CleanupGuard, hold::Hold, session::Live};
use crate::{
    BootInstant, Error, ErrorKind, Result,
    backend::{Grant, Lifetime, retry_pauses},
    limits::{RELEASE_WORKERS_MAX, RETRY_PAUSE_MAX},
    sync::{Mutex, lock},
};

/// The releases of one session that the store has not confirmed.
#[derive(Debug, Default)]
pub(super) struct Releases(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// By the moment of the next try; the number tells those of one moment apart.
    due: BTreeMap<(Instant, u64), Unconfirmed>,
    next_number: u64,
    workers: usize,
}

/// A release that is not confirmed yet.
struct Unconfirmed {
    grant: Grant,
    /// From then on it is not tried again.
    until: BootInstant,
    pauses: Box<dyn Iterator<Item = Duration> + Send>,
    /// None for a grant that came too late: no guard waits for its release.
    cleanup: Option<CleanupGuard>,
}

impl Releases {
    /// How many wait for their next try.
    pub(super) fn len(&self) -> usize {
        lock(&self.0).due.len()
    }

    fn push(&self, mut unconfirmed: Unconfirmed, now: BootInstant) {
        let pause = unconfirmed.pauses.next().unwrap_or(RETRY_PAUSE_MAX);
        // The last try is due when the time for tries ends, and not a pause later.
        let due = Instant::now() + pause.min(unconfirmed.until.since(now));
        let mut queue = lock(&self.0);
        let number = queue.next_number;
        queue.next_number += 1;
        queue.due.insert((due, number), unconfirmed);
    }

    /// The release that is due first; a worker that finds none ends.
    fn pop(&self) -> Option<(Instant, Unconfirmed)> {
        let mut queue = lock(&self.0);
        let first = queue.due.pop_first().map(|((due, _), unconfirmed)| (due, unconfirmed));
        queue.workers -= usize::from(first.is_none());
        first
    }

    /// Whether one more worker shall begin.
    fn wants_worker(&self) -> bool {
        let mut queue = lock(&self.0);
        let wants = queue.workers < RELEASE_WORKERS_MAX;
        queue.workers += usize::from(wants);
        wants
    }
}

impl Keeper {
    /// Gives the entry of an ended hold back, or of a grant that came too late. What is not confirmed at once is left
    /// to the workers, for at most one ttl; where holds have no lifetime, until it is confirmed.
    pub(super) async fn give_back(
        self: &Arc<Self>,
        live: &Arc<Live>,
        grant: Grant,
        cleanup: Option<CleanupGuard>,
    ) {
        let until = match self.info.lifetime {
            Lifetime::Session | Lifetime::Hold => self.clock.now().after(live.ttl()),
            Lifetime::Process => BootInstant::NEVER,
        };
        let release = Unconfirmed { grant, until, pauses: Box::new(retry_pauses()), cleanup };
        if let Some(unconfirmed) = self.try_release(live, release).await {
            live.releases().push(unconfirmed, self.clock.now());
            if live.releases().wants_worker() {
                let work = Arc::clone(self).retry_releases(Arc::clone(live));
                self.runtime.spawn(self.lives.track_future(work.instrument(debug_span!("releases"))));
            }
        }
    }

    /// One worker: tries what is due first, until nothing is left.
    async fn retry_releases(self: Arc<Self>, live: Arc<Live>) {
        while let Some((due, release)) = live.releases().pop() {
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                () = live.ended() => {}
            }
            if let Some(unconfirmed) = self.try_release(&live, release).await {
                live.releases().push(unconfirmed, self.clock.now());
            }
        }
    }

    /// Tries once; the release again when it has to be tried again.
    async fn try_release(&self, live: &Live, release: Unconfirmed) -> Option<Unconfirmed> {
        let name = release.grant.name();
        // The end of a session that carries the holds ends this one too, and the client that closes ends its session.
        let closing = self.info.lifetime == Lifetime::Session && self.closing.is_cancelled();
        if live.has_ended() || (closing && release.hold().is_some_and(|hold| hold.loss().is_some())) {
            let error = Error::new(ErrorKind::Unavailable, "release").with_lock(name);
            release.finish(Err(error.with_message("the session ended before the store had confirmed it")));
            return None;
        }
        let released = caught("release", live.session().release(&release.grant)).await;
        let error = match released.unwrap_or_else(Err) {
            Ok(()) => {
                release.finish(Ok(()));
                return None;
            }
            Err(error) => error,
        };
        debug!(token = %release.grant.token(), error = format_args!("{error:#}"), "not released yet");
        if self.clock.now() < release.until {
            if let Some(hold) = release.hold() {
                hold.release_failed(error);
            }
            return Some(release);
        }
        let mut outcome = Error::new(error.kind(), "release").with_lock(name).with_source(error);
        if self.info.lifetime == Lifetime::Session {
            warn!(token = %release.grant.token(), error = format_args!("{outcome:#}"), "release given up");
            live.abandon("a release was not confirmed for a ttl");
            outcome =
                outcome.with_message("not confirmed for a ttl; the session was ended, which frees the lock");
        }
        release.finish(Err(outcome));
        None
    }
}

impl Unconfirmed {
    fn hold(&self) -> Option<&Arc<Hold>> {
        self.cleanup.as_ref().and_then(CleanupGuard::hold)
    }

    fn finish(self, outcome: Result<()>) {
        if let Some(hold) = self.hold() {
            hold.finish(outcome);
            debug!(token = %self.grant.token(), "hold ended");
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("due", &self.due.len()).field("workers", &self.workers).finish()
    }
}
