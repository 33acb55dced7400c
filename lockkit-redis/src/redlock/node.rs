//! The connection to one node, replaced whenever it breaks.
//!
//! * A reply does not come in time: the caller goes on without it, and later requests use a new connection. The old one
//!   is kept while a task still waits for its reply.
//! * The node cannot be reached: requests fail at once while that is known, so a node that is down costs no time.

use std::{fmt, sync::Arc, time::Duration};

use lockkit_core::backend::retry_pauses;
use redis::{PushInfo, PushKind, Value};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;

use super::{
    hints::Hints,
    membership::{Members, NO_MARKER},
    release::RETRIED_CLEAN_UPS_MAX,
    wire::{Request, look, node_state},
};
use crate::{
    error::{Breaks, RequestError},
    reconnect::reconnect_pause,
    server::execute,
    topology::{Address, Connection, Dialer},
    wire::Call,
};

/// An open connection.
#[derive(Clone)]
pub(super) struct NodeConnection {
    inner: Connection,
    /// Cancelled once the connection must not be used for new requests.
    broken: CancellationToken,
}

#[derive(Clone)]
enum ConnectionState {
    Up(NodeConnection),
    /// No connection yet, or the last one has just broken.
    Opening,
    /// The last attempt to connect failed.
    Down(RequestError),
}

/// The node at one address.
pub(super) struct Node {
    name: String,
    /// The index of its address in the URL.
    address: usize,
    members: Arc<Members>,
    /// Permits for clean-ups that are retried.
    pub(super) clean_up_retries: Semaphore,
    state: watch::Receiver<ConnectionState>,
    /// Stops the task that keeps the connection open.
    _keeping: DropGuard,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Node {
    /// Starts a task that connects to the address and reconnects after every loss.
    pub(super) fn connect(
        number: usize,
        address: Address,
        dialer: Dialer,
        hints: Arc<Hints>,
        members: Arc<Members>,
    ) -> Self {
        let name = name_of(&address);
        let (state, watched) = watch::channel(ConnectionState::Opening);
        let ended = CancellationToken::new();
        let keeping = ended.clone().drop_guard();
        let reconnector = Reconnector { address, dialer, hints };
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = reconnector.keep_connected(state) => {}
            }
        });
        let clean_up_retries = Semaphore::new(RETRIED_CLEAN_UPS_MAX);
        Self { name, address: number, members, clean_up_retries, state: watched, _keeping: keeping }
    }

    /// Host and port.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Executes a script within a time limit.
    pub(super) async fn run(&self, limit: Duration, request: &Request) -> Result<Value, RequestError> {
        let deadline = Instant::now() + limit;
        let connection = self.connection(deadline).await?;
        let answer = tokio::time::timeout_at(deadline, self.run_on(&connection, request)).await;
        answer.unwrap_or_else(|_| {
            connection.give_up();
            Err(RequestError::no_reply())
        })
    }

    /// Executes a script over this connection, without a time limit.
    pub(super) async fn run_on(
        &self,
        connection: &NodeConnection,
        request: &Request,
    ) -> Result<Value, RequestError> {
        let known = self.members.marker(self.address);
        let marker = match known {
            None if request.needs_marker() => {
                self.identify(connection).await.map_err(RequestError::before_sending)?
            }
            known => known,
        };
        connection.execute(&request.to(marker.as_deref().unwrap_or(NO_MARKER))).await
    }

    /// Learns which node this is, if that is not known yet.
    async fn identify(&self, connection: &NodeConnection) -> Result<Option<String>, RequestError> {
        let found = node_state(connection.execute(&look().to(NO_MARKER)).await?)?;
        self.members.admit(self.address, &found)?;
        Ok(self.members.marker(self.address))
    }

    /// The node's `INFO`.
    pub(super) async fn info(&self, limit: Duration) -> Result<String, RequestError> {
        let deadline = Instant::now() + limit;
        let mut connection = self.connection(deadline).await?.inner;
        let info = redis::cmd("INFO");
        let answer = tokio::time::timeout_at(deadline, connection.query_one(&info)).await;
        Ok(redis::from_redis_value(answer.unwrap_or_else(|_| Err(RequestError::no_reply()))?)?)
    }

    /// Returns the open connection, or waits for the one that is being opened.
    pub(super) async fn connection(&self, deadline: Instant) -> Result<NodeConnection, RequestError> {
        let mut state = self.state.clone();
        // `Up` may still contain a connection that was given up: the task that replaces it runs a moment later.
        let known = state.wait_for(|state| match state {
            ConnectionState::Up(connection) => !connection.broken.is_cancelled(),
            ConnectionState::Opening => false,
            ConnectionState::Down(_) => true,
        });
        match tokio::time::timeout_at(deadline, known).await {
            Ok(Ok(known)) => match &*known {
                ConnectionState::Up(connection) => Ok(connection.clone()),
                ConnectionState::Down(fault) => Err(fault.clone()),
                ConnectionState::Opening => Err(RequestError::session_closed()),
            },
            // The runtime of the task that keeps the connection has ended.
            Ok(Err(_)) => Err(RequestError::session_closed()),
            Err(_) => Err(RequestError::no_reply().before_sending()),
        }
    }

    /// Subscribes to a channel, or unsubscribes, within a time limit. On failure waiters rely on their own retries.
    pub(super) async fn set_subscription(&self, limit: Duration, channel: &str, subscribed: bool) {
        let state = self.state.borrow().clone();
        if let ConnectionState::Up(NodeConnection {
            inner: Connection::Node { mut connection, .. },
            broken,
        }) = state
        {
            let request = async {
                match subscribed {
                    true => connection.subscribe(channel).await,
                    false => connection.unsubscribe(channel).await,
                }
            };
            match tokio::time::timeout(limit, request).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(node = self.name, %error, "cannot change a subscription"),
                // The next connection subscribes to what is waited for then.
                Err(_) => broken.cancel(),
            }
        }
    }
}

impl NodeConnection {
    async fn execute(&self, call: &Call) -> Result<Value, RequestError> {
        let answer = execute(&mut self.inner.clone(), call).await;
        if answer.as_ref().is_err_and(|fault| fault.breaks != Breaks::Nothing) {
            self.give_up();
        }
        answer
    }

    /// Stops using this connection for new requests.
    pub(super) fn give_up(&self) {
        self.broken.cancel();
    }
}

/// The name of the node at this address, for errors and for the set-up.
pub(super) fn name_of(address: &Address) -> String {
    match address {
        Address::Tcp(host, port) => format!("{}:{port}", host.to_ascii_lowercase()),
        Address::Unix(path) => path.display().to_string(),
    }
}

/// Opens the connections to one node.
struct Reconnector {
    address: Address,
    dialer: Dialer,
    hints: Arc<Hints>,
}

impl Reconnector {
    /// Opens a connection, and a new one whenever it breaks.
    async fn keep_connected(self, state: watch::Sender<ConnectionState>) {
        loop {
            let connection = self.open_with_retries(&state).await;
            state.send_replace(ConnectionState::Up(connection.clone()));
            // Hints that were published without a connection are lost.
            self.hints.wake_all();
            connection.broken.cancelled().await;
            debug!(address = ?self.address, "the connection is broken");
            state.send_replace(ConnectionState::Opening);
            tokio::time::sleep(reconnect_pause()).await;
        }
    }

    async fn open_with_retries(&self, state: &watch::Sender<ConnectionState>) -> NodeConnection {
        let mut pauses = retry_pauses();
        loop {
            let opened = tokio::time::timeout(self.dialer.timeout, self.open()).await;
            match opened.unwrap_or_else(|_| Err(RequestError::no_reply())) {
                Ok(connection) => return connection,
                Err(fault) => {
                    debug!(?fault, address = ?self.address, "cannot connect");
                    state.send_replace(ConnectionState::Down(fault.before_sending()));
                    pauses.wait().await;
                }
            }
        }
    }

    async fn open(&self) -> Result<NodeConnection, RequestError> {
        let broken = CancellationToken::new();
        let (hints, ended) = (Arc::clone(&self.hints), broken.clone());
        let on_push = move |push: PushInfo| match push.kind {
            PushKind::Message => hints.notify(&push),
            PushKind::Disconnection => ended.cancel(),
            _ => {}
        };
        let mut connection = self.dialer.open(&self.address, on_push).await?;
        for channel in self.hints.channels() {
            connection.subscribe(channel).await?;
        }
        Ok(NodeConnection { inner: Connection::Node { connection, _watch: None }, broken })
    }
}

#[cfg(test)]
mod tests {
    use lockkit_testbed::{Direction, Flow, Proxy, Redis};

    use super::*;
    use crate::topology::Login;

    /// Generous bound against hangs.
    const HANG: Duration = Duration::from_secs(30);

    #[tokio::test(flavor = "multi_thread")]
    async fn subscription_at_a_silent_node_has_a_time_limit() {
        let redis = Redis::start().unwrap();
        let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
        let endpoint = proxy.endpoint();
        let (host, port) = endpoint.split_once(':').unwrap();
        let node = Node::connect(
            0,
            Address::Tcp(host.to_owned(), port.parse().unwrap()),
            Dialer { login: Login::default(), tls: None, timeout: HANG },
            Arc::default(),
            Arc::new(Members::new(vec![endpoint.clone()])),
        );
        node.run(HANG, &look()).await.unwrap();
        proxy.set(Direction::Replies, Flow::Hold);
        let subscribing = node.set_subscription(Duration::from_millis(50), "channel", true);
        tokio::time::timeout(HANG, subscribing).await.expect("the time limit ends the wait");
    }

    /// When a network fails, all clients lose all nodes at the same moment.
    #[test]
    fn reconnect_pauses_differ() {
        let (one, other) = (reconnect_pause(), reconnect_pause());
        assert!(
            one != other && one.max(other) <= lockkit_core::limits::RETRY_PAUSE_MIN,
            "{one:?} and {other:?}"
        );
    }
}
