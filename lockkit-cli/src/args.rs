//! The command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, Parser, Subcommand};

const RUN_DETAILS: &str = "\
The command runs in its own process group, in the foreground of the terminal if there is one. Its environment has \
LOCKKIT_NAME and LOCKKIT_TOKEN (the fencing token, which rises with every grant of the lock). Signals are forwarded to \
the group; during the wait for the lock they end the wait.

The job ends before the lock does. If no renewal is acknowledged in time, the group gets SIGTERM and SIGCONT a quarter \
of the ttl (at most 5 s) before the lock's deadline, and SIGKILL 100 ms before it. If the store reports that the lock \
is gone, SIGTERM is sent at once and SIGKILL after the same time. If lockkit itself is killed, a watcher process kills \
the group before anybody else gets the lock. If lockkit is stopped (Ctrl-Z), the job is killed unless lockkit is \
continued in time.

The lock is released when the last process of the group has ended, even if that is after the command: wait for \
background processes, or end them. Processes that leave the group (setsid, daemons, jobs of an interactive shell) are \
neither waited for nor ended: the lock does not protect them. Nor does it protect processes that lockkit may not \
signal: write `sudo lockkit run ... -- command`, not `lockkit run ... -- sudo command`.

Exit status: that of the command; 126: the command cannot be executed; 127: command not found; 128+n: signal n ended \
the command or the wait; 75: not acquired within `--timeout`; 76: lock lost while the command ran; 64: wrong \
arguments, or an enclosing `lockkit run` holds the lock; 69: store unavailable; 70: unexpected state in the store; \
71: error of the operating system; 77: denied by the store; 78: wrong configuration.";

const PASSWORDS: &str = "\
Every user of the host can read arguments, so they must not contain passwords. Name only the user in the URL, such as \
etcd://me@host:2379, and pass the password with --password-file or LOCKKIT_PASSWORD. (LOCKKIT_BACKEND may contain the \
password itself.) The command cannot see it.";

/// Run a command under a distributed lock.
#[derive(Debug, Parser)]
#[command(name = "lockkit", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) messages: MessageArguments,

    #[command(subcommand)]
    pub(crate) action: Action,
}

/// The arguments that select what is printed on stderr.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct MessageArguments {
    /// Print what the library does, and with -vv how [env: RUST_LOG, a filter]
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Print neither warnings nor whom the wait is for
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
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
    /// Every node must be reachable. Nodes that are already set up do not change; if interrupted, run it again.
    /// Nodes that have all lost their data look like new ones: before setting them up again, stop all clients and
    /// wait for the longest ttl.
    #[command(after_long_help = PASSWORDS)]
    Init(InitArguments),
    #[command(name = crate::watcher::NAME, hide = true)]
    WatchGroup,
    #[command(name = crate::trampoline::NAME, hide = true)]
    ExecAtGate {
        gate: i32,
        #[arg(last = true)]
        command: Vec<OsString>,
    },
}

/// The arguments that select the store.
#[derive(Debug, Default, Args)]
pub(crate) struct StoreArguments {
    /// URL of the lock store, such as etcd://host:2379 or file:///var/lib/locks [env: LOCKKIT_BACKEND]
    /// [default: as --local, with a warning]
    // Not `env = ...`: `Store` must distinguish arguments, which everybody can read, from the environment.
    #[arg(long, value_name = "URL")]
    pub(crate) backend: Option<String>,

    /// Use lock files of this user on this host, which exclude nobody else, even if the environment names a store
    #[arg(long, conflicts_with_all = ["backend", "password_file"])]
    pub(crate) local: bool,

    /// File with the password of the user in the URL [env: LOCKKIT_PASSWORD, the password itself]
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,

    /// Exit with status 75 if the lock is not acquired within this time; 0s: do not wait
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Option<Duration>,

    /// Keep the lock for at least this time, even if the command ends earlier: a quick job does not run again on a host
    /// whose clock is a little late. Only on etcd and Redis
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "once_per")]
    pub(crate) at_least: Option<Duration>,

    /// Run the command at most once in each period of this length, over all hosts, such as 1d (from 00:00 UTC); if it
    /// has begun already, exit with status 0 at once
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) once_per: Option<Duration>,

    /// How long the lock outlives its last renewal if this host dies; no effect on file locks [default: 15s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Option<Duration>,

    /// Text that `lockkit who` shows for this holder
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

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Name of the lock
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct InitArguments {
    /// URL of the lock store, such as redlock://h1,h2,h3 [env: LOCKKIT_BACKEND]
    pub(crate) url: Option<String>,

    /// File with the password of the user in the URL [env: LOCKKIT_PASSWORD, the password itself]
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }
}
