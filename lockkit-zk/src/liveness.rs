//! Liveness: from which moment the session's lease runs at the leader, as far as answers prove it.
//!
//! Only the leader expires sessions. A follower reports its clients to the leader every half tick, in its answers to
//! the leader's pings. A follower that has just lost its leader still answers pings and reads, so only answers that
//! passed through leader and quorum count here. Even such an answer proves little: the request itself does not touch
//! the session at the leader, and the last report before it may be half a tick old. But that report includes every
//! request answered before it. Hence the rule: of the requests answered at least a margin before the current one was
//! sent, the lease counts from the sending of the latest.
//!
//! The exception is a session that one call of an operator opens: no hold depends on it, so [each
//! answer](Liveness::extended_by) counts at once, from the sending of its request.
//!
//! Failure cases:
//!
//! * Two requests after a silence, both after the last report: the second proves nothing about the first, only about
//!   what was answered before the silence.
//! * Answers arrive in another order than requests: each request counts from when its own answer is known.
//! * A late answer counts like any other, from the sending of its request.
//! * A server with lower bounds for sessions shortens this one when the client connects to it. The client crate does not
//!   report that, so the lease is believed for too long. All servers need the same bounds.
//! * A chain of servers: an observer behind a follower (`observerMasterPort`) reports its clients to that follower,
//!   which reports them to the leader half a tick later. There the configured tick must be twice the servers'.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use lockkit_core::{BootInstant, Clock, support::lock};

/// What part of a tick a margin is: 3 of 4. Half a tick would be too little by the time that the leader takes for its pings,
/// which it sends half a tick after the last ones were sent.
const MARGIN_PER_TICK: (u32, u32) = (3, 4);

/// What is proved about one session's lease.
#[derive(Debug)]
pub(crate) struct Liveness {
    clock: Clock,
    ttl: Duration,
    margin: Duration,
    record: Mutex<LivenessRecord>,
}

/// Requests recorded per margin, at most. This bounds their number; it can make a lease look older by one such
/// interval.
const RECORDED_PER_MARGIN: u32 = 16;

#[derive(Debug)]
struct LivenessRecord {
    /// Requests that may not have been reported yet: when each was sent, and a time at which its answer was known.
    recent: VecDeque<(BootInstant, BootInstant)>,
    armed_at: BootInstant,
}

impl LivenessRecord {
    fn new(asked_at: BootInstant) -> Self {
        Self { recent: VecDeque::new(), armed_at: asked_at }
    }

    /// Records that a request sent at `sent`, whose answer is known at `now`, passed through the leader.
    fn answered(&mut self, sent: BootInstant, now: BootInstant, margin: Duration) {
        while let Some(&(reported, _)) =
            self.recent.front().filter(|(_, answered)| answered.after(margin) <= sent)
        {
            self.armed_at = self.armed_at.max(reported);
            self.recent.pop_front();
        }
        let next = self.recent.back().map(|(last, _)| last.after(margin / RECORDED_PER_MARGIN));
        if next.is_none_or(|next| sent >= next) {
            self.recent.push_back((sent, now));
        }
    }
}

impl Liveness {
    /// Returns the liveness of a session that was requested at `asked_at`: its lease started at the leader after that.
    /// Without a configured tick the margin is a quarter of the ttl, which is three quarters of a tick if the ttl has
    /// three ticks.
    pub(crate) fn new(clock: Clock, ttl: Duration, tick: Option<Duration>, asked_at: BootInstant) -> Self {
        let record = Mutex::new(LivenessRecord::new(asked_at));
        let (part, of) = MARGIN_PER_TICK;
        let margin = tick.map_or(ttl / 4, |tick| tick / of * part);
        Self { clock, ttl, margin, record }
    }

    /// Returns the current time; read it before sending a request.
    pub(crate) fn now(&self) -> BootInstant {
        self.clock.now()
    }

    /// Records that a request sent at `sent` passed through the leader.
    pub(crate) fn answered(&self, sent: BootInstant) {
        self.lock().answered(sent, self.now(), self.margin);
    }

    /// Makes a request whose answer counts at once, and although it did not pass through the leader: the call that owns the
    /// session has no hold that depends on it.
    pub(crate) async fn extended_by<T, E>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let sent = self.now();
        let answer = request.await?;
        let mut record = self.lock();
        record.armed_at = record.armed_at.max(sent);
        Ok(answer)
    }

    /// Returns a time not later than the start of the current lease.
    pub(crate) fn armed_at(&self) -> BootInstant {
        self.lock().armed_at
    }

    /// Returns the time left of the current lease.
    pub(crate) fn left(&self) -> Duration {
        self.armed_at().after(self.ttl).since(self.now())
    }

    fn lock(&self) -> MutexGuard<'_, LivenessRecord> {
        lock(&self.record)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    };

    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_start(Duration::from_millis(ms))
    }

    const MARGIN: Duration = Duration::from_millis(1000);

    /// Records a request, and returns the start of the lease that is known then.
    fn answered(record: &mut LivenessRecord, sent: u64, now: u64) -> BootInstant {
        record.answered(at(sent), at(now), MARGIN);
        record.armed_at
    }

    #[test]
    fn lease_counts_from_the_latest_request_answered_a_margin_before() {
        let mut record = LivenessRecord::new(at(10_000));
        assert_eq!(answered(&mut record, 10_100, 10_120), at(10_000));
        // The last report may be from 10,119.
        assert_eq!(answered(&mut record, 11_119, 11_130), at(10_000));
        assert_eq!(answered(&mut record, 11_120, 11_140), at(10_100));
        assert_eq!(answered(&mut record, 13_000, 13_010), at(11_119));
    }

    /// Returns a clock, and what it shows, in milliseconds.
    fn set_clock() -> (Clock, Arc<AtomicU64>) {
        let now_ms = Arc::new(AtomicU64::new(0));
        let reading = Arc::clone(&now_ms);
        (Clock::new(move || at(reading.load(SeqCst))), now_ms)
    }

    /// The last report of its server may be from any moment before the answer.
    #[test]
    fn answer_is_known_when_it_arrives_and_not_when_its_request_was_sent() {
        let (clock, now_ms) = set_clock();
        let tick = Some(Duration::from_secs(2));
        let liveness = Liveness::new(clock, Duration::from_secs(8), tick, at(0));
        for (sent, answered, armed_at) in [(10_000, 10_900, 0), (12_300, 12_300, 0), (12_400, 12_400, 10_000)]
        {
            now_ms.store(answered, SeqCst);
            liveness.answered(at(sent));
            assert_eq!(liveness.armed_at(), at(armed_at), "sent at {sent} ms");
        }
    }

    #[tokio::test]
    async fn answers_to_a_call_without_holds_keep_its_session() {
        let (clock, now_ms) = set_clock();
        let liveness = Liveness::new(clock, 4 * MARGIN, Some(Duration::ZERO), at(0));
        for answered in (0..100_000).step_by(3_500) {
            let request = async {
                now_ms.store(answered, SeqCst);
                Ok::<_, ()>(())
            };
            liveness.extended_by(request).await.unwrap();
            assert!(!liveness.left().is_zero(), "at {answered} ms");
        }
        let refused = async {
            now_ms.store(200_000, SeqCst);
            Err::<(), _>(())
        };
        liveness.extended_by(refused).await.unwrap_err();
        assert!(liveness.left().is_zero(), "an error is no answer");
    }

    #[test]
    fn margin_is_longer_than_half_a_tick() {
        let margin = |tick| Liveness::new(Clock::boot(), Duration::from_secs(8), tick, at(0)).margin;
        assert_eq!(margin(None), Duration::from_secs(2));
        assert_eq!(margin(Some(Duration::from_secs(2))), Duration::from_millis(1500));
    }

    #[test]
    fn requests_after_the_last_report_prove_only_what_preceded_it() {
        let mut record = LivenessRecord::new(at(0));
        answered(&mut record, 10_000, 10_020);
        // A report at 15,990 lacks the session; then both requests are sent, then the connection is cut.
        assert_eq!(answered(&mut record, 16_000, 16_005), at(10_000));
        assert_eq!(answered(&mut record, 16_010, 16_015), at(10_000));
    }

    #[test]
    fn answers_out_of_order_prove_no_more() {
        let mut record = LivenessRecord::new(at(0));
        answered(&mut record, 10_000, 10_020);
        assert_eq!(answered(&mut record, 16_010, 16_020), at(10_000));
        assert_eq!(answered(&mut record, 16_000, 16_020), at(10_000));
        // Sent before the silence ended, answered after it.
        assert_eq!(answered(&mut record, 17_019, 17_030), at(10_000));
        assert_eq!(answered(&mut record, 17_020, 17_030), at(16_010));
    }

    #[test]
    fn recorded_requests_are_bounded() {
        let mut record = LivenessRecord::new(at(0));
        for sent in 0..100_000 {
            let armed_at = answered(&mut record, sent, sent);
            assert!(at(sent).since(armed_at) <= MARGIN + MARGIN / RECORDED_PER_MARGIN + MARGIN / 500);
            assert!(record.recent.len() <= 17 + 1);
        }
    }

    #[test]
    fn heartbeats_keep_the_lease_above_half_a_ttl_with_an_unknown_tick() {
        let (ttl, mut record) = (4 * MARGIN, LivenessRecord::new(at(0)));
        let interval = ttl / crate::session::HEARTBEATS_PER_TTL;
        let mut before = at(0);
        for heartbeat in 0..100 {
            let (sent, late) = (at(0).after(interval * heartbeat), interval / 2 * (heartbeat % 2));
            assert!(sent.after(late).since(before) < ttl / 2, "{heartbeat}");
            record.answered(sent, sent.after(late), MARGIN);
            before = record.armed_at;
        }
    }
}
