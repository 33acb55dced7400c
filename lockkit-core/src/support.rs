//! What backends share. It is public for authors of backends; the crate `lockkit` does not export it.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    sync::Mutex,
    time::Duration,
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub use crate::sync::{lock, unpoisoned};
use crate::{
    BootInstant, LockName,
    backend::{ClaimId, retry_pauses},
    limits::BUSY_LOCKS_MAX,
};

/// Whether a session is open, lost or closed. Cheap to clone; shared by everything that works for the session.
#[derive(Clone, Debug, Default)]
pub struct SessionState {
    over: CancellationToken,
    closed: CancellationToken,
}

/// The session is over: the answer to work that was dropped or not begun because of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "backends make it, and it says everything")]
pub struct SessionOver;

/// No reply has come in time: the request may still be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoReply;

impl SessionState {
    /// Marks the session lost locally: the server reported its end, or the client abandons it. The keeper closes the
    /// session at the server later, after it has marked the holds lost.
    pub fn mark_lost(&self) {
        self.over.cancel();
    }

    /// Marks the session closed by the client.
    pub fn mark_closed(&self) {
        self.closed.cancel();
        self.over.cancel();
    }

    /// Returns whether the session is lost or closed.
    pub fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Returns whether the client has closed the session.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until the session is lost or closed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn over(&self) -> impl Future<Output = ()> + Send {
        self.over.cancelled()
    }

    /// Waits until the client closes the session.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn closed(&self) -> impl Future<Output = ()> + Send {
        self.closed.cancelled()
    }

    /// Runs `work`, or drops it when the session is over: the effects that it had at the server end with the session.
    ///
    /// # Errors
    ///
    /// Those of `work`, and [`SessionOver`].
    ///
    /// # Cancel safety
    ///
    /// As `work`.
    pub async fn unless_over<T, E: From<SessionOver>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            () = self.over() => Err(SessionOver.into()),
            answer = work => answer,
        }
    }

    /// Repeats the withdrawal of a claim while its failures are transient. Ends without an error when the session is
    /// over: what the claim has left ends with it.
    ///
    /// # Errors
    ///
    /// The first failure that is not transient.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: what the claim has left may stay.
    pub async fn repeat_withdrawal<E: Debug, F: Future<Output = Result<(), E>>>(
        &self,
        claim: ClaimId,
        is_transient: impl Fn(&E) -> bool,
        withdraw: impl Fn() -> F,
    ) -> Result<(), E> {
        let mut pauses = retry_pauses();
        while !self.is_over() {
            match withdraw().await {
                Err(fault) if is_transient(&fault) => debug!(?fault, ?claim, "not withdrawn yet"),
                answer => return answer,
            }
            tokio::select! {
                () = pauses.wait() => {}
                () = self.over() => {}
            }
        }
        Ok(())
    }
}

/// Awaits the reply to a request for at most this time. After that the effect of the request is unknown: it may still be
/// executed.
///
/// # Errors
///
/// Those of the request, and [`NoReply`].
///
/// # Cancel safety
///
/// As the request.
pub async fn bounded<T, E: From<NoReply>>(
    limit: Duration,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(NoReply.into()))
}

/// The locks that tries of one session have recently found busy.
#[derive(Debug)]
pub struct RecentlyBusy {
    busy_for: Duration,
    found_at: Mutex<HashMap<LockName, BootInstant>>,
}

impl RecentlyBusy {
    /// Returns an empty table. A lock counts as busy for this time after a try has found it busy.
    pub fn new(busy_for: Duration) -> Self {
        Self { busy_for, found_at: Mutex::default() }
    }

    /// Records that a try has found the lock busy.
    pub fn record(&self, name: &LockName, now: BootInstant) {
        let mut found_at = lock(&self.found_at);
        if found_at.len() >= BUSY_LOCKS_MAX && !found_at.contains_key(name) {
            found_at.retain(|_, at| now.since(*at) < self.busy_for);
            if found_at.len() >= BUSY_LOCKS_MAX {
                let oldest = found_at.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name.clone());
                oldest.and_then(|oldest| found_at.remove(&oldest));
            }
        }
        found_at.insert(name.clone(), now);
    }

    /// Returns whether a try has recently found the lock busy.
    pub fn contains(&self, name: &LockName, now: BootInstant) -> bool {
        lock(&self.found_at).get(name).is_some_and(|at| now.since(*at) < self.busy_for)
    }

    /// Forgets a lock that is not busy any more.
    pub fn remove(&self, name: &LockName) {
        lock(&self.found_at).remove(name);
    }
}

/// The holds of one session that operators have broken, and whose loss it has not reported yet.
#[derive(Debug, Default)]
pub struct BrokenHolds {
    unreported: Mutex<HashSet<ClaimId>>,
    added: Notify,
}

impl BrokenHolds {
    /// Adds a hold of the session, which bounds their number.
    pub fn add(&self, hold: ClaimId) {
        lock(&self.unreported).insert(hold);
        self.added.notify_one();
    }

    /// Removes and returns the next one; waits for it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: after a removal it does not wait.
    pub async fn next(&self) -> ClaimId {
        loop {
            if let Some(hold) = self.take() {
                return hold;
            }
            // A notification that came since is kept.
            self.added.notified().await;
        }
    }

    fn take(&self) -> Option<ClaimId> {
        let mut unreported = lock(&self.unreported);
        let hold = unreported.iter().next().copied()?;
        unreported.remove(&hold);
        Some(hold)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        task::{Context, Wake, Waker},
    };

    use tokio::time::{Instant, sleep, timeout};

    use super::*;
    use crate::limits::RETRY_PAUSE_MIN;

    fn name(number: usize) -> LockName {
        LockName::new(format!("job-{number}")).unwrap()
    }

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_start(Duration::from_secs(seconds))
    }

    #[tokio::test]
    async fn work_ends_with_the_session() {
        for (end, is_closed) in
            [(SessionState::mark_lost as fn(&SessionState), false), (SessionState::mark_closed, true)]
        {
            let state = SessionState::default();
            assert_eq!(state.unless_over(async { Ok::<_, SessionOver>(1) }).await, Ok(1));
            end(&state);
            assert!(state.is_over());
            assert_eq!(state.is_closed(), is_closed);
            let never = std::future::pending::<Result<(), SessionOver>>();
            assert_eq!(state.unless_over(never).await, Err(SessionOver));
            // Not even begun.
            assert_eq!(state.unless_over(async { Ok(1) }).await, Err(SessionOver));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn withdrawal_that_pauses_ends_with_its_session() {
        let (state, start) = (SessionState::default(), Instant::now());
        let unanswered = || std::future::ready(Err(NoReply));
        let withdrawing = state.repeat_withdrawal(ClaimId::random(), |_| true, unanswered);
        let (withdrawn, ()) = tokio::join!(withdrawing, async {
            sleep(RETRY_PAUSE_MIN / 2).await;
            state.mark_lost();
        });
        assert_eq!(withdrawn, Ok(()));
        assert!(start.elapsed() < RETRY_PAUSE_MIN, "{:?}", start.elapsed());
    }

    /// What a task finds that the end of its session wakes on another thread.
    #[test]
    fn session_that_was_closed_is_closed_when_its_end_is_seen() {
        #[derive(Default)]
        struct Woken(SessionState, AtomicBool);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.1.store(self.0.is_closed(), Ordering::SeqCst);
            }
        }
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut over = pin!(woken.0.over());
        assert!(over.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        woken.0.mark_closed();
        assert!(woken.1.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_waits_learns_of_a_broken_hold() {
        let (broken, hold) = (BrokenHolds::default(), ClaimId::random());
        let reported = async {
            tokio::task::yield_now().await;
            broken.add(hold);
        };
        let waiting = timeout(Duration::from_secs(1), broken.next());
        assert_eq!(tokio::join!(waiting, reported).0.unwrap(), hold);
    }

    #[tokio::test]
    async fn each_broken_hold_is_reported_once() {
        let (broken, holds) = (BrokenHolds::default(), [ClaimId::random(), ClaimId::random()]);
        for hold in [holds[0], holds[1], holds[0]] {
            broken.add(hold);
        }
        assert_eq!(HashSet::from([broken.next().await, broken.next().await]), HashSet::from(holds));
        assert!(timeout(Duration::ZERO, broken.next()).await.is_err());
    }

    #[test]
    fn lock_that_is_busy_again_is_remembered_from_then_on() {
        let busy = RecentlyBusy::new(Duration::from_secs(60));
        busy.record(&name(1), at(10));
        busy.record(&name(1), at(50));
        assert!(busy.contains(&name(1), at(109)) && !busy.contains(&name(1), at(110)));
    }

    #[test]
    fn busy_lock_is_remembered_for_a_time() {
        let busy = RecentlyBusy::new(Duration::from_secs(60));
        busy.record(&name(1), at(10));
        assert!(busy.contains(&name(1), at(69)) && !busy.contains(&name(2), at(10)));
        assert!(!busy.contains(&name(1), at(70)));
        busy.remove(&name(1));
        assert!(!busy.contains(&name(1), at(10)));
    }

    #[test]
    fn remembered_locks_are_bounded_and_the_oldest_is_forgotten() {
        let busy = RecentlyBusy::new(Duration::from_secs(60));
        (0..BUSY_LOCKS_MAX).for_each(|number| busy.record(&name(number), at(number as u64 / 100)));
        // A lock that is remembered already displaces none.
        busy.record(&name(0), at(20));
        assert!(busy.contains(&name(1), at(20)));
        busy.record(&name(BUSY_LOCKS_MAX), at(20));
        assert_eq!(lock(&busy.found_at).len(), BUSY_LOCKS_MAX);
        assert!(busy.contains(&name(0), at(20)) && busy.contains(&name(BUSY_LOCKS_MAX), at(20)));
        // Those of the first second are as old as each other.
        let forgotten = (1..100).filter(|number| !busy.contains(&name(*number), at(20)));
        assert_eq!(forgotten.count(), 1);
        // Those that are too old go first.
        busy.record(&name(BUSY_LOCKS_MAX + 1), at(65));
        assert!(lock(&busy.found_at).len() < BUSY_LOCKS_MAX - 400);
    }
}
