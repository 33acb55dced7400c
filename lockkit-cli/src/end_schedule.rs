//! When to send which signal to a job whose lock ends; see [`supervise`](crate::supervise).

use std::time::Duration;

/// Longest time between SIGTERM and the deadline.
const LEAD_MAX: Duration = Duration::from_secs(5);

/// Time between SIGKILL and the deadline: for the kernel to end the processes.
const KILL_MARGIN: Duration = Duration::from_millis(100);

/// Longest time between two checks of the clock: timers stop while the machine is suspended.
const CLOCK_CHECK_MAX: Duration = Duration::from_millis(250);

/// Time between SIGTERM and the deadline.
pub(crate) fn lead(ttl: Duration) -> Duration {
    (ttl / 4).min(LEAD_MAX)
}

/// What to do next to the job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Wait(Duration),
    /// With the time that is left until the deadline.
    Terminate(Duration),
    Kill,
}

/// When to send which signal. All moments are readings of [`clock`].
#[derive(Debug)]
pub(crate) struct EndSchedule {
    lead: Duration,
    /// The deadline of the last acknowledged renewal.
    pub(crate) deadline: Option<Duration>,
    phase: EndPhase,
    pub(crate) loss_reported: bool,
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
    /// Returns the schedule of a lock with this deadline; `None` for a hold without one.
    pub(crate) fn new(ttl: Duration, deadline: Option<Duration>) -> Self {
        Self { lead: lead(ttl), deadline, phase: EndPhase::Running, loss_reported: false }
    }

    /// The store reported that the lock is gone, or its deadline has passed.
    pub(crate) fn lost(&mut self, now: Duration) {
        self.loss_reported = true;
        match self.deadline {
            Some(deadline) if now + KILL_MARGIN >= deadline => self.phase = EndPhase::TermSent(now),
            _ => self.end_now(now),
        }
    }

    /// The job has to end although the lock may still be held; no later than already scheduled.
    pub(crate) fn end_now(&mut self, now: Duration) {
        self.phase = match self.phase {
            EndPhase::Running => EndPhase::TermDue(now + self.lead),
            EndPhase::TermDue(kill_at) => EndPhase::TermDue(kill_at.min(now + self.lead)),
            EndPhase::TermSent(kill_at) => EndPhase::TermSent(kill_at.min(now + self.lead)),
        };
    }

    pub(crate) fn step(&mut self, now: Duration, remaining: Duration) -> Step {
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);

    /// The schedule of a lock with a ttl of 8 s (lead 2 s), last acknowledged at 100 s.
    fn schedule() -> EndSchedule {
        let mut schedule = EndSchedule::new(8 * S, None);
        assert_eq!(schedule.step(100 * S, 8 * S), Step::Wait(CLOCK_CHECK_MAX));
        schedule
    }

    #[test]
    fn the_lead_is_a_quarter_of_the_ttl_and_at_most_five_seconds() {
        assert_eq!(EndSchedule::new(8 * S, None).lead, 2 * S);
        assert_eq!(EndSchedule::new(60 * S, None).lead, LEAD_MAX);
        assert_eq!(EndSchedule::new(Duration::MAX, None).lead, LEAD_MAX);
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
    fn deadline_that_passed_before_the_first_step_kills_at_once() {
        let mut stopped = EndSchedule::new(8 * S, Some(108 * S));
        assert_eq!(stopped.step(120 * S, Duration::ZERO), Step::Kill);
        let mut stopped = EndSchedule::new(8 * S, Some(108 * S));
        stopped.lost(120 * S);
        assert_eq!(stopped.step(120 * S, Duration::ZERO), Step::Kill);
    }

    #[test]
    fn loss_reported_just_before_the_deadline_kills_at_once() {
        let mut stopped = schedule();
        stopped.lost(108 * S - 50 * MS);
        assert_eq!(stopped.step(108 * S - 50 * MS, Duration::ZERO), Step::Kill);
    }

    #[test]
    fn loss_after_term_does_not_delay_the_kill() {
        let mut schedule = schedule();
        assert_eq!(schedule.step(106 * S, 2 * S), Step::Terminate(2 * S));
        schedule.lost(107 * S);
        assert_eq!(schedule.step(108 * S - 100 * MS, Duration::ZERO), Step::Kill);
    }

    #[test]
    fn another_reason_does_not_delay_the_kill() {
        let mut schedule = schedule();
        schedule.end_now(101 * S);
        schedule.end_now(102 * S);
        assert_eq!(schedule.step(102 * S, 6 * S), Step::Terminate(6 * S));
        assert_eq!(schedule.step(103 * S, 5 * S), Step::Kill);
    }

    #[test]
    fn hold_without_deadline_ends_only_by_a_loss() {
        let mut schedule = EndSchedule::new(Duration::MAX, None);
        assert_eq!(schedule.step(100 * S, Duration::MAX), Step::Wait(CLOCK_CHECK_MAX));
        assert_eq!(schedule.deadline, None);
        schedule.lost(101 * S);
        assert_eq!(schedule.step(101 * S, Duration::ZERO), Step::Terminate(Duration::ZERO));
        assert_eq!(schedule.step(106 * S, Duration::ZERO), Step::Kill);
    }
}
