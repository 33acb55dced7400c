//! Ends the job before the lock ends.
//!
//! | what happened | SIGTERM, then SIGCONT | SIGKILL |
//! |---|---|---|
//! | no renewal was acknowledged | at deadline - lead | at deadline - [`KILL_MARGIN`] |
//! | the store reported that the lock is gone, before its deadline | at once | after the lead |
//! | the job cannot be watched any more | at once | after the lead |
//! | the deadline passed unnoticed (this program was stopped) | | at once |
//!
//! The [`lead`] is min(ttl / 4, [`LEAD_MAX`]). SIGKILL is repeated until no member of the group is left; only then the
//! lock is released. A renewal after the first SIGTERM changes nothing: the job is ending.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use crate::{
    clock,
    exit::{Failure, LOST, say},
    group::GROUP_CHECK_PAUSE_MAX,
    job::Job,
    signals::{Children, Signals},
};

/// Longest time between SIGTERM and the deadline.
const LEAD_MAX: Duration = Duration::from_secs(5);

/// Time between SIGKILL and the deadline: for the kernel to end the processes.
const KILL_MARGIN: Duration = Duration::from_millis(100);

/// Longest time between two checks of the clock: timers stop while the machine is suspended.
const CLOCK_CHECK_MAX: Duration = Duration::from_millis(250);

/// First pause between two checks of a group whose leader has ended.
const GROUP_CHECK_PAUSE_MIN: Duration = Duration::from_millis(1);

/// After this time, a message reports that processes of the group are waited for.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// Time between SIGTERM and the deadline.
pub(crate) fn lead(ttl: Duration) -> Duration {
    (ttl / 4).min(LEAD_MAX)
}

/// The client's view of a lock that it holds.
pub(crate) trait Hold {
    /// Returns the time to the currently known deadline; `Duration::MAX` for a hold without one.
    fn remaining(&self) -> Duration;

    /// Waits until the lock is lost; returns why.
    async fn lost(&self) -> String;
}

/// Waits until the job's group is gone, and makes sure that this is before the lock ends. Returns the exit status: that
/// of the command, or of the reason why the job had to end.
pub(crate) async fn supervise(
    job: &mut Job,
    hold: &impl Hold,
    ttl: Duration,
    signals: &mut Signals,
    children: &mut Children,
) -> u8 {
    let mut lost = pin!(hold.lost());
    let mut schedule = EndSchedule::new(ttl);
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
                early_end
                    .record(Failure::new(LOST, format!("lock not renewed in time, it ends in {left:.1?}")));
                job.end(false);
                Duration::ZERO
            }
            Step::Kill => {
                early_end.record(Failure::new(LOST, "lock not renewed in time, it ends now"));
                job.end(true);
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
            say(format_args!("{}; ending the job", failure.message));
            self.0 = Some(failure.status);
        }
    }
}

/// What to do next to the job.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Wait(Duration),
    /// With the time that is left until the deadline.
    Terminate(Duration),
    Kill,
}

/// When to send which signal. All moments are readings of [`clock`].
#[derive(Debug)]
struct EndSchedule {
    lead: Duration,
    /// The deadline of the last acknowledged renewal.
    deadline: Option<Duration>,
    phase: EndPhase,
    loss_reported: bool,
}

/// How far the job's end has progressed.
#[derive(Debug, Clone, Copy)]
enum EndPhase {
    Running,
    /// SIGTERM is due now, SIGKILL at this moment.
    TermDue(Duration),
    /// SIGTERM was sent, SIGKILL is due at this moment.
    TermSent(Duration),
}

impl EndSchedule {
    fn new(ttl: Duration) -> Self {
        Self { lead: lead(ttl), deadline: None, phase: EndPhase::Running, loss_reported: false }
    }

    /// The store reported that the lock is gone, or its deadline has passed.
    fn lost(&mut self, now: Duration) {
        self.loss_reported = true;
        match self.deadline {
            Some(deadline) if now + KILL_MARGIN >= deadline => self.phase = EndPhase::TermSent(now),
            _ => self.end_now(now),
        }
    }

    /// The job has to end although the lock may still be held; no later than already scheduled.
    fn end_now(&mut self, now: Duration) {
        self.phase = match self.phase {
            EndPhase::Running => EndPhase::TermDue(now + self.lead),
            EndPhase::TermDue(kill_at) => EndPhase::TermDue(kill_at.min(now + self.lead)),
            EndPhase::TermSent(kill_at) => EndPhase::TermSent(kill_at.min(now + self.lead)),
        };
    }

    fn step(&mut self, now: Duration, remaining: Duration) -> Step {
        // No time remaining is not a deadline: `lost` reports that, too.
        if matches!(self.phase, EndPhase::Running) && !remaining.is_zero() {
            self.deadline = now.checked_add(remaining);
        }
        if let (EndPhase::Running, Some(deadline)) = (self.phase, self.deadline)
            && now + self.lead >= deadline
        {
            self.phase = EndPhase::TermDue(deadline.saturating_sub(KILL_MARGIN));
        }
        match self.phase {
            EndPhase::TermDue(kill_at) | EndPhase::TermSent(kill_at) if now >= kill_at => {
                self.phase = EndPhase::TermSent(kill_at);
                Step::Kill
            }
            EndPhase::TermDue(kill_at) => {
                self.phase = EndPhase::TermSent(kill_at);
                Step::Terminate(self.deadline.unwrap_or(now).saturating_sub(now))
            }
            EndPhase::TermSent(kill_at) => Step::Wait((kill_at - now).min(CLOCK_CHECK_MAX)),
            EndPhase::Running => {
                let free = self.deadline.map_or(CLOCK_CHECK_MAX, |deadline| deadline - self.lead - now);
                Step::Wait(free.min(CLOCK_CHECK_MAX))
            }
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
    /// Returns the time until the next check.
    fn pause(&mut self) -> Duration {
        let since = *self.since.get_or_insert_with(Instant::now);
        if !self.notified && since.elapsed() >= NOTICE_DELAY {
            self.notified = true;
            say("the command has ended; the lock is held until the rest of its process group ends");
        }
        self.pause = (self.pause * 2).clamp(GROUP_CHECK_PAUSE_MIN, GROUP_CHECK_PAUSE_MAX);
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);

    /// The schedule of a lock with a ttl of 8 s (lead 2 s), last acknowledged at 100 s.
    fn schedule() -> EndSchedule {
        let mut schedule = EndSchedule::new(8 * S);
        assert_eq!(schedule.step(100 * S, 8 * S), Step::Wait(CLOCK_CHECK_MAX));
        schedule
    }

    #[test]
    fn the_lead_is_a_quarter_of_the_ttl_and_at_most_five_seconds() {
        assert_eq!(EndSchedule::new(8 * S).lead, 2 * S);
        assert_eq!(EndSchedule::new(60 * S).lead, LEAD_MAX);
        assert_eq!(EndSchedule::new(Duration::MAX).lead, LEAD_MAX);
    }

    #[test]
    fn without_renewal_the_job_gets_term_and_kill_before_the_deadline() {
        let mut schedule = schedule();
        assert_eq!(schedule.step(106 * S - MS, 2 * S + MS), Step::Wait(MS));
        assert_eq!(schedule.step(106 * S, 2 * S), Step::Terminate(2 * S));
        assert_eq!(schedule.step(108 * S - 101 * MS, 101 * MS), Step::Wait(MS));
        assert_eq!(schedule.step(108 * S - 100 * MS, 100 * MS), Step::Kill);
        assert_eq!(schedule.step(109 * S, Duration::ZERO), Step::Kill, "again, until the group is gone");
    }

    #[test]
    fn renewal_moves_the_deadline_but_not_after_term() {
        let mut schedule = schedule();
        assert_eq!(schedule.step(105 * S, 8 * S), Step::Wait(CLOCK_CHECK_MAX));
        assert_eq!(schedule.deadline, Some(113 * S));
        assert_eq!(schedule.step(111 * S, 2 * S), Step::Terminate(2 * S));
        assert_eq!(schedule.step(111 * S, 8 * S), Step::Wait(CLOCK_CHECK_MAX));
        assert_eq!(schedule.step(113 * S - 100 * MS, 6 * S), Step::Kill);
    }

    #[test]
    fn loss_reported_by_the_store_terminates_at_once_and_kills_after_the_lead() {
        let mut schedule = schedule();
        assert_eq!(
            schedule.step(101 * S, Duration::ZERO),
            Step::Wait(CLOCK_CHECK_MAX),
            "the loss itself is about to be reported"
        );
        schedule.lost(101 * S);
        assert_eq!(schedule.step(101 * S, Duration::ZERO), Step::Terminate(7 * S));
        assert_eq!(schedule.step(103 * S - MS, Duration::ZERO), Step::Wait(MS));
        assert_eq!(schedule.step(103 * S, Duration::ZERO), Step::Kill);
    }

    #[test]
    fn deadline_that_passed_unnoticed_kills_at_once() {
        let mut stopped = schedule();
        assert_eq!(stopped.step(120 * S, Duration::ZERO), Step::Kill);
        let mut stopped = schedule();
        stopped.lost(120 * S);
        assert_eq!(stopped.step(120 * S, Duration::ZERO), Step::Kill);
    }

    #[test]
    fn loss_after_term_does_not_delay_the_kill() {
        let mut schedule = schedule();
        assert_eq!(schedule.step(106 * S, 2 * S), Step::Terminate(2 * S));
        schedule.lost(107 * S);
        assert_eq!(schedule.step(108 * S - 100 * MS, Duration::ZERO), Step::Kill);
    }

    #[test]
    fn hold_without_deadline_ends_only_by_a_loss() {
        let mut schedule = EndSchedule::new(Duration::MAX);
        assert_eq!(schedule.step(100 * S, Duration::MAX), Step::Wait(CLOCK_CHECK_MAX));
        assert_eq!(schedule.deadline, None);
        schedule.lost(101 * S);
        assert_eq!(schedule.step(101 * S, Duration::ZERO), Step::Terminate(Duration::ZERO));
        assert_eq!(schedule.step(106 * S, Duration::ZERO), Step::Kill);
    }
}
