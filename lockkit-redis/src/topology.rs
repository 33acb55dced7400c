//! Which server to talk to: the one that may write.
//!
//! This is the only module that knows how servers belong together. It is asked for a connection when a session begins,
//! and again whenever the last one turned out to be broken, or its server to be no master any more.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use lockkit_core::ErrorKind;
use redis::{
    Cmd, ProtocolVersion, PushInfo, PushKind, RedisError, RedisResult, Value,
    aio::MultiplexedConnection,
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Effect, Fault},
    node::{Address, Dialer, Login, published},
    probe::Probe,
    sentinel::{Sentinels, Watch},
    slots::Masters,
    tls,
};

/// How often the client of a cluster follows redirections, and repeats what a server cannot do for a moment, before it
/// says so. What cannot be done for longer is repeated by those who asked.
const CLUSTER_RETRIES: u32 = 4;

/// Bounds of the pause between two of these, in milliseconds. All of them fit into a quarter of the shortest ttl.
const CLUSTER_RETRY_PAUSE_MIN_MS: u64 = 5;
const CLUSTER_RETRY_PAUSE_MAX_MS: u64 = 25;

/// Share of the time for opening that a single node of a cluster has: one that hangs is tried twice, and leaves time for
/// the others.
const NODE_SHARE: u32 = 3;

/// Share of the time for opening that servers have to say whether they are the master.
const ASKING_SHARE: u32 = 2;

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One server.
    Single(Address),
    /// Some servers, of which one is the master.
    Replicas(Vec<Address>),
    /// Servers of which Sentinels say who is the master.
    Sentinel(Sentinels),
    /// Some nodes of a cluster; they tell of the others.
    Cluster(Vec<Address>),
}

/// Hears what servers send unasked.
#[derive(Clone)]
pub(crate) struct Listener {
    /// A message to the client.
    pub(crate) message: Arc<dyn Fn(&str) + Send + Sync>,
    /// Messages may have been lost, while the connection goes on.
    pub(crate) gap: Arc<dyn Fn() + Send + Sync>,
    /// The connection is of no use any more.
    pub(crate) broken: CancellationToken,
    /// The connection serves, but another one should take its place.
    pub(crate) worn: CancellationToken,
}

impl Listener {
    /// Hears nothing.
    pub(crate) fn deaf() -> Self {
        let (broken, worn) = (CancellationToken::new(), CancellationToken::new());
        Self { message: Arc::new(|_| {}), gap: Arc::new(|| {}), broken, worn }
    }

    /// Hears one server.
    fn of_node(self) -> impl Fn(PushInfo) + Send + Sync + 'static {
        move |push| match push.kind {
            PushKind::Message => published(&push).into_iter().for_each(|text| (self.message)(text)),
            PushKind::Disconnection => self.broken.cancel(),
            _ => {}
        }
    }

    /// Hears a cluster, whose client replaces the connections to single nodes by itself, and does not always subscribe
    /// again.
    fn of_cluster(self) -> impl Fn(PushInfo) + Send + Sync + 'static {
        move |push| match push.kind {
            PushKind::Message => published(&push).into_iter().for_each(|text| (self.message)(text)),
            PushKind::Disconnection => {
                self.worn.cancel();
                (self.gap)();
            }
            // Also when it has subscribed again.
            PushKind::Subscribe => (self.gap)(),
            _ => {}
        }
    }
}

/// A connection to the server, or the servers, that may write. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Wire {
    Node {
        connection: MultiplexedConnection,
        /// Kept as long as the connection.
        _watch: Option<Arc<Watch>>,
    },
    Cluster {
        connection: ClusterConnection,
        /// When it was made; `None` where no node said so.
        masters: Option<Masters>,
    },
}

impl Wire {
    fn node(connection: MultiplexedConnection) -> Self {
        Self::Node { connection, _watch: None }
    }

    pub(crate) async fn query(&mut self, command: &Cmd) -> Result<Value, Fault> {
        let answer = match self {
            Self::Node { connection, .. } => command.query_async(connection).await,
            Self::Cluster { connection, .. } => command.query_async(connection).await,
        };
        answer.map_err(|error| self.fault(error))
    }

    /// As [`query`](Self::query), at the server that has this key.
    pub(crate) async fn query_at(&mut self, key: &str, command: &Cmd) -> Result<Value, Fault> {
        self.query_routed(
            SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master)),
            command,
        )
        .await
    }

    /// Sends commands to the server that has this key, one right after the other over one connection. A failure repeats
    /// all of them, or none. `asking`: a node that is importing the key's slot serves them, too.
    pub(crate) async fn query_together(
        &mut self,
        key: &str,
        commands: Vec<Cmd>,
        asking: bool,
    ) -> Result<Vec<Value>, Fault> {
        let (mut together, count) = (redis::pipe(), commands.len());
        // The client crate sends ASKING ahead of a request that it sends on, but as a request of its own: another request
        // of this connection can come between the two, and a node forgets ASKING with the next command.
        let asking = asking && matches!(self, Self::Cluster { .. });
        if asking {
            together.cmd("ASKING");
        }
        for command in commands {
            together.add_command(command);
        }
        let answers = match self {
            Self::Node { connection, .. } => connection.send_packed_commands(&together, 0, count).await,
            Self::Cluster { connection, .. } => {
                let node = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
                connection.route_pipeline(together, usize::from(asking), count, node).await
            }
        };
        let answers = answers.and_then(|all| all.into_iter().map(Value::extract_error).collect());
        let answers: Vec<Value> = answers.map_err(|error| self.fault(error))?;
        if answers.len() == count { Ok(answers) } else { Err(Fault::nonsense("not one answer per command")) }
    }

    fn fault(&self, error: RedisError) -> Fault {
        match self {
            Self::Node { .. } => Fault::from(error).without_cluster(),
            Self::Cluster { .. } => error.into(),
        }
    }

    /// As [`query`](Self::query), at any one server.
    pub(crate) async fn query_one(&mut self, command: &Cmd) -> Result<Value, Fault> {
        self.query_routed(SingleNodeRoutingInfo::RandomPrimary, command).await
    }

    async fn query_routed(&mut self, node: SingleNodeRoutingInfo, command: &Cmd) -> Result<Value, Fault> {
        match self {
            Self::Node { .. } => self.query(command).await,
            Self::Cluster { connection, .. } => {
                Ok(connection.route_command(command.clone(), RoutingInfo::SingleNode(node)).await?)
            }
        }
    }

    pub(crate) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Node { connection, .. } => connection.subscribe(channel).await,
            Self::Cluster { connection, .. } => connection.subscribe(channel).await,
        }
    }

    /// Whether there are other servers to which requests still go through when one of them does not answer.
    pub(crate) fn has_many_servers(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }

    /// Whether the servers say that there are other masters than when this was opened.
    pub(crate) async fn is_outdated(&mut self) -> bool {
        match self {
            Self::Node { .. } => false,
            Self::Cluster { connection, masters } => {
                Masters::ask(connection).await.is_ok_and(|now| Some(now) != *masters)
            }
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
}

impl Connector {
    pub(crate) fn timeout(&self) -> Duration {
        self.dialer.timeout
    }

    /// Opens a connection within the time limit.
    pub(crate) async fn connect(&self, listener: Listener) -> Result<Wire, Fault> {
        let found = async {
            match &self.topology {
                Topology::Single(address) => {
                    Ok(Wire::node(self.dialer.open(address, listener.of_node()).await?))
                }
                Topology::Replicas(addresses) => self.only_master(addresses, listener).await,
                Topology::Sentinel(sentinels) => self.by_sentinels(sentinels, listener).await,
                Topology::Cluster(addresses) => self.cluster(addresses, listener).await,
            }
        };
        let opened = tokio::time::timeout(self.timeout(), found).await;
        opened.unwrap_or_else(|_| Err(Fault::no_reply())).map_err(Fault::before_sending)
    }

    /// Asks all servers: one that was the master before a failover, and has been started again, still says that it is.
    async fn only_master(&self, addresses: &[Address], listener: Listener) -> Result<Wire, Fault> {
        // On connections of their own: what a replica's says at its end is no news. A server that hangs must leave time for
        // the connection that is made afterwards.
        let limit = self.timeout() / ASKING_SHARE;
        let asked = addresses.iter().map(|address| tokio::time::timeout(limit, self.id_of_master(address)));
        let answers = futures_util::future::join_all(asked).await;
        let mut masters: Vec<(&Address, Option<String>)> = Vec::new();
        let mut worst: Option<Fault> = None;
        for (address, answer) in addresses.iter().zip(answers) {
            match answer.unwrap_or_else(|_| Err(Fault::no_reply())) {
                // Two names of one server are one master.
                Ok(id) if id.is_some() && masters.iter().any(|(_, known)| *known == id) => {}
                Ok(id) => masters.push((address, id)),
                // A server that does not let us in says more than one that is away.
                Err(fault) if worst.is_none() || !fault.may_pass() => worst = Some(fault),
                Err(_) => {}
            }
        }
        match &*masters {
            [(master, _)] => Ok(Wire::node(self.dialer.open(master, listener.of_node()).await?)),
            [] => Err(worst.unwrap_or_else(|| Fault::nonsense("no server is configured"))),
            several => {
                let names: Vec<String> = several.iter().map(|(address, _)| address.to_string()).collect();
                let message = format!(
                    "{} are all masters, and share no locks: make all but one of them replicas of that one",
                    names.join(" and ")
                );
                Err(Fault::new(Effect::Busy, ErrorKind::Unavailable, message))
            }
        }
    }

    /// What a server that says that it is a master is known by; `None` where the user may not ask.
    async fn id_of_master(&self, address: &Address) -> Result<Option<String>, Fault> {
        let mut connection = self.dialer.open_master(address, |_| {}).await?;
        let info: RedisResult<String> = redis::cmd("INFO").arg("server").query_async(&mut connection).await;
        Ok(info.ok().map(|info| Probe::parse(&info).run_id).filter(|id| !id.is_empty()))
    }

    async fn by_sentinels(&self, sentinels: &Sentinels, listener: Listener) -> Result<Wire, Fault> {
        let asking = Dialer { login: self.sentinel_login.clone(), ..self.dialer.clone() };
        let master = sentinels.find(&asking).await?;
        let broken = listener.broken.clone();
        let connection = self.dialer.open_master(&master.address, listener.of_node()).await?;
        let watch = sentinels.watch(&asking, &master, &broken);
        Ok(Wire::Node { connection, _watch: Some(Arc::new(watch)) })
    }

    async fn cluster(&self, addresses: &[Address], listener: Listener) -> Result<Wire, Fault> {
        let nodes = addresses
            .iter()
            .map(|address| self.dialer.info(address, ProtocolVersion::RESP3))
            .collect::<Result<Vec<_>, _>>()?;
        let mut builder: ClusterClientBuilder = ClusterClient::builder(nodes)
            .use_protocol(ProtocolVersion::RESP3)
            .tcp_settings(self.dialer.tcp_settings())
            .connection_timeout(self.timeout() / NODE_SHARE)
            .response_timeout(self.timeout())
            .retries(CLUSTER_RETRIES)
            .min_retry_wait(CLUSTER_RETRY_PAUSE_MIN_MS)
            .max_retry_wait(CLUSTER_RETRY_PAUSE_MAX_MS)
            .max_connection_attempts(NonZeroUsize::MIN)
            .push_sender({
                let pushes = listener.of_cluster();
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
            Err(error) => return Err(self.refusal_of_nodes(addresses).await.unwrap_or(error.into())),
        };
        let masters = Masters::ask(&mut connection).await.ok();
        Ok(Wire::Cluster { connection, masters })
    }

    /// Why the nodes of a cluster do not let the client in, where they do not: the client crate calls them unreachable.
    async fn refusal_of_nodes(&self, addresses: &[Address]) -> Option<Fault> {
        let asked = addresses.iter().map(|address| async move {
            let opened = tokio::time::timeout(self.timeout() / NODE_SHARE, self.dialer.open(address, |_| {}));
            opened.await.unwrap_or_else(|_| Err(Fault::no_reply())).err()
        });
        let faults = futures_util::future::join_all(asked).await;
        faults.into_iter().flatten().find(|fault| !fault.may_pass())
    }
}
