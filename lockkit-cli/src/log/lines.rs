//! Events as lines: `lockkit: warning: MESSAGE (FIELD: VALUE, ...)`.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lockkit_core::support::lock;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use super::printer::Printer;
use crate::exit::{YELLOW, coloured, printable};

/// Shortest time after which the same warning is printed again.
pub(super) const REPEAT_PAUSE: Duration = Duration::from_secs(60);

/// Most warnings that are remembered as printed, in lines.
const REMEMBERED_MAX: usize = 256;

/// Prints events.
#[derive(Debug)]
pub(super) struct Lines {
    printer: Arc<Printer>,
    colours: bool,
    /// When a warning was printed; `None` if each is printed.
    printed: Option<Mutex<HashMap<u64, Instant>>>,
}

impl Lines {
    pub(super) fn new(printer: Arc<Printer>, colours: bool, once: bool) -> Self {
        Self { printer, colours, printed: once.then(Mutex::default) }
    }

    /// Whether this event was printed a short time ago; if not, it is now.
    fn is_repeated(&self, event: &Event<'_>, text: &Text) -> bool {
        let Some(printed) = &self.printed else { return false };
        let mut hasher = DefaultHasher::new();
        (event.metadata().callsite(), &text.subject).hash(&mut hasher);
        !is_due(&mut lock(printed), hasher.finish(), Instant::now())
    }
}

/// Whether this warning was not printed a short time ago; it is printed now, then.
fn is_due(printed: &mut HashMap<u64, Instant>, key: u64, now: Instant) -> bool {
    if printed.get(&key).is_some_and(|at| now.duration_since(*at) < REPEAT_PAUSE) {
        return false;
    }
    if printed.len() >= REMEMBERED_MAX {
        printed.clear();
    }
    printed.insert(key, now);
    true
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let text = Text::of(event);
        if self.is_repeated(event, &text) {
            return;
        }
        let level = match *event.metadata().level() {
            Level::ERROR => coloured(YELLOW, "error", self.colours),
            Level::WARN => coloured(YELLOW, "warning", self.colours),
            Level::INFO => "info".into(),
            Level::DEBUG => "debug".into(),
            Level::TRACE => "trace".into(),
        };
        self.printer.print(format!("lockkit: {level}: {text}\n"));
    }
}

/// An event as text, safe to print.
#[derive(Debug, Default)]
pub(super) struct Text {
    message: String,
    fields: String,
    /// What it is about: the fields except the error, which may differ each time.
    subject: String,
}

impl Text {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut text = Self::default();
        event.record(&mut text);
        text
    }

    fn add(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = printable(value);
            return;
        }
        let separator = if self.fields.is_empty() { "" } else { ", " };
        let value = printable(value);
        // Writing to a string cannot fail.
        let _ = write!(self.fields, "{separator}{}: {value}", field.name());
        if field.name() != "error" {
            let _ = write!(self.subject, "{}: {value}, ", field.name());
        }
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.fields.is_empty() { Ok(()) } else { write!(f, " ({})", self.fields) }
    }
}

#[cfg(test)]
mod tests {
    use tracing::{info, warn};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Returns what is printed while `work` runs.
    fn printed(colours: bool, once: bool, work: impl FnOnce()) -> Vec<String> {
        let printer = Printer::idle();
        let lines = Lines::new(Arc::clone(&printer), colours, once);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), work);
        printer.waiting()
    }

    #[test]
    fn event_is_one_line_without_control_characters() {
        let lines = printed(false, true, || {
            warn!(lock = ?"a\nb", token = 7, why = "\u{1b}[2J", "lock\nbroken");
            info!("plain");
        });
        assert_eq!(
            lines,
            [
                "lockkit: warning: lock\\nbroken (lock: \"a\\nb\", token: 7, why: \\u{1b}[2J)\n",
                "lockkit: info: plain\n"
            ]
        );
    }

    #[test]
    fn warning_is_repeated_only_about_something_else() {
        let warn_of = |node: &str, error: &str| warn!(node, error, "no answer");
        let both = || {
            for error in ["refused", "timeout"] {
                warn_of("one", error);
                warn_of("two", error);
            }
        };
        assert_eq!(printed(false, true, both).len(), 2);
        assert_eq!(printed(false, false, both).len(), 4);
    }

    #[test]
    fn another_warning_about_the_same_is_printed() {
        let both = || {
            warn!(node = "one", error = "refused", "no answer");
            warn!(node = "one", error = "refused", "answers too late");
        };
        assert_eq!(printed(false, true, both).len(), 2);
    }

    #[test]
    fn warning_is_printed_again_after_a_minute_and_a_bounded_number_is_remembered() {
        let (mut printed, now) = (HashMap::new(), Instant::now());
        assert!(is_due(&mut printed, 0, now));
        assert!(!is_due(&mut printed, 0, now + REPEAT_PAUSE - Duration::from_millis(1)));
        assert!(is_due(&mut printed, 0, now + REPEAT_PAUSE));
        for key in 1..=10 * REMEMBERED_MAX as u64 {
            assert!(is_due(&mut printed, key, now));
            assert!(printed.len() <= REMEMBERED_MAX);
        }
    }

    #[test]
    fn colours_are_an_option() {
        let lines = printed(true, true, || warn!("w"));
        assert_eq!(lines, ["lockkit: \u{1b}[33mwarning\u{1b}[0m: w\n"]);
    }
}
