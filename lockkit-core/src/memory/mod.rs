//! Locks within one process: the executable specification of a backend, for tests, examples and the suite.
//!
//! Several clients share one [`MemoryServer`]. It is a FIFO queue per lock and a table of sessions, driven by tokio's
//! clock, so that a test with a paused clock needs no real time. Its fault points do what networks and servers do:
//! end a session, drop notifications, lose replies, hold requests back, delete entries.

mod backend;
mod session;
mod store;

use std::{sync::Arc, time::Duration};

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
    /// Requests that were carried out.
    requests: u64,
    lose_replies: usize,
    /// Requests that were sent while requests are held back, oldest first; `None` while they are not.
    held: Option<Vec<HeldRequest>>,
}

/// A request that runs when it is delivered.
struct HeldRequest(Box<dyn FnOnce(&mut Inner) + Send>);

impl std::fmt::Debug for HeldRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeldRequest")
    }
}

impl MemoryServer {
    /// An empty server.
    pub fn new() -> Self {
        Self::default()
    }

    /// A backend for one client of this server; each client should have one.
    pub fn backend(&self) -> MemoryBackend {
        MemoryBackend::new(self.clone())
    }

    /// Fault: ends the session of whoever holds this lock, as the server would on its expiry. Whether there was one.
    pub fn expire_holder(&self, name: &LockName) -> bool {
        lock(&self.0).store.expire_holder(name)
    }

    /// Fault: ends the session of whoever has waited longest for this lock. Whether there was one.
    pub fn expire_waiter(&self, name: &LockName) -> bool {
        lock(&self.0).store.expire_waiter(name)
    }

    /// Fault: ends every session.
    pub fn expire_all(&self) {
        lock(&self.0).store.expire_all();
    }

    /// Fault: from now on no notification is sent (`true`), neither of a grant nor of the end of a session.
    pub fn drop_notifications(&self, drop: bool) {
        lock(&self.0).store.mute(drop);
    }

    /// Fault: the next `count` requests are carried out, but their replies are lost.
    pub fn lose_replies(&self, count: usize) {
        lock(&self.0).lose_replies = count;
    }

    /// Fault: from now on requests are neither carried out nor answered, as on a frozen server. Sessions expire
    /// meanwhile.
    pub fn hold_requests(&self) {
        lock(&self.0).held.get_or_insert_with(Vec::new);
    }

    /// Carries out what was held back, in the order of sending, and ends the holding back.
    pub fn deliver_requests(&self) {
        let mut inner = lock(&self.0);
        for HeldRequest(request) in inner.held.take().unwrap_or_default() {
            request(&mut inner);
        }
    }

    /// Requests that are held back.
    pub fn held_requests(&self) -> usize {
        lock(&self.0).held.as_ref().map_or(0, Vec::len)
    }

    /// Fault: deletes the entries of holder and waiters of this lock, as an operator would.
    pub fn delete_entries(&self, name: &LockName) {
        lock(&self.0).store.delete_entries(name);
    }

    /// Who holds this lock and who waits for it, without a request.
    pub fn inspect(&self, name: &LockName) -> Inspection {
        let mut inner = lock(&self.0);
        inner.store.sweep(Instant::now());
        inner.store.inspect(name)
    }

    /// Time until this lock is free if the session of its holder is not renewed; `None` when nobody holds it.
    pub fn frees_within(&self, name: &LockName) -> Option<Duration> {
        let (now, mut inner) = (Instant::now(), lock(&self.0));
        inner.store.sweep(now);
        inner.store.expiry_of_holder(name).map(|expires_at| expires_at - now)
    }

    /// Whether no lock has a holder or a waiter.
    pub fn is_empty(&self) -> bool {
        let mut inner = lock(&self.0);
        inner.store.sweep(Instant::now());
        inner.store.is_empty()
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        let mut inner = lock(&self.0);
        inner.store.sweep(Instant::now());
        inner.store.sessions()
    }

    /// Requests that were carried out so far.
    pub fn requests(&self) -> u64 {
        lock(&self.0).requests
    }

    /// How often a claim was renewed so far, over all claims.
    pub fn renewed_claims(&self) -> u64 {
        lock(&self.0).store.renewed_claims()
    }

    /// Sends a request. Dropping the future does not take it back.
    async fn request<T: Send + 'static>(
        &self,
        operation: &'static str,
        request: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let deliver = move |inner: &mut Inner| {
            inner.store.sweep(Instant::now());
            inner.requests += 1;
            let value = request(&mut inner.store);
            if inner.lose_replies > 0 {
                inner.lose_replies -= 1;
            } else {
                // Whoever has stopped waiting for the reply has lost it.
                let _ = reply.send(value);
            }
        };
        {
            let mut inner = lock(&self.0);
            match &mut inner.held {
                Some(held) => held.push(HeldRequest(Box::new(deliver))),
                None => deliver(&mut inner),
            }
        }
        answer.await.map_err(|_| {
            Error::new(ErrorKind::Unavailable, operation)
                .with_message("the reply of the memory server was lost")
        })
    }

    /// The moment at which the next session expires.
    fn next_expiry(&self) -> Option<Instant> {
        lock(&self.0).store.next_expiry()
    }

    fn sweep(&self) {
        lock(&self.0).store.sweep(Instant::now());
    }
}
