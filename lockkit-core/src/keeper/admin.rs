//! What an operator asks of the store. It needs no session, and runs on the keeper's runtime because it drives the
//! backend's connections.
//!
//! Failure cases:
//!
//! * The caller's future is dropped: the request is still driven to its end, so a break that was begun is reported in the log.
//!   A client that is closed or refused meanwhile waits for a break, for half of the time that closing may take.
//! * The reply of a break is lost: the caller gets `Unavailable`, inspects and breaks again. The store compares the
//!   contender, so the holder that came after is never broken in its place.

use std::{future::Future, sync::Arc};

use tracing::warn;

use super::{Keeper, caught, caught::contained};
use crate::{
    Error, ErrorKind, LockName, Result,
    backend::{Admin, Backend, Contender, Inspection, Page},
};

/// The requests of an operator.
impl Keeper {
    pub(crate) async fn inspect(&self, name: LockName) -> Result<Inspection> {
        self.ask("inspect", move |backend| async move {
            let admin = admin(&*backend, "inspect").map_err(|error| error.with_lock(&name))?;
            admin.inspect(&name).await
        })
        .await
    }

    pub(crate) async fn list(&self, prefix: Arc<str>, after: Option<String>, limit: usize) -> Result<Page> {
        self.ask("list locks", move |backend| async move {
            admin(&*backend, "list locks")?.list(&prefix, after.as_deref(), limit).await
        })
        .await
    }

    /// Breaks a hold; every break is an audit event.
    pub(crate) async fn break_lock(&self, name: LockName, holder: Contender) -> Result<bool> {
        let tasks = self.claim_tasks.clone();
        self.ask("break", move |backend| {
            // A client that closes waits for it, as for its claims: the client's own thread ends after that.
            tasks.track_future(async move {
                let admin = admin(&*backend, "break").map_err(|error| error.with_lock(&name))?;
                let breaking = admin.break_lock(&name, &holder);
                let broken = caught("break", breaking).await.unwrap_or_else(Err);
                contained(|| audit(&name, &holder, &broken));
                broken
            })
        })
        .await
    }

    /// Runs a request to its end, also if the caller's future is dropped.
    async fn ask<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        operation: &'static str,
        request: impl FnOnce(Arc<dyn Backend>) -> F,
    ) -> Result<T> {
        let request = request(Arc::clone(&self.backend));
        let asked = self.runtime.spawn(async move { caught(operation, request).await? });
        asked.await.unwrap_or_else(|_| Err(self.current.not_open(operation)))
    }
}

fn admin<'a>(backend: &'a dyn Backend, operation: &'static str) -> Result<&'a dyn Admin> {
    backend.admin().ok_or_else(|| Error::new(ErrorKind::Unsupported, operation))
}

fn audit(name: &LockName, holder: &Contender, broken: &Result<bool>) {
    let metadata = holder.metadata.as_ref();
    let host = metadata.map(|metadata| metadata.host.as_str());
    let pid = metadata.map(|metadata| metadata.pid);
    let token = holder.token.map(|token| token.get());
    match broken {
        Ok(true) => {
            warn!(target: "lockkit::audit", lock = ?name, entry = ?holder.entry, token, host, pid, "lock broken")
        }
        Ok(false) => {}
        Err(error) if error.kind() == ErrorKind::Unsupported => {}
        Err(error) => warn!(
            target: "lockkit::audit", lock = ?name, entry = ?holder.entry, token, host, pid,
            error = format_args!("{error:#}"), "lock perhaps broken"
        ),
    }
}
