//! Servers whose methods block, for asynchronous tests.

use std::sync::{Arc, Mutex};

use anyhow::Result;

use crate::sync::lock;

/// A server, or several, whose methods block. They run on the runtime's blocking threads, one at a time.
#[derive(Debug)]
pub struct Blocking<S>(Arc<Mutex<S>>);

impl<S: Send + 'static> Blocking<S> {
    /// Wraps a server; [`with`](Self::with) is the only way to it from now on.
    pub fn new(server: S) -> Self {
        Self(Arc::new(Mutex::new(server)))
    }

    /// Runs `work` on the server. Dropping the future does not stop the work.
    ///
    /// # Errors
    ///
    /// The error of `work`; also when `work` panics.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let server = Arc::clone(&self.0);
        let work = move || work(&mut lock(&server));
        tokio::task::spawn_blocking(work).await?
    }
}
