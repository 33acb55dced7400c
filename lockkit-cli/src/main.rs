//! The `lockkit` program: runs a command under a distributed lock.
//!
//! | process | does |
//! |---|---|
//! | `lockkit run` | holds the lock, supervises the job ([`supervise`]) |
//! | its command | the job: leads its own process group; starts as a [`trampoline`] |
//! | a [`watcher`] | kills the job's group when `lockkit run` no longer can |

#[cfg(not(unix))]
compile_error!("lockkit runs jobs in process groups, which only Unix has");

mod acquire;
mod args;
mod break_lock;
mod clock;
mod configured_store;
mod describe;
mod doctor;
mod enclosing_locks;
mod end_schedule;
mod exit;
mod group;
mod hold;
mod init;
mod job;
mod log;
mod ls;
mod run;
mod shell;
mod signals;
mod store;
mod supervise;
mod terminal;
mod trampoline;
mod under_lock;
mod usage;
mod waiting;
mod watcher;
mod who;

use std::{
    future::Future,
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use clap::Parser;

use self::{
    args::{Action, Arguments, MessageArguments},
    exit::{Failure, say},
    log::Collector,
};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(refused) => return usage::explain(&refused),
    };
    let outcome = match arguments.action {
        // The helper processes of a job do without a log and a runtime.
        Action::ExecAtGate { gate, command } => Ok(trampoline::exec_at_gate(gate, &command)),
        Action::WatchGroup => {
            watcher::watch_group();
            Ok(0)
        }
        action => {
            // Only `doctor` asks what is collected.
            let collector = matches!(action, Action::Doctor(_)).then(Collector::default);
            log::start(&arguments.messages, collector.clone());
            let outcome = carry_out(action, arguments.messages, &collector.unwrap_or_default());
            log::finish();
            outcome
        }
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(Failure { status, message }) => {
            if !message.is_empty() {
                say(message);
            }
            ExitCode::from(status)
        }
    }
}

fn carry_out(action: Action, messages: MessageArguments, collector: &Collector) -> Result<u8, Failure> {
    match action {
        Action::Run(arguments) => block_on(run::run(arguments, messages.quiet)),
        Action::Hold(arguments) => block_on(hold::hold(arguments, messages.quiet)),
        Action::Who(arguments) => block_on(who::who(arguments)),
        Action::Ls(arguments) => block_on(ls::ls(arguments)),
        Action::Break(arguments) => block_on(break_lock::break_lock(arguments)),
        Action::Doctor(arguments) => block_on(doctor::doctor(arguments, collector)),
        Action::Init(arguments) => block_on(init::init(arguments)),
        Action::Completions { shell } => shell::completions(shell),
        Action::Man { command } => shell::man(command.as_deref()),
        Action::ExecAtGate { .. } | Action::WatchGroup => Ok(0),
    }
}

fn block_on(action: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| Failure::system("start", cause))?;
    runtime.block_on(action)
}

/// Returns this program as a command, for a hidden subcommand: the same file, even if an upgrade has replaced it.
fn program() -> io::Result<Command> {
    let mut program = if cfg!(any(target_os = "linux", target_os = "android")) {
        Command::new("/proc/self/exe")
    } else {
        Command::new(std::env::current_exe()?)
    };
    program.arg0("lockkit");
    Ok(program)
}
