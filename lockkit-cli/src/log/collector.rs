//! What the library warns about, for a command that reports it in its own way.

use std::sync::{Arc, Mutex};

use lockkit_core::support::lock;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{Layer, layer::Context};

use super::lines::Text;

/// The target of events that are advice about a store: warnings to somebody who asks, and to nobody else.
const ADVICE: &str = "lockkit::advice";

/// Most warnings that are kept, in lines.
const KEPT_MAX: usize = 64;

/// Keeps the warnings of the library, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collector(Arc<Mutex<Vec<String>>>);

impl Collector {
    /// Returns the warnings since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0))
    }
}

impl<S: Subscriber> Layer<S> for Collector {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let target = metadata.target();
        if !target.starts_with("lockkit") || (*metadata.level() > Level::WARN && target != ADVICE) {
            return;
        }
        let warning = Text::of(event).to_string();
        let mut kept = lock(&self.0);
        if kept.len() < KEPT_MAX && !kept.contains(&warning) {
            kept.push(warning);
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::{info, warn};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn warnings_and_advice_are_kept_once() {
        let collector = Collector::default();
        let subscriber = tracing_subscriber::registry().with(collector.clone());
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..2 {
                warn!(target: "lockkit_redis::backend", policy = "allkeys-lru", "may evict");
                info!(target: "lockkit::advice", "no file");
                info!(target: "lockkit_core", "session opened");
                warn!(target: "h2", "other");
            }
        });
        assert_eq!(collector.take(), ["may evict (policy: allkeys-lru)", "no file"]);
        assert_eq!(collector.take(), [""; 0]);
    }

    #[test]
    fn bounded_number_of_warnings_is_kept() {
        let collector = Collector::default();
        let subscriber = tracing_subscriber::registry().with(collector.clone());
        tracing::subscriber::with_default(subscriber, || {
            (0..2 * KEPT_MAX).for_each(|number| warn!(target: "lockkit_core", number, "odd"));
        });
        assert_eq!(collector.take().len(), KEPT_MAX);
    }
}
