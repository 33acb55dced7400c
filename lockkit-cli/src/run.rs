//! `lockkit run`: a command under a lock.
//!
//! Failure cases:
//!
//! * This program is stopped after the lock was acquired, and the lock is lost before the command starts: the lock is
//!   checked once more right before the start.
//! * It is stopped after that check: the watcher has the lock's deadline before the command starts
//!   ([`watcher`](crate::watcher)), and a continued program kills the job at once ([`supervise`](crate::supervise)). If
//!   the watcher has killed the process that was to become the command, the message says that nothing was started.

use std::{ffi::OsString, time::Duration};

use lockkit::{LockGuard, LockName};

use crate::{
    args::RunArguments,
    clock,
    enclosing_locks::{self, EnclosingLocks},
    exit::{Failure, LOST},
    job::Job,
    signals::{Children, JOB_CONTROL},
    store::Store,
    supervise::{HeldLock, supervise},
    under_lock::{Held, WantedLock, release, under_lock},
};

/// Runs the command; returns its exit status, or why it did not run.
pub(crate) async fn run(arguments: RunArguments, quiet: bool) -> Result<u8, Failure> {
    let name = LockName::new(&arguments.name)?;
    let store = Store::from(&arguments.store)?;
    let enclosing = EnclosingLocks::from_environment();
    let request = WantedLock {
        name: &name,
        store: &store,
        wait: &arguments.wait,
        at_least: arguments.at_least,
        once_per: arguments.once_per,
        enclosing: &enclosing,
        quiet,
    };
    under_lock(request, async |held| {
        let environment = store
            .secret_variables()
            .chain([
                ("LOCKKIT_NAME", Some(name.to_string())),
                ("LOCKKIT_TOKEN", Some(held.guard.token().to_string())),
                (enclosing_locks::VARIABLE, Some(enclosing.clone().value_with(&name))),
            ])
            .collect();
        let max_hold = arguments.wait.max_hold;
        LockedCommand { command: arguments.command(), environment, max_hold }.run(held).await
    })
    .await
}

/// The command to run under the lock.
struct LockedCommand {
    command: Vec<OsString>,
    environment: Vec<(&'static str, Option<String>)>,
    max_hold: Option<Duration>,
}

impl LockedCommand {
    /// Runs the command, then releases the lock; after an error, the end of the session frees it.
    async fn run(self, mut held: Held<'_>) -> Result<u8, Failure> {
        let status = self.run_job(&mut held).await?;
        let Held { client, guard, .. } = held;
        if status == LOST {
            // A release that nobody waits for: the store may not answer, and the job has ended.
            drop(guard);
            return Ok(status);
        }
        release(guard, client).await;
        Ok(status)
    }

    async fn run_job(self, held: &mut Held<'_>) -> Result<u8, Failure> {
        let hold = LimitedHold {
            guard: &held.guard,
            limit: self.max_hold.map(|max_hold| (max_hold, clock::now().saturating_add(max_hold))),
        };
        let locked_file = held.configured.locked_file(held.guard.name())?;
        held.signals.listen_also(JOB_CONTROL)?;
        let mut children = Children::watch()?;
        let deadline = deadline_of(&held.guard)?;
        let mut job = Job::start(&self.command, self.environment, locked_file, deadline)?;
        let ttl = self.max_hold.map_or(held.client.ttl(), |max_hold| held.client.ttl().min(max_hold));
        let status = supervise(&mut job, &hold, ttl, held.signals, &mut children).await;
        let was_started = job.was_started();
        job.finish();
        // The lock may have been lost at the moment at which the job ended.
        ended_under_lock(status, was_started, held.guard.check())
    }
}

/// Returns the deadline of a lock under which a command is about to start; `None` for a hold without one. Fails if the
/// lock is lost.
fn deadline_of(guard: &LockGuard) -> Result<Option<Duration>, Failure> {
    // Read before the check: a hold that is lost has no deadline.
    let deadline = clock::now().checked_add(guard.remaining());
    guard.check().map_err(|lost| not_started(&lost))?;
    Ok(deadline)
}

/// Returns the status of a command that has ended, if its lock was held until then. A loss that has ended the job is said
/// already.
fn ended_under_lock(status: u8, was_started: bool, checked: lockkit::Result<()>) -> Result<u8, Failure> {
    match checked {
        Err(lost) if status != LOST => Err(match was_started {
            true => Failure::new(
                LOST,
                format!("the command ended with status {status}, but its lock was lost: {lost:#}"),
            ),
            false => not_started(&lost),
        }),
        _ => Ok(status),
    }
}

fn not_started(lost: &lockkit::Error) -> Failure {
    Failure::new(LOST, format!("the command was not started: {lost:#}"))
}

/// A lock, and how long it may be held.
struct LimitedHold<'a> {
    guard: &'a LockGuard,
    /// The longest duration of the hold, and its end.
    limit: Option<(Duration, Duration)>,
}

impl HeldLock for LimitedHold<'_> {
    fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    async fn lost(&self) -> String {
        format!("{:#}", self.guard.lost().await)
    }

    fn why_ending(&self) -> String {
        match self.limit {
            // No renewal can move that end.
            Some((max_hold, end)) if is_last(clock::now(), self.guard.remaining(), end) => {
                format!("the lock is held for its --max-hold of {max_hold:?}")
            }
            _ => "lock not renewed in time".into(),
        }
    }
}

/// Whether a hold with this time left ends at `end`, as far as two clocks can show that. Either may be
/// `Duration::MAX`.
fn is_last(now: Duration, remaining: Duration, end: Duration) -> bool {
    now.saturating_add(remaining).saturating_add(SAME) >= end
}

/// Moments that differ less are the same: two clocks were read one after the other.
const SAME: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use lockkit::{Clock, Error, ErrorKind, LockClient, memory::MemoryServer};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn command_starts_with_the_deadline_of_its_lock_and_not_on_a_lost_one() {
        let server = MemoryServer::new();
        let client = LockClient::builder(server.backend()).clock(Clock::tokio()).build().await.unwrap();
        let guard = client.lock("job").unwrap().acquire().await.unwrap();
        let (left, before) = (guard.remaining(), clock::now());
        let deadline = deadline_of(&guard).unwrap().unwrap();
        assert!((before + left..=clock::now() + left).contains(&deadline), "{deadline:?}, {left:?} left");
        server.hold_requests();
        guard.lost().await;
        let lost = deadline_of(&guard).unwrap_err();
        assert!(lost.status == LOST && lost.message.contains("not started"), "{}", lost.message);
    }

    #[test]
    fn hold_of_a_file_may_have_a_limit_beyond_the_clock() {
        let (now, second) = (Duration::from_secs(100), Duration::from_secs(1));
        assert!(is_last(now, Duration::MAX, Duration::MAX));
        assert!(is_last(now, second, now + second + SAME) && !is_last(now, second, now + second * 2));
    }

    #[test]
    fn command_whose_lock_was_lost_at_its_end_has_not_succeeded() {
        assert_eq!(ended_under_lock(5, true, Ok(())).unwrap(), 5);
        let lost = || Err(Error::new(ErrorKind::Lost, "hold"));
        for (status, was_started, message) in
            [(0, true, "ended with status 0"), (5, true, "ended with status 5"), (137, false, "not started")]
        {
            let failed = ended_under_lock(status, was_started, lost()).unwrap_err();
            assert!(failed.status == LOST && failed.message.contains(message), "{}", failed.message);
        }
        assert_eq!(ended_under_lock(LOST, true, lost()).unwrap(), LOST, "it is said already");
    }
}
