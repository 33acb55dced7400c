//! The end of sessions and of the session task: what a session leaves at the server is removed, or left to expire.
//!
//! * The server does not answer: the close is retried until the session must have expired.
//! * The client closes while a session is being opened: the session is closed once it is open.
//! * The client closes: its last session, and lost ones that are still being closed, get at most one ttl to end. The client's
//!   own thread ends after that, and a close that it drops would leave entries until the session expires.
//! * The runtime ends, or the session task panics: callers that wait for a session get `Closed`.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinHandle, time::Instant};
use tracing::debug;

use super::{
    Keeper, active_session::ActiveSession, caught::contained, loss::LossReason, session_task::SessionTask,
};
use crate::{
    BootInstant, Clock, Error, ErrorKind, Result,
    backend::{Session, retry_pauses},
    limits::CLOSE_ANSWER_MAX,
};

impl Keeper {
    /// Closes the client and waits until its session has ended.
    pub(crate) async fn close(&self) -> Result<()> {
        self.begin_close();
        // The session task returns within its limit, unless its runtime is blocked. Twice: if it stood still together with
        // the caller's, the first limit has passed before the task could begin.
        let blocked = async {
            for _ in 0..2 {
                self.runtime.sleep_until(Instant::now() + self.close_limit()).await;
            }
        };
        tokio::select! {
            biased;
            closed = self.current.wait_closed() => closed,
            () = blocked => Err(Error::new(ErrorKind::Unavailable, "close")
                .with_message("the runtime of the client is blocked; the session ends later, or with its ttl")),
        }
    }

    /// Returns how long the end of a client may take.
    fn close_limit(&self) -> Duration {
        self.current.granted_ttl().min(self.ttl).min(CLOSE_ANSWER_MAX)
    }
}

impl SessionTask {
    /// Ends the session of a closing client: loses the holds, gives up the claims, waits for the releases, closes the
    /// session. Waits also for the earlier sessions that are still being closed.
    pub(super) async fn close_session(
        &self,
        active: &ActiveSession,
        mut closing: Vec<JoinHandle<bool>>,
    ) -> Result<()> {
        let half = self.half_of_close();
        self.keeper.holds.lose_all(LossReason::ClientClosed);
        // The end of the session completes the releases that are still pending then.
        self.wait_for_tasks(half).await;
        active.end(LossReason::ClientClosed);
        // In a separate task, so that the last request is not dropped at the time limit.
        self.add_closing(&mut closing, active);
        self.wait_closed(closing).await
    }

    /// Ends a client that has no open session: waits for the breaks that are under way, and until these sessions are
    /// closed.
    pub(super) async fn close_without_session(&self, closing: Vec<JoinHandle<bool>>) -> Result<()> {
        self.wait_for_tasks(self.half_of_close()).await;
        self.wait_closed(closing).await
    }

    /// Waits at most until then for the tasks of claims, releases and breaks.
    async fn wait_for_tasks(&self, until: Instant) {
        self.keeper.claim_tasks.close();
        let _ = tokio::time::timeout_at(until, self.keeper.claim_tasks.wait()).await;
    }

    /// Returns when half of the time of a closing client is over.
    fn half_of_close(&self) -> Instant {
        let until = self.close_until();
        until - (until - Instant::now()) / 2
    }

    /// Waits until these sessions are closed, for each of them also if another one is not.
    async fn wait_closed(&self, closing: Vec<JoinHandle<bool>>) -> Result<()> {
        let until = self.close_until();
        let mut closed = Ok(());
        for closing in closing {
            closed = closed.and(confirmed(until, closing).await);
        }
        closed
    }

    /// Returns the time limit of a closing client: one limit for all sessions that are still to be ended.
    fn close_until(&self) -> Instant {
        *self.close_until.get_or_init(|| Instant::now() + self.keeper.close_limit())
    }

    /// Starts closing a session in the background, besides those that are still being closed.
    pub(super) fn add_closing(&self, closing: &mut Vec<JoinHandle<bool>>, active: &ActiveSession) {
        closing.retain(|closing| !closing.is_finished());
        let (session, clock) = (Arc::clone(active.session()), self.keeper.clock.clone());
        closing.push(self.keeper.runtime.spawn(close_until(session, clock, active.expiry())));
    }
}

/// Waits for a close at most until `until`; without a confirmation the session is left to expire.
async fn confirmed(until: Instant, closing: JoinHandle<bool>) -> Result<()> {
    match tokio::time::timeout_at(until, closing).await {
        Ok(Ok(true)) => Ok(()),
        _ => Err(Error::new(ErrorKind::Unavailable, "close")
            .with_message("the store did not confirm the end of the session; it ends with its ttl")),
    }
}

/// Closes a session, so that entries of lost holds do not live on. Retries until the server has confirmed it or the
/// session must have expired; returns whether the server confirmed it.
async fn close_until(session: Arc<dyn Session>, clock: Clock, expiry: BootInstant) -> bool {
    let mut pauses = retry_pauses();
    while let Err(error) = session.close().await {
        if clock.now() >= expiry {
            contained(|| debug!(error = format_args!("{error:#}"), "a session was left to expire"));
            return false;
        }
        pauses.wait().await;
    }
    true
}

/// Closes a session that was still being opened when its client closed.
pub(super) async fn close_once_open(opening: JoinHandle<Result<Arc<dyn Session>>>, clock: Clock) -> bool {
    match opening.await {
        Ok(Ok(session)) => {
            let expiry = clock.now().after(session.ttl());
            close_until(session, clock, expiry).await
        }
        _ => true,
    }
}

/// Closes the client whenever the session task ends: regularly, by a panic, or because the runtime dropped it.
impl Drop for SessionTask {
    fn drop(&mut self) {
        let keeper = &self.keeper;
        let why = match keeper.closing.is_cancelled() {
            true => LossReason::ClientClosed,
            false if std::thread::panicking() => LossReason::TaskPanicked,
            false => LossReason::RuntimeEnded,
        };
        keeper.begin_close();
        keeper.holds.lose_all(why);
        if let Some(active) = keeper.current.cut_off() {
            active.end(why);
        }
        keeper.runtime.stop();
    }
}
