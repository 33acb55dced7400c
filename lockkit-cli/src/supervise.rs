//! Ends the job before the lock ends.
//!
//! | what happened | SIGTERM, then SIGCONT | SIGKILL |
//! |---|---|---|
//! | no renewal was acknowledged | at deadline - lead | at deadline - 100 ms |
//! | the store reported that the lock is gone, before its deadline | at once | after the lead |
//! | the job cannot be watched any more | at once | after the lead |
//! | the deadline passed unnoticed (this program was stopped) | | at once |
//!
//! The [`lead`](crate::end_schedule::lead) is a quarter of the ttl and at most 5 s. SIGKILL is repeated until no member
//! of the group is left; only then the lock is released. A renewal after the first SIGTERM changes nothing: the job is
//! ending.
//!
//! Nobody may read stderr. So no message is waited for ([`say_or_drop`]): the one about a loss may come before the
//! signal, but does not delay it.
//!
//! The first deadline is read before the job starts. So a lock that is lost before its first check here, because this
//! program was stopped, has a deadline that passed unnoticed.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use crate::{
    clock,
    end_schedule::{EndSchedule, Step},
    exit::{Failure, LOST},
    group::GROUP_CHECK_PAUSE_MAX,
    job::Job,
    log::say_or_drop,
    signals::{Children, Signals},
};

/// First pause between two checks of a group whose leader has ended.
const GROUP_CHECK_PAUSE_MIN: Duration = Duration::from_millis(1);

/// After this time, a message reports that processes of the group are waited for.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// The client's view of a lock that it holds.
pub(crate) trait HeldLock {
    /// Returns the time to the currently known deadline; `Duration::MAX` for a hold without one.
    fn remaining(&self) -> Duration;

    /// Waits until the lock is lost; returns why.
    async fn lost(&self) -> String;

    /// Returns why it is about to end, when the deadline is near.
    fn why_ending(&self) -> String;
}

/// Waits until the job's group is gone, and makes sure that this is before the lock ends. Returns the exit status: that
/// of the command, or of the reason why the job had to end.
pub(crate) async fn supervise(
    job: &mut Job,
    hold: &impl HeldLock,
    ttl: Duration,
    signals: &mut Signals,
    children: &mut Children,
) -> u8 {
    let mut lost = pin!(hold.lost());
    let mut schedule = EndSchedule::new(ttl, job.deadline());
    let mut early_end = EarlyEnd::default();
    let mut remaining_processes = RemainingProcesses::default();
    loop {
        if let Err(failure) = job.reap() {
            early_end.record(failure);
            schedule.end_now(clock::now());
        }
        if let Some(status) = job.status()
            && !job.group().is_alive()
        {
            return early_end.0.unwrap_or(status);
        }
        let pause = match schedule.step(clock::now(), hold.remaining()) {
            Step::Wait(pause) => pause,
            Step::Terminate(left) => {
                let why = hold.why_ending();
                job.end(false);
                early_end.record(Failure::new(LOST, format!("{why}, it ends in {left:.1?}")));
                Duration::ZERO
            }
            Step::Kill => {
                let why = hold.why_ending();
                job.end(true);
                early_end.record(Failure::new(LOST, format!("{why}, it ends now")));
                GROUP_CHECK_PAUSE_MAX
            }
        };
        if let Err(failure) = job.send_deadline(schedule.deadline) {
            early_end.record(failure);
            schedule.end_now(clock::now());
        }
        let pause = if job.status().is_some() { pause.min(remaining_processes.pause()) } else { pause };
        tokio::select! {
            reason = &mut lost, if !schedule.loss_reported => {
                early_end.record(Failure::new(LOST, reason));
                schedule.lost(clock::now());
            }
            signal = signals.next() => job.forward(signal),
            () = children.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Why the job has to end early, as an exit status. Reported as soon as it is known, because the end may take a while.
#[derive(Debug, Default)]
struct EarlyEnd(Option<u8>);

impl EarlyEnd {
    /// Records and reports a reason; only the first one counts.
    fn record(&mut self, failure: Failure) {
        if self.0.is_none() {
            say_or_drop(format_args!("{}; ending the job", failure.message));
            self.0 = Some(failure.status);
        }
    }
}

/// The wait for processes of the group that outlive its leader.
#[derive(Debug, Default)]
struct RemainingProcesses {
    since: Option<Instant>,
    pause: Duration,
    notified: bool,
}

impl RemainingProcesses {
    /// Whether the wait has become long enough for a message, which comes once.
    fn is_to_be_noticed(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_long = now.duration_since(since) >= NOTICE_DELAY;
        is_long && !std::mem::replace(&mut self.notified, is_long)
    }

    /// Returns the time until the next check.
    fn pause(&mut self) -> Duration {
        if self.is_to_be_noticed(Instant::now()) {
            say_or_drop("the command has ended; the lock is held until the rest of its process group ends");
        }
        self.pause = (self.pause * 2).clamp(GROUP_CHECK_PAUSE_MIN, GROUP_CHECK_PAUSE_MAX);
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_checks_of_the_group_double_up_to_their_bound() {
        let mut remaining = RemainingProcesses::default();
        let pauses: Vec<u128> = (0..8).map(|_| remaining.pause().as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 50, 50]);
    }

    #[test]
    fn the_rest_of_the_group_is_noticed_once() {
        let since = Instant::now().checked_sub(NOTICE_DELAY).expect("this host runs for longer");
        let mut remaining = RemainingProcesses { since: Some(since), ..RemainingProcesses::default() };
        assert!(remaining.is_to_be_noticed(since + NOTICE_DELAY));
        assert!(!remaining.is_to_be_noticed(since + NOTICE_DELAY * 2));
    }

    #[test]
    fn the_first_reason_counts() {
        let mut end = EarlyEnd::default();
        end.record(Failure::new(LOST, "first"));
        end.record(Failure::new(LOST + 1, "second"));
        assert_eq!(end.0, Some(LOST));
    }
}
