//! Wrong arguments: one line that says what is wrong and what may be meant.
//!
//! Failure case: a URL with a password is in the wrong place, such as after `who NAME`. The line does not repeat it:
//! stderr reaches logs and mails that arguments do not.

use std::process::ExitCode;

use clap::{
    CommandFactory,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    args::Arguments,
    exit::{USAGE, say},
    store::may_hold_password,
};

/// Printed in the place of an argument that may contain a password.
const HIDDEN: &str = "***";

/// Prints the help that was asked for, or what is wrong with the arguments.
pub(crate) fn explain(refused: &clap::Error) -> ExitCode {
    if !refused.use_stderr() {
        let _ = refused.print();
        return ExitCode::SUCCESS;
    }
    match refused.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            say("a command is missing");
            // Where nobody reads it, nobody misses it.
            let _ = print_commands();
        }
        _ => say(message(refused, std::env::args_os().any(|argument| argument == "--"))),
    }
    ExitCode::from(USAGE)
}

/// Prints the commands on stderr.
fn print_commands() -> std::io::Result<()> {
    use std::io::Write;
    write!(std::io::stderr(), "{}", Arguments::command().render_help())
}

/// Returns the first paragraph of an error, its tips, and what is known better here.
fn message(refused: &clap::Error, has_separator: bool) -> String {
    let text = without_passwords(refused);
    let paragraph: Vec<&str> =
        text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let mut message = paragraph.join(" ").trim_start_matches("error: ").to_owned();
    let tip = match refused.kind() {
        ErrorKind::UnknownArgument if !has_separator && is_for_run(refused) => {
            Some("`--` is missing before the command: lockkit run NAME -- COMMAND".to_owned())
        }
        ErrorKind::MissingRequiredArgument if message.contains("<COMMAND>") => {
            Some("what to run under the lock: lockkit run NAME -- COMMAND".to_owned())
        }
        _ => text.lines().find_map(|line| Some(line.trim().strip_prefix("tip: ")?.to_owned())),
    };
    if let Some(tip) = tip {
        message += &format!(" ({tip})");
    }
    message + "; see lockkit --help"
}

/// Returns the text of an error, without the arguments in it that may contain a password.
fn without_passwords(refused: &clap::Error) -> String {
    let repeated = refused.context().filter_map(|(_, value)| match value {
        ContextValue::String(argument) if may_hold_password(argument) => Some(argument),
        _ => None,
    });
    repeated.fold(refused.to_string(), |text, argument| text.replace(argument.as_str(), HIDDEN))
}

/// Whether a value, no option, was too much for `lockkit run`.
fn is_for_run(refused: &clap::Error) -> bool {
    let usage = match refused.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => return false,
    };
    let is_option = matches!(
        refused.get(ContextKind::InvalidArg),
        Some(ContextValue::String(argument)) if argument.starts_with('-')
    );
    usage.contains("lockkit run") && !is_option
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn message_for(arguments: &[&str]) -> String {
        let refused = Arguments::try_parse_from([&["lockkit"], arguments].concat()).unwrap_err();
        message(&refused, arguments.contains(&"--"))
    }

    #[test]
    fn tips_are_kept() {
        for (arguments, tip) in [
            (
                &["run", "a", "echo", "x"][..],
                "`--` is missing before the command: lockkit run NAME -- COMMAND",
            ),
            (&["rum", "a"], "a similar subcommand exists: 'run'"),
            (&["run", "--tmeout", "3", "a", "--", "x"], "a similar argument exists: '--timeout'"),
            (&["run", "-w", "soon", "a", "--", "x"], "not a time, such as 90, 0.5 or 1m30s"),
            (&["run", "a"], "lockkit run NAME -- COMMAND"),
            (&["who"], "<NAME>"),
        ] {
            let message = message_for(arguments);
            assert!(message.contains(tip) && !message.contains('\n'), "{message:?}");
        }
    }

    #[test]
    fn password_in_the_wrong_place_is_not_repeated() {
        let url = "redis://me:hunter2@h/0";
        for arguments in [
            &["who", "a", url][..],
            &[url],
            &["run", url, url, "--", "x"],
            &["run", "-w", url, "a", "--", "x"],
            &["who", "a", "redis://me:hunter2@h:port"],
            &["who", "a", "redis+sentinel://h/main?sentinel_password=hunter2"],
            &["who", "a", "redis://h?password=hunter2"],
            &["who", "a", "redis://h:port?password=hunter2"],
            &["who", url],
            &["ls", url],
            &["hold", url],
            &["break", "--yes", url],
            &["run", url, "--", "x"],
            &["man", url],
        ] {
            let message = message_for(arguments);
            assert!(!message.contains("hunter2") && message.contains("; see lockkit --help"), "{message:?}");
        }
        assert!(message_for(&["who", "a", url]).contains("unexpected argument '***' found"));
        assert!(message_for(&["who", url]).contains("belongs after --backend"));
    }

    #[test]
    fn tips_are_not_given_where_they_mislead() {
        for arguments in [&["run", "a", "--sleep", "x"][..], &["who", "a", "b"]] {
            let message = message_for(arguments);
            assert!(!message.contains("lockkit run NAME"), "{message:?}");
        }
    }
}
