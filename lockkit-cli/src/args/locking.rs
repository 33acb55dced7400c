//! The arguments of commands that acquire a lock.

use std::{ffi::OsString, time::Duration};

use clap::Args;

use super::{
    StoreArguments,
    names::parse_name,
    times::{parse_max_hold, parse_time},
};

/// How a lock is waited for and held.
#[derive(Debug, Args)]
pub(crate) struct WaitArguments {
    /// Exit with status 75 if the lock is not acquired within this time; 0: do not wait
    #[arg(short = 'w', long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,

    /// Do not wait for the lock: --timeout 0
    #[arg(short, long, conflicts_with = "timeout")]
    nonblock: bool,

    /// Exit with this status instead of 75
    #[arg(short = 'E', long, value_name = "STATUS")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// How long to wait for a store that does not answer; 0: one attempt [default: as long as for the lock]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) connect_timeout: Option<Duration>,

    /// How long the lock outlives its last renewal if this host dies; no effect on file locks [default: 15s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) ttl: Option<Duration>,

    /// End the hold after this time (at least 1s), even if the work is not done: the job ends, with status 76
    #[arg(long, value_name = "TIME", value_parser = parse_max_hold)]
    pub(crate) max_hold: Option<Duration>,

    /// Text that `lockkit who` shows for this holder
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
}

impl WaitArguments {
    /// Returns the time limit of the wait; zero for none at all, `None` without a limit.
    pub(crate) fn time_limit(&self) -> Option<Duration> {
        if self.nonblock { Some(Duration::ZERO) } else { self.timeout }
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,

    #[command(flatten)]
    pub(crate) wait: WaitArguments,

    /// Keep the lock for at least this time, even if the command ends earlier: a quick job does not run again on a host
    /// whose clock is a little late. Only on etcd and Redis
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "once_per")]
    pub(crate) at_least: Option<Duration>,

    /// Run the command at most once in each period of this length, over all hosts, such as 1d (from 00:00 UTC); if it
    /// has begun already, exit with status 0 at once
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "max_hold")]
    pub(crate) once_per: Option<Duration>,

    /// Run this text by `sh -c`, instead of a command after --
    #[arg(short = 'c', long = "command", value_name = "TEXT", conflicts_with = "command")]
    pub(crate) shell: Option<OsString>,

    /// Name of the lock
    #[arg(value_parser = parse_name)]
    pub(crate) name: String,

    /// The command and its arguments
    #[arg(last = true, required_unless_present = "shell", value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArguments {
    /// Returns the command with its arguments.
    pub(crate) fn command(&self) -> Vec<OsString> {
        match &self.shell {
            Some(text) => vec!["sh".into(), "-c".into(), text.clone()],
            None => self.command.clone(),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct HoldArguments {
    #[command(flatten)]
    pub(crate) store: StoreArguments,

    #[command(flatten)]
    pub(crate) wait: WaitArguments,

    /// Name of the lock
    #[arg(value_parser = parse_name)]
    pub(crate) name: String,
}
