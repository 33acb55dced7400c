//! The start of a client, and how long it waits for its first session.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Semaphore, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Keeper, Runtime, active_session::CurrentSession, clock_watch::ClockWatch, closed, reentry::ReentryTable,
    session_task::SessionTask,
};
use crate::{
    Clock, Error, ErrorKind, Result, Status,
    backend::{Backend, ClaimSource},
    limits::WAITERS_PER_CLIENT_MAX,
    metrics,
    sync::Mutex,
};

/// The parts of a client.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) ttl: Duration,
    pub(crate) label: Option<String>,
    pub(crate) clock: Clock,
    pub(crate) runtime: Runtime,
    pub(crate) connect_policy: ConnectPolicy,
}

/// How long a client waits for a store that does not answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectPolicy {
    /// One attempt.
    OneAttempt,
    /// Attempts until this time limit.
    Until(tokio::time::Instant),
    /// Attempts without a time limit.
    Unlimited,
    /// No wait: the first session is opened in the background.
    Lazy,
}

impl Keeper {
    /// Starts the session task, and waits for the first session as long as the setup says.
    pub(crate) async fn start(setup: Setup) -> Result<Arc<Self>> {
        let Setup { backend, ttl, label, clock, runtime, connect_policy } = setup;
        let keeper = Arc::new(Self {
            info: backend.info(),
            backend,
            ttl,
            granted_ttl: Mutex::new(ttl),
            claims: ClaimSource::new(label.as_deref()),
            clock,
            runtime,
            current: watch::Sender::new(CurrentSession::Opening(None)),
            status: watch::Sender::new(Status::Lost),
            holds: Mutex::default(),
            clock_watch: ClockWatch::default(),
            reentry: ReentryTable::default(),
            waiter_permits: Arc::new(Semaphore::new(WAITERS_PER_CLIENT_MAX)),
            claim_tasks: TaskTracker::new(),
            refusing: CancellationToken::new(),
            closing: CancellationToken::new(),
        });
        #[cfg(feature = "testing")]
        keeper.note_started();
        keeper.runtime.run_parked(keeper.closing.clone());
        metrics::start(keeper.info.scheme);
        keeper.runtime.spawn(Arc::clone(&keeper).watch_clock());
        keeper.runtime.spawn(SessionTask::new(Arc::clone(&keeper), connect_policy).run());
        if connect_policy != ConnectPolicy::Lazy {
            // If this future is dropped or fails, the session that is being opened is closed.
            let abandoned = keeper.closing.clone().drop_guard();
            keeper.first_session(connect_policy).await?;
            abandoned.disarm();
        }
        Ok(keeper)
    }

    /// Waits for the first session.
    async fn first_session(&self, connect_policy: ConnectPolicy) -> Result<()> {
        let mut current = self.current.subscribe();
        let time_limit = async {
            match connect_policy {
                ConnectPolicy::Until(time) => self.runtime.sleep_until(time).await,
                ConnectPolicy::OneAttempt | ConnectPolicy::Unlimited | ConnectPolicy::Lazy => {
                    std::future::pending().await
                }
            }
        };
        tokio::select! {
            biased;
            _ = current.wait_for(|current| !matches!(current, CurrentSession::Opening(_))) => {}
            () = time_limit => {}
        }
        match &*current.borrow() {
            CurrentSession::Open(_) => Ok(()),
            CurrentSession::Opening(Some(error)) | CurrentSession::Refused(error) => Err(error.clone()),
            CurrentSession::Opening(None) => Err(Error::new(ErrorKind::Unavailable, "connect")
                .with_message("the store did not answer within the connect timeout")),
            CurrentSession::Closed(_) => Err(closed("connect")),
        }
    }
}
