//! Proof of life: since when the session's lifetime runs at the leader, as far as answers have proved it.
//!
//! Only the leader ends sessions, and it hears of a follower's clients in that follower's answers to its pings, every
//! half tick. A follower that has just lost its leader goes on answering pings and reads. So what counts here is an answer that
//! must have passed through leader and quorum, and even that proves little: the request alone does not touch the
//! session at the leader. It was touched by the last such report before the answer, half a tick earlier at worst, about
//! activity before it: the previous request. Hence: send time - tick / 2 - the gap to the request before.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockkit_core::{BootInstant, Clock};

/// What is proved of one session's lifetime.
#[derive(Debug)]
pub(crate) struct Proof {
    clock: Clock,
    ttl: Duration,
    half_tick: Duration,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// Send time of the latest request that was answered.
    last_sent: BootInstant,
    armed_at: BootInstant,
}

impl Proof {
    /// Of a session that was asked for at `asked_at`: its lifetime began at the leader, and later than that.
    pub(crate) fn new(clock: Clock, ttl: Duration, tick: Duration, asked_at: BootInstant) -> Self {
        let known = Mutex::new(Known { last_sent: asked_at, armed_at: asked_at });
        Self { clock, ttl, half_tick: tick / 2, known }
    }

    /// To be read before a request is sent.
    pub(crate) fn now(&self) -> BootInstant {
        self.clock.now()
    }

    /// A request that was sent then has passed through the leader.
    pub(crate) fn answered(&self, sent: BootInstant) {
        let mut known = self.lock();
        let gap = sent.since(known.last_sent);
        known.armed_at = known.armed_at.max(sent.before(self.half_tick + gap));
        known.last_sent = known.last_sent.max(sent);
    }

    /// Not later than the start of the lifetime that now runs.
    pub(crate) fn armed_at(&self) -> BootInstant {
        self.lock().armed_at
    }

    /// What is left of the lifetime that now runs.
    pub(crate) fn left(&self) -> Duration {
        self.armed_at().after(self.ttl).since(self.now())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_start(Duration::from_millis(ms))
    }

    #[test]
    fn a_lifetime_counts_from_sending_less_half_a_tick_and_the_gap() {
        let proof = Proof::new(Clock::boot(), Duration::MAX, Duration::from_millis(2000), at(10_000));
        assert_eq!(proof.armed_at(), at(10_000));
        proof.answered(at(10_100));
        // The session began at 10,000: an earlier proof is not lost.
        assert_eq!(proof.armed_at(), at(10_000));
        proof.answered(at(12_000));
        assert_eq!(proof.armed_at(), at(12_000 - 1000 - 1900).max(at(10_000)));
        proof.answered(at(12_400));
        assert_eq!(proof.armed_at(), at(12_400 - 1000 - 400));
        // Answers in another order than requests.
        proof.answered(at(12_300));
        assert_eq!(proof.armed_at(), at(12_300 - 1000));
    }
}
