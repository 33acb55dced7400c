//! What the library reports while it works (warnings, audit events), as plain lines on stderr.
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
//! * Nobody reads stderr (a stopped pager): the library reports from the thread that renews the lock, which must not
//!   wait. A [`Printer`] has its own thread, and drops lines rather than queue them without a bound.
//! * A store is away for hours, and every attempt to reach it is a warning: a warning that was printed within
//!   [`REPEAT_PAUSE`](lines::REPEAT_PAUSE) is not printed again.
//! * A text from the store contains control characters: they are escaped.

mod collector;
mod lines;
mod printer;

use std::sync::Arc;

use tracing_subscriber::{EnvFilter, Layer, filter::LevelFilter, layer::SubscriberExt};

pub(crate) use self::collector::Collector;
use self::{lines::Lines, printer::Printer};
use crate::{
    args::MessageArguments,
    exit::{use_colours, warn},
};

/// The variable with a filter, as for other programs that log by `tracing`.
const VARIABLE: &str = "RUST_LOG";

/// The log of this process.
#[derive(Debug)]
pub(crate) struct Log(Arc<Printer>);

impl Log {
    /// Starts to print what the arguments and the environment select. A collector gets the warnings instead.
    pub(crate) fn start(arguments: &MessageArguments, collector: Option<Collector>) -> Self {
        let printer = Printer::start();
        let filter = filter(arguments, collector.is_some());
        let lines = Lines::new(Arc::clone(&printer), use_colours(), arguments.verbose == 0);
        let collector = collector.map(|collector| collector.with_filter(LevelFilter::INFO));
        let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter)).with(collector);
        // Fails if there is one already, and there is none.
        let _ = tracing::subscriber::set_global_default(subscriber);
        Self(printer)
    }

    /// Waits, for a bounded time, until everything is printed.
    pub(crate) fn finish(self) {
        self.0.finish();
    }
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
