//! Times in which no endpoint serves a client, which all of its requests share.
//!
//! Each of them would find out for itself and go on asking: with a thousand waiters that are hundreds of thousands of
//! requests per second, which the servers meet when they come back. So in an outage the requests of a client take turns,
//! with growing pauses from one turn to the next, and the first answer ends it for all.

use std::{
    sync::{Mutex as StdMutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex, Notify},
    time::{Instant, sleep_until, timeout_at},
};

use crate::error::Fault;

/// First pause between two turns. Short, because an outage may be no more than a live endpoint that is still connecting
/// while the dead ones refuse.
const TURN_PAUSE_MIN: Duration = Duration::from_millis(5);

/// Longest mean pause between two turns; no longer, because heartbeats wait for it too.
const TURN_PAUSE_MAX: Duration = Duration::from_millis(250);

/// The present outage, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    present: StdMutex<Option<Present>>,
    turn: Mutex<()>,
    over: Notify,
}

#[derive(Debug)]
struct Present {
    latest: Fault,
    pause: Duration,
    next_turn: Instant,
}

impl Outage {
    /// Waits for this request's turn: none without an outage. After this time it fails as the latest request did.
    pub(crate) async fn turn(&self, until: Instant) -> Result<(), Fault> {
        if self.next_turn().is_none() {
            return Ok(());
        }
        let waited = timeout_at(until, self.wait_for_turn()).await;
        let latest = self.lock().as_ref().map(|present| present.latest.clone());
        match (waited, latest) {
            (Err(_), Some(latest)) => Err(latest),
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
        if let Some(present) = &mut *self.lock() {
            present.pause = (present.pause * 2).min(TURN_PAUSE_MAX);
            present.next_turn = Instant::now() + jittered(present.pause);
        }
    }

    /// A request has found no endpoint that serves it.
    pub(crate) fn found(&self, latest: Fault) {
        let mut present = self.lock();
        let (pause, next_turn) = match &*present {
            Some(present) => (present.pause, present.next_turn),
            None => (TURN_PAUSE_MIN, Instant::now() + jittered(TURN_PAUSE_MIN)),
        };
        *present = Some(Present { latest, pause, next_turn });
    }

    /// A request was served.
    pub(crate) fn end(&self) {
        if self.lock().take().is_some() {
            self.over.notify_waiters();
        }
    }

    fn next_turn(&self) -> Option<Instant> {
        self.lock().as_ref().map(|present| present.next_turn)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Present>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Give or take a quarter, so that the clients of a cluster do not ask in step.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(fastrand::f64().mul_add(0.5, 0.75))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn pauses_between_turns_grow_to_their_bound() {
        let outage = Outage::default();
        outage.found(Fault::no_reply());
        let mut pauses = Vec::new();
        for _ in 0..20 {
            let start = Instant::now();
            outage.turn(start + FAR).await.unwrap();
            outage.found(Fault::no_reply());
            pauses.push(start.elapsed());
        }
        assert!(pauses[0] < TURN_PAUSE_MIN * 2, "{pauses:?}");
        let bounds = TURN_PAUSE_MAX.mul_f64(0.74)..=TURN_PAUSE_MAX.mul_f64(1.26);
        assert!(pauses[10..].iter().all(|pause| bounds.contains(pause)), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn first_answer_ends_the_wait_of_all() {
        let outage = Outage::default();
        outage.found(Fault::no_reply());
        let start = Instant::now();
        let waiting = async { tokio::join!(outage.turn(start + FAR), outage.turn(start + FAR)) };
        let (waited, ()) = tokio::join!(waiting, async { outage.end() });
        assert!(waited.0.is_ok() && waited.1.is_ok());
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
