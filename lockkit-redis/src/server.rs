//! A server: requests with a time limit, over a connection that [`reconnect`](crate::reconnect) replaces.
//!
//! * A reply is lost: the request answers "unknown" after its time limit. The connection is replaced, because a black
//!   hole answers later requests no more. Other requests on the old connection may still be answered.
//! * One of several servers is demoted: it refuses the next write, and the connection is replaced. A client that only
//!   reads asks for the role with its heartbeats.
//! * There is no connection: requests wait within their time limit while one is being opened. After a failed attempt
//!   they fail at once.

use std::{fmt, sync::Arc, time::Duration};

use redis::{Cmd, Value};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    error::{Effect, RequestError},
    reconnect::{ConnectionState, OpenConnection, Reconnector},
    server_info::ServerInfo,
    topology::{Connection, Connector, Listener, MASTER, Topology, role},
    wire::Call,
};

/// A server, or the servers of a cluster.
pub(crate) struct Server {
    state: watch::Receiver<ConnectionState>,
    timeout: Duration,
    /// The channel of this client; `None` if it receives no messages.
    channel: Option<String>,
    /// Whether it is one of several servers, any of which may be the master.
    is_one_of_several: bool,
    /// Ends the task that keeps the connection up.
    _reconnecting: DropGuard,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Server {
    /// Connects, and keeps connected.
    pub(crate) async fn connect(
        connector: Connector,
        listener: Arc<dyn Listener>,
    ) -> Result<Self, RequestError> {
        let reconnector = Reconnector { connector, listener };
        let first = reconnector.open().await?;
        Ok(Self::keep(reconnector, Some(first)))
    }

    /// As [`connect`](Self::connect), but does not wait for the first connection.
    pub(crate) fn connect_in_background(connector: Connector, listener: Arc<dyn Listener>) -> Self {
        Self::keep(Reconnector { connector, listener }, None)
    }

    fn keep(reconnector: Reconnector, first: Option<OpenConnection>) -> Self {
        let timeout = reconnector.connector.timeout();
        let channel = reconnector.listener.channels().into_iter().next();
        let is_one_of_several =
            matches!(reconnector.connector.topology, Topology::Replicas(_) | Topology::Sentinel(_));
        let (state, watched) =
            watch::channel(first.clone().map_or(ConnectionState::Opening, ConnectionState::Up));
        let ended = CancellationToken::new();
        let reconnecting = ended.clone().drop_guard();
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = reconnector.run(first, state) => {}
            }
        });
        Self { state: watched, timeout, channel, is_one_of_several, _reconnecting: reconnecting }
    }

    /// Returns what the server reports about itself; `None` where the user has no right to INFO.
    pub(crate) async fn info(&self) -> Result<Option<ServerInfo>, RequestError> {
        let ask = |mut connection: Connection| async move { connection.query_one(&redis::cmd("INFO")).await };
        let answer = self.query(self.timeout, ask);
        match answer.await {
            Ok(info) => Ok(Some(ServerInfo::parse(&redis::from_redis_value::<String>(info)?))),
            Err(fault) if !fault.is_transient() => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Fails where the user has no right to publish. Handoffs would work without their messages, but slowly and without
    /// a visible reason.
    pub(crate) async fn check_publish_right(&self) -> Result<(), RequestError> {
        let Some(channel) = &self.channel else { return Ok(()) };
        // It comes back to this client, which ignores it.
        let publish = redis::cmd("PUBLISH").arg(channel).arg("").to_owned();
        let publish =
            |mut connection: Connection| async move { connection.query_at(channel, &publish).await };
        self.query(self.timeout, publish).await.map(drop)
    }

    /// Executes a script.
    pub(crate) async fn run(&self, call: &Call) -> Result<Value, RequestError> {
        self.run_within(self.timeout, call).await
    }

    /// Executes a script, with a time limit of its own.
    pub(crate) async fn run_within(&self, timeout: Duration, call: &Call) -> Result<Value, RequestError> {
        self.with_connection(timeout, |mut open| async move {
            let answer = execute(&mut open.connection, call).await;
            open.health.note_answer(answer.is_ok());
            answer
        })
        .await
    }

    /// Executes a script, and a command right after it over the same connection. `asking` as for
    /// [`Connection::query_together`].
    pub(crate) async fn run_with(
        &self,
        timeout: Duration,
        call: &Call,
        after: Option<Cmd>,
        asking: bool,
    ) -> Result<Vec<Value>, RequestError> {
        self.with_connection(timeout, |mut open| async move {
            let answers = execute_with(&mut open.connection, call, after, asking).await;
            open.health.note_answer(answers.is_ok());
            answers
        })
        .await
    }

    /// Fails unless the server answers and, if it is one of several, is still the master.
    pub(crate) async fn check_serves(&self, timeout: Duration) -> Result<(), RequestError> {
        let asks_role = self.is_one_of_several;
        let ask = |mut connection: Connection| async move {
            let command = redis::cmd(if asks_role { "ROLE" } else { "PING" });
            match connection.query_one(&command).await? {
                answer if asks_role && role(&answer) != MASTER => Err(RequestError::demoted()),
                answer => Ok(answer),
            }
        };
        self.query(timeout, ask).await.map(drop)
    }

    /// Pings the server that publishes to this client. It may serve no other request of this client.
    pub(crate) async fn ping_channel(&self, timeout: Duration) -> Result<(), RequestError> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let ping = |mut connection: Connection| async move {
            connection.query_at(channel, &redis::cmd("PING")).await
        };
        self.query(timeout, ping).await.map(drop)
    }

    /// Replaces the present connection.
    pub(crate) fn reconnect(&self) {
        self.current().iter().for_each(OpenConnection::give_up);
    }

    /// Returns the open connection, if there is one.
    pub(crate) fn current(&self) -> Option<OpenConnection> {
        match &*self.state.borrow() {
            ConnectionState::Up(open) => Some(open.clone()),
            ConnectionState::Opening | ConnectionState::Down(_) => None,
        }
    }

    /// Returns the connections: the present one, and those that replace it until the server is dropped.
    pub(crate) fn connections(&self) -> watch::Receiver<ConnectionState> {
        self.state.clone()
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.timeout
    }

    async fn query<F>(
        &self,
        timeout: Duration,
        request: impl FnOnce(Connection) -> F,
    ) -> Result<Value, RequestError>
    where
        F: Future<Output = Result<Value, RequestError>>,
    {
        self.with_connection(timeout, |open| request(open.connection)).await
    }

    /// Sends a request over the open connection, or over the one that is being opened.
    pub(crate) async fn with_connection<T, F>(
        &self,
        timeout: Duration,
        request: impl FnOnce(OpenConnection) -> F,
    ) -> Result<T, RequestError>
    where
        F: Future<Output = Result<T, RequestError>>,
    {
        let answer_by = Instant::now() + timeout;
        let open = self.connection(answer_by).await?;
        // Pinned here: these futures are large, and would be moved.
        let request = std::pin::pin!(request(open.clone()));
        let answer = tokio::time::timeout_at(answer_by, open.reply(request)).await;
        let answer = answer.unwrap_or_else(|_| Err(RequestError::no_reply()));
        answer.inspect_err(|fault| open.note_failure(fault))
    }

    /// Returns the open connection, or waits until `deadline` for the one that is being opened.
    pub(crate) async fn connection(&self, deadline: Instant) -> Result<OpenConnection, RequestError> {
        // A connection that has just broken may still be in the state.
        let is_known = |state: &ConnectionState| match state {
            ConnectionState::Up(open) => !open.health.is_broken(),
            ConnectionState::Opening => false,
            ConnectionState::Down(_) => true,
        };
        if let state @ ConnectionState::Up(open) = &*self.state.borrow()
            && is_known(state)
        {
            return Ok(open.clone());
        }
        let mut state = self.state.clone();
        let Ok(known) = tokio::time::timeout_at(deadline, state.wait_for(is_known)).await else {
            return Err(RequestError::no_reply().before_sending());
        };
        match known.as_deref() {
            Ok(ConnectionState::Up(open)) => Ok(open.clone()),
            Ok(ConnectionState::Down(fault)) => Err(fault.clone()),
            // The runtime of the reconnecting task has ended.
            Ok(ConnectionState::Opening) | Err(_) => Err(RequestError::session_closed()),
        }
    }
}

/// Executes a script; sends it in full if the server does not have it.
pub(crate) async fn execute(connection: &mut Connection, call: &Call) -> Result<Value, RequestError> {
    match connection.query(call.short()).await {
        Err(fault) if fault.effect == Effect::ScriptUnknown => Box::pin(connection.query(&call.full())).await,
        answer => answer,
    }
}

/// As [`execute`], with a command right after the script.
async fn execute_with(
    connection: &mut Connection,
    call: &Call,
    after: Option<Cmd>,
    asking: bool,
) -> Result<Vec<Value>, RequestError> {
    let both = |script: Cmd| std::iter::once(script).chain(after.clone()).collect();
    match connection.query_together(call.first_key(), both(call.short().clone()), asking).await {
        Err(fault) if fault.effect == Effect::ScriptUnknown => {
            connection.query_together(call.first_key(), both(call.full()), asking).await
        }
        answers => answers,
    }
}

#[cfg(test)]
mod tests {
    use lockkit_conformance::direct::HANG;
    use lockkit_core::ErrorKind;

    use super::*;
    use crate::{
        tests::scripted::silent_connection,
        topology::{Address, Dialer, Login, PushHandler, Topology},
        wire::INSPECT,
    };

    fn connector(address: Address) -> Connector {
        Connector {
            topology: Topology::Single(address),
            dialer: Dialer { login: Login::default(), tls: None, timeout: HANG },
            sentinel_login: Login::default(),
            cluster_retries: 0,
        }
    }

    /// Else a try would be repeated for as long as there is no answer: the server may have the first copy.
    #[tokio::test]
    async fn request_that_found_no_connection_in_time_was_not_sent() {
        // The kernel accepts, and nobody answers.
        let hanging = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp("127.0.0.1".to_owned(), hanging.local_addr().unwrap().port());
        let server = Server::connect_in_background(connector(address), Arc::new(()));
        let call = Call::about(&INSPECT, &["x"]);
        let fault = server.run_within(Duration::from_millis(10), &call).await.unwrap_err();
        assert_eq!(fault.effect, Effect::NotSent, "{fault:?}");
    }

    /// The client crate may never answer a request that is sent at the end of its connection.
    #[tokio::test(start_paused = true)]
    async fn request_fails_at_the_end_of_its_connection() {
        let handler = PushHandler::ignore_all();
        let open = silent_connection(handler.clone()).await;
        let connector = connector(Address::Unix("/nonexistent".into()));
        let server = Server::keep(Reconnector { connector, listener: Arc::new(()) }, Some(open));
        let ended = async {
            tokio::task::yield_now().await;
            handler.ended.cancel();
            Instant::now()
        };
        let request = server.with_connection(HANG, |mut open| async move {
            open.connection.query(&redis::cmd("EVALSHA")).await
        });
        let (answer, ended) = tokio::join!(request, ended);
        let fault = answer.unwrap_err();
        assert!(fault.may_have_executed(), "{fault:?}");
        assert!(ended.elapsed() < HANG / 2, "{:?}", ended.elapsed());
    }

    /// It is in the state until the task that replaces it has run.
    #[tokio::test(start_paused = true)]
    async fn connection_that_was_given_up_is_not_used() {
        let open = silent_connection(PushHandler::ignore_all()).await;
        let connector = connector(Address::Unix("/nonexistent".into()));
        let server = Server::keep(Reconnector { connector, listener: Arc::new(()) }, Some(open));
        assert!(server.connection(Instant::now() + HANG).await.is_ok());
        server.reconnect();
        assert!(server.connection(Instant::now() + HANG).await.is_err(), "there is no other one");
    }

    /// Else a request that waits for a connection first may take twice as long as its caller allows.
    #[tokio::test(start_paused = true)]
    async fn time_limit_of_a_request_includes_the_wait_for_its_connection() {
        let (state, watched) = watch::channel(ConnectionState::Opening);
        let reconnecting = CancellationToken::new().drop_guard();
        let server = Server {
            state: watched,
            timeout: HANG,
            channel: None,
            is_one_of_several: false,
            _reconnecting: reconnecting,
        };
        let open = silent_connection(PushHandler::ignore_all()).await;
        let start = Instant::now();
        let opening = async {
            tokio::time::sleep(HANG / 2).await;
            state.send_replace(ConnectionState::Up(open));
        };
        let call = Call::about(&INSPECT, &["x"]);
        let (answer, ()) = tokio::join!(server.run(&call), opening);
        let fault = answer.unwrap_err();
        assert!(fault.may_have_executed(), "{fault:?}");
        assert!(start.elapsed() < HANG * 5 / 4, "{:?}", start.elapsed());
    }

    /// The log of an outage shows no more than this.
    #[tokio::test]
    async fn request_that_finds_no_connection_says_why_there_is_none() {
        let down = RequestError::new(Effect::NotSent, ErrorKind::Unavailable, "connection refused");
        let (_state, watched) = watch::channel(ConnectionState::Down(down));
        let server = Server {
            state: watched,
            timeout: HANG,
            channel: None,
            is_one_of_several: false,
            _reconnecting: CancellationToken::new().drop_guard(),
        };
        let fault = server.run(&Call::about(&INSPECT, &["x"])).await.unwrap_err();
        assert_eq!((fault.effect, fault.message()), (Effect::NotSent, "connection refused"));
    }
}
