//! One node: a [`Server`] whose requests name the marker that was found at its address.
//!
//! * A reply does not come in time: the caller continues without it, and later requests use a new connection. The old one
//!   is kept while a task still waits for its reply.
//! * The node cannot be reached: requests fail at once while that is known, so a node that is down costs no time.

use std::{fmt, sync::Arc, time::Duration};

use redis::Value;
use tokio::{sync::Semaphore, time::Instant};
use tracing::debug;

use super::{
    hints::Hints,
    membership::{Members, NO_MARKER},
    node_call::NodeCall,
    session::{LATE_ASKS_MAX, RETRIED_CLEAN_UPS_MAX},
    wire::{look, node_state},
};
use crate::{
    error::RequestError,
    reconnect::OpenConnection,
    server::{self, Server},
    server_info::ServerInfo,
    topology::{Address, Connector, Dialer, Login, Topology},
};

/// The node at one address.
pub(super) struct Node {
    name: String,
    /// The index of its address in the URL.
    address: usize,
    members: Arc<Members>,
    /// Permits for clean-ups that are retried.
    pub(super) clean_up_retries: Semaphore,
    /// Permits for asks that are awaited after their attempt has continued without them.
    pub(super) late_asks: Semaphore,
    server: Server,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Node {
    /// Starts connecting to the address.
    pub(super) fn connect(
        number: usize,
        address: Address,
        dialer: Dialer,
        hints: Arc<Hints>,
        members: Arc<Members>,
    ) -> Self {
        let name = name_of(&address);
        let (topology, sentinel_login) = (Topology::Single(address), Login::default());
        let connector = Connector { topology, dialer, sentinel_login, cluster_retries: 0 };
        let server = Server::connect_in_background(connector, hints);
        let clean_up_retries = Semaphore::new(RETRIED_CLEAN_UPS_MAX);
        let late_asks = Semaphore::new(LATE_ASKS_MAX);
        Self { name, address: number, members, clean_up_retries, late_asks, server }
    }

    /// Returns its host and port.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Executes a script within a time limit.
    pub(super) async fn run(&self, limit: Duration, request: &NodeCall) -> Result<Value, RequestError> {
        let answer_by = Instant::now() + limit;
        let open = self.connection(answer_by).await?;
        let answer = tokio::time::timeout_at(answer_by, self.run_on(&open, request)).await;
        answer.unwrap_or_else(|_| {
            open.give_up();
            Err(RequestError::no_reply())
        })
    }

    /// Sends a command within a time limit.
    pub(super) async fn query(&self, limit: Duration, command: &redis::Cmd) -> Result<Value, RequestError> {
        let query = |mut open: OpenConnection| async move { open.connection.query(command).await };
        self.server.with_connection(limit, query).await
    }

    /// Executes a script over this connection, without a time limit.
    pub(super) async fn run_on(
        &self,
        open: &OpenConnection,
        request: &NodeCall,
    ) -> Result<Value, RequestError> {
        let marker = match self.members.marker(self.address) {
            None if request.needs_marker() => {
                Box::pin(self.identify(open)).await.map_err(RequestError::before_sending)?
            }
            known => known,
        };
        execute(open, request, marker.as_deref().unwrap_or(NO_MARKER)).await
    }

    /// Learns which node this is, if that is not known yet.
    async fn identify(&self, open: &OpenConnection) -> Result<Option<Arc<str>>, RequestError> {
        let found = node_state(execute(open, &look(), NO_MARKER).await?)?;
        self.members.admit(self.address, &found)?;
        Ok(self.members.marker(self.address))
    }

    /// Returns what the node reports about itself; `None` where the user has no right to INFO.
    pub(super) async fn info(&self) -> Result<Option<ServerInfo>, RequestError> {
        self.server.info().await
    }

    /// Returns the open connection, or waits for the one that is being opened.
    pub(super) async fn connection(&self, deadline: Instant) -> Result<OpenConnection, RequestError> {
        self.server.connection(deadline).await
    }

    /// Subscribes to channels, or unsubscribes, within a time limit. On failure waiters rely on their own retries.
    pub(super) async fn set_subscription(&self, limit: Duration, channels: &[String], subscribed: bool) {
        let Some(open) = self.server.current() else { return };
        let request = async {
            match subscribed {
                true => open.subscribe(channels).await,
                false => open.unsubscribe(channels).await,
            }
        };
        let answer = tokio::time::timeout(limit, request).await;
        match answer {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => debug!(node = self.name, ?fault, "cannot change a subscription"),
            // The next connection subscribes to what is waited for then.
            Err(_) => open.give_up(),
        }
    }
}

/// Executes a script; sends it in full if the node does not have it.
async fn execute(open: &OpenConnection, request: &NodeCall, marker: &str) -> Result<Value, RequestError> {
    let mut connection = open.connection.clone();
    let answer = open.reply(server::execute(&mut connection, &request.to(marker))).await;
    open.health.note_answer(answer.is_ok());
    answer.inspect_err(|fault| open.note_failure(fault))
}

/// Returns the name of the node at this address, for errors and for the set-up.
pub(super) fn name_of(address: &Address) -> String {
    match address {
        Address::Tcp(host, port) => format!("{}:{port}", host.to_ascii_lowercase()),
        Address::Unix(path) => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use lockkit_conformance::direct::{HANG, sooner_than, until};
    use lockkit_testbed::{Direction, Flow, Proxy, Redis};

    use super::{
        super::wire::{note_empty, read_record},
        *,
    };
    use crate::{
        tests::{
            keys,
            scripted::{Answer, ScriptedServer, connection_to, greeting, silent_connection},
        },
        topology::{Connection, Login, PushHandler},
    };

    fn node_at(address: Address) -> Node {
        let members = Arc::new(Members::new(vec![name_of(&address)]));
        let dialer = Dialer { login: Login::default(), tls: None, timeout: HANG };
        Node::connect(0, address, dialer, Arc::default(), members)
    }

    fn node_behind(proxy: &Proxy) -> Node {
        let endpoint = proxy.endpoint();
        let (host, port) = endpoint.split_once(':').unwrap();
        node_at(Address::Tcp(host.to_owned(), port.parse().unwrap()))
    }

    /// Connects to a server through a proxy; returns also how many connections the proxy has accepted.
    async fn connected() -> (Redis, Proxy, Node, u64) {
        let redis = Redis::start().unwrap();
        let proxy = Proxy::start_redis(redis.endpoint()).unwrap();
        let node = node_behind(&proxy);
        node.run(HANG, &look()).await.unwrap();
        let accepted = proxy.counts().accepted;
        (redis, proxy, node, accepted)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn connection_without_a_reply_is_replaced() {
        let (_redis, proxy, node, accepted) = connected().await;
        proxy.set(Direction::Replies, Flow::Hold);
        node.run(Duration::from_millis(50), &look()).await.unwrap_err();
        until("a new connection", async || proxy.counts().accepted > accepted).await;
    }

    /// A client that spells a name in another way could not bring the node back.
    #[test]
    fn names_of_nodes_do_not_depend_on_case() {
        assert_eq!(name_of(&Address::Tcp("Redis-1.Example".to_owned(), 6379)), "redis-1.example:6379");
    }

    /// Otherwise an ask would be sent again, and its key would be removed, although it was never sent.
    #[tokio::test]
    async fn nothing_was_sent_to_a_node_that_has_not_shown_which_one_it_is() {
        let server = ScriptedServer::start(|_| {
            |_, words: &[String]| match &*words[0] {
                "EVALSHA" => Answer::EndOfConnection,
                _ => greeting(words),
            }
        });
        let node = node_at(server.await.address);
        let fault = node.run(HANG, &read_record(&keys())).await.unwrap_err();
        assert!(!fault.may_have_executed(), "{fault:?}");
    }

    /// Else it would take twice as long as its caller allows.
    #[tokio::test(flavor = "multi_thread")]
    async fn time_limit_at_a_node_includes_the_wait_for_its_connection() {
        const LIMIT: Duration = Duration::from_secs(2);
        sooner_than(LIMIT * 3 / 2, async || {
            let server = ScriptedServer::start(|_| {
                |_, words: &[String]| match &*words[0] {
                    "HELLO" => {
                        std::thread::sleep(LIMIT * 3 / 4);
                        greeting(words)
                    }
                    "EVALSHA" => Answer::Nothing,
                    _ => greeting(words),
                }
            });
            node_at(server.await.address).run(LIMIT, &look()).await.unwrap_err();
        })
        .await;
    }

    /// Their pauses would grow to 2 s, and take more than 5 s together.
    #[tokio::test]
    async fn connections_that_have_served_are_replaced_without_growing_pauses() {
        const CONNECTIONS: usize = 8;
        let scripts = AtomicUsize::default();
        let server = ScriptedServer::start(|_| {
            move |_, words: &[String]| match &*words[0] {
                // Each connection ends after one answer.
                "EVALSHA" if scripts.fetch_add(1, SeqCst).is_multiple_of(2) => {
                    Answer::Text(":1\r\n".to_owned())
                }
                "EVALSHA" => Answer::EndOfConnection,
                _ => greeting(words),
            }
        });
        let node = node_at(server.await.address);
        sooner_than(Duration::from_secs(3), async || {
            for _ in 0..CONNECTIONS {
                node.run(HANG, &look()).await.unwrap();
                node.run(HANG, &look()).await.unwrap_err();
            }
        })
        .await;
    }

    /// It may be behind a name that leads to another server by now.
    #[tokio::test(flavor = "multi_thread")]
    async fn connection_to_a_node_that_became_a_replica_is_replaced() {
        let (redis, proxy, node, accepted) = connected().await;
        redis.cli(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
        let fault = node.run(HANG, &note_empty("empty 1")).await.unwrap_err();
        assert!(fault.message().contains("READONLY"), "{fault:?}");
        until("a new connection", async || proxy.counts().accepted > accepted).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn subscription_at_a_silent_node_has_a_time_limit() {
        let (_redis, proxy, node, accepted) = connected().await;
        proxy.set(Direction::Replies, Flow::Hold);
        let channels = ["channel".to_owned()];
        let subscribing = node.set_subscription(Duration::from_millis(50), &channels, true);
        tokio::time::timeout(HANG, subscribing).await.expect("the time limit ends the wait");
        until("a new connection, which subscribes again", async || proxy.counts().accepted > accepted).await;
    }

    /// The client crate may never answer a request that is sent at the end of its connection. Otherwise, the clean-up of
    /// an attempt would wait for ten minutes, and keep the connections of a closed session.
    #[tokio::test(start_paused = true)]
    async fn late_reply_is_not_waited_for_after_the_end_of_its_connection() {
        let handler = PushHandler::ignore_all();
        fails_at_the_end_of(silent_connection(handler.clone()).await, handler).await;
    }

    #[tokio::test(start_paused = true)]
    async fn late_reply_to_a_whole_script_is_not_waited_for_after_the_end_of_its_connection() {
        let script = |_, words: &[String]| match &*words[0] {
            "EVALSHA" => Answer::Text("-NOSCRIPT No matching script\r\n".to_owned()),
            "EVAL" => Answer::Nothing,
            _ => greeting(words),
        };
        let handler = PushHandler::ignore_all();
        let open = OpenConnection::new(Connection::node(connection_to(script).await), handler.clone());
        fails_at_the_end_of(open, handler).await;
    }

    /// Checks that a request fails at the end of this connection, and not earlier.
    async fn fails_at_the_end_of(open: OpenConnection, handler: PushHandler) {
        let request = look();
        let mut reply = std::pin::pin!(execute(&open, &request, NO_MARKER));
        open.give_up();
        let early = tokio::time::timeout(HANG, reply.as_mut()).await;
        assert!(early.is_err(), "a late reply is waited for: {early:?}");
        handler.ended.cancel();
        let fault = tokio::time::timeout(HANG, reply).await.expect("no longer").unwrap_err();
        assert!(fault.may_have_executed(), "{fault:?}");
    }
}
