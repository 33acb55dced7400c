//! Proof of life: since when the session's lifetime runs at the leader, as far as answers have proved it.
//!
//! Only the leader ends sessions, and it hears of a follower's clients in that follower's answers to its pings, every
//! half tick. A follower that has just lost its leader goes on answering pings and reads. So what counts here is an answer that
//! must have passed through leader and quorum, and even that proves little: the request alone does not touch the session at the
//! leader, and the last report before it may be half a tick old. What was answered before that report is in it. Hence: a
//! lifetime begins with the sending of the latest request that was answered at least half a tick before this one was sent.
//!
//! Failure cases:
//!
//! * Two requests after a silence, both after the last report: the second proves nothing of the first, only what was
//!   answered before the silence.
//! * Answers in another order than requests: a request counts from when its own answer is known.
//! * A late answer: it counts like any other, from the sending of its request.
//! * A chain of servers: an observer behind a follower (`observerMasterPort`) reports its clients to that follower, which
//!   reports them to the leader, half a tick later each. There the configured tick must be twice the servers'.

use std::{
    collections::VecDeque,
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

/// Share of half a tick that lies between two requests that are remembered: it bounds their number, and costs a lifetime as
/// much at most.
const REMEMBERED_PER_HALF_TICK: u32 = 16;

#[derive(Debug)]
struct Known {
    /// Requests that may not have been reported yet, each with its send time and a time when its answer was known.
    recent: VecDeque<(BootInstant, BootInstant)>,
    armed_at: BootInstant,
}

impl Known {
    fn new(asked_at: BootInstant) -> Self {
        Self { recent: VecDeque::new(), armed_at: asked_at }
    }

    /// A request that was sent at one time, and whose answer is known at the other, has passed through the leader.
    fn answered(&mut self, sent: BootInstant, now: BootInstant, half_tick: Duration) {
        while let Some(&(reported, _)) =
            self.recent.front().filter(|(_, known)| known.after(half_tick) <= sent)
        {
            self.armed_at = self.armed_at.max(reported);
            self.recent.pop_front();
        }
        let next = self.recent.back().map(|(last, _)| last.after(half_tick / REMEMBERED_PER_HALF_TICK));
        if next.is_none_or(|next| sent >= next) {
            self.recent.push_back((sent, now));
        }
    }
}

impl Proof {
    /// Of a session that was asked for at `asked_at`: its lifetime began at the leader, and later than that.
    pub(crate) fn new(clock: Clock, ttl: Duration, tick: Duration, asked_at: BootInstant) -> Self {
        let known = Mutex::new(Known::new(asked_at));
        Self { clock, ttl, half_tick: tick / 2, known }
    }

    /// To be read before a request is sent.
    pub(crate) fn now(&self) -> BootInstant {
        self.clock.now()
    }

    /// A request that was sent then has passed through the leader.
    pub(crate) fn answered(&self, sent: BootInstant) {
        self.lock().answered(sent, self.now(), self.half_tick);
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

    const HALF_TICK: Duration = Duration::from_millis(1000);

    /// Sent then, answered then; answers when the lifetime began that is known now.
    fn answered(known: &mut Known, sent: u64, now: u64) -> BootInstant {
        known.answered(at(sent), at(now), HALF_TICK);
        known.armed_at
    }

    #[test]
    fn a_lifetime_counts_from_the_latest_request_that_was_answered_half_a_tick_before() {
        let mut known = Known::new(at(10_000));
        assert_eq!(answered(&mut known, 10_100, 10_120), at(10_000));
        // The last report may be of 10,119.
        assert_eq!(answered(&mut known, 11_119, 11_130), at(10_000));
        assert_eq!(answered(&mut known, 11_120, 11_140), at(10_100));
        assert_eq!(answered(&mut known, 13_000, 13_010), at(11_119));
    }

    #[test]
    fn two_requests_after_the_last_report_prove_only_what_was_before_it() {
        let mut known = Known::new(at(0));
        answered(&mut known, 10_000, 10_020);
        // A report at 15,990 does not have the session; then both requests, then the connection is cut.
        assert_eq!(answered(&mut known, 16_000, 16_005), at(10_000));
        assert_eq!(answered(&mut known, 16_010, 16_015), at(10_000));
    }

    #[test]
    fn answers_in_another_order_than_requests_prove_no_more() {
        let mut known = Known::new(at(0));
        answered(&mut known, 10_000, 10_020);
        assert_eq!(answered(&mut known, 16_010, 16_020), at(10_000));
        assert_eq!(answered(&mut known, 16_000, 16_020), at(10_000));
        // Sent before the silence ended, answered after it.
        assert_eq!(answered(&mut known, 17_019, 17_030), at(10_000));
        assert_eq!(answered(&mut known, 17_020, 17_030), at(16_010));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut known = Known::new(at(0));
        for sent in 0..100_000 {
            let armed_at = answered(&mut known, sent, sent);
            assert!(
                at(sent).since(armed_at)
                    <= HALF_TICK + HALF_TICK / REMEMBERED_PER_HALF_TICK + HALF_TICK / 500
            );
            assert!(known.recent.len() <= 17 + 1);
        }
    }

    #[test]
    fn beats_keep_a_lifetime_above_half_a_ttl_where_the_tick_is_not_known() {
        let (ttl, mut known) = (4 * HALF_TICK, Known::new(at(0)));
        let interval = ttl / crate::beat::BEATS_PER_TTL;
        let mut before = at(0);
        for beat in 0..100 {
            let (sent, late) = (at(0).after(interval * beat), interval / 2 * (beat % 2));
            assert!(sent.after(late).since(before) < ttl / 2, "{beat}");
            known.answered(sent, sent.after(late), HALF_TICK);
            before = known.armed_at;
        }
    }
}
