//! `lockkit hold`: holds a lock without a command, until a signal or the end of the input.
//!
//! Failure cases:
//!
//! * The input has no end that means anything: /dev/null under systemd and in the background of a script. Such an input
//!   is not read; otherwise the lock would be released as soon as it is acquired.
//! * The input is the terminal, and this process is in its background: reading would stop the process, and with it the
//!   renewals. The thread that reads blocks SIGTTIN, so the read fails instead, and only signals count.
//! * The lock is lost: the command ends with status 76. Nothing else is ended.

use std::{
    future::pending,
    io::{IsTerminal, Read, stdin},
    thread,
};

use lockkit::LockName;
use nix::sys::signal::SigSet;
use rustix::fs::{FileType, fstat};
use tokio::sync::oneshot;

use crate::{
    args::HoldArguments,
    enclosing_locks::EnclosingLocks,
    exit::{Failure, LOST, print, status_of_signal},
    store::Store,
    under_lock::{Held, WantedLock, release, under_lock},
};

/// Holds the lock; returns how the hold has ended.
pub(crate) async fn hold(arguments: HoldArguments, quiet: bool) -> Result<u8, Failure> {
    let name = LockName::new(&arguments.name)?;
    let request = WantedLock {
        name: &name,
        store: &Store::from(&arguments.store)?,
        wait: &arguments.wait,
        at_least: None,
        once_per: None,
        enclosing: &EnclosingLocks::from_environment(),
        quiet,
    };
    under_lock(request, async |held| {
        let Held { client, guard, signals, .. } = held;
        print(&guard.token().to_string())?;
        let status = tokio::select! {
            biased;
            lost = guard.lost() => return Err(Failure::new(LOST, format!("{lost:#}"))),
            signal = signals.next() => status_of_signal(signal.as_raw()),
            () = end_of_input() => 0,
        };
        release(guard, client).await;
        Ok(status)
    })
    .await
}

/// Waits for the end of the standard input, if it can have one.
async fn end_of_input() {
    if !has_end() {
        return pending().await;
    }
    let (ended, end) = oneshot::channel();
    let reader = thread::Builder::new().name("lockkit-input".into()).spawn(move || {
        let _ = SigSet::all().thread_block();
        let mut buffer = [0; 512];
        let mut input = stdin().lock();
        while let Ok(length) = input.read(&mut buffer) {
            if length == 0 {
                // Fails if nobody waits any more.
                let _ = ended.send(());
                return;
            }
        }
        // An input that cannot be read has no end: the sender is dropped unused.
    });
    if reader.is_err() || end.await.is_err() {
        pending().await
    }
}

/// Whether the end of the input means something: it is a pipe, a file or a terminal, not a device such as /dev/null.
fn has_end() -> bool {
    let kind = fstat(stdin()).map(|found| FileType::from_raw_mode(found.st_mode));
    stdin().is_terminal() || !matches!(kind, Err(_) | Ok(FileType::CharacterDevice))
}
