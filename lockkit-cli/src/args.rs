//! The command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

const RUN_DETAILS: &str = "\
The command runs in a process group of its own, in the foreground of the terminal where there is one, with the \
variables LOCKKIT_NAME and LOCKKIT_TOKEN (the fencing token: rises with every grant of the lock) in its environment. \
Signals are passed on to the group; while the lock is waited for they end the wait.

The job ends before the lock does: when no renewal is acknowledged in time its group gets SIGTERM and SIGCONT at a \
quarter of the ttl (5 s at most) before the lock's deadline, and SIGKILL 100 ms before it. When the store says that the \
lock is gone, SIGTERM comes at once and SIGKILL as much later. When lockkit itself is killed, a watcher process kills \
the group before anybody else gets the lock; when lockkit is stopped (Ctrl-Z), the job is killed unless lockkit is \
continued in time.

The lock is given back when the last process of the group has ended, also where that is later than the command: wait \
for, or end, what you start in the background. Processes that leave the group (setsid, daemons, jobs of an interactive \
shell) are not waited for and not ended: they are outside of what the lock protects. So are processes that lockkit has \
no right to signal: write `sudo lockkit run ... -- command`, not `lockkit run ... -- sudo command`.

Exit status: that of the command, 126 if it cannot be executed, 127 if there is none, 128+n if signal n ended it or \
the wait; 75 not acquired in time, 76 lock lost while the command ran; 64 wrong arguments, or a lock that an enclosing \
`lockkit run` holds; 69 store unavailable, 70 unexpected state in the store, 71 error of the operating system, 77 denied \
by the store, 78 wrong configuration.";

const PASSWORDS: &str = "\
Passwords never belong into arguments, which every user of the host can read: name only the user in the URL, such as \
etcd://me@host:2379, and give the password in the file of --password-file or in LOCKKIT_PASSWORD. (LOCKKIT_BACKEND may \
hold the password itself.) The command does not get to see it.";

/// Run a command under a distributed lock.
#[derive(Debug, Parser)]
#[command(name = "lockkit", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) action: Action,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Run a command while holding a lock
    #[command(after_long_help = format!("{RUN_DETAILS}\n\n{PASSWORDS}"))]
    Run(RunArguments),
    /// Show who holds a lock and who waits for it
    #[command(after_long_help = PASSWORDS)]
    Who(WhoArguments),
    /// Set up a store of several nodes (redlock://...) once, before the first lock
    ///
    /// Every node must be reachable. On nodes that are set up already it does nothing; interrupted, it is run again.
    /// Nodes that have all lost their data look like new ones: stop all clients, and wait for the longest ttl, before they
    /// are set up again.
    #[command(after_long_help = PASSWORDS)]
    Init(InitArguments),
    #[command(name = crate::watcher::NAME, hide = true)]
    WatchGroup,
    #[command(name = crate::trampoline::NAME, hide = true)]
    ExecWhenTold {
        gate: i32,
        #[arg(last = true)]
        command: Vec<OsString>,
    },
}

/// Where the locks are.
#[derive(Debug, Args)]
pub(crate) struct StoreArguments {
    /// URL of the lock store, such as etcd://host:2379 or file:///var/lib/locks [env: LOCKKIT_BACKEND]
    /// [default: files in the user's state folder]
    // Not `env = ...`: only what stands in the arguments can be read by everybody.
    #[arg(long, value_name = "URL")]
    pub(crate) backend: Option<String>,

    /// File that holds the password of the user in the URL [env: LOCKKIT_PASSWORD, the password itself]
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,

    /// Give up, with exit status 75, when the lock is not acquired in this time; 0s: do not wait
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Option<Duration>,

    /// How long the lock outlives its last renewal when this host dies; without effect on file locks [default: 15s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Option<Duration>,

    /// Text that others see when they ask who holds the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Name of the lock
    pub(crate) name: String,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct WhoArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,

    /// Answer as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Name of the lock
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct InitArguments {
    /// URL of the lock store, such as redlock://h1,h2,h3 [env: LOCKKIT_BACKEND]
    pub(crate) url: Option<String>,

    /// File that holds the password of the user in the URL [env: LOCKKIT_PASSWORD, the password itself]
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }
}
