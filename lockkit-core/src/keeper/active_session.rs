//! An open session, as the tasks of a client share it.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::sync::{Notify, SetOnce};
use tokio_util::sync::CancellationToken;

use super::{loss::LossReason, releases::Releases};
use crate::{
    BootInstant,
    backend::Session,
    lease,
    sync::{Mutex, lock},
};

/// An open session.
#[derive(Debug)]
pub(super) struct ActiveSession {
    session: Arc<dyn Session>,
    ttl: Duration,
    /// Start of the session's current lifetime, by the last acknowledged heartbeat.
    armed_at: Mutex<BootInstant>,
    heartbeat_requested: Notify,
    /// Cancelled when the client stops using the session.
    ended: CancellationToken,
    /// Why it ended; set before `ended` is cancelled.
    end: OnceLock<LossReason>,
    abandoned: SetOnce<LossReason>,
    /// The releases that the store has not confirmed.
    releases: Releases,
}

impl ActiveSession {
    /// Wraps a session; `armed_at` is a reading from before the sending of the request that opened it.
    pub(super) fn new(session: Arc<dyn Session>, armed_at: BootInstant) -> Self {
        Self {
            ttl: session.ttl(),
            session,
            armed_at: Mutex::new(armed_at),
            heartbeat_requested: Notify::new(),
            ended: CancellationToken::new(),
            end: OnceLock::new(),
            abandoned: SetOnce::new(),
            releases: Releases::default(),
        }
    }

    pub(super) fn session(&self) -> &Arc<dyn Session> {
        &self.session
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(super) fn releases(&self) -> &Releases {
        &self.releases
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.get().is_some()
    }

    /// Returns why the session has ended, if it has.
    pub(super) fn end_reason(&self) -> Option<LossReason> {
        self.end.get().copied()
    }

    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Ends the use of the session; the first reason is the one that is reported.
    pub(super) fn end(&self, why: LossReason) {
        let _ = self.end.set(why);
        self.ended.cancel();
    }

    /// Makes the session task give up this session, because it keeps an entry alive that must end: a hold passed its
    /// deadline, or an entry cannot be removed. The first reason is the one that is reported.
    pub(super) fn abandon(&self, why: LossReason) {
        let _ = self.abandoned.set(why);
    }

    /// Waits until the session is abandoned, and returns the reason.
    pub(super) async fn abandoned(&self) -> LossReason {
        *self.abandoned.wait().await
    }

    /// Requests a heartbeat at once, for a hold whose deadline may come before the next regular one.
    pub(super) fn request_heartbeat(&self) {
        self.heartbeat_requested.notify_one();
    }

    /// Waits until a heartbeat is requested.
    pub(super) async fn heartbeat_requested(&self) {
        self.heartbeat_requested.notified().await;
    }

    /// Returns when the client stops relying on the session without a further renewal.
    pub(super) fn deadline(&self) -> BootInstant {
        lease::deadline(self.armed_at(), self.ttl)
    }

    /// Returns when the server must have ended the session without a further request.
    ///
    /// A heartbeat whose answer was lost may have renewed it up to one ttl after the last acknowledged one.
    pub(super) fn expiry(&self) -> BootInstant {
        self.armed_at().after(self.ttl).after(self.ttl)
    }

    pub(super) fn armed_at(&self) -> BootInstant {
        *lock(&self.armed_at)
    }

    /// Records an acknowledged renewal.
    pub(super) fn renewed(&self, armed_at: BootInstant) {
        let mut latest = lock(&self.armed_at);
        *latest = latest.max(armed_at);
    }
}
