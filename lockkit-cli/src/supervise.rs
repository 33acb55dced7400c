//! The job ends before the lock does.
//!
//! | what happened | SIGTERM, then SIGCONT | SIGKILL |
//! |---|---|---|
//! | no renewal was acknowledged | at deadline - lead | at deadline - [`KILL_MARGIN`] |
//! | the lock is gone while the last known deadline is ahead (the store said so) | at once | after the lead |
//! | the job cannot be watched any more | at once | after the lead |
//! | the deadline has passed unnoticed (this program was stopped) | | at once |
//!
//! The [`lead`] is min(ttl / 4, [`LEAD_MAX`]). SIGKILL is repeated until no member of the group is left; only then is the lock
//! given back. A renewal that arrives after the first SIGTERM changes nothing: the job was told to end.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use crate::{
    clock,
    exit::{Failure, LOST, say},
    group::LOOK_PAUSE_MAX,
    job::Job,
    signals::{Children, Signals},
};

/// Longest time between SIGTERM and the deadline.
const LEAD_MAX: Duration = Duration::from_secs(5);

/// Time between SIGKILL and the deadline: for the kernel to end the processes.
const KILL_MARGIN: Duration = Duration::from_millis(100);

/// Longest time between two looks at the clock: timers stand still while the machine is suspended.
const TICK: Duration = Duration::from_millis(250);

/// First pause between two looks at a group whose leader has ended.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(1);

/// After this time it is said that processes of the group are waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time between SIGTERM and the deadline.
pub(crate) fn lead(ttl: Duration) -> Duration {
    (ttl / 4).min(LEAD_MAX)
}

/// What is known about a lock that is held.
pub(crate) trait Hold {
    /// Time to the deadline as it is known now; `Duration::MAX` where a hold has none.
    fn remaining(&self) -> Duration;

    /// Waits until the lock is lost, and says why.
    async fn lost(&self) -> String;
}

/// Lets the job run until its group is gone, and sees to it that this is before the lock ends. The exit status: that of
/// the command, or why the job had to end.
pub(crate) async fn supervise(
    job: &mut Job,
    hold: &impl Hold,
    ttl: Duration,
    signals: &mut Signals,
    children: &mut Children,
) -> u8 {
    let mut lost = pin!(hold.lost());
    let mut ladder = Ladder::new(ttl);
    let mut verdict = Verdict::default();
    let mut leftovers = Leftovers::default();
    loop {
        if let Err(failure) = job.reap() {
            verdict.is(failure);
            ladder.end_now(clock::now());
        }
        if let Some(status) = job.status()
            && !job.group().is_alive()
        {
            return verdict.0.unwrap_or(status);
        }
        let pause = match ladder.step(clock::now(), hold.remaining()) {
            Step::Wait(pause) => pause,
            Step::Terminate(left) => {
                verdict.is(Failure::new(
                    LOST,
                    format!("no renewal is acknowledged, the lock ends in {left:.1?}"),
                ));
                job.end(false);
                Duration::ZERO
            }
            Step::Kill => {
                verdict.is(Failure::new(LOST, "no renewal was acknowledged, the lock ends"));
                job.end(true);
                LOOK_PAUSE_MAX
            }
        };
        if let Err(failure) = job.tell_deadline(ladder.deadline) {
            verdict.is(failure);
            ladder.end_now(clock::now());
        }
        let pause = if job.status().is_some() { pause.min(leftovers.pause()) } else { pause };
        tokio::select! {
            reason = &mut lost, if !ladder.knows_of_loss => {
                verdict.is(Failure::new(LOST, reason));
                ladder.lost(clock::now());
            }
            signal = signals.next() => job.forward(signal),
            () = children.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Why the job has to end, as an exit status; said when it is known, for the end may take a while.
#[derive(Debug, Default)]
struct Verdict(Option<u8>);

impl Verdict {
    /// The first one counts.
    fn is(&mut self, failure: Failure) {
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

/// When to do what. All moments are readings of [`clock`].
#[derive(Debug)]
struct Ladder {
    lead: Duration,
    /// The deadline that was acknowledged last.
    deadline: Option<Duration>,
    ending: Ending,
    knows_of_loss: bool,
}

/// How far the end of the job has come.
#[derive(Debug, Clone, Copy)]
enum Ending {
    No,
    /// SIGTERM is due, SIGKILL at this moment.
    Due(Duration),
    /// SIGTERM was sent, SIGKILL is due at this moment.
    Told(Duration),
}

impl Ladder {
    fn new(ttl: Duration) -> Self {
        Self { lead: lead(ttl), deadline: None, ending: Ending::No, knows_of_loss: false }
    }

    /// The store says that the lock is gone, or its deadline has passed.
    fn lost(&mut self, now: Duration) {
        self.knows_of_loss = true;
        match self.deadline {
            Some(deadline) if now + KILL_MARGIN >= deadline => self.ending = Ending::Told(now),
            _ => self.end_now(now),
        }
    }

    /// The job has to end although the lock may still be held; no later than it had to anyway.
    fn end_now(&mut self, now: Duration) {
        self.ending = match self.ending {
            Ending::No => Ending::Due(now + self.lead),
            Ending::Due(kill_at) => Ending::Due(kill_at.min(now + self.lead)),
            Ending::Told(kill_at) => Ending::Told(kill_at.min(now + self.lead)),
        };
    }

    fn step(&mut self, now: Duration, remaining: Duration) -> Step {
        // Nothing remaining is no deadline: a loss that was told says so, too.
        if matches!(self.ending, Ending::No) && !remaining.is_zero() {
            self.deadline = now.checked_add(remaining);
        }
        if let (Ending::No, Some(deadline)) = (self.ending, self.deadline)
            && now + self.lead >= deadline
        {
            self.ending = Ending::Due(deadline.saturating_sub(KILL_MARGIN));
        }
        match self.ending {
            Ending::Due(kill_at) | Ending::Told(kill_at) if now >= kill_at => {
                self.ending = Ending::Told(kill_at);
                Step::Kill
            }
            Ending::Due(kill_at) => {
                self.ending = Ending::Told(kill_at);
                Step::Terminate(self.deadline.unwrap_or(now).saturating_sub(now))
            }
            Ending::Told(kill_at) => Step::Wait((kill_at - now).min(TICK)),
            Ending::No => {
                let free = self.deadline.map_or(TICK, |deadline| deadline - self.lead - now);
                Step::Wait(free.min(TICK))
            }
        }
    }
}

/// The wait for members of the group that outlive its leader.
#[derive(Debug, Default)]
struct Leftovers {
    since: Option<Instant>,
    pause: Duration,
    said: bool,
}

impl Leftovers {
    /// Time until the next look.
    fn pause(&mut self) -> Duration {
        let since = *self.since.get_or_insert_with(Instant::now);
        if !self.said && since.elapsed() >= PATIENCE {
            self.said = true;
            say("the command has ended; the lock is held until the rest of its process group has");
        }
        self.pause = (self.pause * 2).clamp(LOOK_PAUSE_MIN, LOOK_PAUSE_MAX);
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);

    /// A ladder of a lock with a ttl of 8 s (lead 2 s), last acknowledged at 100 s.
    fn ladder() -> Ladder {
        let mut ladder = Ladder::new(8 * S);
        assert_eq!(ladder.step(100 * S, 8 * S), Step::Wait(TICK));
        ladder
    }

    #[test]
    fn the_lead_is_a_quarter_of_the_ttl_and_at_most_five_seconds() {
        assert_eq!(Ladder::new(8 * S).lead, 2 * S);
        assert_eq!(Ladder::new(60 * S).lead, LEAD_MAX);
        assert_eq!(Ladder::new(Duration::MAX).lead, LEAD_MAX);
    }

    #[test]
    fn without_renewal_the_job_is_told_before_the_deadline_and_killed_before_it() {
        let mut ladder = ladder();
        assert_eq!(ladder.step(106 * S - MS, 2 * S + MS), Step::Wait(MS));
        assert_eq!(ladder.step(106 * S, 2 * S), Step::Terminate(2 * S));
        assert_eq!(ladder.step(108 * S - 101 * MS, 101 * MS), Step::Wait(MS));
        assert_eq!(ladder.step(108 * S - 100 * MS, 100 * MS), Step::Kill);
        assert_eq!(ladder.step(109 * S, Duration::ZERO), Step::Kill, "again, until the group is gone");
    }

    #[test]
    fn a_renewal_moves_the_deadline_but_not_once_the_job_was_told() {
        let mut ladder = ladder();
        assert_eq!(ladder.step(105 * S, 8 * S), Step::Wait(TICK));
        assert_eq!(ladder.deadline, Some(113 * S));
        assert_eq!(ladder.step(111 * S, 2 * S), Step::Terminate(2 * S));
        assert_eq!(ladder.step(111 * S, 8 * S), Step::Wait(TICK));
        assert_eq!(ladder.step(113 * S - 100 * MS, 6 * S), Step::Kill);
    }

    #[test]
    fn a_loss_told_by_the_store_ends_the_job_at_once_and_kills_after_the_lead() {
        let mut ladder = ladder();
        assert_eq!(
            ladder.step(101 * S, Duration::ZERO),
            Step::Wait(TICK),
            "the loss itself is about to be told"
        );
        ladder.lost(101 * S);
        assert_eq!(ladder.step(101 * S, Duration::ZERO), Step::Terminate(7 * S));
        assert_eq!(ladder.step(103 * S - MS, Duration::ZERO), Step::Wait(MS));
        assert_eq!(ladder.step(103 * S, Duration::ZERO), Step::Kill);
    }

    #[test]
    fn a_deadline_that_passed_unnoticed_kills_at_once() {
        let mut stopped = ladder();
        assert_eq!(stopped.step(120 * S, Duration::ZERO), Step::Kill);
        let mut stopped = ladder();
        stopped.lost(120 * S);
        assert_eq!(stopped.step(120 * S, Duration::ZERO), Step::Kill);
    }

    #[test]
    fn a_loss_after_the_first_signal_does_not_put_the_kill_off() {
        let mut ladder = ladder();
        assert_eq!(ladder.step(106 * S, 2 * S), Step::Terminate(2 * S));
        ladder.lost(107 * S);
        assert_eq!(ladder.step(108 * S - 100 * MS, Duration::ZERO), Step::Kill);
    }

    #[test]
    fn a_hold_without_a_deadline_ends_only_by_a_loss() {
        let mut ladder = Ladder::new(Duration::MAX);
        assert_eq!(ladder.step(100 * S, Duration::MAX), Step::Wait(TICK));
        assert_eq!(ladder.deadline, None);
        ladder.lost(101 * S);
        assert_eq!(ladder.step(101 * S, Duration::ZERO), Step::Terminate(Duration::ZERO));
        assert_eq!(ladder.step(106 * S, Duration::ZERO), Step::Kill);
    }
}
