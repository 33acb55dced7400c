//! Outages: times in which no endpoint serves a client. All requests of the client share them.
//!
//! Otherwise each request would detect the outage for itself and retry for itself. With a thousand waiters, servers
//! that come back would face hundreds of thousands of requests per second. So during an outage the requests of a client
//! take turns, with growing pauses between the turns, and the first reply ends the outage for all of them.
//!
//! One endpoint may not be trusted while the others cannot be reached. Turns reach them in any order. So a failure that may
//! pass is reported for [`FAULT_KEPT_MAX`] instead of later ones that last. After that the servers may be back with
//! certificates that are not trusted, and an operator must learn that.

use std::{
    sync::{Mutex as StdMutex, MutexGuard},
    time::Duration,
};

use lockkit_core::support::lock;
use tokio::{
    sync::{Mutex, Notify},
    time::{Instant, sleep_until, timeout_at},
};

use crate::error::RequestError;

/// First pause between two turns. Short, because a live endpoint may only be slower to connect than dead ones are to
/// refuse.
const TURN_PAUSE_MIN: Duration = Duration::from_millis(5);

/// Longest mean pause between two turns. Short enough for heartbeats, which wait for their turn too.
const TURN_PAUSE_MAX: Duration = Duration::from_millis(250);

/// How long a failure that may pass is reported instead of a lack of trust. Several turns long, since each turn may reach
/// only the endpoint that is not trusted.
const FAULT_KEPT_MAX: Duration = TURN_PAUSE_MAX.saturating_mul(8);

/// The current outage, if any.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    ongoing: StdMutex<Option<Ongoing>>,
    turn: Mutex<()>,
    over: Notify,
}

#[derive(Debug)]
struct Ongoing {
    /// What a request fails with whose turn does not come in time.
    fault: RequestError,
    /// When that failure was reported.
    failed_at: Instant,
    pause: Duration,
    next_turn: Instant,
}

impl Outage {
    /// Waits for this request's turn; returns at once without an outage. Fails at `until`, with the fault of an earlier
    /// request.
    pub(crate) async fn turn(&self, until: Instant) -> Result<(), RequestError> {
        if self.next_turn().is_none() {
            return Ok(());
        }
        let waited = timeout_at(until, self.wait_for_turn()).await;
        let fault = self.lock().as_ref().map(|ongoing| ongoing.fault.clone());
        match (waited, fault) {
            (Err(_), Some(fault)) => Err(fault),
            _ => Ok(()),
        }
    }

    async fn wait_for_turn(&self) {
        let _turn = self.turn.lock().await;
        let over = self.over.notified();
        let Some(next_turn) = self.next_turn() else { return };
        tokio::select! {
            () = sleep_until(next_turn) => {}
            () = over => {}
        }
        if let Some(ongoing) = &mut *self.lock() {
            ongoing.pause = (ongoing.pause * 2).min(TURN_PAUSE_MAX);
            ongoing.next_turn = Instant::now() + jittered(ongoing.pause);
        }
    }

    /// Reports that no endpoint has served a request.
    pub(crate) fn report(&self, fault: RequestError) {
        let now = Instant::now();
        match &mut *self.lock() {
            Some(ongoing) => {
                let is_recent = now - ongoing.failed_at < FAULT_KEPT_MAX;
                if fault.may_pass() || !ongoing.fault.may_pass() || !is_recent {
                    (ongoing.fault, ongoing.failed_at) = (fault, now);
                }
            }
            none => {
                let (pause, next_turn) = (TURN_PAUSE_MIN, now + jittered(TURN_PAUSE_MIN));
                *none = Some(Ongoing { fault, failed_at: now, pause, next_turn });
            }
        }
    }

    /// Ends the outage: a request was served.
    pub(crate) fn end(&self) {
        if self.lock().take().is_some() {
            self.over.notify_waiters();
        }
    }

    fn next_turn(&self) -> Option<Instant> {
        self.lock().as_ref().map(|ongoing| ongoing.next_turn)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ongoing>> {
        lock(&self.ongoing)
    }
}

/// Varies a pause by up to a quarter, so that the clients of a cluster do not send in step.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(fastrand::f64().mul_add(0.5, 0.75))
}

#[cfg(test)]
mod tests {
    use lockkit_core::ErrorKind;

    use super::*;
    use crate::error::Effect;

    const FAR: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn pauses_between_turns_grow_to_their_bound() {
        let outage = Outage::default();
        outage.report(RequestError::no_reply());
        let mut pauses = Vec::new();
        for _ in 0..20 {
            let start = Instant::now();
            outage.turn(start + FAR).await.unwrap();
            outage.report(RequestError::no_reply());
            pauses.push(start.elapsed());
        }
        assert!(pauses[0] < TURN_PAUSE_MIN * 2, "{pauses:?}");
        let bounds = TURN_PAUSE_MAX.mul_f64(0.74)..=TURN_PAUSE_MAX.mul_f64(1.26);
        assert!(pauses[10..].iter().all(|pause| bounds.contains(pause)), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn first_reply_ends_the_outage_for_all() {
        let outage = Outage::default();
        outage.report(RequestError::no_reply());
        let start = Instant::now();
        let waiting = async { tokio::join!(outage.turn(start + FAR), outage.turn(start + FAR)) };
        let (waited, ()) = tokio::join!(waiting, async { outage.end() });
        assert!(waited.0.is_ok() && waited.1.is_ok());
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn turn_that_does_not_come_in_time_fails_with_the_latest_fault() {
        let outage = Outage::default();
        outage.report(RequestError::no_reply());
        outage.report(RequestError::busy("the latest"));
        let fault = outage.turn(Instant::now()).await.unwrap_err();
        assert_eq!(fault.message(), "the latest");
    }

    #[tokio::test(start_paused = true)]
    async fn distrust_does_not_replace_an_endpoint_that_may_be_back() {
        let outage = Outage::default();
        outage.report(RequestError::no_reply());
        outage.report(RequestError::new(Effect::NotSent, ErrorKind::Denied, "not trusted"));
        let fault = outage.turn(Instant::now()).await.unwrap_err();
        assert_eq!(fault.kind(), ErrorKind::Unavailable);
    }

    /// Servers that were down may come back with certificates that are not trusted.
    #[tokio::test(start_paused = true)]
    async fn distrust_replaces_an_endpoint_that_has_not_been_back_for_long() {
        let outage = Outage::default();
        outage.report(RequestError::no_reply());
        for (later, kind) in
            [(Duration::from_secs(1), ErrorKind::Unavailable), (Duration::from_secs(10), ErrorKind::Denied)]
        {
            tokio::time::advance(later).await;
            outage.report(RequestError::new(Effect::NotSent, ErrorKind::Denied, "not trusted"));
            outage.turn(Instant::now() + FAR).await.unwrap();
            assert_eq!(outage.turn(Instant::now()).await.unwrap_err().kind(), kind);
        }
    }

    #[test]
    fn pauses_of_clients_differ() {
        let pauses = [(); 2].map(|()| jittered(TURN_PAUSE_MAX));
        assert_ne!(pauses[0], pauses[1], "the clients of a cluster send in step");
    }

    /// Of many requests under way, one may fail at any time.
    #[tokio::test(start_paused = true)]
    async fn further_failures_do_not_postpone_the_next_turn() {
        let outage = Outage::default();
        outage.report(RequestError::no_reply());
        let due = outage.next_turn();
        tokio::time::advance(TURN_PAUSE_MIN / 2).await;
        outage.report(RequestError::no_reply());
        assert_eq!(outage.next_turn(), due);
    }

    /// All at once, they would overload a server that comes back.
    #[tokio::test(start_paused = true)]
    async fn requests_of_an_outage_are_sent_one_after_the_other() {
        let outage = Outage::default();
        outage.report(RequestError::no_reply());
        let start = Instant::now();
        let turn = async || {
            outage.turn(start + FAR).await.unwrap();
            start.elapsed()
        };
        let (first, second) = tokio::join!(turn(), turn());
        assert!(first < second, "{first:?} {second:?}");
    }

    /// It counts from its latest failure on.
    #[tokio::test(start_paused = true)]
    async fn distrust_does_not_replace_an_endpoint_that_has_failed_again() {
        let outage = Outage::default();
        for _ in 0..3 {
            outage.report(RequestError::no_reply());
            tokio::time::advance(FAULT_KEPT_MAX / 2).await;
        }
        outage.report(RequestError::new(Effect::NotSent, ErrorKind::Denied, "not trusted"));
        outage.turn(Instant::now() + FAR).await.unwrap();
        assert_eq!(outage.turn(Instant::now()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
