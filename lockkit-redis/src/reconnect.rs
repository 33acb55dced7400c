//! Opens the connection to a server, and a new one whenever it breaks or should be replaced.
//!
//! * The connection breaks, or no reply came: all waiting claims look again over the next one, because messages may be
//!   lost.
//! * The connection ends while a request is being handed to it: the client crate loses the request and never answers
//!   it. [`OpenConnection::reply`] answers "unknown".
//! * The channels of a client change while a connection is being opened: no request finds the connection before it is
//!   announced. The channels are listed once more then.
//! * The server cannot be reached: requests fail at once while that is known, and the callers pause between their
//!   tries.
//! * The server has been made a replica: it answers READONLY to every write from then on. The connection is replaced,
//!   with a growing pause while no connection works.
//! * One node of a cluster does not answer: the connections to the others stay in use. A new connection to all nodes is
//!   made when they name another master, when the node stays silent for long, or when the connection to any node ends
//!   (the client crate may lose the subscription then). The old one serves until the new one is ready.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::FutureExt;
use lockkit_core::{
    ErrorKind,
    backend::{RetryPauses, retry_pauses},
    limits::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN},
    support::lock,
};
use redis::ToRedisArgs;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    error::{Breaks, RequestError},
    topology::{Connection, Connector, Listener, PushHandler},
};

/// Pause between two checks of the masters of a cluster while one of them does not answer.
const MASTER_CHECK_PAUSE: Duration = Duration::from_secs(1);

/// Checks in a row that find no change before the connection is replaced nevertheless. The next connection gets twice
/// as many.
const MASTER_CHECKS: u32 = 8;

/// Channels in one request. In one request each, those of a client that waits for many locks would take longer than the
/// time limit for connecting.
const CHANNELS_PER_REQUEST_MAX: usize = 256;

/// An open connection. Cheap to clone: each request has its own.
#[derive(Clone)]
pub(crate) struct OpenConnection {
    pub(crate) connection: Connection,
    pub(crate) health: Arc<Health>,
    /// Checks of the masters that may find no change.
    master_checks: u32,
}

/// What is known about an open connection.
pub(crate) struct Health {
    /// Cancelled when it has ended: no more replies come.
    ended: CancellationToken,
    /// Cancelled when it is broken.
    broken: CancellationToken,
    /// Cancelled when it still serves but should be replaced.
    replace_soon: CancellationToken,
    /// Notified when one of its servers has not answered.
    unanswered: Notify,
    /// Whether a script was executed over it.
    has_answered: AtomicBool,
    /// Whether requests to other servers still work when one server does not answer.
    has_many_servers: bool,
    opened: Instant,
    /// The channels that it subscribed to when it was opened, until [`Reconnector::catch_up`] compares them.
    channels: Mutex<Vec<String>>,
}

impl OpenConnection {
    pub(crate) fn new(connection: Connection, push_handler: PushHandler) -> Self {
        let PushHandler { ended, broken, replace_soon, .. } = push_handler;
        let health = Health {
            ended,
            broken,
            replace_soon,
            unanswered: Notify::new(),
            has_answered: AtomicBool::default(),
            has_many_servers: connection.has_many_servers(),
            opened: Instant::now(),
            channels: Mutex::default(),
        };
        Self { connection, health: Arc::new(health), master_checks: MASTER_CHECKS }
    }

    /// Waits for the reply to a request over it, or for its end.
    ///
    /// The client crate hands requests to the task of the connection through a channel of tokio. A request that has its
    /// place there when the task ends is put there nevertheless, where nobody reads it; and the channel stays as long as
    /// the request waits ([tokio #7714](https://github.com/tokio-rs/tokio/issues/7714)).
    pub(crate) async fn reply<T>(
        &self,
        request: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let mut request = std::pin::pin!(request);
        tokio::select! {
            biased;
            reply = &mut request => reply,
            // A reply that came before the end counts.
            () = self.health.ended.cancelled() => {
                request.now_or_never().unwrap_or_else(|| Err(RequestError::connection_ended()))
            }
        }
    }

    /// Subscribes to channels; fails at the end of the connection, see [`reply`](Self::reply).
    pub(crate) async fn subscribe(&self, channels: impl ToRedisArgs + Send) -> Result<(), RequestError> {
        let mut connection = self.connection.clone();
        self.reply(async { Ok(connection.subscribe(channels).await?) }).await
    }

    /// Unsubscribes from channels, as [`subscribe`](Self::subscribe).
    pub(crate) async fn unsubscribe(&self, channels: impl ToRedisArgs + Send) -> Result<(), RequestError> {
        let mut connection = self.connection.clone();
        self.reply(async { Ok(connection.unsubscribe(channels).await?) }).await
    }

    /// Stops using it for new requests. Those that wait may still be answered.
    pub(crate) fn give_up(&self) {
        self.health.give_up();
    }

    /// Notes what a failed request shows about the connection.
    pub(crate) fn note_failure(&self, fault: &RequestError) {
        self.health.note_failure(fault);
    }
}

impl Health {
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_cancelled()
    }

    /// Returns whether it has worked: the next one may be opened without a growing pause.
    fn has_served(&self) -> bool {
        self.has_answered.load(SeqCst) || self.opened.elapsed() > RETRY_PAUSE_MAX
    }

    /// Notes that a script was executed, or was not.
    pub(crate) fn note_answer(&self, is_answered: bool) {
        // Written once, so that requests on several threads do not pass the cache line around.
        if is_answered && !self.has_answered.load(SeqCst) {
            self.has_answered.store(true, SeqCst);
        }
    }

    fn give_up(&self) {
        self.broken.cancel();
    }

    pub(crate) fn note_failure(&self, fault: &RequestError) {
        match fault.breaks {
            Breaks::Nothing => {}
            Breaks::Connection if self.has_many_servers => self.unanswered.notify_one(),
            Breaks::Connection | Breaks::Cluster => self.give_up(),
        }
    }
}

#[derive(Clone)]
pub(crate) enum ConnectionState {
    Up(OpenConnection),
    /// The last connection has broken; the next one is being opened.
    Opening,
    /// The last attempt to connect has failed.
    Down(RequestError),
}

/// Returns a random pause before the first attempt to reconnect: all clients of a server lose their connections at the
/// same moment.
pub(crate) fn reconnect_pause() -> Duration {
    RETRY_PAUSE_MIN.mul_f64(fastrand::f64())
}

/// Waits before the first attempt to replace a broken connection.
async fn pause_before_reopening(has_served: bool, pauses: &mut RetryPauses) {
    if has_served {
        *pauses = retry_pauses();
        tokio::time::sleep(reconnect_pause()).await;
    } else {
        // Otherwise connections that break at once would be opened in a tight loop.
        pauses.wait().await;
    }
}

/// Opens connections, and replaces broken ones.
pub(crate) struct Reconnector {
    pub(crate) connector: Connector,
    pub(crate) listener: Arc<dyn Listener>,
}

impl Reconnector {
    pub(crate) async fn open(&self) -> Result<OpenConnection, RequestError> {
        let push_handler = PushHandler::new(Arc::clone(&self.listener));
        let opening = async {
            let connection = self.connector.connect(push_handler.clone()).await?;
            let open = OpenConnection::new(connection, push_handler);
            let listed = self.listener.channels();
            for channels in listed.chunks(CHANNELS_PER_REQUEST_MAX) {
                match open.subscribe(channels).await {
                    Err(fault) if fault.kind() == ErrorKind::Denied && !self.listener.needs_channels() => {
                        debug!(?fault, ?channels, "no right to subscribe");
                    }
                    subscribed => subscribed?,
                }
            }
            *lock(&open.health.channels) = listed;
            Ok(open)
        };
        let opened = tokio::time::timeout(self.connector.timeout(), opening).await;
        opened.unwrap_or_else(|_| Err(self.connector.no_reply())).map_err(RequestError::before_sending)
    }

    /// Opens a connection unless there is a first one, and replaces every connection that has broken or should be
    /// replaced.
    pub(crate) async fn run(self, first: Option<OpenConnection>, state: watch::Sender<ConnectionState>) {
        let mut pauses = retry_pauses();
        let mut open = match first {
            Some(open) => open,
            None => self.announced(self.reopen(&state).await, &state),
        };
        loop {
            let replacement = tokio::select! {
                biased;
                () = open.health.broken.cancelled() => None,
                replacement = async {
                    self.catch_up(&open).await;
                    self.replacement(&open).await
                } => Some(replacement),
            };
            let next = match replacement {
                Some(replacement) => replacement,
                None => {
                    debug!("the connection to Redis is broken");
                    self.listener.ended();
                    state.send_replace(ConnectionState::Opening);
                    let has_served = open.health.has_served();
                    // The client crate repairs a connection to a cluster as long as anybody has it, without pauses.
                    drop(open);
                    pause_before_reopening(has_served, &mut pauses).await;
                    self.reopen(&state).await
                }
            };
            open = self.announced(next, &state);
        }
    }

    /// Lets requests use a connection. What was published before it subscribed is lost.
    fn announced(&self, open: OpenConnection, state: &watch::Sender<ConnectionState>) -> OpenConnection {
        state.send_replace(ConnectionState::Up(open.clone()));
        self.listener.gap();
        open
    }

    /// Follows the changes of the listener's channels from their listing in [`open`](Self::open) to the announcement,
    /// with a time limit: who made them found no connection. Who changes them later sends the request over this one.
    async fn catch_up(&self, open: &OpenConnection) {
        match tokio::time::timeout(self.connector.timeout(), self.follow_changes(open)).await {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => debug!(?fault, "cannot follow the changes of channels"),
            // The next connection subscribes to all of them.
            Err(_) => open.give_up(),
        }
    }

    async fn follow_changes(&self, open: &OpenConnection) -> Result<(), RequestError> {
        let listed: HashSet<String> = std::mem::take(&mut *lock(&open.health.channels)).into_iter().collect();
        let mut now: HashSet<String> = self.listener.channels().into_iter().collect();
        let mut changed: Vec<String> = listed.symmetric_difference(&now).cloned().collect();
        while !changed.is_empty() {
            for channels in changed.chunks(CHANNELS_PER_REQUEST_MAX) {
                let (added, removed): (Vec<String>, Vec<String>) =
                    channels.iter().cloned().partition(|channel| now.contains(channel));
                if !added.is_empty() {
                    open.subscribe(&*added).await?;
                }
                if !removed.is_empty() {
                    open.unsubscribe(&*removed).await?;
                }
            }
            // Another task may have sent its request meanwhile, which this one has overtaken.
            let sent = std::mem::replace(&mut now, self.listener.channels().into_iter().collect());
            changed.retain(|channel| sent.contains(channel) != now.contains(channel));
        }
        Ok(())
    }

    /// Waits until a connection that serves should be replaced. Returns its replacement.
    async fn replacement(&self, open: &OpenConnection) -> OpenConnection {
        // Bounds how often connections are replaced that are cut again and again.
        tokio::time::sleep(RETRY_PAUSE_MIN).await;
        let mut pauses = retry_pauses();
        loop {
            let master_checks = tokio::select! {
                () = open.health.replace_soon.cancelled() => MASTER_CHECKS,
                master_checks = self.until_outdated(open) => master_checks,
            };
            debug!(master_checks, "the connection to the cluster is being replaced");
            tokio::time::sleep(reconnect_pause()).await;
            match self.open().await {
                Ok(replacement) => return OpenConnection { master_checks, ..replacement },
                Err(fault) => debug!(?fault, "no new connection to the cluster yet"),
            }
            pauses.wait().await;
        }
    }

    /// Waits until a server is silent and the others name other masters. Also returns when the silence lasts: a
    /// redirection may have made the client crate use other masters than those that were compared. Returns the number
    /// of checks for the next connection.
    async fn until_outdated(&self, open: &OpenConnection) -> u32 {
        for _ in 0..open.master_checks {
            open.health.unanswered.notified().await;
            let asked =
                tokio::time::timeout(self.connector.timeout(), open.connection.clone().is_outdated()).await;
            if asked.unwrap_or_default() {
                return MASTER_CHECKS;
            }
            // Bounds how often a slow server makes this client ask.
            tokio::time::sleep(MASTER_CHECK_PAUSE + reconnect_pause()).await;
        }
        open.master_checks.saturating_mul(2)
    }

    async fn reopen(&self, state: &watch::Sender<ConnectionState>) -> OpenConnection {
        let mut pauses = retry_pauses();
        loop {
            match self.open().await {
                Ok(open) => return open,
                Err(fault) => {
                    debug!(?fault, "no new connection to Redis yet");
                    state.send_replace(ConnectionState::Down(fault));
                    pauses.wait().await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
