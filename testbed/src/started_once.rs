//! A server that several tests share.

use std::sync::{Arc, Mutex};

use anyhow::Result;

use crate::sync::lock;

/// A server that several tests share. The first test starts it.
#[derive(Debug)]
pub struct StartedOnce<S>(Mutex<Option<Arc<S>>>);

impl<S> StartedOnce<S> {
    /// Returns the server that runs, or starts it. A call during the start waits for it; after a failed start the next
    /// call tries again.
    ///
    /// # Errors
    ///
    /// When the server does not start.
    pub fn get_or_start(&self, start: impl FnOnce() -> Result<S>) -> Result<Arc<S>> {
        let mut started = lock(&self.0);
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
