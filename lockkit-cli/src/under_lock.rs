//! Work under a lock: from the store's URL to the release, for `run` and `hold`.
//!
//! Failure cases:
//!
//! * The store does not answer yet: it is waited for as long as for the lock, unless `--connect-timeout` or the option
//!   `connect_timeout` of the URL says otherwise. A store that refuses (a wrong password) ends the wait.
//! * A signal arrives during a wait: the claim is withdrawn, also if nobody reads the message about it.
//! * The lock was lost: nobody waits for the store any more, which may be the reason of the loss.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use lockkit::{LockClient, LockGuard, LockName};
use rustix::process::Signal;
use tokio::time::timeout;

use crate::{
    acquire::{AcquireOptions, acquire},
    args::WaitArguments,
    configured_store::ConfiguredStore,
    enclosing_locks::EnclosingLocks,
    exit::{Failure, LOST, NOT_ACQUIRED, status_of_signal},
    log::say_or_drop,
    signals::{ENDING, Signals},
    store::Store,
    waiting::{notice_of_holder, notice_of_store, with_notice},
};

/// Time limit for closing the session when the program ends; otherwise the session ends with its ttl.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// The same after a loss.
const CLOSE_AFTER_LOSS_MAX: Duration = Duration::from_millis(250);

/// Which lock, and how it is acquired.
pub(crate) struct WantedLock<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) store: &'a Store,
    pub(crate) wait: &'a WaitArguments,
    /// How long the lock is kept at least.
    pub(crate) at_least: Option<Duration>,
    /// The period in which the work begins once.
    pub(crate) once_per: Option<Duration>,
    pub(crate) enclosing: &'a EnclosingLocks,
    pub(crate) quiet: bool,
}

/// A lock that is held.
pub(crate) struct Held<'a> {
    pub(crate) client: &'a LockClient,
    pub(crate) configured: &'a ConfiguredStore,
    pub(crate) guard: LockGuard,
    pub(crate) signals: &'a mut Signals,
}

/// Acquires the lock and does the work; returns the exit status of the work, or of what prevented it.
pub(crate) async fn under_lock(
    request: WantedLock<'_>,
    work: impl AsyncFnOnce(Held<'_>) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    let started = Instant::now();
    let WantedLock { name, store, wait, quiet, .. } = request;
    let mut configured = ConfiguredStore::to(store, wait.ttl, wait.label.as_deref())?;
    configured.wait_for_store(wait.connect_timeout, wait.time_limit());
    let mut signals = Signals::listen(ENDING)?;
    let opening = with_notice(configured.open(), (!quiet).then(notice_of_store));
    let client = match unless_ended(&mut signals, opening).await {
        Ok(client) => client?,
        Err(signal) => return Ok(ended_by(signal, name)),
    };
    let options = AcquireOptions {
        time_limit: wait.time_limit().map(|limit| limit.saturating_sub(started.elapsed())),
        at_least: request.at_least,
        max_hold: wait.max_hold,
        once_per: request.once_per,
    };
    let notice = (!quiet).then(|| notice_of_holder(&client, name));
    let acquiring = with_notice(acquire(&client, name, options, request.enclosing), notice);
    let outcome = match unless_ended(&mut signals, acquiring).await {
        Ok(Ok(None)) => {
            say_or_drop(format_args!("{:?} not run: it has begun in this period already", name.as_str()));
            Ok(0)
        }
        Ok(Ok(Some(guard))) => {
            work(Held { client: &client, configured: &configured, guard, signals: &mut signals }).await
        }
        Ok(Err(mut failure)) => {
            if let (NOT_ACQUIRED, Some(status)) = (failure.status, wait.conflict_exit_code) {
                failure.status = status;
            }
            Err(failure)
        }
        Err(signal) => Ok(ended_by(signal, name)),
    };
    // This also withdraws a claim that was given up. A second signal ends the wait.
    let _ = unless_ended(&mut signals, timeout(close_max(&outcome), client.close())).await;
    outcome
}

/// Returns the time limit for closing the session after this outcome.
fn close_max(outcome: &Result<u8, Failure>) -> Duration {
    let is_lost = matches!(outcome, Ok(LOST) | Err(Failure { status: LOST, .. }));
    if is_lost { CLOSE_AFTER_LOSS_MAX } else { CLOSE_MAX }
}

/// Awaits the future, or returns the signal that arrived first.
pub(crate) async fn unless_ended<F: Future>(signals: &mut Signals, future: F) -> Result<F::Output, Signal> {
    tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        answer = future => Ok(answer),
    }
}

/// Returns the exit status of a wait that a signal has ended.
fn ended_by(signal: Signal, name: &LockName) -> u8 {
    say_or_drop(format_args!("wait for lock {:?} ended by signal {}", name.as_str(), signal.as_raw()));
    status_of_signal(signal.as_raw())
}

/// Releases the lock. A release that is not confirmed is reported: others wait for the end of the lease.
pub(crate) async fn release(guard: LockGuard, client: &LockClient) {
    if let Err(error) = guard.release().await {
        say_or_drop(format_args!("{error:#}; the lock expires within {:?}", client.ttl()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_is_waited_for_at_the_end_unless_the_lock_was_lost() {
        for (status, expected) in
            [(0, CLOSE_MAX), (NOT_ACQUIRED, CLOSE_MAX), (143, CLOSE_MAX), (LOST, CLOSE_AFTER_LOSS_MAX)]
        {
            assert_eq!(close_max(&Ok(status)), expected, "{status}");
            assert_eq!(close_max(&Err(Failure::new(status, ""))), expected, "{status}");
        }
    }
}
