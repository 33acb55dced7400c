//! `lockkit run`: a command under a lock.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use lockkit::{LockClient, LockGuard, LockName};
use rustix::process::Signal;
use tokio::time::timeout;

use crate::{
    acquire::{Wanted, acquire},
    args::RunArguments,
    connection::Connection,
    enclosing_locks::{self, EnclosingLocks},
    exit::{Failure, LOST, say, status_of_signal},
    job::Job,
    signals::{Children, ENDING, JOB_CONTROL, Signals},
    store::Store,
    supervise::{Hold, supervise},
    waiting::{notice_of_holder, notice_of_store, with_notice},
};

/// Time limit for closing the session when the program ends; otherwise the session ends with its ttl.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Runs the command; returns its exit status, or why it did not run.
pub(crate) async fn run(arguments: RunArguments, quiet: bool) -> Result<u8, Failure> {
    let started = Instant::now();
    let name = LockName::new(&arguments.name)?;
    let store = Store::from(&arguments.store)?;
    let connection = Connection::to(&store, arguments.ttl, arguments.label.as_deref())?;
    let enclosing = EnclosingLocks::from_environment();

    let mut signals = Signals::listen(ENDING)?;
    let opening = with_notice(connection.open(), (!quiet).then(notice_of_store));
    let client = match unless_ended(&mut signals, opening).await {
        Ok(client) => client?,
        Err(signal) => return Ok(ended_by(signal, &name)),
    };
    let time_limit = arguments.timeout.map(|time_limit| time_limit.saturating_sub(started.elapsed()));
    let wanted = Wanted { time_limit, at_least: arguments.at_least, once_per: arguments.once_per };
    let notice = (!quiet).then(|| notice_of_holder(&client, &name));
    let acquiring = with_notice(acquire(&client, &name, wanted, &enclosing), notice);
    let guard = unless_ended(&mut signals, acquiring).await;
    let outcome = match guard {
        Ok(Ok(None)) => {
            say(format_args!("{:?} not run: it has begun in this period already", name.as_str()));
            Ok(0)
        }
        Ok(Ok(Some(guard))) => {
            let environment = store
                .secret_variables()
                .map(|secret| (secret, None))
                .chain([
                    ("LOCKKIT_NAME", Some(name.to_string())),
                    ("LOCKKIT_TOKEN", Some(guard.token().to_string())),
                    (enclosing_locks::VARIABLE, Some(enclosing.value_with(&name))),
                ])
                .collect();
            let locked_command =
                LockedCommand { command: &arguments.command, environment, connection: &connection };
            locked_command.run(&client, guard, &mut signals).await
        }
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Ok(ended_by(signal, &name)),
    };
    // This also withdraws a claim that was given up. A second signal ends the wait.
    let _ = unless_ended(&mut signals, timeout(CLOSE_MAX, client.close())).await;
    outcome
}

/// Awaits the future, or returns the signal that arrived first.
async fn unless_ended<F: Future>(signals: &mut Signals, future: F) -> Result<F::Output, Signal> {
    tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        answer = future => Ok(answer),
    }
}

/// Returns the exit status of a wait that a signal has ended.
fn ended_by(signal: Signal, name: &LockName) -> u8 {
    say(format_args!("wait for lock {:?} ended by signal {}", name.as_str(), signal.as_raw()));
    status_of_signal(signal.as_raw())
}

/// The command to run under the lock.
struct LockedCommand<'a> {
    command: &'a [std::ffi::OsString],
    environment: Vec<(&'static str, Option<String>)>,
    connection: &'a Connection,
}

impl LockedCommand<'_> {
    /// Runs the command, then releases the lock; after an error, the end of the session frees it.
    async fn run(self, client: &LockClient, guard: LockGuard, signals: &mut Signals) -> Result<u8, Failure> {
        let status = self.run_job(&guard, client.ttl(), signals).await?;
        // The lock may have been lost at the moment at which the job ended.
        if let (true, Err(lost)) = (status != LOST, guard.check()) {
            return Err(Failure::new(
                LOST,
                format!("the command ended with status {status}, but its lock was lost: {lost:#}"),
            ));
        }
        match guard.release().await {
            Err(error) if status != LOST => {
                say(format_args!("{error:#}; the lock expires within {:?}", client.ttl()));
            }
            _ => {}
        }
        Ok(status)
    }

    async fn run_job(self, guard: &LockGuard, ttl: Duration, signals: &mut Signals) -> Result<u8, Failure> {
        let locked_file = self.connection.locked_file(guard.name())?;
        signals.listen_also(JOB_CONTROL)?;
        let mut children = Children::watch()?;
        let mut job = Job::start(self.command, self.environment, locked_file)?;
        let status = supervise(&mut job, guard, ttl, signals, &mut children).await;
        job.finish();
        Ok(status)
    }
}

impl Hold for LockGuard {
    fn remaining(&self) -> Duration {
        self.remaining()
    }

    async fn lost(&self) -> String {
        format!("{:#}", self.lost().await)
    }
}
