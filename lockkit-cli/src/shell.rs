//! `lockkit completions` and `lockkit man`: texts for shells and man(1), made of the definition of the command line.

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::{
    args::Arguments,
    exit::{Failure, USAGE, print},
};

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    generate(shell, &mut Arguments::command(), "lockkit", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(0)
}

/// Prints the manual page of the program, or of one of its commands.
pub(crate) fn man(command: Option<&str>) -> Result<u8, Failure> {
    let mut program = Arguments::command();
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
