//! Exit statuses, failures, and one-line messages.

use std::{
    borrow::Cow,
    fmt,
    io::{ErrorKind as ErrorKindOfIo, IsTerminal, Write},
};

use lockkit::{Error, ErrorKind};
use rustix::process::Signal;

/// Wrong arguments, or an enclosing `lockkit run` holds the lock (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// The store did not answer (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: u8 = 69;
/// The store contains something that no lockkit client writes (`EX_SOFTWARE`).
pub(crate) const UNEXPECTED: u8 = 70;
/// The operating system refused something, such as starting a process (`EX_OSERR`).
pub(crate) const SYSTEM: u8 = 71;
/// The lock was not acquired within `--timeout` (`EX_TEMPFAIL`).
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The lock was lost before or while the command ran.
pub(crate) const LOST: u8 = 76;
/// The store denied access: wrong password, missing permission (`EX_NOPERM`).
pub(crate) const DENIED: u8 = 77;
/// The backend URL or one of its options is invalid (`EX_CONFIG`).
pub(crate) const CONFIG: u8 = 78;
/// The command exists but cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// Returns the status that shells report for a process ended by this signal.
pub(crate) fn status_of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Why the program ends: a one-line message, or none to end in silence, and the exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// A failure because the operating system refused to `what`.
    pub(crate) fn system(what: &str, cause: impl fmt::Display) -> Self {
        Self::new(SYSTEM, format!("cannot {what}: {cause}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::InvalidName => USAGE,
            ErrorKind::InvalidConfig | ErrorKind::Unsupported => CONFIG,
            ErrorKind::Unavailable | ErrorKind::Closed => UNAVAILABLE,
            ErrorKind::Denied => DENIED,
            ErrorKind::Lost => LOST,
            _ => UNEXPECTED,
        };
        Self::new(status, format!("{error:#}"))
    }
}

/// Prints the result of a command on stdout, and a line end. If nobody reads it any more, the program ends in silence with
/// the status of SIGPIPE.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(cause) if cause.kind() == ErrorKindOfIo::BrokenPipe => {
            Err(Failure::new(status_of_signal(Signal::PIPE.as_raw()), ""))
        }
        Err(cause) => Err(Failure::system("write the result", cause)),
    }
}

/// Prints a message for the user: one line on stderr. Waits for a slow reader: while a lock is waited for or held, use
/// [`say_or_drop`](crate::log::say_or_drop).
pub(crate) fn say(message: impl fmt::Display) {
    write_line("", &message.to_string());
}

/// Prints a warning: the program goes on.
pub(crate) fn warn(message: impl fmt::Display) {
    let prefix = format!("{}: ", coloured(YELLOW, "warning", use_colours()));
    write_line(&prefix, &message.to_string());
}

/// Writes a message on stderr.
///
/// Not `eprintln!`, which panics if stderr is closed: a message must never end the job.
fn write_line(prefix: &str, message: &str) {
    let _ = std::io::stderr().write_all(line(prefix, message).as_bytes());
}

/// Returns a line for stderr.
pub(crate) fn line(prefix: &str, message: &str) -> String {
    format!("lockkit: {prefix}{}\n", in_one_line(message))
}

/// Returns a message in one line, safe to print: an error may contain the answer of a server.
fn in_one_line(message: &str) -> String {
    printable(&message.replace('\n', " "))
}

/// The colour of warnings (ECMA-48, "select graphic rendition").
pub(crate) const YELLOW: &str = "33";

/// Whether stderr shows colours: a terminal, unless NO_COLOR is set (https://no-color.org).
pub(crate) fn use_colours() -> bool {
    let is_set = |variable: &str| std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
    std::io::stderr().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Returns a word in a colour, or as it is.
pub(crate) fn coloured(colour: &str, word: &'static str, colours: bool) -> Cow<'static, str> {
    if colours { format!("\u{1b}[{colour}m{word}\u{1b}[0m").into() } else { word.into() }
}

/// Returns a text whose control characters are escaped: what others have stored cannot control the terminal.
pub(crate) fn printable(text: &str) -> String {
    let escape = |letter: char| -> String {
        if letter.is_control() { letter.escape_debug().to_string() } else { letter.into() }
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_line_that_cannot_control_the_terminal() {
        let message = "denied: a\nb \u{1b}]0;owned\u{7} \u{9b}2J";
        assert_eq!(
            line("warning: ", message),
            "lockkit: warning: denied: a b \\u{1b}]0;owned\\u{7} \\u{9b}2J\n"
        );
    }

    #[test]
    fn each_kind_of_error_has_its_status() {
        for (kind, status) in [
            (ErrorKind::InvalidName, USAGE),
            (ErrorKind::InvalidConfig, CONFIG),
            (ErrorKind::Unsupported, CONFIG),
            (ErrorKind::Unavailable, UNAVAILABLE),
            (ErrorKind::Closed, UNAVAILABLE),
            (ErrorKind::Denied, DENIED),
            (ErrorKind::Lost, LOST),
            (ErrorKind::Unexpected, UNEXPECTED),
        ] {
            assert_eq!(Failure::from(Error::new(kind, "acquire")).status, status, "{kind:?}");
        }
    }
}
