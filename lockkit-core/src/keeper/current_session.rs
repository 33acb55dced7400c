//! The session that a client has now, with the status that the client reports.
//!
//! Who waits for a session or for its end returns as soon as that is set, and must see the status of it. So the status
//! is set first; where a session is lost, last: who sees [`Status::Lost`] finds no open session.

use std::{sync::Arc, time::Duration};

use tokio::sync::{SetOnce, watch};

use super::{active_session::ActiveSession, attempt::silence, closed};
use crate::{
    Clock, Error, ErrorKind, Result, Status, StatusWatch,
    sync::{Mutex, lock},
};

/// The session of a client, as its callers and tasks share it.
#[derive(Debug)]
pub(super) struct CurrentSession {
    phase: watch::Sender<SessionPhase>,
    status: watch::Sender<Status>,
    /// Set with the first session, which may have ended before anybody saw it.
    was_open: SetOnce<()>,
    /// The ttl that the server granted to the latest session.
    granted_ttl: Mutex<Duration>,
}

/// The phase of a session of a client.
#[derive(Clone, Debug)]
enum SessionPhase {
    /// Being opened, with the error of the last attempt.
    Opening(Option<Error>),
    Open(Arc<ActiveSession>),
    /// The first session could not be opened, which no further attempt would change.
    Refused(Error),
    /// Closed for good, with the result of `close`.
    Closed(Result<()>),
}

impl SessionPhase {
    /// Returns whether there will be no other session.
    fn is_final(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Closed(_))
    }
}

impl CurrentSession {
    /// Creates the state of a client whose first session, with this ttl, is being opened.
    pub(super) fn new(ttl: Duration) -> Self {
        Self {
            phase: watch::Sender::new(SessionPhase::Opening(None)),
            status: watch::Sender::new(Status::Lost),
            was_open: SetOnce::new(),
            granted_ttl: Mutex::new(ttl),
        }
    }

    pub(super) fn status(&self, clock: Clock) -> StatusWatch {
        StatusWatch::new(self.status.subscribe(), clock)
    }

    /// Returns the ttl that the server granted to the latest session.
    pub(super) fn granted_ttl(&self) -> Duration {
        *lock(&self.granted_ttl)
    }

    /// Returns the open session, if there is one now.
    pub(super) fn get(&self) -> Option<Arc<ActiveSession>> {
        match &*self.phase.borrow() {
            SessionPhase::Open(active) => Some(Arc::clone(active)),
            SessionPhase::Opening(_) | SessionPhase::Refused(_) | SessionPhase::Closed(_) => None,
        }
    }

    /// Waits for an open session; returns `None` if the client is closed.
    pub(super) async fn wait_open(&self) -> Option<Arc<ActiveSession>> {
        let mut phases = self.phase.subscribe();
        let phase = phases.wait_for(|phase| !matches!(phase, SessionPhase::Opening(_))).await.ok()?;
        match &*phase {
            SessionPhase::Open(active) => Some(Arc::clone(active)),
            SessionPhase::Opening(_) | SessionPhase::Refused(_) | SessionPhase::Closed(_) => None,
        }
    }

    /// Waits for the first session, at most until the time limit resolves.
    pub(super) async fn wait_first(&self, time_limit: impl Future<Output = ()>) -> Result<()> {
        tokio::select! {
            biased;
            _ = self.was_open.wait() => return Ok(()),
            _ = self.wait_open() => {}
            () = time_limit => {}
        }
        match &*self.phase.borrow() {
            SessionPhase::Open(_) => Ok(()),
            SessionPhase::Opening(Some(error)) | SessionPhase::Refused(error) => Err(error.clone()),
            SessionPhase::Opening(None) => Err(Error::new(ErrorKind::Unavailable, "connect")
                .with_message("the store did not answer within the connect timeout")),
            SessionPhase::Closed(_) => Err(closed("connect")),
        }
    }

    /// Returns why there is no session: the client was closed, or the store has refused its first session.
    pub(super) fn not_open(&self, operation: &'static str) -> Error {
        match &*self.phase.borrow() {
            SessionPhase::Refused(error) => error.clone(),
            SessionPhase::Opening(_) | SessionPhase::Open(_) | SessionPhase::Closed(_) => closed(operation),
        }
    }

    /// Returns why a call has no answer at its time limit, if the reason is that there is no session.
    pub(super) fn outage(&self, operation: &'static str) -> Option<Error> {
        match &*self.phase.borrow() {
            SessionPhase::Opening(Some(error)) => {
                // What else seems to be wrong may come from a bad connection: the store has accepted this client before.
                let kind = match error.kind() {
                    ErrorKind::Denied => ErrorKind::Denied,
                    _ => ErrorKind::Unavailable,
                };
                let outage = Error::new(kind, operation).with_message("no session could be opened");
                Some(outage.with_source(error.clone()))
            }
            SessionPhase::Opening(None) => Some(silence(operation)),
            SessionPhase::Open(_) | SessionPhase::Refused(_) | SessionPhase::Closed(_) => None,
        }
    }

    /// Waits until there will be no other session; returns the result of the close.
    pub(super) async fn wait_closed(&self) -> Result<()> {
        let mut phases = self.phase.subscribe();
        match phases.wait_for(SessionPhase::is_final).await.as_deref() {
            Ok(SessionPhase::Closed(outcome)) => outcome.clone(),
            Ok(SessionPhase::Refused(_)) => Ok(()),
            _ => Err(closed("close")),
        }
    }

    /// Notes that an attempt to open a session has failed; another one follows. Wakes nobody: all wait for a session.
    pub(super) fn set_not_opened(&self, error: Error) {
        self.phase.send_if_modified(|phase| {
            *phase = SessionPhase::Opening(Some(error));
            false
        });
    }

    pub(super) fn set_open(&self, active: &Arc<ActiveSession>) {
        *lock(&self.granted_ttl) = active.ttl();
        self.status.send_replace(Status::Connected);
        self.phase.send_replace(SessionPhase::Open(Arc::clone(active)));
        // No effect if it has been set.
        let _ = self.was_open.set(());
    }

    /// Sets what the client reports of its open session.
    pub(super) fn set_status(&self, status: Status) {
        self.status.send_if_modified(|current| std::mem::replace(current, status) != status);
    }

    /// Notes that the session was lost; another one is opened.
    pub(super) fn set_lost(&self) {
        self.phase.send_replace(SessionPhase::Opening(None));
        self.status.send_replace(Status::Lost);
    }

    pub(super) fn set_refused(&self, error: Error) {
        self.set_final(SessionPhase::Refused(error));
    }

    pub(super) fn set_closed(&self, outcome: Result<()>) {
        self.set_final(SessionPhase::Closed(outcome));
    }

    /// Closes the client without a result of its close, if there may still be a session; returns the open one.
    pub(super) fn cut_off(&self) -> Option<Arc<ActiveSession>> {
        if self.phase.borrow().is_final() {
            return None;
        }
        let active = self.get();
        self.set_closed(Err(closed("keep the session")));
        active
    }

    fn set_final(&self, phase: SessionPhase) {
        self.status.send_replace(Status::Closed);
        self.phase.send_replace(phase);
    }
}
