//! Requests over a connection to one server, or to the servers of a cluster.

use std::sync::Arc;

use redis::{
    Cmd, RedisError, RedisResult, ToRedisArgs, Value,
    aio::MultiplexedConnection,
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};

use super::{SlotMasters, sentinel::SentinelWatch};
use crate::error::RequestError;

/// A connection to the server, or the servers, that may write. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Connection {
    Node {
        connection: MultiplexedConnection,
        /// Runs as long as the connection is in use.
        _watch: Option<Arc<SentinelWatch>>,
    },
    Cluster {
        connection: ClusterConnection,
        /// The masters when it was opened; `None` if no node reported them.
        masters: Option<SlotMasters>,
    },
}

impl Connection {
    pub(crate) fn node(connection: MultiplexedConnection) -> Self {
        Self::Node { connection, _watch: None }
    }

    pub(crate) async fn query(&mut self, command: &Cmd) -> Result<Value, RequestError> {
        let answer = match self {
            // `query_async` would put this future into a box.
            Self::Node { connection, .. } => {
                connection.send_packed_command(command).await.and_then(Value::extract_error)
            }
            Self::Cluster { connection, .. } => command.query_async(connection).await,
        };
        answer.map_err(|error| self.fault(error))
    }

    /// As [`query`](Self::query), at the master of this key.
    pub(crate) async fn query_at(&mut self, key: &str, command: &Cmd) -> Result<Value, RequestError> {
        self.query_routed(
            SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master)),
            command,
        )
        .await
    }

    /// Sends commands to the master of this key as one pipeline. The client crate repeats all of them or none. With
    /// `asking`, a node that is importing the key's slot serves them, too.
    pub(crate) async fn query_together(
        &mut self,
        key: &[u8],
        commands: Vec<Cmd>,
        asking: bool,
    ) -> Result<Vec<Value>, RequestError> {
        let (mut together, count) = (redis::pipe(), commands.len());
        // The client crate sends ASKING before a redirected request, but as a request of its own. Another request of
        // this connection can come between the two, and a node forgets ASKING after one command. So it is in the
        // pipeline.
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
        if answers.len() == count {
            Ok(answers)
        } else {
            Err(RequestError::unexpected("the number of answers is not that of the commands"))
        }
    }

    fn fault(&self, error: RedisError) -> RequestError {
        match self {
            Self::Node { .. } => RequestError::from(error).without_cluster(),
            Self::Cluster { .. } => RequestError::from(error).of_last_copy(),
        }
    }

    /// As [`query`](Self::query), at the master of this slot.
    pub(crate) async fn query_slot(&mut self, slot: u16, command: &Cmd) -> Result<Value, RequestError> {
        self.query_routed(SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master)), command)
            .await
    }

    /// Returns the first slot of each master, in order; of a single server, which has all slots, 0.
    pub(crate) async fn first_slots(&mut self) -> Result<Vec<u16>, RequestError> {
        match self {
            Self::Node { .. } => Ok(vec![0]),
            Self::Cluster { connection, .. } => Ok(SlotMasters::ask(connection).await?.first_slots()),
        }
    }

    /// As [`query`](Self::query), at any one master.
    pub(crate) async fn query_one(&mut self, command: &Cmd) -> Result<Value, RequestError> {
        self.query_routed(SingleNodeRoutingInfo::RandomPrimary, command).await
    }

    async fn query_routed(
        &mut self,
        node: SingleNodeRoutingInfo,
        command: &Cmd,
    ) -> Result<Value, RequestError> {
        match self {
            Self::Node { .. } => self.query(command).await,
            Self::Cluster { connection, .. } => {
                Ok(connection.route_command(command.clone(), RoutingInfo::SingleNode(node)).await?)
            }
        }
    }

    /// Subscribes to one channel, or to several.
    pub(crate) async fn subscribe(&mut self, channels: impl ToRedisArgs + Send) -> RedisResult<()> {
        match self {
            Self::Node { connection, .. } => connection.subscribe(channels).await,
            Self::Cluster { connection, .. } => connection.subscribe(channels).await,
        }
    }

    pub(crate) async fn unsubscribe(&mut self, channels: impl ToRedisArgs + Send) -> RedisResult<()> {
        match self {
            Self::Node { connection, .. } => connection.unsubscribe(channels).await,
            Self::Cluster { connection, .. } => connection.unsubscribe(channels).await,
        }
    }

    /// Returns whether requests to other servers still work when one server does not answer.
    pub(crate) fn has_many_servers(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }

    /// Returns whether the servers report other masters than when this connection was opened.
    pub(crate) async fn is_outdated(&mut self) -> bool {
        match self {
            Self::Node { .. } => false,
            Self::Cluster { connection, masters } => {
                SlotMasters::ask(connection).await.is_ok_and(|now| Some(now) != *masters)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use lockkit_conformance::direct::{
        HANG, LONG, acquire, bounded, enqueued, fresh_name, is_gave_up, name, start, try_acquire, until,
    };
    use lockkit_core::{Clock, ErrorKind, LockClient, backend::Backend, support::lock};

    use super::*;
    use crate::{
        RedisBackend, RedisConfig,
        tests::scripted::{Answer, FakeCluster, ScriptedServer, greeting},
        wire::{HEARTBEAT, RELEASE, RENEW},
    };

    const CLUSTERDOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";

    /// A cluster that is down and answers a withdrawal like this, its backend, and how many withdrawals were sent.
    async fn cluster_that_is_down(withdrawn: &'static str) -> (FakeCluster, RedisBackend, Arc<AtomicUsize>) {
        let releases = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&releases);
        let cluster = FakeCluster::answering(move |words| {
            let is_release = words[1] == RELEASE.digest();
            counted.fetch_add(usize::from(is_release), SeqCst);
            Answer::Text(if is_release { withdrawn } else { CLUSTERDOWN }.to_owned())
        })
        .await;
        let config =
            RedisConfig::cluster([cluster.server.address.to_string()]).unwrap().request_timeout(HANG);
        (cluster, RedisBackend::new(config), releases)
    }

    /// The master may have granted the lock and died before it answered an earlier copy. Its successor would keep the grant
    /// for a ttl.
    #[tokio::test]
    async fn try_whose_last_copy_had_no_effect_is_withdrawn() {
        let (cluster, backend, releases) = cluster_that_is_down(":1\r\n").await;
        let session = backend.open_session(LONG, Clock::boot()).await.unwrap();
        let error = try_acquire(&session, &fresh_name()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(releases.load(SeqCst), 1);
        assert!(cluster.scripts.load(SeqCst) > 2, "the client crate has sent no copies");
    }

    /// Else it would fail after the time limit of a try, without a reason.
    #[tokio::test]
    async fn try_that_a_cluster_refuses_fails_with_the_reason_although_its_withdrawal_is_refused() {
        let (_cluster, backend, releases) = cluster_that_is_down(CLUSTERDOWN).await;
        let client = LockClient::builder(backend).ttl(LONG).build().await.unwrap();
        let error = client.lock("x").unwrap().try_acquire().await.unwrap_err();
        assert!(error.to_string().contains("CLUSTERDOWN"), "{error}");
        assert!(releases.load(SeqCst) > 0, "not withdrawn");
    }

    /// As for a try: its entry would stay in the queue for a ttl.
    #[tokio::test]
    async fn waiting_claim_whose_last_copy_had_no_effect_is_withdrawn() {
        let (cluster, backend, releases) = cluster_that_is_down(":1\r\n").await;
        let session = backend.open_session(LONG, Clock::boot()).await.unwrap();
        let waiting = start(&session, &fresh_name());
        until("it has asked", async || cluster.scripts.load(SeqCst) > 0).await;
        waiting.control.give_up();
        assert!(is_gave_up(&waiting.ends().await));
        assert_eq!(releases.load(SeqCst), 1);
    }

    /// Starts a cluster of two masters, where the lock "held" is free and all others are held. Returns the port of one,
    /// and how many PINGs each of them got.
    async fn two_masters() -> (u16, Arc<[AtomicUsize; 2]>) {
        let (ports, pings) = (Arc::<Mutex<Vec<u16>>>::default(), Arc::<[AtomicUsize; 2]>::default());
        for number in 0..2 {
            let (ports, pings) = (Arc::clone(&ports), Arc::clone(&pings));
            let node = ScriptedServer::start(|port| {
                lock(&ports).push(port);
                move |_, words: &[String]| {
                    let node = |number: usize| {
                        format!("*3\r\n$9\r\n127.0.0.1\r\n:{}\r\n$1\r\n{number}\r\n", lock(&ports)[number])
                    };
                    Answer::Text(match words[0].to_ascii_uppercase().as_str() {
                        "CLUSTER" => format!(
                            "*2\r\n*3\r\n:0\r\n:8191\r\n{}*3\r\n:8192\r\n:16383\r\n{}",
                            node(0),
                            node(1)
                        ),
                        "EVALSHA" if words[1] == RENEW.digest() => "*1\r\n:1\r\n".to_owned(),
                        "EVALSHA" if words[1] == HEARTBEAT.digest() => {
                            "*1\r\n*2\r\n:60000\r\n:7\r\n".to_owned()
                        }
                        "EVALSHA" if words[3] == "held" => ":7\r\n".to_owned(),
                        "EVALSHA" => "*3\r\n$6\r\nqueued\r\n:60000\r\n:7\r\n".to_owned(),
                        "PING" => {
                            pings[number].fetch_add(1, SeqCst);
                            return greeting(words);
                        }
                        _ => return greeting(words),
                    })
                }
            });
            node.await;
        }
        let port = lock(&ports)[0];
        (port, pings)
    }

    /// It may serve no other request of this client, so nothing else shows that it is silent.
    #[tokio::test]
    async fn heartbeat_of_waiters_pings_the_master_that_publishes_to_their_client() {
        const HEARTBEATS: usize = 10;
        let (port, pings) = two_masters().await;
        let counted = || [0, 1].map(|number: usize| pings[number].load(SeqCst));
        let config = RedisConfig::cluster([format!("127.0.0.1:{port}")]).unwrap().request_timeout(HANG);
        let session = RedisBackend::new(config).open_session(LONG, Clock::boot()).await.unwrap();
        // A session that holds nothing would ping any master, too.
        let held = acquire(&session, &name("held")).await;
        let _waiting = enqueued(&session, &name("waited for")).await;
        bounded(session.renew(std::slice::from_ref(&held))).await;
        let before = counted();
        for _ in 0..HEARTBEATS {
            bounded(session.renew(std::slice::from_ref(&held))).await;
        }
        let after = counted();
        let mut sent = [after[0] - before[0], after[1] - before[1]];
        sent.sort_unstable();
        assert_eq!(sent, [0, HEARTBEATS]);
    }
}
