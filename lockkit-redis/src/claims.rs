//! The claims of one session that may have left something at the server.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_core::{BootInstant, backend::ClaimId};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{keys::LockKeys, scripts::Pttl};

/// Redis counts whole milliseconds, and a key has expired when its last one is over.
const ROUNDING: Duration = Duration::from_millis(1);

/// All claims of a session, from before their first request to their confirmed end.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    table: Mutex<HashMap<ClaimId, Arc<Place>>>,
    /// Notified when an acquire ends.
    settled: Notify,
}

impl Claims {
    /// Notes a claim before its first request is sent.
    pub(crate) fn enter(&self, id: ClaimId, keys: LockKeys) -> Arc<Place> {
        let place = Arc::new(Place {
            id,
            keys,
            is_acquiring: AtomicBool::new(true),
            is_queued: AtomicBool::default(),
            is_in_doubt: AtomicBool::default(),
            release_began: Mutex::default(),
            news: Notify::new(),
            last_kept: watch::Sender::new(None),
        });
        self.lock().insert(id, Arc::clone(&place));
        place
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Arc<Place>> {
        self.lock().get(&id).cloned()
    }

    /// Forgets a claim of which nothing is left at the server.
    pub(crate) fn forget(&self, id: ClaimId) {
        self.lock().remove(&id);
    }

    /// Forgets holds whose release began so long ago, whoever has confirmed it: nobody has renewed them since.
    pub(crate) fn forget_ended(&self, now: BootInstant, ago: Duration) {
        let has_ended = |place: &Place| place.release_began().is_some_and(|began| began.after(ago) < now);
        self.lock().retain(|_, place| !has_ended(place));
    }

    /// The acquire of this claim has ended, whatever it has left.
    pub(crate) fn settle(&self, place: &Place) {
        place.is_queued.store(false, SeqCst);
        place.is_acquiring.store(false, SeqCst);
        self.settled.notify_waiters();
    }

    /// Waits until no acquire is under way.
    pub(crate) async fn all_settled(&self) {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            // Listens from here on, before the look.
            settled.as_mut().enable();
            if !self.all().iter().any(|place| place.is_acquiring.load(SeqCst)) {
                return;
            }
            settled.await;
        }
    }

    /// The server has said something that may be about this claim.
    pub(crate) fn wake(&self, id: ClaimId) {
        if let Some(place) = self.get(id) {
            place.wake();
        }
    }

    /// What the server has said lately may not have arrived.
    pub(crate) fn wake_all(&self) {
        for place in self.all() {
            place.wake();
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Place>> {
        self.lock().values().cloned().collect()
    }

    /// The claims that are known to wait in a queue.
    pub(crate) fn queued(&self) -> Vec<Arc<Place>> {
        self.lock().values().filter(|place| place.is_queued.load(SeqCst)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Place>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One claim, as far as its session knows.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) id: ClaimId,
    pub(crate) keys: LockKeys,
    is_acquiring: AtomicBool,
    is_queued: AtomicBool,
    is_in_doubt: AtomicBool,
    /// When its release was first asked for; nothing renews it since.
    release_began: Mutex<Option<BootInstant>>,
    news: Notify,
    last_kept: watch::Sender<Option<Kept>>,
}

/// What the server answered when it moved the deadline of a waiting claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// When that was asked for.
    pub(crate) sent_at: BootInstant,
    /// When the lock ends by itself; `None`: not before somebody deletes it.
    pub(crate) lock_ends: Option<Instant>,
}

impl Kept {
    /// The server has just answered that the lock lives for so long.
    pub(crate) fn new(sent_at: BootInstant, pttl: Pttl) -> Self {
        let ends = |pttl| Instant::now() + Duration::from_millis(pttl) + ROUNDING;
        // Nobody holds a lock with less than -1.
        let lock_ends = if pttl < -1 { Some(Instant::now()) } else { u64::try_from(pttl).ok().map(ends) };
        Self { sent_at, lock_ends }
    }
}

impl Place {
    pub(crate) fn queued(&self) {
        self.is_queued.store(true, SeqCst);
    }

    /// A request that may have left something at the server was not answered.
    pub(crate) fn put_in_doubt(&self) {
        self.is_in_doubt.store(true, SeqCst);
    }

    /// Whether something of the claim may be at the server without a grant.
    pub(crate) fn may_have_left_something(&self) -> bool {
        self.is_queued.load(SeqCst) || self.is_in_doubt.load(SeqCst)
    }

    pub(crate) fn begin_release(&self, now: BootInstant) {
        self.release_began().get_or_insert(now);
    }

    /// It is renewed, so it does not end by itself.
    pub(crate) fn renew(&self) {
        self.release_began().take();
    }

    fn release_began(&self) -> MutexGuard<'_, Option<BootInstant>> {
        self.release_began.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self) {
        self.news.notify_one();
    }

    /// Waits for a reason to confirm.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// The claim goes on waiting, by a heartbeat or a look of its own.
    pub(crate) fn keep(&self, kept: Kept) {
        self.last_kept.send_replace(Some(kept));
    }

    /// What the server has answered last, and whatever it answers later.
    pub(crate) fn kept(&self) -> watch::Receiver<Option<Kept>> {
        self.last_kept.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::LockName;

    use super::*;
    use crate::keys::{Layout, Names};

    fn keys() -> LockKeys {
        Layout::new("", Names::Encoded, false).keys(&LockName::new("x").unwrap()).unwrap()
    }

    #[tokio::test]
    async fn news_before_the_wait_are_not_lost() {
        let (claims, id) = (Claims::default(), ClaimId::random());
        let place = claims.enter(id, keys());
        claims.wake(ClaimId::random());
        claims.wake(id);
        place.news().await;
    }

    #[tokio::test]
    async fn a_close_waits_for_every_acquire() {
        let claims = Arc::new(Claims::default());
        let places = [claims.enter(ClaimId::random(), keys()), claims.enter(ClaimId::random(), keys())];
        let waiting = tokio::spawn({
            let claims = Arc::clone(&claims);
            async move { claims.all_settled().await }
        });
        claims.settle(&places[0]);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        claims.settle(&places[1]);
        waiting.await.unwrap();
    }
}
