//! The registry of one session: the claims that may have an entry at the server.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use lockkit_core::{
    BootInstant, FencingToken,
    backend::ClaimId,
    support::{BrokenHolds, lock},
};
use tokio::sync::{Notify, watch};

use super::{
    powers::Pin,
    waiting::{Push, WaitExtension},
};
use crate::keys::LockKeys;

/// All claims of a session, from before their first request to their confirmed end.
#[derive(Debug, Default)]
pub(crate) struct ClaimRegistry {
    table: Mutex<HashMap<ClaimId, Arc<ClaimEntry>>>,
    /// Notified when an acquire ends.
    settled: Notify,
    /// At most one for each claim in the table.
    pub(crate) broken: BrokenHolds,
    /// How many connections have ended or begun. What comes over two of them cannot be compared.
    gaps: AtomicU64,
}

impl ClaimRegistry {
    /// Adds a claim, before its first request is sent.
    pub(crate) fn enter(&self, id: ClaimId, keys: LockKeys, is_candidate: bool) -> Arc<ClaimEntry> {
        let entry = Arc::new(ClaimEntry {
            id,
            observers: is_candidate.then(|| keys.leader_channel()),
            metadata_stored_at: Mutex::default(),
            keys,
            is_acquiring: AtomicBool::new(true),
            is_queued: AtomicBool::default(),
            is_in_doubt: AtomicBool::default(),
            release_began: Mutex::default(),
            pin: Mutex::default(),
            is_released: AtomicBool::default(),
            is_broken: AtomicBool::default(),
            wake_up: Notify::new(),
            pushed: Mutex::default(),
            last_extension: OnceLock::new(),
        });
        self.lock().insert(id, Arc::clone(&entry));
        entry
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Arc<ClaimEntry>> {
        self.lock().get(&id).cloned()
    }

    /// Removes a claim that has no entry at the server.
    pub(crate) fn forget(&self, id: ClaimId) {
        self.lock().remove(&id);
    }

    /// Removes holds whose release began at least `ago` ago, confirmed or not: nothing has renewed them since. A pinned
    /// one is kept until its pin has ended.
    pub(crate) fn forget_ended(&self, now: BootInstant, ago: Duration) {
        let has_ended = |entry: &ClaimEntry| {
            entry.release_began().is_some_and(|began| began.after(ago) < now) && entry.pin_left(now).is_zero()
        };
        self.lock().retain(|_, entry| !has_ended(entry));
    }

    /// Notes that the acquire of this claim has ended, with or without a grant.
    pub(crate) fn settle(&self, entry: &ClaimEntry) {
        entry.is_queued.store(false, SeqCst);
        entry.is_acquiring.store(false, SeqCst);
        self.settled.notify_waiters();
        self.report_if_broken(entry);
    }

    /// Notes that the hold of this claim was broken.
    pub(crate) fn note_broken(&self, id: ClaimId) {
        if let Some(entry) = self.get(id) {
            entry.is_broken.store(true, SeqCst);
            self.report_if_broken(&entry);
        }
    }

    /// Reports the hold once, and not before its acquire has ended: until then nobody knows it.
    fn report_if_broken(&self, entry: &ClaimEntry) {
        if !entry.is_acquiring.load(SeqCst) && entry.take_broken() {
            self.broken.add(entry.id);
        }
    }

    /// Waits until no acquire is under way.
    pub(crate) async fn all_settled(&self) {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            // Registered before the check, so an acquire that ends in between is not missed.
            settled.as_mut().enable();
            if !self.all().iter().any(|entry| entry.is_acquiring.load(SeqCst)) {
                return;
            }
            settled.await;
        }
    }

    /// Wakes a claim that a message names.
    pub(crate) fn wake(&self, id: ClaimId) {
        if let Some(entry) = self.get(id) {
            entry.wake();
        }
    }

    /// Notes that a message has granted the lock to a claim, and wakes it.
    pub(crate) fn push(&self, id: ClaimId, token: FencingToken) {
        if let Some(entry) = self.get(id) {
            *lock(&entry.pushed) = Some(Push { token, gaps: self.gaps() });
            entry.wake();
        }
    }

    /// Notes that a connection has ended or begun.
    pub(crate) fn note_gap(&self) {
        self.gaps.fetch_add(1, SeqCst);
    }

    /// Returns how many connections have ended or begun so far.
    pub(crate) fn gaps(&self) -> u64 {
        self.gaps.load(SeqCst)
    }

    /// Wakes all claims: messages may have been lost.
    pub(crate) fn wake_all(&self) {
        for entry in self.all() {
            entry.wake();
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<ClaimEntry>> {
        self.lock().values().cloned().collect()
    }

    /// Returns the claims that are known to wait in a queue.
    pub(crate) fn queued_claims(&self) -> Vec<Arc<ClaimEntry>> {
        self.lock().values().filter(|entry| entry.is_queued.load(SeqCst)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<ClaimEntry>>> {
        lock(&self.table)
    }
}

/// What a session knows of one claim.
#[derive(Debug)]
pub(crate) struct ClaimEntry {
    pub(crate) id: ClaimId,
    pub(crate) keys: LockKeys,
    /// The channel of the observers of the leader, if the claim takes part in an election.
    pub(crate) observers: Option<String>,
    /// When the metadata of a candidate were last known to be stored for their full time.
    metadata_stored_at: Mutex<Option<BootInstant>>,
    is_acquiring: AtomicBool,
    is_queued: AtomicBool,
    is_in_doubt: AtomicBool,
    /// When its release was first requested; nothing renews it from then on.
    release_began: Mutex<Option<BootInstant>>,
    pin: Mutex<Option<Pin>>,
    /// Whether its release was requested, which ends a pin.
    is_released: AtomicBool,
    /// Whether a message said that its hold was broken, which the session has not reported yet.
    is_broken: AtomicBool,
    wake_up: Notify,
    /// The last message that the claim was granted the lock, until it is looked at.
    pushed: Mutex<Option<Push>>,
    /// Set once it waits.
    last_extension: OnceLock<watch::Sender<Option<WaitExtension>>>,
}

impl ClaimEntry {
    /// Returns whether the metadata of a candidate were stored longer ago than this; if so, counts from now on.
    pub(crate) fn is_metadata_older(&self, age: Duration, now: BootInstant) -> bool {
        let mut metadata_stored_at = lock(&self.metadata_stored_at);
        let is_older = self.observers.is_some() && now.since(*metadata_stored_at.get_or_insert(now)) > age;
        if is_older {
            *metadata_stored_at = Some(now);
        }
        is_older
    }

    pub(crate) fn mark_queued(&self) {
        self.is_queued.store(true, SeqCst);
    }

    /// Notes that the claim no longer wants the lock: no later heartbeat extends its wait.
    pub(crate) fn end_wait(&self) {
        self.is_queued.store(false, SeqCst);
    }

    /// Notes that a request that may have left an entry was not answered.
    pub(crate) fn mark_in_doubt(&self) {
        self.is_in_doubt.store(true, SeqCst);
    }

    /// Returns whether an ungranted claim may have entries at the server.
    pub(crate) fn may_have_entries(&self) -> bool {
        self.is_queued.load(SeqCst) || self.is_in_doubt.load(SeqCst)
    }

    pub(crate) fn begin_release(&self, now: BootInstant) {
        self.release_began().get_or_insert(now);
    }

    /// Notes a renewal: the hold no longer expires by itself.
    pub(crate) fn renew(&self) {
        self.release_began().take();
    }

    /// Notes a pin, unless the present one lasts longer.
    pub(crate) fn pin(&self, since: BootInstant, at_least: Duration) {
        let (pin, mut latest) = (Pin { since, at_least }, lock(&self.pin));
        if latest.is_none_or(|latest| latest.left(since) < at_least) {
            *latest = Some(pin);
        }
    }

    /// Returns the time until its pin ends; zero without a pin.
    pub(crate) fn pin_left(&self, now: BootInstant) -> Duration {
        lock(&self.pin).map_or(Duration::ZERO, |pin| pin.left(now))
    }

    /// Notes that its release was requested.
    pub(crate) fn mark_released(&self) {
        self.is_released.store(true, SeqCst);
    }

    /// Returns whether the end of the session must leave its lock, which is pinned.
    pub(crate) fn outlives_session(&self, now: BootInstant) -> bool {
        !self.is_released.load(SeqCst) && !self.pin_left(now).is_zero()
    }

    /// Returns whether its hold was broken before its acquire has ended; then the loss need not be reported.
    pub(crate) fn take_broken(&self) -> bool {
        self.is_broken.swap(false, SeqCst)
    }

    fn release_began(&self) -> MutexGuard<'_, Option<BootInstant>> {
        lock(&self.release_began)
    }

    pub(crate) fn wake(&self) {
        self.wake_up.notify_one();
    }

    /// Waits until the claim is woken.
    pub(crate) async fn woken(&self) {
        self.wake_up.notified().await;
    }

    /// Takes the last message that granted the lock. Returns its token, and when the last answer to the waiting claim was
    /// requested; `None` unless the grant was made after that answer, so that the lifetime of the lock began later.
    pub(crate) fn take_pushed(&self) -> Option<(FencingToken, BootInstant)> {
        let (push, extension) = (lock(&self.pushed).take()?, (*self.last_extension.get()?.borrow())?);
        extension.precedes(push).then_some((push.token, extension.sent.at))
    }

    /// Notes that a heartbeat or a re-check has extended the wait.
    pub(crate) fn extend(&self, extension: WaitExtension) {
        self.last_extension().send_replace(Some(extension));
    }

    /// Returns a receiver of the last extension and of all later ones.
    pub(crate) fn extensions(&self) -> watch::Receiver<Option<WaitExtension>> {
        self.last_extension().subscribe()
    }

    fn last_extension(&self) -> &watch::Sender<Option<WaitExtension>> {
        self.last_extension.get_or_init(|| watch::Sender::new(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::keys;

    #[tokio::test]
    async fn wake_before_the_wait_is_not_lost() {
        let (claims, id) = (ClaimRegistry::default(), ClaimId::random());
        let entry = claims.enter(id, keys(), false);
        claims.wake(ClaimId::random());
        claims.wake(id);
        entry.woken().await;
    }

    /// Else each heartbeat would store them again.
    #[test]
    fn metadata_are_stored_again_once_they_are_old() {
        let (claims, start) = (ClaimRegistry::default(), BootInstant::from_start(Duration::ZERO));
        let seconds = Duration::from_secs;
        for (is_candidate, expected) in [(true, [0, 0, 1, 0, 0, 1]), (false, [0; 6])] {
            let entry = claims.enter(ClaimId::random(), keys(), is_candidate);
            let found = [0, 10, 11, 12, 21, 22]
                .map(|now| u8::from(entry.is_metadata_older(seconds(10), start.after(seconds(now)))));
            assert_eq!(found, expected);
        }
    }

    /// The server's clock may be one per cent slower than this one.
    #[test]
    fn rest_of_a_pin_is_never_too_short() {
        let (claims, start) = (ClaimRegistry::default(), BootInstant::from_start(Duration::ZERO));
        let (entry, seconds) = (claims.enter(ClaimId::random(), keys(), false), Duration::from_secs);
        assert_eq!(entry.pin_left(start), Duration::ZERO);
        entry.pin(start, seconds(200));
        entry.pin(start, seconds(50));
        assert_eq!(entry.pin_left(start), seconds(200));
        assert_eq!(entry.pin_left(start.after(seconds(100))), seconds(101));
        assert_eq!(entry.pin_left(start.after(seconds(300))), Duration::ZERO);
        assert!(entry.outlives_session(start));
        entry.mark_released();
        assert!(!entry.outlives_session(start));
    }

    /// Else a release that is repeated would succeed without a confirmation.
    #[test]
    fn ended_hold_is_known_until_its_pin_ends() {
        let (claims, id, start) =
            (ClaimRegistry::default(), ClaimId::random(), BootInstant::from_start(Duration::ZERO));
        let entry = claims.enter(id, keys(), false);
        entry.pin(start, Duration::from_secs(99));
        entry.begin_release(start);
        for (seconds, is_known) in [(50, true), (101, false)] {
            claims.forget_ended(start.after(Duration::from_secs(seconds)), Duration::from_secs(1));
            assert_eq!(claims.get(id).is_some(), is_known, "after {seconds} s");
        }
    }

    #[tokio::test]
    async fn close_waits_for_every_acquire() {
        let claims = Arc::new(ClaimRegistry::default());
        let entries = [(); 2].map(|()| claims.enter(ClaimId::random(), keys(), false));
        let waiting = tokio::spawn({
            let claims = Arc::clone(&claims);
            async move { claims.all_settled().await }
        });
        claims.settle(&entries[0]);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        claims.settle(&entries[1]);
        waiting.await.unwrap();
    }
}
