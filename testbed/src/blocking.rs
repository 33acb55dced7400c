//! Servers whose methods block, for code on an executor.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

/// A server, or several, whose methods block: they run beside the executor, one at a time.
#[derive(Debug)]
pub struct Blocking<S>(Arc<Mutex<S>>);

impl<S: Send + 'static> Blocking<S> {
    /// From now on it is reached by [`with`](Self::with) only.
    pub fn new(server: S) -> Self {
        Self(Arc::new(Mutex::new(server)))
    }

    /// Does this to it. Dropping the future does not undo it, nor end it half-way.
    ///
    /// # Errors
    ///
    /// What the work answers, and when it panics.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let server = Arc::clone(&self.0);
        let work = move || work(&mut server.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(work).await?
    }
}
