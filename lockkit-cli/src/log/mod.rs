//! What is printed on stderr while a lock is waited for or held: messages for the user, and what the library reports
//! (warnings, audit events), as plain lines. Of the latter:
//!
//! | given | printed |
//! |---|---|
//! | nothing | warnings of lockkit |
//! | `-q` | nothing; how the program ends is printed as usual |
//! | `-v`, `-vv` | what lockkit does, and how |
//! | `-vvv` | everything, of other crates too |
//! | `RUST_LOG`, and neither `-q` nor `-v` | what this filter selects |
//!
//! Failure cases:
//!
//! * Nobody reads stderr (a stopped pager): the library reports from the thread that renews the lock, and messages come
//!   from the thread that starts and ends the job; neither must wait. A [`Printer`] has its own thread, and drops lines
//!   rather than queue them without a bound.
//! * A store is away for hours, and every attempt to reach it is a warning: a warning that was printed within
//!   [`REPEAT_PAUSE`](lines::REPEAT_PAUSE) is not printed again.
//! * A text from the store contains control characters: they are escaped.

mod collector;
mod lines;
mod printer;

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use tracing_subscriber::{EnvFilter, Layer, filter::LevelFilter, layer::SubscriberExt};

pub(crate) use self::collector::Collector;
use self::{lines::Lines, printer::Printer};
use crate::{
    args::MessageArguments,
    exit::{line, use_colours, warn},
};

/// The variable with a filter, as for other programs that log by `tracing`.
const VARIABLE: &str = "RUST_LOG";

/// The printer of this process.
static PRINTER: LazyLock<Arc<Printer>> = LazyLock::new(Printer::start);

/// Starts to print what the arguments and the environment select. A collector gets the warnings instead.
pub(crate) fn start(arguments: &MessageArguments, collector: Option<Collector>) {
    let filter = filter(arguments, collector.is_some());
    let lines = Lines::new(Arc::clone(&PRINTER), use_colours(), arguments.verbose == 0);
    let collector = collector.map(|collector| collector.with_filter(LevelFilter::INFO));
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter)).with(collector);
    // Fails if there is one already, and there is none.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Prints a message for the user, like [`say`](crate::exit::say), but never waits: the job must start and end in time,
/// also if nobody reads stderr.
pub(crate) fn say_or_drop(message: impl fmt::Display) {
    PRINTER.print(line("", &message.to_string()));
}

/// Waits, for a bounded time, until everything is printed.
pub(crate) fn finish() {
    PRINTER.finish();
}

fn filter(arguments: &MessageArguments, is_collected: bool) -> EnvFilter {
    let by_arguments = match arguments.verbose {
        1 => Some("lockkit=info"),
        2 => Some("lockkit=debug"),
        3.. => Some("trace"),
        0 if arguments.quiet => Some("off"),
        0 => None,
    };
    let default = if is_collected { "off" } else { "lockkit=warn" };
    let environment = std::env::var(VARIABLE).unwrap_or_default();
    if let (None, false) = (by_arguments, environment.is_empty()) {
        match EnvFilter::try_new(&environment) {
            Ok(filter) => return filter,
            Err(cause) => warn(format_args!("{VARIABLE} is not a filter: {cause}")),
        }
    }
    EnvFilter::new(by_arguments.unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread};

    use lockkit_testbed::HANG;

    use super::*;

    #[test]
    fn arguments_select_what_is_printed() {
        for (verbose, quiet, expected) in [
            (0, true, "off"),
            (1, false, "lockkit=info"),
            (2, false, "lockkit=debug"),
            (3, false, "trace"),
            (9, false, "trace"),
        ] {
            let selected = filter(&MessageArguments { verbose, quiet }, false);
            assert_eq!(selected.to_string(), EnvFilter::new(expected).to_string(), "{verbose} {quiet}");
        }
    }

    #[test]
    fn message_does_not_wait_for_a_blocked_write_to_stderr() {
        let blocked = std::io::stderr().lock();
        let (done, is_done) = channel();
        let caller = thread::spawn(move || {
            say_or_drop("a message of a test");
            done.send(())
        });
        assert_eq!(is_done.recv_timeout(HANG), Ok(()), "the message waits");
        drop(blocked);
        assert_eq!(caller.join().unwrap(), Ok(()));
    }
}
