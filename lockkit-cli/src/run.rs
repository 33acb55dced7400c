//! `lockkit run`: a command under a lock.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use lockkit::{LockClient, LockGuard, LockName};
use rustix::process::Signal;
use tokio::time::timeout;

use crate::{
    acquire::acquire,
    args::RunArguments,
    connection::Connection,
    exit::{Failure, LOST, say, status_of_signal},
    held::{self, Held},
    job::Job,
    signals::{Children, ENDING, JOB_CONTROL, Signals},
    store::Store,
    supervise::{Hold, supervise},
};

/// Longest time that the end of the session delays the end of the program; otherwise the ttl ends it.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// Runs the command: its exit status, or why it did not run.
pub(crate) async fn run(arguments: RunArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let name = LockName::new(&arguments.name)?;
    let store = Store::from(&arguments.store)?;
    let connection = Connection::to(&store, arguments.ttl, arguments.label.as_deref())?;
    let held = Held::from_environment();

    let mut signals = Signals::hear(ENDING)?;
    let client = match unless_ended(&mut signals, connection.open()).await {
        Ok(client) => client?,
        Err(signal) => return Ok(ended_by(signal, &name)),
    };
    let patience = arguments.timeout.map(|patience| patience.saturating_sub(started.elapsed()));
    let guard = unless_ended(&mut signals, acquire(&client, &name, patience, &held)).await;
    let outcome = match guard {
        Ok(Ok(guard)) => {
            let environment = store
                .secret_variables()
                .map(|secret| (secret, None))
                .chain([
                    ("LOCKKIT_NAME", Some(name.to_string())),
                    ("LOCKKIT_TOKEN", Some(guard.token().to_string())),
                    (held::VARIABLE, Some(held.and(&name))),
                ])
                .collect();
            let work = Work { command: &arguments.command, environment, connection: &connection };
            work.run(&client, guard, &mut signals).await
        }
        Ok(Err(failure)) => Err(failure),
        Err(signal) => Ok(ended_by(signal, &name)),
    };
    // Withdraws a claim that was given up, too. A second signal does not wait for that.
    let _ = unless_ended(&mut signals, timeout(CLOSE_MAX, client.close())).await;
    outcome
}

/// What the future answers, or the signal that came before it did.
async fn unless_ended<F: Future>(signals: &mut Signals, future: F) -> Result<F::Output, Signal> {
    tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        answer = future => Ok(answer),
    }
}

/// The exit status of a wait that a signal has ended.
fn ended_by(signal: Signal, name: &LockName) -> u8 {
    say(format_args!("the wait for lock {:?} was ended by signal {}", name.as_str(), signal.as_raw()));
    status_of_signal(signal.as_raw())
}

/// What to run under the lock.
struct Work<'a> {
    command: &'a [std::ffi::OsString],
    environment: Vec<(&'static str, Option<String>)>,
    connection: &'a Connection,
}

impl Work<'_> {
    /// Runs the command, then gives the lock back; after an error the end of the session does that.
    async fn run(self, client: &LockClient, guard: LockGuard, signals: &mut Signals) -> Result<u8, Failure> {
        let status = self.under(&guard, client.ttl(), signals).await?;
        // It may have been lost in the moment in which the job ended.
        if let (true, Err(lost)) = (status != LOST, guard.check()) {
            return Err(Failure::new(
                LOST,
                format!("the command has ended with status {status}, but {lost:#}"),
            ));
        }
        match guard.release().await {
            Err(error) if status != LOST => {
                say(format_args!("{error:#}; the lock ends by itself within {:?}", client.ttl()));
            }
            _ => {}
        }
        Ok(status)
    }

    async fn under(self, guard: &LockGuard, ttl: Duration, signals: &mut Signals) -> Result<u8, Failure> {
        let locked_file = self.connection.locked_file(guard.name())?;
        signals.hear_also(JOB_CONTROL)?;
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
