//! `lockkit completions` and `lockkit man`: texts for shells and man(1), made of the definition of the command line.

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};

use crate::{
    args::Arguments,
    exit::{Failure, USAGE, print},
};

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    generate(shell, &mut visible(), "lockkit", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(0)
}

/// Prints the manual page of the program, or of one of its commands.
pub(crate) fn man(command: Option<&str>) -> Result<u8, Failure> {
    let mut program = visible();
    // Adds what all commands have in common.
    program.build();
    let page = match command {
        None => program,
        Some(name) => match program.find_subcommand(name) {
            Some(found) => found.clone(),
            None => return Err(Failure::new(USAGE, format!("lockkit has no command {name:?}"))),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut text)
        .map_err(|cause| Failure::system("write the manual", cause))?;
    print(String::from_utf8_lossy(&text).trim_end())?;
    Ok(0)
}

/// Returns the program without the commands that only it itself calls.
fn visible() -> Command {
    let all = Arguments::command();
    let commands = all.get_subcommands().filter(|command| !command.is_hide_set());
    let about = all.get_about().cloned().unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    Command::new("lockkit").version(version).about(about).args(all.get_arguments()).subcommands(commands)
}
