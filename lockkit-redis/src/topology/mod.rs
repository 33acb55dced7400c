//! Which server to talk to: the one that may write.
//!
//! This is the only module that knows how servers belong together. A session asks it for a connection when it opens,
//! and again whenever the last connection is broken or its server is no longer a master.

mod connection;
mod dialer;
mod login;
mod sentinel;
mod slots;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use lockkit_core::ErrorKind;
use redis::{
    ProtocolVersion, PushInfo, PushKind, RedisResult,
    cluster::{ClusterClient, ClusterClientBuilder},
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Effect, RequestError},
    server_info::ServerInfo,
    tls,
};

use self::dialer::{published, subscribed_to};
pub(crate) use self::{
    connection::Connection,
    dialer::{Address, Dialer, MASTER, role},
    login::{Login, Password},
    sentinel::Sentinels,
    slots::SlotMasters,
};

/// How often the client crate follows redirections of a cluster, and repeats requests that a server cannot serve for a
/// moment. After that the request fails and its caller repeats it.
pub(crate) const CLUSTER_RETRIES: u32 = 4;

/// Bounds of the pause between two of these, in milliseconds. All of them together fit into a quarter of the shortest
/// ttl.
const CLUSTER_RETRY_PAUSE_MIN_MS: u64 = 5;
const CLUSTER_RETRY_PAUSE_MAX_MS: u64 = 25;

/// Share of the time limit for connecting that a single node of a cluster gets. A hanging node is tried twice and
/// leaves time for the others.
const NODE_TIMEOUT_SHARE: u32 = 3;

/// Share of the time limit for connecting in which servers must report their role.
const ROLE_TIMEOUT_SHARE: u32 = 2;

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One server.
    Single(Address),
    /// Some servers, of which one is the master.
    Replicas(Vec<Address>),
    /// Servers whose master is named by Sentinels.
    Sentinel(Sentinels),
    /// Some nodes of a cluster; they name the others.
    Cluster(Vec<Address>),
}

/// Receives what the server publishes to a connection.
pub(crate) trait Listener: Send + Sync + 'static {
    /// Returns the channels to which a new connection subscribes.
    fn channels(&self) -> Vec<String>;

    /// Returns whether connecting must fail if the user may not subscribe.
    fn needs_channels(&self) -> bool {
        true
    }

    /// Handles a message.
    fn message(&self, channel: &str, text: &str);

    /// Handles the end of a connection. The next one may receive messages before [`gap`](Self::gap).
    fn ended(&self) {}

    /// Handles a gap: messages may have been lost.
    fn gap(&self);

    /// Handles a subscription that was made, or made again: messages on its channel may have been lost.
    fn subscribed(&self, _channel: &str) {
        self.gap();
    }
}

/// Receives nothing.
impl Listener for () {
    fn channels(&self) -> Vec<String> {
        Vec::new()
    }

    fn message(&self, _: &str, _: &str) {}

    fn gap(&self) {}
}

/// Handles what servers push: messages, and the end of a connection.
#[derive(Clone)]
pub(crate) struct PushHandler {
    pub(crate) listener: Arc<dyn Listener>,
    /// Cancelled when the connection has ended: no more replies come.
    pub(crate) ended: CancellationToken,
    /// Cancelled when the connection is broken, also when it has ended.
    pub(crate) broken: CancellationToken,
    /// Cancelled when the connection still serves but should be replaced.
    pub(crate) replace_soon: CancellationToken,
}

impl PushHandler {
    pub(crate) fn new(listener: Arc<dyn Listener>) -> Self {
        let (ended, replace_soon) = (CancellationToken::new(), CancellationToken::new());
        Self { listener, broken: ended.child_token(), ended, replace_soon }
    }

    /// Returns a handler that ignores everything.
    pub(crate) fn ignore_all() -> Self {
        Self::new(Arc::new(()))
    }

    fn deliver(&self, push: &PushInfo) {
        // Another connection may be in use already, at another master.
        let is_of_former = self.broken.is_cancelled();
        if let Some((channel, text)) = published(push).filter(|_| !is_of_former) {
            self.listener.message(channel, text);
        }
    }

    /// Handles the pushes of one server. The task of the connection owns the handler: the client crate does not report
    /// every end, after some failed writes and with its runtime the task just ends.
    fn for_node(self) -> impl Fn(PushInfo) + Send + Sync + 'static {
        let dropped_with_the_task = self.ended.clone().drop_guard();
        move |push| match push.kind {
            PushKind::Message => self.deliver(&push),
            PushKind::Disconnection => {
                let _ = &dropped_with_the_task;
                self.ended.cancel();
            }
            _ => {}
        }
    }

    /// Handles the pushes of a cluster. The client crate replaces the connections to single nodes by itself, but does
    /// not always subscribe again.
    pub(crate) fn for_cluster(self) -> impl Fn(PushInfo) + Send + Sync + 'static {
        move |push| match push.kind {
            PushKind::Message => self.deliver(&push),
            PushKind::Disconnection => {
                self.replace_soon.cancel();
                self.listener.gap();
            }
            // Sent also when the client crate has subscribed again.
            PushKind::Subscribe => self.listener.subscribed(subscribed_to(&push)),
            _ => {}
        }
    }
}

/// How to connect.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) topology: Topology,
    pub(crate) dialer: Dialer,
    /// For Sentinels, which have users of their own.
    pub(crate) sentinel_login: Login,
    /// How often the client crate repeats a request to a cluster, and follows its redirections.
    pub(crate) cluster_retries: u32,
}

impl Connector {
    /// Returns the connector for requests to a cluster that must not be sent twice.
    #[must_use]
    pub(crate) fn without_retries(self) -> Self {
        Self { cluster_retries: 0, ..self }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.dialer.timeout
    }

    /// Opens a connection within the time limit.
    pub(crate) async fn connect(&self, push_handler: PushHandler) -> Result<Connection, RequestError> {
        let found = async {
            match &self.topology {
                Topology::Single(address) => {
                    Ok(Connection::node(self.dialer.open(address, push_handler.for_node()).await?))
                }
                Topology::Replicas(addresses) => self.only_master(addresses, push_handler).await,
                Topology::Sentinel(sentinels) => self.via_sentinels(sentinels, push_handler).await,
                Topology::Cluster(addresses) => self.cluster(addresses, push_handler).await,
            }
        };
        let opened = tokio::time::timeout(self.timeout(), found).await;
        opened.unwrap_or_else(|_| Err(self.no_reply())).map_err(RequestError::before_sending)
    }

    /// Returns the fault of servers that have not answered in time.
    pub(crate) fn no_reply(&self) -> RequestError {
        self.dialer.no_reply(match &self.topology {
            Topology::Single(address) => std::slice::from_ref(address),
            Topology::Replicas(addresses) | Topology::Cluster(addresses) => addresses,
            Topology::Sentinel(sentinels) => &sentinels.addresses,
        })
    }

    /// Asks all servers for their role: a former master that was restarted after a failover still claims to be the
    /// master.
    async fn only_master(
        &self,
        addresses: &[Address],
        push_handler: PushHandler,
    ) -> Result<Connection, RequestError> {
        // On separate connections, so that the end of one to a replica breaks nothing. The limit leaves time to connect
        // to the master afterwards, even if a server hangs.
        let limit = self.timeout() / ROLE_TIMEOUT_SHARE;
        let asked = addresses.iter().map(|address| tokio::time::timeout(limit, self.id_of_master(address)));
        let answers = futures_util::future::join_all(asked).await;
        let mut masters: Vec<(&Address, Option<String>)> = Vec::new();
        let mut faults = Vec::new();
        for (address, answer) in addresses.iter().zip(answers) {
            match answer.unwrap_or_else(|_| Err(self.dialer.no_reply([address]))) {
                // Two names of one server are one master.
                Ok(id) if id.is_some() && masters.iter().any(|(_, known)| *known == id) => {}
                Ok(id) => masters.push((address, id)),
                Err(fault) => faults.push(fault),
            }
        }
        match &*masters {
            [(master, _)] => Ok(Connection::node(self.dialer.open(master, push_handler.for_node()).await?)),
            [] => Err(RequestError::of_servers(faults)
                .unwrap_or_else(|| RequestError::unexpected("no server is configured"))),
            several => {
                let names: Vec<String> = several.iter().map(|(address, _)| address.to_string()).collect();
                let message = format!(
                    "{} are all masters and share no locks: make all but one of them replicas of that one",
                    names.join(" and ")
                );
                Err(RequestError::new(Effect::Busy, ErrorKind::Unavailable, message))
            }
        }
    }

    /// Returns the run id of a server that reports the role of a master; `None` where the user has no right to INFO.
    async fn id_of_master(&self, address: &Address) -> Result<Option<String>, RequestError> {
        let mut connection = self.dialer.open_master(address, |_| {}).await?;
        let info: RedisResult<String> = redis::cmd("INFO").arg("server").query_async(&mut connection).await;
        Ok(info.ok().map(|info| ServerInfo::parse(&info).run_id).filter(|id| !id.is_empty()))
    }

    async fn via_sentinels(
        &self,
        sentinels: &Sentinels,
        push_handler: PushHandler,
    ) -> Result<Connection, RequestError> {
        let asking = Dialer { login: self.sentinel_login.clone(), ..self.dialer.clone() };
        let master = sentinels.find(&asking).await?;
        let broken = push_handler.broken.clone();
        let connection = self.dialer.open_master(&master.address, push_handler.for_node()).await?;
        let watch = sentinels.watch(&asking, &self.dialer, &master, &broken);
        Ok(Connection::Node { connection, _watch: Some(Arc::new(watch)) })
    }

    async fn cluster(
        &self,
        addresses: &[Address],
        push_handler: PushHandler,
    ) -> Result<Connection, RequestError> {
        let nodes = addresses
            .iter()
            .map(|address| self.dialer.info(address, ProtocolVersion::RESP3))
            .collect::<Result<Vec<_>, _>>()?;
        let mut builder: ClusterClientBuilder = ClusterClient::builder(nodes)
            .use_protocol(ProtocolVersion::RESP3)
            .tcp_settings(self.dialer.tcp_settings())
            .connection_timeout(self.timeout() / NODE_TIMEOUT_SHARE)
            .response_timeout(self.timeout())
            .retries(self.cluster_retries)
            .min_retry_wait(CLUSTER_RETRY_PAUSE_MIN_MS)
            .max_retry_wait(CLUSTER_RETRY_PAUSE_MAX_MS)
            .max_connection_attempts(NonZeroUsize::MIN)
            .push_sender({
                let pushes = push_handler.for_cluster();
                move |push| {
                    pushes(push);
                    Ok::<(), redis::aio::SendError>(())
                }
            });
        if let Some(tls) = &self.dialer.tls {
            builder = tls::of_cluster(tls, builder)?;
        }
        let mut connection = match builder.build()?.get_async_connection().await {
            Ok(connection) => connection,
            Err(error) => return Err(self.why_no_cluster(addresses, error.into()).await),
        };
        let masters = SlotMasters::ask(&mut connection).await.ok();
        Ok(Connection::Cluster { connection, masters })
    }

    /// Returns why there is no connection to a cluster, node by node where they do not let the client in: the client
    /// crate calls them unreachable.
    async fn why_no_cluster(&self, addresses: &[Address], fault: RequestError) -> RequestError {
        let asked = addresses.iter().map(|address| async move {
            let opened =
                tokio::time::timeout(self.timeout() / NODE_TIMEOUT_SHARE, self.dialer.open(address, |_| {}));
            opened.await.unwrap_or_else(|_| Err(self.dialer.no_reply([address]))).err()
        });
        let mut faults: Vec<_> = futures_util::future::join_all(asked).await.into_iter().flatten().collect();
        if faults.len() < addresses.len() {
            // A node that lets the client in has another reason.
            let servers: Vec<String> = addresses.iter().map(Address::to_string).collect();
            faults.push(fault.clone().at(servers.join(", ")));
        }
        RequestError::of_servers(faults).unwrap_or(fault)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use redis::Value;

    use super::*;

    impl Listener for Mutex<Vec<String>> {
        fn channels(&self) -> Vec<String> {
            Vec::new()
        }

        fn message(&self, _: &str, text: &str) {
            self.lock().unwrap().push(text.to_owned());
        }

        fn gap(&self) {}
    }

    /// Its server may be the former master.
    #[test]
    fn message_over_a_broken_connection_is_dropped() {
        let message = |text: &str| PushInfo {
            kind: PushKind::Message,
            data: vec![Value::BulkString(b"channel".to_vec()), Value::BulkString(text.into())],
        };
        for is_given_up in [false, true] {
            let received = Arc::<Mutex<Vec<String>>>::default();
            let handler = PushHandler::new(received.clone());
            let broken = handler.broken.clone();
            let handle = handler.for_node();
            handle(message("before"));
            if is_given_up {
                broken.cancel();
            } else {
                handle(PushInfo { kind: PushKind::Disconnection, data: Vec::new() });
            }
            handle(message("after"));
            assert_eq!(*received.lock().unwrap(), ["before"], "{is_given_up}");
        }
    }

    /// Counts the gaps.
    impl Listener for AtomicUsize {
        fn channels(&self) -> Vec<String> {
            Vec::new()
        }

        fn message(&self, _: &str, _: &str) {}

        fn gap(&self) {
            self.fetch_add(1, SeqCst);
        }
    }

    /// The client crate does not always subscribe again, and never says what was published meanwhile.
    #[test]
    fn cut_connection_to_a_node_of_a_cluster_is_a_gap_and_replaces_them_all_soon() {
        let gaps = Arc::<AtomicUsize>::default();
        let handler = PushHandler::new(gaps.clone());
        let handle = handler.clone().for_cluster();
        let push = |kind| handle(PushInfo { kind, data: Vec::new() });
        let state =
            || (gaps.load(SeqCst), handler.replace_soon.is_cancelled(), handler.broken.is_cancelled());
        push(PushKind::Subscribe);
        assert_eq!(state(), (1, false, false));
        push(PushKind::Disconnection);
        assert_eq!(state(), (2, true, false));
    }
}
