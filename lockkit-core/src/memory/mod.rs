//! Locks within one process: the executable specification of a backend, for tests, examples and the suite.
//!
//! Several clients share one [`MemoryServer`]: a FIFO queue per lock and a table of sessions. It uses tokio's clock,
//! so a test with a paused clock needs no real time. With the feature `testing`, fault methods simulate networks and
//! servers: they end sessions, drop notifications, lose replies, hold requests back and delete entries.

mod admin;
mod backend;
mod powers;
mod session;
#[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "faults and counters are for tests"))]
mod store;
#[cfg(feature = "testing")]
mod testing;

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

pub use self::backend::MemoryBackend;
use self::store::Store;
use crate::{
    Error, ErrorKind, LockName, Result,
    backend::Inspection,
    sync::{Mutex, lock},
};

/// A lock server within this process. Cheap to clone; clones are the same server.
///
/// ```
/// use lockkit_core::{LockClient, memory::MemoryServer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lockkit_core::Result<()> {
/// let server = MemoryServer::new();
/// let one = LockClient::builder(server.backend()).build().await?;
/// let other = LockClient::builder(server.backend()).build().await?;
/// let guard = one.lock("job")?.acquire().await?;
/// assert!(other.lock("job")?.try_acquire().await?.is_none());
/// guard.release().await?;
/// # one.close().await?;
/// # other.close().await }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryServer(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    store: Store,
    /// The number of executed requests.
    #[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "a counter for tests"))]
    requests: u64,
    lose_replies: usize,
    /// The requests that are held back, oldest first; `None` if requests are not held back.
    held: Option<Vec<HeldRequest>>,
}

impl Inner {
    /// Executes a request; returns `None` if its reply is lost.
    fn execute<T>(&mut self, request: impl FnOnce(&mut Store) -> T) -> Option<T> {
        self.store.sweep(Instant::now());
        self.requests += 1;
        let value = request(&mut self.store);
        if self.lose_replies > 0 {
            self.lose_replies -= 1;
            return None;
        }
        Some(value)
    }

    /// Holds a request back; returns where its reply arrives.
    fn hold_back<T: Send + 'static>(
        &mut self,
        request: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (reply, answer) = oneshot::channel();
        let deliver = move |inner: &mut Self| {
            if let Some(value) = inner.execute(request) {
                // Fails if the caller no longer waits for the reply.
                let _ = reply.send(value);
            }
        };
        self.held.get_or_insert_default().push(HeldRequest(Box::new(deliver)));
        answer
    }
}

/// A request that runs when it is delivered.
#[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "only a test delivers held requests"))]
struct HeldRequest(Box<dyn FnOnce(&mut Inner) + Send>);

impl std::fmt::Debug for HeldRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeldRequest")
    }
}

impl MemoryServer {
    /// Creates an empty server.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a backend for one client of this server; each client should have its own.
    pub fn backend(&self) -> MemoryBackend {
        MemoryBackend::new(self.clone())
    }

    /// Returns the holder and the waiters of this lock, without a request.
    pub fn inspect(&self, name: &LockName) -> Inspection {
        let mut inner = lock(&self.0);
        let now = Instant::now();
        inner.store.sweep(now);
        inner.store.inspect(name, now)
    }

    /// Sends a request. Dropping the future does not cancel it.
    async fn request<T: Send + 'static>(
        &self,
        operation: &'static str,
        request: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> Result<T> {
        let sent = {
            let mut inner = lock(&self.0);
            match inner.held.is_some() {
                false => Ok(inner.execute(request)),
                true => Err(inner.hold_back(request)),
            }
        };
        let answer = match sent {
            Ok(answer) => answer,
            Err(delayed) => delayed.await.ok(),
        };
        answer.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, operation)
                .with_message("the reply of the memory server was lost")
        })
    }

    /// Returns when the next session expires.
    fn next_expiry(&self) -> Option<Instant> {
        lock(&self.0).store.next_expiry()
    }

    fn sweep(&self) {
        lock(&self.0).store.sweep(Instant::now());
    }
}
