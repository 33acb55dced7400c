//! What starts once.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

/// What several tests share, started for the first of them.
#[derive(Debug)]
pub struct StartedOnce<S>(Mutex<Option<Arc<S>>>);

impl<S> StartedOnce<S> {
    /// The one that runs, or this one. Who comes while it starts waits for it; one that does not start is tried again.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn get_or_start(&self, start: impl FnOnce() -> Result<S>) -> Result<Arc<S>> {
        let mut started = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match started.take() {
            Some(running) => running,
            None => Arc::new(start()?),
        };
        Ok(Arc::clone(started.insert(running)))
    }
}

impl<S> Default for StartedOnce<S> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}
