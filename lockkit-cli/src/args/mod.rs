//! The command line.

mod help;
mod locking;
mod names;
mod times;

use std::{ffi::OsString, path::PathBuf};

use clap::{ArgAction, Args, Parser, Subcommand};

use self::names::parse_name;
pub(crate) use self::{
    locking::{HoldArguments, RunArguments, WaitArguments},
    times::parse_time,
};

/// Run a command under a distributed lock.
#[derive(Debug, Parser)]
#[command(name = "lockkit", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) messages: MessageArguments,

    #[command(subcommand)]
    pub(crate) action: Action,
}

/// The place of arguments that all commands have, after those of the command.
const LAST: usize = 900;

/// The arguments that select what is printed on stderr.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct MessageArguments {
    /// Print what the library does, and with -vv how [env: RUST_LOG, a filter]
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = LAST)]
    pub(crate) verbose: u8,

    /// Print neither warnings nor whom the wait is for
    #[arg(short, long, global = true, conflicts_with = "verbose", display_order = LAST)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Run a command while holding a lock
    #[command(after_long_help = format!("{}\n\n{}", help::RUN, help::STORE))]
    Run(RunArguments),
    /// Hold a lock until a signal or the end of the input
    #[command(after_long_help = format!("{}\n\n{}", help::HOLD, help::STORE))]
    Hold(HoldArguments),
    /// Show who holds a lock and who waits for it
    #[command(after_long_help = format!("{}\n\n{}", help::WHO, help::STORE))]
    Who(WhoArguments),
    /// List the locks that are held or waited for
    #[command(after_long_help = help::STORE)]
    Ls(LsArguments),
    /// Take a lock away from its holder
    #[command(after_long_help = format!("{}\n\n{}", help::BREAK, help::STORE))]
    Break(BreakArguments),
    /// Examine a store: what it can do, whether it is set up well, how fast it is
    #[command(after_long_help = format!("{}\n\n{}", help::DOCTOR, help::STORE))]
    Doctor(DoctorArguments),
    /// Set up a store of several nodes (redlock://...) once, before the first lock
    ///
    /// Every node must be reachable. Nodes that are already set up do not change; if interrupted, run it again.
    /// Nodes that have all lost their data look like new ones: before setting them up again, stop all clients and
    /// wait for the longest ttl.
    #[command(after_long_help = help::STORE)]
    Init(InitArguments),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of lockkit, or of one of its commands, for man(1)
    Man {
        /// A command, such as run
        #[arg(value_parser = parse_name)]
        command: Option<String>,
    },
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
pub(crate) struct WhoArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print every change, until a signal
    #[arg(long)]
    pub(crate) watch: bool,

    /// Name of the lock
    #[arg(value_parser = parse_name)]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct LsArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,

    /// Show the holder and the number of waiters, which takes a request for each lock
    #[arg(short, long)]
    pub(crate) long: bool,

    /// Print a JSON object per lock and line
    #[arg(long)]
    pub(crate) json: bool,

    /// What the names begin with
    #[arg(default_value = "", hide_default_value = true, value_parser = parse_name)]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct BreakArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,

    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Name of the lock
    #[arg(value_parser = parse_name)]
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

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// URL of the lock store [env: LOCKKIT_BACKEND]
    pub(crate) url: Option<String>,

    /// Examine the lock files of this user on this host
    #[arg(long, conflicts_with_all = ["url", "password_file"])]
    pub(crate) local: bool,

    /// File with the password of the user in the URL [env: LOCKKIT_PASSWORD, the password itself]
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, error::ErrorKind};

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn arguments_that_contradict_each_other_are_refused() {
        for line in [
            "lockkit run --nonblock --timeout 1 a -- x",
            "lockkit run --at-least 1h --once-per 1d a -- x",
            "lockkit run --once-per 1d --max-hold 1h a -- x",
            "lockkit run --command x a -- x",
            "lockkit who --local --backend file:///locks a",
            "lockkit who --local --password-file p a",
            "lockkit doctor --local file:///locks",
            "lockkit doctor --local --password-file p",
            "lockkit ls --quiet --verbose",
        ] {
            let refused = Arguments::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ArgumentConflict, "{line}: {refused}");
        }
    }
}
